"""The portfolio of a fit, and the builders of its runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.data.validation_split import held_out_training
from drfl.experiments.config.algorithm_settings import AlgorithmSettings
from drfl.experiments.config.build import VALIDATION, Setup, make_setup
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.config.ready_run import Job, Running
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.fit.judge import Judge
from drfl.experiments.fit.validation_rows import SimulatedRows, scored_by_loss
from drfl.federation.federation import Evaluation

WEIGHT_DECAY = "weight_decay"


C = TypeVar("C", bound=AlgorithmSettings)


class Member(NamedTuple):
    """An algorithm with the parameters that differ from its defaults."""

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
"""The members, from simple to complex; see :func:`drfl.assessment.choice.choose`."""


REFERENCES = {"local_only": ("local only", "LocalOnly"), "pooled": ("pooled", "Pooled")}
"""References by their keys in files: name in tables, and algorithm."""


def reference(name: str, algorithm: str, chosen: Member) -> Member:
    """Return a reference with the weight decay of the chosen member."""
    return Member(name, algorithm, {k: value for k, value in chosen.parameters.items() if k == WEIGHT_DECAY})


def with_member(config: C, member: Member) -> C:
    """Return a configuration with the algorithm and the parameters of a member."""
    tables = {member.algorithm: dict(member.parameters)}
    return config.model_copy(update={"algorithm": member.algorithm, "algorithms": tables})


class FitRuns(Protocol):
    """Builds the runs of a fit, in this process or at sites.

    Attributes:
        references: The references that can run, by their keys in files: name in tables, and algorithm.
    """

    references: ClassVar[Mapping[str, tuple[str, str]]]

    @property
    def independent(self) -> bool:
        """Whether no two clients share a test row or a validation row."""
        ...

    @property
    def config(self) -> Mapping[str, object]:
        """The settings from which a fit resumes, as plain values."""
        ...

    def judge(self) -> Judge:
        """Return the judge of the selection stage."""
        ...

    def trial(self, member: Member) -> Running:
        """Make a member's run of the selection stage, without the validation rows."""
        ...

    def whole(self, member: Member) -> Running:
        """Make a member's run on all training rows."""
        ...

    def test(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """Test models (d,) on the test rows."""
        ...


@dataclass(frozen=True)
class FitJobs:
    """Builds the runs of a fit in this process.

    Args:
        selection: Clients that train on four fifths of their training rows and are tested on the rest, by their loss.
        final: Clients that train on all their training rows and are tested on their test rows.
        make: Makes the run of a member in one of these setups.
        config: See :class:`FitRuns`.
    """

    references: ClassVar[Mapping[str, tuple[str, str]]] = REFERENCES

    selection: Setup
    final: Setup
    make: Callable[[Setup, Member], Job]
    config: Mapping[str, object]

    @classmethod
    def of(
        cls, setup: Setup, settings: RunSettings, make: Callable[[Setup, Member], Job], config: Mapping[str, object]
    ) -> FitJobs:
        """Hold out validation rows from the clients of a setup.

        Validation rows that the clients have already are used.
        """
        data, task = setup.data, setup.task
        scored = scored_by_loss(task)
        held = held_out_training(data, VALIDATION, Key(settings.seed))
        selection = make_setup(settings, setup.partition, held, scored, setup.origin)
        if data.validation is not None:
            # The final runs train on all rows, also on those that the user held out.
            train = tuple(torch.cat(rows).unique() for rows in zip(data.train, data.validation, strict=True))
            whole = replace(data, train=train, validation=None)
            setup = make_setup(settings, setup.partition, whole, task, setup.origin)
        return cls(selection, setup, make, config)

    @property
    def independent(self) -> bool:
        """See :class:`FitRuns`."""
        return not self.selection.data.shares_test_rows

    @cached_property
    def rows(self) -> SimulatedRows:
        """The validation rows."""
        return SimulatedRows(self.selection.fed)

    def judge(self) -> Judge:
        """See :class:`FitRuns`."""
        data = self.selection.data
        unseen = [not np.isin(test, train).any() for train, test in zip(data.train, data.test, strict=True)]
        return Judge.of(self.rows, data.names, unseen, self.selection.fed.w0)

    def trial(self, member: Member) -> Job:
        """See :class:`FitRuns`."""
        return self.make(self.selection, member)

    def whole(self, member: Member) -> Job:
        """See :class:`FitRuns`."""
        return self.make(self.final, member)

    def test(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """See :class:`FitRuns`."""
        return self.final.fed.evaluate_all(models)
