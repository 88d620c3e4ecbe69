"""Distributionally robust federated learning: min_w max_{λ∈Λ} Σ_i λ_i f_i(w) over clients that keep their data.

Example:
    >>> import torch, drfl
    >>> x, y = torch.randn(3, 40, 5), torch.randint(0, 2, (3, 40))
    >>> data = drfl.ClientData.from_arrays(list(zip(x, y)))
    >>> fed = drfl.Simulation(data, drfl.Task(torch.nn.Linear(5, 2)))
    >>> result = drfl.run(drfl.DRFA(m=2), fed, rounds=3)
    >>> result.history.last.round
    3
"""

from __future__ import annotations

from drfl import cohort, models
from drfl.algorithm import Algorithm, Average, Info, Result, State, Step, run
from drfl.algorithms import (
    AFL,
    ALGORITHMS,
    DRDM,
    DRFA,
    DRFAGA,
    SCAFFOLD,
    DeltaFL,
    DRFAProx,
    DualDRDM,
    FedAvg,
    FedDyn,
    FedProx,
    QFedAvg,
    ScaffPD,
)
from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
from drfl.callbacks import Progress, Target
from drfl.data import IID, ClientData, Dataset, DirichletDrop, Natural, OneClass, Partition, ZipfDirichlet, load
from drfl.engine import Engine, Loop, Simulation, Stacked, Threads
from drfl.errors import DivergedError, DrflError, InputError, NonFiniteError
from drfl.federation import Evaluation, Federation, Gradients, Ledger, Losses, Replies
from drfl.history import History, Metrics, Row
from drfl.key import Key
from drfl.layout import Layout
from drfl.local import LocalSGD
from drfl.task import Task, argmax_accuracy, binary_accuracy

__all__ = [
    "AFL",
    "ALGORITHMS",
    "DRDM",
    "DRFA",
    "DRFAGA",
    "IID",
    "KL",
    "SCAFFOLD",
    "Algorithm",
    "AmbiguitySet",
    "Average",
    "Box",
    "CVaR",
    "ChiSquare",
    "ChiSquareBall",
    "ClientData",
    "DRFAProx",
    "Dataset",
    "DeltaFL",
    "DirichletDrop",
    "DivergedError",
    "DrflError",
    "DualDRDM",
    "Engine",
    "Evaluation",
    "FedAvg",
    "FedDyn",
    "FedProx",
    "Federation",
    "Gradients",
    "History",
    "Info",
    "InputError",
    "KLBall",
    "Key",
    "Layout",
    "Ledger",
    "LocalSGD",
    "Loop",
    "Losses",
    "Metrics",
    "Natural",
    "NonFiniteError",
    "OneClass",
    "Partition",
    "Progress",
    "QFedAvg",
    "Replies",
    "Result",
    "Row",
    "ScaffPD",
    "Simplex",
    "Simulation",
    "Stacked",
    "State",
    "Step",
    "Target",
    "Task",
    "Threads",
    "ZipfDirichlet",
    "argmax_accuracy",
    "binary_accuracy",
    "cohort",
    "load",
    "models",
    "run",
]
