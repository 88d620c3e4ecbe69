"""Assess finished runs: each on its own, algorithms on the same test rows against each other, and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from drfl.assessment.clients import Assessment, turned
from drfl.assessment.gains import GainAssessment, assess_gain
from drfl.assessment.seeds import SeedDifference, holm_family, seed_difference, verdict
from drfl.engine.row_scores import RowScores
from drfl.engine.simulation import Simulation
from drfl.errors import InputError, unknown
from drfl.experiments.test_rows import FILE, read
from drfl.measure import Measure, Rows
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


def assess_folder(directory: Path, measure: str | None = None, level: float = 0.95) -> Assessment:
    """The assessment of a finished run.

    Args:
        directory: its folder.
        measure: one of its measures; None = its score.
        level: of intervals and sets.

    Raises:
        InputError: see :func:`assess_run`; or the measure says nothing of single rows.
    """
    run = assess_run(directory, measure, level)
    if run.assessment is None:
        raise InputError(nothing_said(run))
    return run.assessment


def nothing_said(run: AssessedRun) -> str:
    """Why a run has no assessment, and the remedy."""
    others = [measure.name for measure in run.record.measures if measure.rows is not Rows.WHOLE]
    remedy = f"take measure '{others[0]}'" if others else "run with --metric accuracy, or auc, beside it"
    return (
        f"{run.record.label}: {run.record.score.words} is a number of all of a client's rows together, for which there "
        f"is no interval here; {remedy}"
    )


def gain_of_folders(first: Path, second: Path, measure: str | None = None, level: float = 0.95) -> GainAssessment:
    """The gain of one run's returned model over another's.

    Args:
        first: folder of the run compared with.
        second: folder of the run whose gain it is.
        measure: one of their measures; None = their score.
        level: of the intervals.

    Raises:
        InputError: see :func:`assess_run`; or the runs have other test rows, keep none, or the measure has no value
            for a row.
    """
    runs = [assess_run(directory, measure, level) for directory in (first, second)]
    found = _gain(*runs)
    if found is None:
        own = _measure(runs[0].record, measure)
        why = "other test rows: run both on the same data, partition and seed"
        if not own.rows.mean:
            why = f"no {own.words} of a single row: take another measure"
        raise InputError(f"{first} and {second} cannot be compared row by row: they have {why}")
    return found


def gain_of_models(
    fed: Simulation, first: Tensor, second: Tensor, *, measure: str | None = None, level: float = 0.95
) -> GainAssessment:
    """The gain of one model over another on the test rows of a simulation.

    Args:
        fed: the simulation.
        first: (d,) the model compared with.
        second: (d,) the model whose gain it is.
        measure: one of what it measures; None = its score.
        level: of the intervals.

    Raises:
        InputError: there is no such measure, or it has no value for a row.
    """
    known = {own.name: own for own in fed.measures}
    if measure is not None and measure not in known:
        raise unknown("measure", measure, known)
    own = fed.measures[0] if measure is None else known[measure]
    a, b = fed.row_scores(first), fed.row_scores(second)
    if own.name not in a.scores or own.name not in b.scores:
        raise InputError(f"{own.words} has no value for a single row: compare two models by another measure")
    values = (rows.scores[own.name].double().numpy() for rows in (a, b))
    independent = not fed.data.shares_test_rows
    return assess_gain(own, fed.data.names, a.starts.numpy(), *values, level=level, independent=independent)


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
