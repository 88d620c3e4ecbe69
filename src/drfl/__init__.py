"""Distributionally robust federated learning: min_w max_{λ∈Λ} Σ_i λ_i f_i(w) over clients that keep their data.

A name is imported when it is first used: ``import drfl`` alone loads neither torch nor any other package.

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

TYPE_CHECKING = False
"""True to type checkers. Importing it from typing would take longer than all else before a command handles signals."""

_NAMES = {
    "algorithm": ("Algorithm", "Info", "State"),
    "algorithms": (
        *("AFL", "ALGORITHMS", "DRDM", "DRFA", "DRFAGA", "SCAFFOLD", "DRFAProx", "DeltaFL", "DualDRDM", "FedAvg"),
        *("FedDyn", "FedNova", "FedProx", "FineTuned", "LocalOnly", "Pooled", "QFedAvg", "ScaffPD"),
    ),
    "ambiguity": ("KL", "AmbiguitySet", "Box", "CVaR", "ChiSquare", "ChiSquareBall", "KLBall", "Simplex"),
    "averages": ("Average",),
    "callbacks": ("Progress", "ProgressBar"),
    "checkpoint": ("Checkpoints",),
    "data": (
        *("IID", "ClientData", "Dataset", "DirichletDrop", "Natural", "OneClass", "Partition", "ZipfDirichlet"),
        *("load", "read_model"),
    ),
    "engine": ("Auto", "Engine", "Loop", "RayWorkers", "Simulation", "Stacked", "Threads"),
    "errors": ("DataWarning", "DivergedError", "DrflError", "InputError", "NonFiniteError", "RunWarning"),
    "federation": ("Evaluation", "Federation", "Ledger"),
    "history": ("History", "Metrics", "Row"),
    "key": ("Key",),
    "layout": ("Layout",),
    "local": ("LocalSGD",),
    "loop": ("Result", "Step", "run"),
    "study": ("assess", "assess_gain", "compare", "tune"),
    "model_selection": ("Best", "Patience", "Target"),
    "measure": ("Rows",),
    "metrics": ("METRICS", "Metric", "argmax_accuracy", "binary_accuracy"),
    "requests": ("Gradients", "Losses", "Replies"),
    "task": ("Task",),
}
"""Which of the package's modules has which public names."""

_MODULES = (
    *_NAMES,
    *("certificate", "local_optimizers", "models", "sampling", "schedules", "server_optimizers", "testing", "theory"),
    *("augmentations", "trackers", "training_noise"),
)
"""The modules that are attributes of the package without having been imported."""

if TYPE_CHECKING:
    # For type checkers and editors, which do not follow the table; tests/packaging/test_imports.py has the two agree.
    from drfl import ambiguity as ambiguity
    from drfl.task import augmentations as augmentations
    from drfl.training import certificate as certificate
    from drfl import data as data
    from drfl.optim import local_optimizers as local_optimizers
    from drfl.task import metrics as metrics
    from drfl.task import models
    from drfl.federation import sampling
    from drfl.optim import schedules as schedules
    from drfl.optim import server_optimizers as server_optimizers
    from drfl import testing as testing
    from drfl.algorithms import theory as theory
    from drfl.training import trackers as trackers
    from drfl.task import training_noise as training_noise
    from drfl.federation.algorithm import Algorithm, Info, State
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
        FedNova,
        FedProx,
        FineTuned,
        LocalOnly,
        Pooled,
        QFedAvg,
        ScaffPD,
    )
    from drfl.ambiguity import KL, AmbiguitySet, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex
    from drfl.training.averages import Average
    from drfl.training.callbacks import Progress, ProgressBar
    from drfl.training.checkpoint import Checkpoints
    from drfl.data import (
        IID,
        ClientData,
        Dataset,
        DirichletDrop,
        Natural,
        OneClass,
        Partition,
        ZipfDirichlet,
        load,
        read_model,
    )
    from drfl.engine import Auto, Engine, Loop, RayWorkers, Simulation, Stacked, Threads
    from drfl.core.errors import DataWarning, DivergedError, DrflError, InputError, NonFiniteError, RunWarning
    from drfl.federation.federation import Evaluation, Federation, Ledger
    from drfl.training.history import History, Metrics, Row
    from drfl.core.key import Key
    from drfl.task.layout import Layout
    from drfl.optim.local import LocalSGD
    from drfl.training.loop import Result, Step, run
    from drfl.task.measure import Rows
    from drfl.task.metrics import METRICS, Metric, argmax_accuracy, binary_accuracy
    from drfl.training.model_selection import Best, Patience, Target
    from drfl.federation.requests import Gradients, Losses, Replies
    from drfl.experiments.api import assess, assess_gain, compare, tune
    from drfl.task.task import Task
else:  # hidden from type checkers, who would believe any name of a module that has __getattr__
    _HOMES = {name: module for module, names in _NAMES.items() for name in names}

    def __getattr__(name: str) -> object:
        """Import a public name, or a public module, at its first use."""
        from importlib import import_module

        if name in _MODULES:
            return import_module(f"drfl.{name}")  # which sets the attribute too
        if name not in _HOMES:
            from difflib import get_close_matches

            by_lower = {known.lower(): known for known in _HOMES}
            near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
            hint = f"; did you mean '{by_lower[near[0]]}'?" if near else ""
            raise AttributeError(f"module 'drfl' has no attribute '{name}'{hint}")
        value = getattr(import_module(f"drfl.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        """What is there and what can be imported."""
        return sorted({*globals(), *_HOMES, *_MODULES})


__all__ = [
    "AFL",
    "ALGORITHMS",
    "DRDM",
    "DRFA",
    "DRFAGA",
    "IID",
    "KL",
    "METRICS",
    "SCAFFOLD",
    "Algorithm",
    "AmbiguitySet",
    "Auto",
    "Average",
    "Best",
    "Box",
    "CVaR",
    "Checkpoints",
    "ChiSquare",
    "ChiSquareBall",
    "ClientData",
    "DRFAProx",
    "DataWarning",
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
    "FedNova",
    "FedProx",
    "Federation",
    "FineTuned",
    "Gradients",
    "History",
    "Info",
    "InputError",
    "KLBall",
    "Key",
    "Layout",
    "Ledger",
    "LocalOnly",
    "LocalSGD",
    "Loop",
    "Losses",
    "Metric",
    "Metrics",
    "Natural",
    "NonFiniteError",
    "OneClass",
    "Partition",
    "Patience",
    "Pooled",
    "Progress",
    "ProgressBar",
    "QFedAvg",
    "RayWorkers",
    "Replies",
    "Result",
    "Row",
    "Rows",
    "RunWarning",
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
    "assess",
    "assess_gain",
    "binary_accuracy",
    "compare",
    "load",
    "models",
    "read_model",
    "run",
    "sampling",
    "tune",
]
