"""Run one job, or several algorithms and seeds side by side."""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from drfl.assessment.equal_clients import EqualClients
from drfl.core.errors import InputError
from drfl.core.run_end import ENDS, ON_TEST, Marks, Stopped
from drfl.experiments.config.build import Running
from drfl.experiments.run.artifacts import write_run
from drfl.experiments.run.end_checks import EndChecks, end_checks
from drfl.experiments.run.measures import column, deviation
from drfl.experiments.run.run_directory import ClaimedFolder, filled
from drfl.task.measure import NOTHING, Measure, undefined_note
from drfl.training.certificate import Certificate
from drfl.training.history import Metrics
from drfl.training.loop import Callback, Result, run
from drfl.training.run_state import CheckpointWriter, RunState

MOST_SEEDS = 10_000
"""More are taken for a slip of the finger."""


class Finished(NamedTuple):
    """A run that stopped.

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

    def worst_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the worst client's true score; None if its test says too little, or decided to stop."""
        from drfl.assessment.evaluation import worst_interval  # scipy takes a while to load

        if self.result.stopped_on == "test":
            return None
        return worst_interval(self.result.evaluation, self.job.fed.measures[0])

    def interval_line(self) -> str | None:
        """What commands print of that interval; None if there is nothing to say."""
        from drfl.assessment.sentences import interval_line

        score, interval = self.job.fed.measures[0], self.worst_interval()
        if self.result.stopped_on == "test":
            return f"no interval of the worst client's true {score.words}: {ON_TEST}"
        return None if interval is None else interval_line(score, *interval, self.result.history.last.note)

    @property
    def checks(self) -> EndChecks:
        """What there is to say of it; nothing if it was interrupted."""
        return end_checks(self.job, self.result) if self.ended else EndChecks()


class StopSignal:
    """Ends a run after the present round once ``signal`` is set: the number of the signal that asked for it."""

    def __init__(self) -> None:
        self.signal: int | None = None

    @property
    def stop(self) -> bool:
        """Whether somebody asked."""
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code that tells: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    def __call__(self, progress: RunState) -> bool:
        """Whether to stop."""
        return self.stop


def execute(
    job: Running,
    callbacks: Sequence[Callback] = (),
    watch: StopSignal | None = None,
    *,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
) -> Finished:
    """Run a job to its end, its target or an interruption.

    Args:
        job: what to run.
        callbacks: called after every round.
        watch: interrupts it.
        start: where an earlier run of the same job was.
        keep: is given the progress.

    Raises:
        DivergedError: see :func:`drfl.training.loop.run`.
    """
    settings, watch = job.settings, watch or StopSignal()
    select = settings.selection(job.fed.measures)
    # The number of threads is global to the process: restore it afterwards.
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads or before)
    try:
        result = run(
            job.algorithm,
            job.fed,
            rounds=settings.rounds,
            seed=settings.seed,
            evaluate_every=settings.evaluate_every,
            returned=settings.returned,
            averaged=settings.averaged,
            table_dir=settings.tables,
            best=select.best,
            patience=select.patience,
            until=select.until,
            callbacks=[watch, *callbacks],
            certify=job.certify,
            start=start or job.first,
            keep=keep,
            check_data=False,  # whoever makes jobs tells of them once, and knows how they were divided
        )
    finally:
        torch.set_num_threads(before)
    return Finished(job, result)


def write_results(finished: Finished, claim: ClaimedFolder, more: Mapping[str, str] | None = None) -> None:
    """Write the results and the report of a run into the folder that it holds.

    Args:
        finished: the run.
        claim: its folder.
        more: other files to write there, text by name.

    Raises:
        InputError: the place cannot be written to.
    """
    from drfl.report import document, load_run, write_html

    with filled(claim) as folder:
        write_run(folder, finished.job, finished.result)
        for name, text in (more or {}).items():
            (folder / name).write_text(text, encoding="utf-8")
        # The files are still in a temporary folder: label the report with the final name.
        record = dataclasses.replace(load_run(folder), label=claim.directory.name)
        write_html(document([record]), folder / "report.html")
    # An interrupted run keeps its checkpoint.
    claim.finished = finished.ended


class Outcome(NamedTuple):
    """One cell of a comparison: an algorithm at a seed.

    Args:
        algorithm: its label, see :func:`drfl.core.user_code.label_of`.
        seed: its value.
        stopped: "rounds", "target" or "patience", or "diverged" or "refused" where the run broke off.
        rounds: rounds done; 0 where it broke off.
        metrics: of the last model; None where it broke off.
        certificate: of the last iterate; None where there is none.
        equal: of clients that were all equally good at this average accuracy; None where it broke off, or the score
            is another.
        reason: the sentence that says why it broke off, or why it counts as failed though it has metrics.
        others: average and worst over clients of the measures beside the score, see
            :func:`drfl.training.history.others_of`.
        worst_interval: 95 % interval of the worst client's true score, see
            :func:`drfl.assessment.worst.worst_score`; None where it broke off, no row has a score of its own, or test
            rows stopped it.
        undefined: the clients at which a measure is undefined, by its name, see
            :func:`drfl.training.history.undefined_names`.
        stopped_on: the rows that decided to stop: "validation", "test" or "", if none did.
        rollbacks: how often the model was set back to the initial one.
        lost_rounds: rounds that do not count, as they were done before the last time.
        test_rows: what its test rows are known by; "" = not known.
        initial_model: what the model that it started from is known by; "" = not known.
        reference: whether it is not federated, but shows what federation costs and gains.
        beside: what accuracies and rates have to be read with, see :func:`drfl.report.read_run.lines_beside`.
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
    beside: tuple[str, ...] = ()

    test_rows: str = ""
    initial_model: str = ""
    reference: bool = False

    @property
    def marks(self) -> Marks:
        """What readers of a table have to know of it."""
        effective = self.rounds - self.lost_rounds
        return Marks(self.stopped_on == "test", self.rollbacks, self.rounds, effective)

    @property
    def failed(self) -> bool:
        """Whether it broke off, so that there is no model."""
        return self.metrics is None

    def note(self, measure: str, clients: int) -> str:
        """What follows a statistic of a measure in a line, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note([len(self.undefined.get(measure, ()))], [clients])


def failures(outcomes: Sequence[Outcome], algorithm: str) -> str:
    """How the failed runs of an algorithm ended: "2 of 14 diverged", or "diverged" if all did; "" if none failed.

    Then the others say nothing of the algorithm: a mean over seeds at which it happens to work would flatter it.
    """
    own = [o for o in outcomes if o.algorithm == algorithm]
    ends = collections.Counter(o.stopped for o in own if o.failed)
    return ", ".join(how if n == len(own) else f"{n} of {len(own)} {how}" for how, n in sorted(ends.items()))


class Spread(NamedTuple):
    """Mean and sample standard deviation over seeds, see :func:`drfl.experiments.run.measures.deviation`."""

    mean: float
    std: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of one metric's values."""
        return cls(statistics.fmean(values), deviation(values))

    def text(self, mean: str, std: str, scale: float = 1.0) -> str:
        """Both, in these formats and times scale, as "87.9 ± 0.4"; one value has no ±; a dash if one is NaN."""
        if math.isnan(self.mean):
            return NOTHING
        middle = format(scale * self.mean, mean)
        return middle if math.isnan(self.std) else f"{middle} ± {format(scale * self.std, std)}"


def spreads(outcomes: Sequence[Outcome], score: str) -> dict[str, dict[str, Spread]]:
    """Algorithm → column → mean and spread over its seeds, none if a run failed; those come last.

    Args:
        outcomes: of the runs.
        score: the name of their score, see :func:`drfl.training.history.columns_of`.
    """
    table: dict[str, dict[str, Spread]] = {}
    for name in dict.fromkeys(outcome.algorithm for outcome in outcomes):
        own = ((o.metrics, o.others) for o in outcomes if o.algorithm == name)
        cells = [{**metrics.named(score), **others} for metrics, others in own if metrics is not None]
        whole = cells and not failures(outcomes, name)
        table[name] = {c: Spread.of([cell[c] for cell in cells]) for c in cells[0]} if whole else {}
    return dict(sorted(table.items(), key=lambda entry: not entry[1]))


def gaps(outcomes: Sequence[Outcome]) -> dict[str, Spread]:
    """Algorithm → mean and spread of the duality gap over its seeds; only if all have one."""
    found: dict[str, Spread] = {}
    for name in dict.fromkeys(outcome.algorithm for outcome in outcomes):
        cells = [o.certificate for o in outcomes if o.algorithm == name]
        known = [certificate.gap for certificate in cells if certificate is not None]
        if known and len(known) == len(cells):
            found[name] = Spread.of(known)
    return found


def equal_worst(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Algorithm → what its worst client would be on average if its clients were all equally good, over its seeds.

    None for an algorithm with a failed run.
    """
    found: dict[str, list[float]] = {}
    for outcome in outcomes:
        if outcome.equal is not None and not failures(outcomes, outcome.algorithm):
            found.setdefault(outcome.algorithm, []).append(outcome.equal.worst)
    return {name: statistics.fmean(values) for name, values in found.items()}


def first_intervals(outcomes: Sequence[Outcome]) -> tuple[int, dict[str, tuple[float, float]]] | None:
    """The lowest seed at which any run could have one, and algorithm → its worst client's interval at that seed.

    None if there is no such interval. Runs that test rows have stopped count for the seed: a later one at which they
    did not would be chosen by its result.
    """
    known = [outcome for outcome in outcomes if outcome.worst_interval is not None or outcome.stopped_on == "test"]
    if not known:
        return None
    seed = min(outcome.seed for outcome in known)
    found = {o.algorithm: o.worst_interval for o in known if o.seed == seed and o.worst_interval is not None}
    return (seed, found) if found else None


def best(table: dict[str, dict[str, Spread]], name: str, measures: Sequence[Measure]) -> set[str]:
    """The algorithms whose mean is best to a thousandth, a tenth of a percent, as shown: most score, least std or loss.

    Args:
        table: from :func:`spreads`, without references.
        name: of a column.
        measures: what was measured, the score first.
    """
    means = {algorithm: row[name].mean for algorithm, row in table.items() if row and not math.isnan(row[name].mean)}
    if not means:
        return set()
    top = (min if column(name, measures).small else max)(means.values())
    return {algorithm for algorithm, mean in means.items() if f"{mean:.3f}" == f"{top:.3f}"}


def parse_seeds(text: str) -> list[int]:
    """Seeds from "5" (that many, from 0), "3,7,9" or "10..14" (both ends included).

    Raises:
        InputError: none of these, or too many.
    """
    try:
        if ".." in text:
            low, high = map(int, text.split(".."))
            seeds = range(low, high + 1)
        elif "," in text:
            seeds = [int(part) for part in text.split(",") if part.strip()]
        else:
            seeds = range(int(text))
    except ValueError:
        seeds = []
    if isinstance(seeds, range) and seeds.stop - seeds.start > MOST_SEEDS:
        raise InputError(f"seeds '{text}' are more than {MOST_SEEDS}: take fewer", code="out-of-range", field="seeds")
    if not seeds or min(seeds) < 0 or len(set(seeds)) < len(seeds):
        raise InputError(
            f"seeds '{text}' are neither a number of seeds, a list like 0,1,2 nor a range like 10..14",
            code="invalid-format",
            field="seeds",
        )
    return list(seeds)
