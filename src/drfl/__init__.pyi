"""Public names of drfl, read by type checkers, editors and the lazy imports of ``__init__.py``."""

from drfl import algorithms as algorithms  # module
from drfl import ambiguity as ambiguity  # module
from drfl import data as data  # module
from drfl import engine as engine  # module
from drfl import resilience as resilience  # module
from drfl import testing as testing  # module
from drfl.algorithms import AFL as AFL
from drfl.algorithms import ALGORITHMS as ALGORITHMS
from drfl.algorithms import DRDM as DRDM
from drfl.algorithms import DRFA as DRFA
from drfl.algorithms import DRFAGA as DRFAGA
from drfl.algorithms import MIME as MIME
from drfl.algorithms import MOON as MOON
from drfl.algorithms import SCAFFOLD as SCAFFOLD
from drfl.algorithms import TERM as TERM
from drfl.algorithms import AAggFFS as AAggFFS
from drfl.algorithms import ClientSide as ClientSide
from drfl.algorithms import DeltaFL as DeltaFL
from drfl.algorithms import Ditto as Ditto
from drfl.algorithms import DRFAProx as DRFAProx
from drfl.algorithms import DualDRDM as DualDRDM
from drfl.algorithms import FedAvg as FedAvg
from drfl.algorithms import FedBN as FedBN
from drfl.algorithms import FedDyn as FedDyn
from drfl.algorithms import FedLC as FedLC
from drfl.algorithms import FedMGDAPlus as FedMGDAPlus
from drfl.algorithms import FedNova as FedNova
from drfl.algorithms import FedProx as FedProx
from drfl.algorithms import FedRep as FedRep
from drfl.algorithms import FGDROKLAdam as FGDROKLAdam
from drfl.algorithms import FineTuned as FineTuned
from drfl.algorithms import LocalOnly as LocalOnly
from drfl.algorithms import PersonalClientSide as PersonalClientSide
from drfl.algorithms import Pooled as Pooled
from drfl.algorithms import PropFair as PropFair
from drfl.algorithms import QFedAvg as QFedAvg
from drfl.algorithms import ScaffPD as ScaffPD
from drfl.algorithms import theory as theory  # module
from drfl.ambiguity import KL as KL
from drfl.ambiguity import AmbiguitySet as AmbiguitySet
from drfl.ambiguity import Box as Box
from drfl.ambiguity import ChiSquare as ChiSquare
from drfl.ambiguity import ChiSquareBall as ChiSquareBall
from drfl.ambiguity import CVaR as CVaR
from drfl.ambiguity import KLBall as KLBall
from drfl.ambiguity import Simplex as Simplex
from drfl.core.errors import DataWarning as DataWarning
from drfl.core.errors import DivergedError as DivergedError
from drfl.core.errors import DrflError as DrflError
from drfl.core.errors import InputError as InputError
from drfl.core.errors import NonFiniteError as NonFiniteError
from drfl.core.errors import RunWarning as RunWarning
from drfl.core.key import Key as Key
from drfl.data import IID as IID
from drfl.data import ClientData as ClientData
from drfl.data import Dataset as Dataset
from drfl.data import DirichletDrop as DirichletDrop
from drfl.data import Natural as Natural
from drfl.data import OneClass as OneClass
from drfl.data import Partition as Partition
from drfl.data import ReadOptions as ReadOptions
from drfl.data import TableSchema as TableSchema
from drfl.data import ZipfDirichlet as ZipfDirichlet
from drfl.data import load as load
from drfl.data import load_model as load_model
from drfl.engine import Auto as Auto
from drfl.engine import Engine as Engine
from drfl.engine import Loop as Loop
from drfl.engine import RayWorkers as RayWorkers
from drfl.engine import Simulation as Simulation
from drfl.engine import Stacked as Stacked
from drfl.engine import Threads as Threads
from drfl.experiments.api import assess as assess
from drfl.experiments.api import assess_gain as assess_gain
from drfl.experiments.api import compare as compare
from drfl.experiments.api import data_spec as data_spec
from drfl.experiments.api import evaluate as evaluate
from drfl.experiments.api import fit as fit
from drfl.experiments.api import tune as tune
from drfl.experiments.sweep.api import load_comparison as load_comparison
from drfl.experiments.sweep.api import load_runs as load_runs
from drfl.experiments.sweep.api import sweep as sweep
from drfl.federation import sampling as sampling
from drfl.federation.algorithm import Algorithm as Algorithm
from drfl.federation.algorithm import Info as Info
from drfl.federation.algorithm import State as State
from drfl.federation.federation import Evaluation as Evaluation
from drfl.federation.federation import Federation as Federation
from drfl.federation.federation import Ledger as Ledger
from drfl.federation.local_method import LocalMethod as LocalMethod
from drfl.federation.requests import Gradients as Gradients
from drfl.federation.requests import Losses as Losses
from drfl.federation.requests import Replies as Replies
from drfl.optim import local_optimizers as local_optimizers  # module
from drfl.optim import schedules as schedules  # module
from drfl.optim import server_optimizers as server_optimizers  # module
from drfl.optim.local import LocalSGD as LocalSGD
from drfl.task import augmentations as augmentations  # module
from drfl.task import metrics as metrics  # module
from drfl.task import models as models
from drfl.task import training_noise as training_noise  # module
from drfl.task.layout import Layout as Layout
from drfl.task.losses import BatchLoss as BatchLoss
from drfl.task.measure import Rows as Rows
from drfl.task.metrics import METRICS as METRICS
from drfl.task.metrics import Metric as Metric
from drfl.task.metrics import argmax_accuracy as argmax_accuracy
from drfl.task.metrics import binary_accuracy as binary_accuracy
from drfl.task.task import Task as Task
from drfl.training import certificate as certificate  # module
from drfl.training import trackers as trackers  # module
from drfl.training.averages import Average as Average
from drfl.training.callbacks import Progress as Progress
from drfl.training.callbacks import ProgressBar as ProgressBar
from drfl.training.checkpoint import Checkpoints as Checkpoints
from drfl.training.history import History as History
from drfl.training.history import Metrics as Metrics
from drfl.training.history import Row as Row
from drfl.training.loop import Result as Result
from drfl.training.loop import run as run
from drfl.training.run_state import RunState as RunState
