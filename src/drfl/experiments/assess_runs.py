"""Assess finished runs: each on its own, algorithms on the same test rows against each other, and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from drfl.assessment.clients import Assessment, turned
from drfl.assessment.gains import GainAssessment, assess_gain
from drfl.assessment.seeds import SeedDifference, holm_family, seed_difference, verdict
from drfl.engine.row_scores import RowScores
from drfl.errors import unknown
from drfl.experiments.test_rows import FILE, read
from drfl.measure import Measure
from drfl.report.assessed import assessment_of
from drfl.report.read_run import RunRecord, load_run


class AssessedRun(NamedTuple):
    """A run with what may be said of it.

    Args:
        directory: its folder.
        record: its files.
        assessment: of its returned model; None where the measure says nothing of single rows.
        rows: what that model scores on every test row; None of a deployment.
    """

    directory: Path
    record: RunRecord
    assessment: Assessment | None
    rows: RowScores | None


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
    """

    first: str
    second: str
    gain: SeedDifference
    verdict: str


def assess_run(directory: Path, measure: str | None = None, level: float = 0.95) -> AssessedRun:
    """Read a finished run and assess it.

    Args:
        directory: its folder.
        measure: one of its measures; None = its score.
        level: of intervals and sets.

    Raises:
        InputError: the folder is no run's, is damaged, or has no such measure.
    """
    record, file = load_run(directory), directory / FILE
    rows = read(file) if file.exists() else None
    shared = rows is not None and len(rows.rows.unique()) < len(rows.rows)
    own = _measure(record, measure)
    return AssessedRun(directory, record, assessment_of(record, own, level, independent=not shared), rows)


def paired(runs: Sequence[AssessedRun]) -> list[PairedRuns]:
    """The first algorithm's run against each other's, on the same test rows; of several seeds the first one's alone.

    Args:
        runs: in the order in which they were given.
    """
    if not runs:
        return []
    seed, reference = runs[0].record.seed, runs[0]
    others = [run for run in runs[1:] if run.record.seed == seed and run.record.algorithm != reference.record.algorithm]
    found = []
    for run in others:
        gain = _gain(reference, run)
        if gain is not None:
            found.append(PairedRuns(reference, run, gain))
    return found


def over_seeds(runs: Sequence[AssessedRun]) -> list[OverSeeds]:
    """The worst client of the first algorithm against each other's, paired over seeds; none with fewer than two."""
    names = list(dict.fromkeys(run.record.algorithm for run in runs))
    worst = {name: {r.record.seed: _worst(r) for r in runs if r.record.algorithm == name} for name in names}
    first, found = worst[names[0]] if names else {}, []
    for name in names[1:]:
        pairs = [worst[name][seed] - first[seed] for seed in first if seed in worst[name]]
        if len(pairs) > 1 and np.isfinite(pairs).all():
            found.append((name, seed_difference(pairs)))
    family = holm_family([gain for _, gain in found])
    return [
        OverSeeds(names[0], name, gain, verdict(gain, p))
        for (name, gain), p in zip(found, family.tolist(), strict=True)
    ]


def _measure(record: RunRecord, name: str | None) -> Measure:
    known = {measure.name: measure for measure in record.measures}
    if name is not None and name not in known:
        raise unknown("measure", name, known)
    return record.score if name is None else known[name]


def _worst(run: AssessedRun) -> float:
    """The worst client's measured value, turned such that larger is better."""
    if run.assessment is None:
        return np.nan
    return float(turned(np.array([run.assessment.worst.value]), run.assessment.measure)[0])


def _gain(first: AssessedRun, second: AssessedRun) -> GainAssessment | None:
    """None where the two are not on the same rows, or the measure has no value for a row."""
    own = first.assessment
    if own is None or second.assessment is None or first.rows is None or second.rows is None:
        return None
    name = own.measure.name
    if not own.measure.rows.mean or not first.rows.same_rows(second.rows):
        return None
    if name not in first.rows.scores or name not in second.rows.scores:
        return None
    a, b = (run.rows.scores[name].double().numpy() for run in (first, second) if run.rows is not None)
    starts = first.rows.starts.numpy()
    return assess_gain(own.measure, own.names, starts, a, b, level=own.level, independent=own.independent)
