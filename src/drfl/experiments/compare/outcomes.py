"""Outcomes of a comparison's runs, and statistics over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ValidationError

from drfl.assessment.equal_clients import EqualClients, equal_clients
from drfl.core.errors import DivergedError, InputError
from drfl.core.json_toml import read_json
from drfl.core.run_end import Marks, failures_text
from drfl.core.user_code import label_of
from drfl.experiments.run.finished import FinishedRun
from drfl.experiments.run.manifest import OUTCOMES
from drfl.experiments.run.measures import column, deviation
from drfl.report.read_run import remark_lines
from drfl.task.measure import NOTHING, Measure, undefined_note
from drfl.task.metrics import ACCURACY
from drfl.training.certificate import Certificate
from drfl.training.checkpoint.record import first_fault
from drfl.training.history import Metrics, undefined_names


class Outcome(NamedTuple):
    """The outcome of a run in a comparison: an algorithm at a seed.

    Args:
        algorithm: The algorithm's label, see :func:`drfl.core.user_code.label_of`.
        seed: The seed.
        stopped: "rounds", "target" or "patience"; "diverged" or "refused" if the run failed.
        rounds: The number of rounds; 0 if the run failed.
        metrics: The metrics of the returned model; None if the run failed.
        certificate: The certificate of the last iterate; None if there is none.
        reason: Why the run failed, or why it counts as failed although it has metrics.
        equal: The worst accuracy expected if all clients were equally good at this average accuracy; None if the run
            failed, or has another score.
        others: Average and worst over clients of the metrics beside the score, see
            :func:`drfl.training.history.others_of`.
        worst_interval: The 95 % interval of the worst client's true score, see
            :func:`drfl.assessment.worst.worst_score`; None if the run failed, single rows have no score, or test rows
            stopped the run.
        undefined: The clients at which a metric is undefined, by its name, see
            :func:`drfl.training.history.undefined_names`.
        stopped_on: The rows that decided to stop: "validation", "test", or "" if none did.
        rollbacks: How often the model was reset to an earlier one.
        lost_rounds: Rounds that do not count because of rollbacks.
        last_rollback: Number of rounds done before the last rollback.
        test_rows: A digest of the test rows; "" if it is not known.
        initial_model: A digest of the initial model; "" if it is not known.
        beside: Lines that help to interpret accuracies and rates, see :func:`drfl.report.read_run.remark_lines`.
        reference: Whether the run is not federated, but shows the cost and the gain of federation.
        personal: Whether each client is tested with its own model.
        start: Where the model starts, see :class:`drfl.data.warm_start.WarmStart`; None if it starts at random.
        run: The name of the run's folder if algorithm and seed do not identify it, as in a sweep.
    """

    algorithm: str
    seed: int
    stopped: str
    rounds: int = 0
    metrics: Metrics | None = None
    certificate: Certificate | None = None
    reason: str = ""
    equal: EqualClients | None = None
    others: dict[str, float] = {}  # noqa: RUF012 - nobody writes to it
    worst_interval: tuple[float, float] | None = None
    undefined: dict[str, tuple[str, ...]] = {}  # noqa: RUF012 - nobody writes to it
    stopped_on: str = ""
    rollbacks: int = 0
    lost_rounds: int = 0
    last_rollback: int = 0
    beside: tuple[str, ...] = ()
    test_rows: str = ""
    initial_model: str = ""
    reference: bool = False
    personal: bool = False
    start: dict[str, str] | None = None
    run: str = ""

    @property
    def marks(self) -> Marks:
        """Marks for readers of a table: stopped by test rows, rolled back, clients' own models."""
        on_test, effective = self.stopped_on == "test", self.rounds - self.lost_rounds
        return Marks(on_test, self.rollbacks, self.rounds, effective, self.last_rollback, self.personal)

    @property
    def failed(self) -> bool:
        """Whether the run failed, so that there is no model."""
        return self.metrics is None

    def note(self, measure: str, clients: int) -> str:
        """Return the note behind a statistic of a metric, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined.get(measure, ()))], [clients])


class StoredOutcomes(BaseModel):
    """The content of ``outcomes.json``.

    Args:
        outcomes: How the runs of a comparison or a sweep ended.
        identity: The identity of a comparison's first run, see :func:`drfl.experiments.run.resume.identity`.
        failed: The configurations of a sweep's failed runs, by the names of the runs.
        former: The names of runs in a sweep's folder that its study no longer has. Reports omit them.
    """

    outcomes: tuple[Outcome, ...]
    identity: dict[str, object] = {}
    failed: dict[str, dict[str, object]] = {}
    former: tuple[str, ...] = ()

    @property
    def rounds(self) -> object:
        """The rounds of a comparison's runs; None if they are not known."""
        config = self.identity.get("config")
        return config.get("rounds") if isinstance(config, dict) else None

    @classmethod
    def read(cls, directory: Path, remedy: str) -> Self:
        """Read the file of a folder of results.

        Raises:
            InputError: If it is missing or damaged; ``remedy`` is the advice in the message.
        """
        path = directory / OUTCOMES
        content = read_json(path, follow=False, remedy=remedy)
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise InputError(
                f"{path} is damaged ({first_fault(error)}): {remedy}", code="damaged-file", field=str(path)
            ) from None


def run_to_outcome(algorithm: str, seed: int, run: Callable[[], FinishedRun]) -> tuple[Outcome, FinishedRun | None]:
    """Run an algorithm, and return its outcome and, unless it fails, the finished run."""
    try:
        finished = run()
    except (DivergedError, InputError) as error:
        # Both are outcomes, because another algorithm may succeed at the same seed.
        how = "diverged" if isinstance(error, DivergedError) else "refused"
        return Outcome(label_of(algorithm), seed, how, reason=str(error)), None
    result, last, score = finished.result, finished.result.history.last, finished.job.fed.measures[0]
    if not finished.has_ended:
        return Outcome(label_of(algorithm), seed, finished.stopped, result.rounds), finished
    evaluation, measures = result.evaluation, finished.job.fed.measures
    # The value expected if all clients were equal can only be computed from right and wrong answers.
    equal, defined = None, ~evaluation.score.isnan()
    independent = evaluation.sums is None or not bool(evaluation.sums[:, 0, 3:4].nan_to_num(0).any())
    if score.name == ACCURACY.name and bool(defined.any()) and independent:
        equal = equal_clients(last.metrics.avg_score, evaluation.samples[defined].numpy())
    outcome = Outcome(
        label_of(algorithm), seed, finished.stopped, result.rounds, last.metrics, last.certificate,
        finished.checks.failure or "", equal, dict(last.others), finished.worst_interval,
        undefined_names(evaluation, measures, finished.job.data.names), result.stopped_on or "",
        result.rollbacks, result.rounds - result.effective_rounds, result.marks.last_rollback,
        tuple(remark_lines(finished.reading_aids)),
        finished.test_rows or "", finished.initial_model, finished.is_reference, finished.is_personal,
        None if finished.job.origin.start is None else dict(finished.job.origin.start),
    )  # fmt: skip
    return outcome, finished


def failure_text(outcomes: Sequence[Outcome], algorithm: str) -> str:
    """Describe how the failed runs of an algorithm ended, see :func:`drfl.core.run_end.failures_text`."""
    return failures_text([outcome.stopped for outcome in outcomes if outcome.algorithm == algorithm])


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds, see :func:`drfl.experiments.run.measures.deviation`."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute both from the values of one metric."""
        return cls(statistics.fmean(values), deviation(values))

    def rounded(self, digits: int) -> dict[str, float]:
        """Return both as files hold them."""
        return {"mean": round(self.mean, digits), "std": round(self.std, digits)}

    def text(self, mean: str, std: str, scale: float = 1.0) -> str:
        """Format both, multiplied by ``scale``, as "87.9 ± 0.4". A single value has no ±, and NaN gives a dash."""
        if math.isnan(self.mean):
            return NOTHING
        middle = format(scale * self.mean, mean)
        return middle if math.isnan(self.std) else f"{middle} ± {format(scale * self.std, std)}"


def spreads(outcomes: Sequence[Outcome], score: str) -> dict[str, dict[str, Spread]]:
    """Return algorithm → column → mean and spread over seeds. Algorithms with a failed run have none and come last."""
    table: dict[str, dict[str, Spread]] = {}
    for name in dict.fromkeys(outcome.algorithm for outcome in outcomes):
        pairs = ((o.metrics, o.others) for o in outcomes if o.algorithm == name)
        cells = [{**metrics.as_dict(score), **others} for metrics, others in pairs if metrics is not None]
        whole = cells and not failure_text(outcomes, name)
        table[name] = {c: Spread.of([cell[c] for cell in cells]) for c in cells[0]} if whole else {}
    return dict(sorted(table.items(), key=lambda entry: not entry[1]))


def gaps(outcomes: Sequence[Outcome]) -> dict[str, Spread]:
    """Return algorithm → mean and spread of the duality gap over its seeds, if all its runs have a certificate."""
    spreads_of_gap: dict[str, Spread] = {}
    for name in dict.fromkeys(outcome.algorithm for outcome in outcomes):
        cells = [o.certificate for o in outcomes if o.algorithm == name]
        known = [certificate.gap for certificate in cells if certificate is not None]
        # The runs with a certificate alone would be a selected subset.
        if known and len(known) == len(cells):
            spreads_of_gap[name] = Spread.of(known)
    return spreads_of_gap


def equal_worst(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return algorithm → the worst accuracy expected if all clients were equally good, the mean over its seeds.

    An algorithm with a failed run has none.
    """
    values_of: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.equal is not None and not failure_text(outcomes, outcome.algorithm):
            values_of.setdefault(outcome.algorithm, []).append(outcome.equal.worst)
    return {name: statistics.fmean(values) for name, values in values_of.items()}


def first_intervals(outcomes: Sequence[Outcome]) -> tuple[int, dict[str, tuple[float, float]]] | None:
    """Return the lowest seed at which runs have intervals, and algorithm → interval of its worst client at that seed.

    The result is None if there is no interval. Runs that test rows stopped have no interval but count for the seed: a
    later seed, at which they did not stop, would be chosen by its result.
    """
    candidates = [outcome for outcome in outcomes if outcome.worst_interval is not None or outcome.stopped_on == "test"]
    if not candidates:
        return None
    seed = min(outcome.seed for outcome in candidates)
    intervals = {o.algorithm: o.worst_interval for o in candidates if o.seed == seed and o.worst_interval is not None}
    return (seed, intervals) if intervals else None


def best_algorithms(table: dict[str, dict[str, Spread]], name: str, measures: Sequence[Measure]) -> set[str]:
    """Return the algorithms whose mean is best to a thousandth, a tenth of a percent, as tables show it.

    ``table`` is from :func:`spreads`, without references.
    """
    means = {algorithm: row[name].mean for algorithm, row in table.items() if row and not math.isnan(row[name].mean)}
    if not means:
        return set()
    top = (min if column(name, measures).small else max)(means.values())
    return {algorithm for algorithm, mean in means.items() if f"{mean:.3f}" == f"{top:.3f}"}
