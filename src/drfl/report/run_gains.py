"""Compare finished runs with each other: on the same test rows, and over seeds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import NamedTuple

import numpy as np

from drfl.assessment.clients import Assessment, AucInterval, flip_direction
from drfl.assessment.gains import GainAssessment, assess_gain, no_row_values, sums_of_pair
from drfl.assessment.possible_sums import possible_products
from drfl.assessment.scope import Redrawn
from drfl.assessment.scores import Floats
from drfl.assessment.seeds import FAILED, UNTRAINED, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.csv_files import read_csv
from drfl.core.errors import InputError, Notice
from drfl.core.run_end import INITIAL
from drfl.data.row_scores import RowScores
from drfl.report.assessed import assessment_of, missing_reason
from drfl.report.read_run import RunRecord
from drfl.task.measure import Measure, Rows, undefined_share

PAIRED = "paired.csv"
PAIRED_COLUMNS = ("samples", "returned_sum", "returned_squares", "last_sum", "last_squares", "products")
"""Columns of a deployment's test of its returned model and its last iterate, for each client and measure."""

CLASSES = ("positive", "negative")
"""Classes of the rows; a measure that ranks rows has separate sums for each."""


class AssessedRun(NamedTuple):
    """A run with its assessment.

    Args:
        record: The run.
        measure: The measure of the assessment.
        assessment: Assessment of its returned model; None if there is none, see :func:`no_assessment`.
        rows: Scores of that model on every test row; None for a deployment.
    """

    record: RunRecord
    measure: Measure
    assessment: Assessment | None
    rows: RowScores | None


def assess_record(
    record: RunRecord,
    measure: Measure | None = None,
    level: float = 0.95,
    *,
    auc_interval: AucInterval = "delong",
    equality: bool = True,
) -> AssessedRun:
    """Assess a run by one of its measures, or by its score; see :func:`drfl.report.assessed.assessment_of`.

    Raises:
        InputError: If a file of the run is damaged.
    """
    assessed_measure, rows = record.score if measure is None else measure, record.row_scores()
    # Clients with common test rows have dependent results, for which intervals and sets are wider.
    shared = record.shared_test_rows if rows is None else rows.has_shared_rows
    assessment = assessment_of(
        record, assessed_measure, level, independent=not shared, auc_interval=auc_interval, equality=equality
    )
    return AssessedRun(record, assessed_measure, assessment, rows)


def named_runs(runs: Sequence[AssessedRun], names: Mapping[int, str]) -> list[AssessedRun]:
    """Name the algorithms of runs after their configurations, which are then compared like algorithms.

    ``names`` has the name of each record by its ``id``.
    """
    summaries = ({**run.record.summary, "algorithm": names[id(run.record)]} for run in runs)
    return [
        run._replace(record=replace(run.record, summary=summary)) for run, summary in zip(runs, summaries, strict=True)
    ]


def no_assessment(run: AssessedRun) -> Notice:
    """Explain why a run has no assessment, with the remedy."""
    return missing_reason(run.record, run.measure).within(run.record.label)


class PairedRuns(NamedTuple):
    """The returned models of two runs on the same test rows, and the gain of the second over the first."""

    first: AssessedRun
    second: AssessedRun
    gain: GainAssessment


class SeedComparison(NamedTuple):
    """Two algorithms compared over their common seeds.

    Args:
        first: The baseline.
        second: The algorithm whose gain it is.
        gain: The second's worst client minus the first's, signed so that larger is better.
        verdict: Verdict on the second, after Holm's correction over all pairs of the table.
        undefined: Share of clients that are excluded from the search for the worst one, because the measure is
            undefined there.
        scope: Scope of the difference, see :class:`drfl.assessment.scope.Redrawn`.
    """

    first: str
    second: str
    gain: SeedDifference
    verdict: str
    undefined: str
    scope: str


def pair_runs(runs: Sequence[AssessedRun]) -> tuple[list[PairedRuns], list[str]]:
    """Compare the first algorithm's run with each other's on the same test rows, at the first run's seed only.

    Returns:
        The pairs, and why other runs cannot be paired with the first one, one sentence per reason.
    """
    pairs, reasons, first = list[PairedRuns](), list[str](), runs[0]
    # Runs of one algorithm are not compared. Say why if they look like rivals, but have other data.
    for run in (run for run in runs[1:] if run.record.algorithm == first.record.algorithm):
        same = run.record.test_setting[:2] == first.record.test_setting[:2]
        # At another seed the same clients often have other test rows.
        if same and run.record.seed == first.record.seed and first.rows is not None and run.rows is not None:
            same = first.rows.same_rows(run.rows)
        if not same:
            reasons.append(f"{first.record.label} and {run.record.label} have different data or test rows")
    if len({run.record.algorithm for run in runs}) < 2:
        return [], reasons
    # At another seed the model differs, and often the test rows as well.
    same_seed = [run for run in runs[1:] if run.record.seed == first.record.seed]
    others = [run for run in same_seed if run.record.algorithm != first.record.algorithm]
    if not others:
        reasons.append(f"no run of another algorithm has seed {first.record.seed}, as {first.record.label} has")
    for run in others:
        untrained = next((each.record.label for each in (first, run) if each.record.marks.is_untrained), None)
        if untrained is not None:
            reasons.append(f"{untrained} {INITIAL}")
            continue
        try:
            pairs.append(PairedRuns(first, run, gain_over(first, run)))
        except InputError as error:
            reasons.append(str(error))
    return pairs, list(dict.fromkeys(reasons))


def compare_over_seeds(runs: Sequence[AssessedRun], failed: Collection[str] = ()) -> list[SeedComparison]:
    """Compare the worst clients of the first algorithm and of each other one, paired over at least two seeds.

    If the measure is undefined at all clients of a run, the run has no pair. An algorithm with a run that test rows
    stopped is excluded at all seeds, because the seeds at which they did not stop it are a selected subset.

    Args:
        runs: The runs in the order in which they were given.
        failed: Algorithms with runs that left no results. They are not compared over the seeds at which they happen to
            work; their verdict is "failed runs". That of algorithms with runs that returned the initial model is
            "untrained models".
    """
    names = list(dict.fromkeys(run.record.algorithm for run in runs))
    chosen = {run.record.algorithm for run in runs if run.record.stopped_on_test}
    by_seed = {name: {r.record.seed: r for r in runs if r.record.algorithm == name} for name in names}
    differences: list[tuple[str, SeedDifference, str]] = []
    untrained = {run.record.algorithm for run in runs if run.record.marks.is_untrained}
    reasons = {name: UNTRAINED for name in names if untrained & {names[0], name}}
    reasons |= {name: FAILED for name in names if {*failed} & {names[0], name}}
    for name in names[1:]:
        # If test rows stopped a run at some seed, the remaining seeds are a selected subset.
        if chosen & {names[0], name}:
            continue
        both = [(run, by_seed[name][seed]) for seed, run in by_seed[names[0]].items() if seed in by_seed[name]]
        pairs = [_worst(second) - _worst(first) for first, second in both]
        # A gain is NaN if the measure is undefined at every client of a run.
        known = [gain for gain in pairs if np.isfinite(gain)]
        # A single pair has no spread over seeds, so nothing can be tested.
        if len(known) > 1:
            tested = [run.assessment for pair in both for run in pair if run.assessment is not None]
            counts, clients = (
                [len(assessment.undefined) for assessment in tested],
                [len(assessment.names) for assessment in tested],
            )
            differences.append(
                (name, seed_difference([] if name in reasons else known), undefined_share(counts, clients))
            )
    # Correct all pairs as one family, because readers look for the best of them.
    family = holm_family([gain for _, gain, _ in differences])
    scope = Redrawn.of([run.record.draw_digests for run in by_seed[names[0]].values()]).words
    return [
        SeedComparison(names[0], name, gain, reasons.get(name) or verdict(gain, p), share, scope)
        for (name, gain, share), p in zip(differences, family.tolist(), strict=True)
    ]


def _worst(run: AssessedRun) -> float:
    """Return the worst client's measured value, signed so that larger is better."""
    if run.assessment is None:
        return np.nan
    return flip_direction(run.assessment.worst.value, run.assessment.measure)


def gain_over(first: AssessedRun, second: AssessedRun) -> GainAssessment:
    """Compute the gain of one run over another.

    Raises:
        InputError: If they cannot be compared row by row; the message gives the reason.
    """
    measure, labels = first.measure, (first.record.label, second.record.label)
    both = " and ".join(labels)
    if measure.name != second.measure.name:
        raise InputError(
            f"{both} have different scores, {measure.words} and {second.measure.words}: name a measure that both have",
            code="runs-differ",
            field="measure",
        )
    if not measure.rows.paired:
        raise no_row_values(measure, first.record.measures)
    rows: list[RowScores] = []
    for run in (first, second):
        if run.record.stopped_on_test:
            why = no_assessment(run)
            raise InputError(why, code=why.code, field=why.field)
        if run.rows is None:
            raise InputError(
                f"{run.record.label} has no values of single test rows (deployments have none): compare it over seeds",
                code="missing-results",
                field=run.record.label,
            )
        rows.append(run.rows)
    # Pairing removes the rows' difficulty from the error. That requires identical rows.
    if not rows[0].same_rows(rows[1]):
        raise InputError(
            f"{both} have different test rows: run both on the same data, partition and seed", code="runs-differ"
        )
    sums = sums_of_pair(measure, rows, labels)
    assessment = first.assessment
    if assessment is None:
        why = no_assessment(first)
        raise InputError(why, code=why.code, field=why.field)
    return _assessed(assessment, *sums)


def _assessed(assessment: Assessment, first: Floats, second: Floats, products: Floats) -> GainAssessment:
    """Assess a gain at the level and by the method of an assessment of the first model."""
    return assess_gain(
        assessment.measure,
        assessment.names,
        first,
        second,
        products,
        level=assessment.level,
        independent=assessment.independent,
        auc_interval=assessment.auc_interval,
    )


def gain_over_last(run: AssessedRun) -> GainAssessment | None:
    """Compute the returned model's gain over the last iterate, for a deployment whose last test was of both; else None.

    Raises:
        InputError: If the file with both models' sums is damaged.
    """
    folder, assessment = run.record.directory, run.assessment
    if folder is None or assessment is None or not (folder / PAIRED).exists():
        return None
    path = folder / PAIRED
    frame = read_csv(path, follow=False, remedy="run it again", dtype={"client": str}, keep_default_na=False)
    try:
        frame = frame[frame["measure"] == assessment.measure.name]
        parts = CLASSES if assessment.measure.rows is Rows.RANKS else ("",)
        each = [frame[frame["class"] == part][list(PAIRED_COLUMNS)].to_numpy(float).T for part in parts]
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged: {' '.join(str(error).split())}. Run it again.", code="damaged-file", field=str(path)
        ) from None
    # A gain over all clients needs a row for each client.
    if any(part.shape[1] != len(assessment.names) for part in each):
        return None
    zeros = np.zeros(len(assessment.names))
    if assessment.measure.rows is Rows.RANKS:
        (n, returned, squares, last, last_squares, both), (m, _, rest, _, last_rest, others) = each
        returned = np.stack([n, m, returned, squares, rest], 1)
        last = np.stack([n, m, last, last_squares, last_rest], 1)
        products = np.stack([both, others], 1)
    else:
        n, returned, squares, last, last_squares, both = each[0]
        returned, last = (
            np.stack([n, *part_sums, zeros, zeros], 1) for part_sums in ((returned, squares), (last, last_squares))
        )
        products = np.stack([both, zeros], 1)
    # The file may be forged, and impossible products would allow any interval.
    if not all(map(possible_products, repeat(assessment.measure), last.tolist(), returned.tolist(), products.tolist())):
        raise InputError(
            f"{path} is damaged: its sums contradict each other. Run it again.", code="damaged-run", field=str(path)
        )
    return _assessed(assessment, last, returned, products)
