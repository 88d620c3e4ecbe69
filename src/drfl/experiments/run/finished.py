"""A run that stopped, and what its files, tables and messages say of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from drfl.algorithms import REFERENCES
from drfl.core.errors import Notice
from drfl.core.hashing import digest_of
from drfl.core.run_end import ENDS, ON_TEST, Stopped
from drfl.data.pools import RARE, ConstantAnswer
from drfl.engine import Simulation
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.data_warnings import warnings_of
from drfl.experiments.run.end_checks import EndChecks, end_checks
from drfl.federation.algorithm import core_of
from drfl.federation.federation import Evaluation
from drfl.task.measure import Rows
from drfl.task.metrics import ACCURACY
from drfl.training.history import DIGITS
from drfl.training.loop import Result


@dataclass(frozen=True, eq=False)
class Finished:
    """A run that stopped. What takes time is computed once.

    Args:
        job: what ran.
        result: what it gave.
    """

    job: Running
    result: Result

    @property
    def stopped(self) -> Stopped:
        """Why it stopped."""
        return self.result.stopped

    @property
    def ended(self) -> bool:
        """Whether it reached its end."""
        return self.stopped in ENDS

    @cached_property
    def worst_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the worst client's true score; None if its test says too little, or decided to stop."""
        return self.interval_of(self.result.evaluation)

    def interval_of(self, evaluation: Evaluation) -> tuple[float, float] | None:
        """The same of another test of the run."""
        from drfl.assessment.evaluation import worst_interval  # scipy takes a while to load

        if self.result.stopped_on == "test":
            return None
        return worst_interval(evaluation, self.job.fed.measures[0])

    def interval_line(self) -> str | None:
        """What commands print of that interval; None if there is nothing to say."""
        from drfl.assessment.sentences import interval_line

        score = self.job.fed.measures[0]
        if self.result.stopped_on == "test":
            return f"no interval of the worst client's true {score.words}: {ON_TEST}"
        interval = self.worst_interval
        return None if interval is None else interval_line(score, *interval, self.result.history.last.note)

    @cached_property
    def checks(self) -> EndChecks:
        """What there is to say of it; nothing if it was interrupted."""
        return end_checks(self.job, self.result) if self.ended else EndChecks()

    @cached_property
    def data_warnings(self) -> tuple[Notice, ...]:
        """What is conspicuous in its data."""
        return warnings_of(self.job)

    @property
    def is_reference(self) -> bool:
        """Whether the run is not federated, but shows what federation costs and gains."""
        return isinstance(core_of(self.job.algorithm), REFERENCES)

    @cached_property
    def test_rows(self) -> str | None:
        """What the clients' test rows are known by; None if they are at the sites."""
        return self.job.fed.test_rows_digest() if isinstance(self.job.fed, Simulation) else None

    @cached_property
    def initial_model(self) -> str:
        """What the model that the run started from is known by."""
        return digest_of([self.job.task.w0])

    @cached_property
    def constant(self) -> ConstantAnswer | None:
        """What a constant answer scores on the test rows, if accuracy is measured and it looks good.

        A server knows of its sites the share of each one's own most frequent class alone.
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
    def beside(self) -> dict[str, object]:
        """What accuracies and rates have to be read with: a constant answer's, and the threshold with what chose it."""
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
