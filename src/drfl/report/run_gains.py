"""Finished runs against each other: on the same test rows, and over seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from drfl.assessment.clients import Assessment, AucInterval, turned
from drfl.assessment.gains import GainAssessment, assess_gain, no_row_values, sums_of_pair
from drfl.assessment.possible_sums import possible_products
from drfl.assessment.scope import Redrawn
from drfl.assessment.scores import Floats
from drfl.assessment.seeds import FAILED, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.errors import InputError, Notice
from drfl.core.files import read_csv
from drfl.data.row_scores import RowScores
from drfl.report.assessed import assessment_of, why_nothing
from drfl.report.read_run import RunRecord
from drfl.task.measure import Measure, Rows, undefined_share

PAIRED = "paired.csv"
PAIRED_COLUMNS = ("samples", "returned_sum", "returned_squares", "last_sum", "last_squares", "products")
"""What a deployment keeps of the test of its returned model and its last iterate, for each client and measure."""

CLASSES = ("positive", "negative")
"""Of a measure that ranks rows it keeps that for the rows of each of the two classes."""


class AssessedRun(NamedTuple):
    """A run with what may be said of it.

    Args:
        record: its files.
        measure: what it is assessed by.
        assessment: of its returned model; None for the reason of :func:`nothing_said`.
        rows: what that model scores on every test row; None of a deployment.
    """

    record: RunRecord
    measure: Measure
    assessment: Assessment | None
    rows: RowScores | None


def assessed(
    record: RunRecord,
    measure: Measure | None = None,
    level: float = 0.95,
    *,
    auc_interval: AucInterval = "delong",
    equality: bool = True,
) -> AssessedRun:
    """Assess a run by one of its measures, or by its score.

    Args:
        record: its files.
        measure: one of its measures; None = its score.
        level: of intervals and sets.
        auc_interval: see :func:`drfl.assessment.clients.assess_clients`.
        equality: whether to compare the clients with equally good ones, which takes seconds for a thousand of them.

    Raises:
        InputError: a file of the run is damaged.
    """
    own, rows = record.score if measure is None else measure, record.row_scores()
    shared = record.shared_test_rows if rows is None else rows.shared
    found = assessment_of(record, own, level, independent=not shared, auc_interval=auc_interval, equality=equality)
    return AssessedRun(record, own, found, rows)


def nothing_said(run: AssessedRun) -> Notice:
    """Why a run has no assessment, and the remedy."""
    return why_nothing(run.record, run.measure).within(run.record.label)


class PairedRuns(NamedTuple):
    """Two runs' returned models on the same test rows.

    Args:
        first: the run compared with.
        second: the run whose gain it is.
        gain: of the second over the first.
    """

    first: AssessedRun
    second: AssessedRun
    gain: GainAssessment


class OverSeeds(NamedTuple):
    """Two algorithms over the seeds that both have.

    Args:
        first: the one compared with.
        second: the one whose gain it is.
        gain: the second's worst client minus the first's, turned such that larger is better.
        verdict: of the second's, after Holm's correction over all pairs that are shown.
        undefined: the share of clients that the worst one was not looked for among, as the measure is undefined there.
        scope: what the difference holds for, see :class:`drfl.assessment.scope.Redrawn`.
    """

    first: str
    second: str
    gain: SeedDifference
    verdict: str
    undefined: str
    scope: str


def paired(runs: Sequence[AssessedRun]) -> tuple[list[PairedRuns], list[str]]:
    """The first algorithm's run against each other's, on the same test rows; of several seeds the first one's alone.

    Args:
        runs: in the order in which they were given.

    Returns:
        the pairs, and why other runs cannot be paired with the first one, a sentence each.
    """
    if len({run.record.algorithm for run in runs}) < 2:
        return [], []
    found, reasons, first = list[PairedRuns](), list[str](), runs[0]
    # At another seed the model differs, and often the test rows do.
    alike = [run for run in runs[1:] if run.record.seed == first.record.seed]
    others = [run for run in alike if run.record.algorithm != first.record.algorithm]
    if not others:
        reasons.append(f"no run of another algorithm has the seed of {first.record.label}, {first.record.seed}")
    for run in others:
        try:
            found.append(PairedRuns(first, run, gain_over(first, run)))
        except InputError as error:
            reasons.append(str(error))
    return found, list(dict.fromkeys(reasons))


def over_seeds(runs: Sequence[AssessedRun], failed: Collection[str] = ()) -> list[OverSeeds]:
    """The worst client of the first algorithm against each other's, paired over seeds; none with fewer than two.

    A run at whose clients the measure is undefined, at all of them, has no pair. An algorithm that test rows have
    stopped at any seed is left out, as the seeds at which they did not are chosen ones too.

    Args:
        runs: in the order in which they were given.
        failed: algorithms with runs that left no results. They are not compared over the other seeds, at which they
            happen to work: their verdict is "failed runs".
    """
    names = list(dict.fromkeys(run.record.algorithm for run in runs))
    chosen = {run.record.algorithm for run in runs if run.record.stopped_on_test}
    by_seed = {name: {r.record.seed: r for r in runs if r.record.algorithm == name} for name in names}
    found: list[tuple[str, SeedDifference, str]] = []
    excluded = set(names) if names[0] in failed else {*failed}
    for name in names[1:]:
        # If test rows stopped a run at some seed, the remaining seeds are a selected subset.
        if chosen & {names[0], name}:
            continue
        both = [(run, by_seed[name][seed]) for seed, run in by_seed[names[0]].items() if seed in by_seed[name]]
        pairs = [_worst(second) - _worst(first) for first, second in both]
        # NaN: the measure is undefined at every client of a run.
        known = [gain for gain in pairs if np.isfinite(gain)]
        if len(known) > 1:
            tested = [run.assessment for pair in both for run in pair if run.assessment is not None]
            counts, clients = [len(one.undefined) for one in tested], [len(one.names) for one in tested]
            found.append((name, seed_difference([] if name in excluded else known), undefined_share(counts, clients)))
    # Correct all pairs as one family: the reader will look for the best of them.
    family = holm_family([gain for _, gain, _ in found])
    scope = Redrawn.of([run.record.drawn for run in by_seed[names[0]].values()]).words
    return [
        OverSeeds(names[0], name, gain, FAILED if name in excluded else verdict(gain, p), share, scope)
        for (name, gain, share), p in zip(found, family.tolist(), strict=True)
    ]


def _worst(run: AssessedRun) -> float:
    """The worst client's measured value, turned such that larger is better."""
    if run.assessment is None:
        return np.nan
    return float(turned(np.array([run.assessment.worst.value]), run.assessment.measure)[0])


def gain_over(first: AssessedRun, second: AssessedRun) -> GainAssessment:
    """The gain of one run over another.

    Raises:
        InputError: they cannot be compared row by row; says why.
    """
    own, labels = first.measure, (first.record.label, second.record.label)
    both = " and ".join(labels)
    if own.name != second.measure.name:
        raise InputError(
            f"{both} have different scores, {own.words} and {second.measure.words}: name one measure of both",
            code="runs-differ",
            field="measure",
        )
    if not own.rows.paired:
        raise no_row_values(own, first.record.measures)
    rows: list[RowScores] = []
    for run in (first, second):
        if run.record.stopped_on_test:
            why = nothing_said(run)
            raise InputError(why, code=why.code, field=why.field)
        if run.rows is None:
            raise InputError(
                f"{run.record.label} keeps no values of single test rows, as a deployment or an older run: compare it "
                "over seeds",
                code="missing-results",
                field=run.record.label,
            )
        rows.append(run.rows)
    # Pairing removes the difficulty of a row from the error, which requires identical rows.
    if not rows[0].same_rows(rows[1]):
        raise InputError(
            f"{both} have different test rows: run both on the same data, partition and seed", code="runs-differ"
        )
    sums = sums_of_pair(own, rows, labels)
    found = first.assessment
    if found is None:
        why = nothing_said(first)
        raise InputError(why, code=why.code, field=why.field)
    return _assessed(found, *sums)


def _assessed(own: Assessment, first: Floats, second: Floats, products: Floats) -> GainAssessment:
    """A gain at the level, and by the method, of an assessment of the first model."""
    return assess_gain(
        own.measure,
        own.names,
        first,
        second,
        products,
        level=own.level,
        independent=own.independent,
        auc_interval=own.auc_interval,
    )


def over_last(run: AssessedRun) -> GainAssessment | None:
    """The returned model's gain over the last iterate, of a deployment, whose last test was of both; else None.

    Raises:
        InputError: the file of both models' sums is damaged.
    """
    folder, own = run.record.directory, run.assessment
    if folder is None or own is None or not (folder / PAIRED).exists():
        return None
    path = folder / PAIRED
    frame = read_csv(path, follow=False, remedy="run it again", dtype={"client": str}, keep_default_na=False)
    try:
        frame = frame[frame["measure"] == own.measure.name]
        parts = CLASSES if own.measure.rows is Rows.RANKS else ("",)
        each = [frame[frame["class"] == part][list(PAIRED_COLUMNS)].to_numpy(float).T for part in parts]
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged: {' '.join(str(error).split())}; run it again", code="damaged-file", field=str(path)
        ) from None
    # A gain over all clients needs a line for each client.
    if any(part.shape[1] != len(own.names) for part in each):
        return None
    none = np.zeros(len(own.names))
    if own.measure.rows is Rows.RANKS:
        (n, returned, squares, last, last_squares, both), (m, _, rest, _, last_rest, others) = each
        returned = np.stack([n, m, returned, squares, rest], 1)
        last = np.stack([n, m, last, last_squares, last_rest], 1)
        products = np.stack([both, others], 1)
    else:
        n, returned, squares, last, last_squares, both = each[0]
        returned, last = (np.stack([n, *own, none, none], 1) for own in ((returned, squares), (last, last_squares)))
        products = np.stack([both, none], 1)
    # The file may be forged: impossible products would allow any interval.
    if not all(map(possible_products, repeat(own.measure), last.tolist(), returned.tolist(), products.tolist())):
        raise InputError(
            f"{path} is damaged: its sums contradict each other; run it again", code="damaged-run", field=str(path)
        )
    return _assessed(own, last, returned, products)
