"""The portfolio of a fit, and the builders of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.validation_split import held_out_training
from drfl.experiments.config.build import VALIDATION, Setup, make_setup
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.task.measure import Rows
from drfl.task.metrics import Metric

ROW_LOSS = "validation_loss"
"""The name of the only metric of the selection stage: the loss of each validation row."""

WEIGHT_DECAY = "weight_decay"


class Member(NamedTuple):
    """An algorithm with the parameters that differ from its defaults.

    Args:
        name: Its name in tables.
        algorithm: The name of the algorithm.
        parameters: The parameters.
    """

    name: str
    algorithm: str
    parameters: Mapping[str, Value] = {}


# From simple to complex. evidence/results/promise/table.md has the worst client of seven algorithms on 14 jobs. FedAvg
# is the best on adult-hours and level with the others on adult-education and hospitals, and SCAFFOLD is the best on
# digits-dirichlet. SCAFF-PD, with all clients in every round, is the best on mnist-swapped-labels and the closest to
# the saddle value on five jobs. Dual DRDM is the best, or within the noise of the best, on the jobs with divided
# classes. AFL and DRFA are nowhere clearly ahead of all of these. Weight decay lowers the worst client's test loss on
# small tables more than any change of the algorithm does, and costs accuracy if clients contradict each other.
PORTFOLIO = (
    Member("FedAvg", "FedAvg"),
    Member("FedAvg, weight decay 0.01", "FedAvg", {WEIGHT_DECAY: 1e-2}),
    Member("SCAFFOLD", "SCAFFOLD"),
    # Reports on more rows would make a round take ten times as long on large clients.
    Member("SCAFF-PD", "ScaffPD", {"dual_batch": 500}),
    Member("dual DRDM", "DualDRDM"),
    Member("dual DRDM, weight decay 0.01", "DualDRDM", {WEIGHT_DECAY: 1e-2}),
)
"""The members, from simple to complex: a later one is chosen only if it is significantly better than the first."""


def reference(name: str, algorithm: str, chosen: Member) -> Member:
    """Return a reference with the weight decay of the chosen member."""
    return Member(name, algorithm, {k: value for k, value in chosen.parameters.items() if k == WEIGHT_DECAY})


@dataclass(frozen=True)
class FitJobs:
    """Builds the runs of a fit.

    Args:
        selection: Clients that train on four fifths of their training rows and are tested on the rest, by their loss.
        final: Clients that train on all their training rows and are tested on their test rows.
        make: Makes the run of a member in one of these setups.
        config: The settings from which a fit resumes, as plain values.
    """

    selection: Setup
    final: Setup
    make: Callable[[Setup, Member], Job]
    config: Mapping[str, object]

    @classmethod
    def of(
        cls, setup: Setup, settings: RunSettings, make: Callable[[Setup, Member], Job], config: Mapping[str, object]
    ) -> FitJobs:
        """Hold out validation rows from the clients of a setup.

        Args:
            setup: Clients, task and simulation. Validation rows that the clients have already are used.
            settings: The settings of the runs.
            make: See :class:`FitJobs`.
            config: See :class:`FitJobs`.

        Raises:
            InputError: If the loss is a :class:`drfl.BatchLoss`.
        """
        data, task = setup.data, setup.task
        if task.criterion.of_batch:
            raise InputError(
                "fit compares models by the losses of validation rows, which a BatchLoss does not give. Use a loss "
                "with one value per row",
                code="unsupported-combination",
                field="loss",
            )
        held = held_out_training(data, VALIDATION, Key(settings.seed))
        loss = Metric(ROW_LOSS, task.criterion, more_is_better=False, rows=Rows.REAL, per_sample=True)
        selection = make_setup(settings, setup.partition, held, replace(task, score=loss, metrics=()), setup.origin)
        if data.validation is not None:
            train = tuple(torch.cat(rows).unique() for rows in zip(data.train, data.validation, strict=True))
            whole = replace(data, train=train, validation=None)
            setup = make_setup(settings, setup.partition, whole, task, setup.origin)
        return cls(selection, setup, make, config)
