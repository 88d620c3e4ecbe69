"""Finished runs against each other: on the same test rows, and over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from drfl.assessment.clients import turned
from drfl.assessment.gains import GainAssessment, assess_gain, sums_of_rows
from drfl.assessment.possible_sums import possible_products
from drfl.assessment.seeds import SeedDifference, holm_family, seed_difference, verdict
from drfl.engine.simulation import Simulation
from drfl.errors import InputError, unknown
from drfl.experiments.assess_runs import AssessedRun, assess_run, measure_of, warn_of_interruption
from drfl.files import read_csv

PAIRED = "paired.csv"
PAIRED_COLUMNS = ("samples", "returned_sum", "returned_squares", "last_sum", "last_squares", "products")
"""What a deployment keeps of the test of its returned model and its last iterate, for each client and measure."""


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
    for directory in (first, second):
        warn_of_interruption(directory)
    found = _gain(*runs)
    if found is None:
        own = measure_of(runs[0].record, measure)
        why = "other test rows: run both on the same data, partition and seed"
        if not own.rows.mean:
            why = f"no {own.words} of a single row: take another measure"
        raise InputError(f"{first} and {second} cannot be compared row by row: they have {why}", code="runs-differ")
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
        raise InputError(
            f"{own.words} has no value for a single row: compare two models by another measure",
            code="unsupported-metric",
            field=own.name,
        )
    values = (rows.scores[own.name].double().numpy() for rows in (a, b))
    sums, independent = sums_of_rows(a.starts.numpy(), *values), not fed.data.shares_test_rows
    return assess_gain(own, fed.data.names, *sums, level=level, independent=independent)


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
    values = (rows.scores[name].double().numpy() for rows in (first.rows, second.rows))
    sums = sums_of_rows(first.rows.starts.numpy(), *values)
    return assess_gain(own.measure, own.names, *sums, level=own.level, independent=own.independent)


def over_last(run: AssessedRun) -> GainAssessment | None:
    """The returned model's gain over the last iterate, of a deployment, whose last test was of both; else None.

    Raises:
        InputError: the file of both models' sums is damaged.
    """
    path, own = run.directory / PAIRED, run.assessment
    if own is None or not path.exists():
        return None
    frame = read_csv(path, follow=False, remedy="run it again", dtype={"client": str}, keep_default_na=False)
    try:
        frame = frame[frame["measure"] == own.measure.name]
        n, *sums = (frame[column].to_numpy(float) for column in PAIRED_COLUMNS)
    except (ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged: {' '.join(str(error).split())}; run it again", code="damaged-file", field=str(path)
        ) from None
    if len(frame) != len(own.names):
        return None
    last, returned = np.stack([n, *sums[2:4]], 1), np.stack([n, *sums[:2]], 1)
    if not all(map(possible_products, repeat(own.measure), last.tolist(), returned.tolist(), sums[4].tolist())):
        raise InputError(
            f"{path} is damaged: its sums contradict each other; run it again", code="damaged-run", field=str(path)
        )
    return assess_gain(own.measure, own.names, last, returned, sums[4], level=own.level, independent=own.independent)
