"""What a printed report is made from, read from the folders of finished runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from drfl.core.atomic_files import is_file
from drfl.core.files import sha256_of
from drfl.data.partition.partition import Partition
from drfl.data.row_scores import RowScores
from drfl.experiments.assess.assess_runs import AssessedRun, assess_run
from drfl.experiments.assess.run_gains import PairedRuns, over_last, over_seeds, paired
from drfl.experiments.run.artifacts import FILES
from drfl.report.assessed import why_nothing
from drfl.report.groups import group_runs
from drfl.report.pdf.baselines import LOCAL
from drfl.report.pdf.evidence import Evidence, RowGain, RunEvidence, SeedGain
from drfl.report.read_run import FailedRun, RunRecord, table, text

DEPLOYED = "traffic.json"
"""A file that only a deployment leaves."""

PARTITION = "partition.json"

PIECE = 2**20
"""Bytes of a file at a time."""


def gathered(folders: Sequence[Path], level: float = 0.95, failed: Sequence[FailedRun] = ()) -> Evidence:
    """Read finished runs, assess each, and compare them row by row and over seeds.

    Args:
        folders: of runs, at least one.
        level: of intervals and sets.
        failed: runs beside them that left no results.

    Raises:
        InputError: a folder is no run's, or a file of it is damaged.
    """
    found = [assess_run(folder, level=level) for folder in folders]
    groups = group_runs([run.record for run in found], failed)
    labels = {id(record): group.label for group in groups for record in group.runs}
    order = {key: place for place, key in enumerate(labels)}
    found.sort(key=lambda run: order[id(run.record)])
    # configurations of one algorithm are compared too, each under its label
    runs = [_labelled(run, labels[id(run.record)]) for run in found]
    local = {labels[id(run.record)] for run in found if run.record.algorithm == LOCAL}
    alike = [run for run in runs if _alike(runs, runs[0].record.algorithm, run.record.algorithm)]
    alone = next((run for run in alike if run.record.algorithm in local), None)
    by_rows, unpaired = paired(alike)
    if len(alike) < len(runs):
        unpaired.append("the runs are not all on the same data, partition and test rows")
    return Evidence(
        runs=tuple(map(_evidence, found)),
        by_rows=_row_gains(by_rows),
        over_local=() if alone is None else _row_gains(paired([alone, *(r for r in alike if r is not alone)])[0]),
        over_seeds=tuple(SeedGain(*row) for row in over_seeds(alike, [g.label for g in groups if g.failed])),
        unpaired=tuple(unpaired),
        failed=tuple(failed),
    )


def _labelled(run: AssessedRun, label: str) -> AssessedRun:
    """The run with its configuration's label for its algorithm's name."""
    return run._replace(record=dataclasses.replace(run.record, summary={**run.record.summary, "algorithm": label}))


def _alike(runs: Sequence[AssessedRun], first: str, second: str) -> bool:
    """Whether two algorithms were run on the same data, so that their worst clients can be compared."""
    by_seed = [{run.record.seed: run for run in runs if run.record.algorithm == name} for name in (first, second)]
    common = [(by_seed[0][seed], by_seed[1][seed]) for seed in by_seed[0] if seed in by_seed[1]]
    return all(_setting(a.record) == _setting(b.record) and _same_rows(a.rows, b.rows) for a, b in common)


def _setting(record: RunRecord) -> tuple[str, str, list[str]]:
    recipe = table(record.summary, "partition")
    return text(record.summary, "dataset"), json.dumps(recipe, sort_keys=True), record.clients["client"].tolist()


def _same_rows(a: RowScores | None, b: RowScores | None) -> bool:
    """Whether both were tested on the same rows, as far as that is known."""
    if a is None or b is None:
        return True
    return torch.equal(a.starts, b.starts) and torch.equal(a.rows, b.rows)


def _row_gains(pairs: Sequence[PairedRuns]) -> tuple[RowGain, ...]:
    return tuple(
        RowGain(pair.first.record.algorithm, pair.second.record.algorithm, pair.first.record.seed, pair.gain)
        for pair in pairs
    )


def _evidence(run: AssessedRun) -> RunEvidence:
    return RunEvidence(
        record=run.record,
        assessment=run.assessment,
        nothing="" if run.assessment is not None else why_nothing(run.record),
        files={name: _sha256(run.directory / name) for name in FILES if is_file(run.directory / name)},
        data="" if run.rows is None else run.rows.data,
        shared=None if run.rows is None else run.rows.shared,
        validation=_validation(run),
        deployed=is_file(run.directory / DEPLOYED),
        over_last=over_last(run),
    )


def _sha256(path: Path) -> str:
    """Of a file's bytes.

    Raises:
        InputError: it cannot be read.
    """
    return sha256_of(path, follow=False)


def _validation(run: AssessedRun) -> tuple[int, ...] | None:
    """(N,) rows that the partition gave a client to train on, and that it did not train on; None where not known."""
    path = run.directory / PARTITION
    if not is_file(path):
        return None
    partition, frame = Partition.load(path), run.record.clients
    given = dict(zip(partition.names, partition.sizes.tolist(), strict=True))
    pairs = zip(frame["client"].tolist(), frame["train_samples"].to_numpy(float).tolist(), strict=True)
    left = tuple(given.get(name, -1) - int(own) for name, own in pairs)
    return None if any(rows < 0 for rows in left) else left
