"""A run that stopped, with the values that its files, tables and messages share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from drfl.algorithms import REFERENCES
from drfl.core.errors import Notice
from drfl.core.hashing import digest_of
from drfl.core.run_end import ENDS, ON_TEST, StopReason
from drfl.data.pools import RARE, ConstantAnswer
from drfl.engine import Simulation
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.run_warnings import EndChecks, end_checks, warnings_of
from drfl.federation.algorithm import core_of
from drfl.federation.federation import Evaluation
from drfl.task.measure import Rows
from drfl.task.metrics import ACCURACY
from drfl.training.history import DIGITS
from drfl.training.loop import Result


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """A run that stopped. Values that take time are computed once."""

    job: Running
    result: Result

    @property
    def stopped(self) -> StopReason:
        """Why it stopped."""
        return self.result.stopped

    @property
    def has_ended(self) -> bool:
        """Whether it reached its end."""
        return self.stopped in ENDS

    @cached_property
    def worst_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the worst client's true score; None if there is none, or test rows stopped the run."""
        return self.interval_of(self.result.evaluation)

    def interval_of(self, evaluation: Evaluation) -> tuple[float, float] | None:
        """Return the same interval for another test of the run."""
        from drfl.assessment.assess_evaluation import worst_interval  # scipy takes a while to load

        if self.result.stopped_on == "test":
            return None
        return worst_interval(evaluation, self.job.fed.measures[0])

    def interval_line(self) -> str | None:
        """Return the line that commands print on that interval; None if there is none."""
        from drfl.assessment.sentences import interval_line

        score = self.job.fed.measures[0]
        if self.result.stopped_on == "test":
            return f"no interval of the worst client's true {score.words}: {ON_TEST}"
        interval = self.worst_interval
        return None if interval is None else interval_line(score, *interval, self.result.history.last.note)

    @cached_property
    def checks(self) -> EndChecks:
        """The checks at its end; empty if it was interrupted."""
        return end_checks(self.job, self.result) if self.has_ended else EndChecks()

    @cached_property
    def data_warnings(self) -> tuple[Notice, ...]:
        """Warnings about its data."""
        return warnings_of(self.job)

    @property
    def is_reference(self) -> bool:
        """Whether the run is not federated, but shows the cost and the gain of federation."""
        return isinstance(core_of(self.job.algorithm), REFERENCES)

    @property
    def is_personal(self) -> bool:
        """Whether each client is tested with its own model."""
        return self.result.personal is not None

    @cached_property
    def test_rows(self) -> str | None:
        """A digest of the clients' test rows; None if only the sites have them."""
        return self.job.fed.test_rows_digest() if isinstance(self.job.fed, Simulation) else None

    @cached_property
    def initial_model(self) -> str:
        """A digest of the initial model."""
        return digest_of([self.job.task.w0])

    @cached_property
    def constant(self) -> ConstantAnswer | None:
        """The scores of a constant answer, the most frequent class; None if they are low or accuracy is not measured.

        The server of a deployment knows only the share of each site's own most frequent class.
        """
        fed = self.job.fed
        # A constant answer competes only on accuracy.
        if all(measure.name != ACCURACY.name for measure in fed.measures):
            return None
        if isinstance(fed, Simulation):
            return fed.data.constant
        shares, rows = fed.majority, self.result.evaluation.samples.double()
        if shares is None or float(shares @ rows / rows.sum()) <= 1 - RARE:
            return None
        return ConstantAnswer(None, float(shares @ rows / rows.sum()), shares)

    @property
    def reading_aids(self) -> dict[str, object]:
        """Values that help to read accuracies and rates: a constant answer's scores, and the threshold."""
        constant, threshold, evaluation = None, None, self.result.evaluation
        if self.constant is not None:
            worst = round(float(self.constant.shares.min()), DIGITS)
            overall = round(self.constant.overall, DIGITS)
            constant = {"class": self.constant.label, "accuracy": overall, "worst_accuracy": worst}
        if any(measure.rows is Rows.RATE for measure in self.job.fed.measures):
            # (1 + tanh(x/2))/2 is the logistic function without overflow.
            odds, chosen = evaluation.threshold or 0.0, evaluation.threshold is not None
            threshold = {"probability": (1 + math.tanh(odds / 2)) / 2, "chosen_on": "validation" if chosen else None}
        return {"constant": constant, "threshold": threshold}
