"""What a printed report is made from, read from the folders of finished runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from drfl.atomic_files import is_file
from drfl.data.partition import Partition
from drfl.engine.row_scores import RowScores
from drfl.experiments.artifacts import FILES
from drfl.experiments.assess_runs import AssessedRun
from drfl.experiments.run_gains import over_last, over_seeds, paired
from drfl.experiments.test_rows import FILE, read
from drfl.files import sha256_of
from drfl.report.assessed import assessment_of, why_nothing, worst_interval
from drfl.report.groups import group_runs
from drfl.report.pdf.baselines import LOCAL
from drfl.report.pdf.evidence import Evidence, RowGain, RunEvidence, SeedGain
from drfl.report.read_run import RunRecord, load_run, table, text

DEPLOYED = "traffic.json"
"""A file that only a deployment leaves."""

PARTITION = "partition.json"

PIECE = 2**20
"""Bytes of a file at a time."""


def gathered(folders: Sequence[Path], level: float = 0.95) -> Evidence:
    """Read finished runs, assess each, and compare them row by row and over seeds.

    Args:
        folders: of runs, at least one.
        level: of intervals and sets.

    Raises:
        InputError: a folder is no run's, or a file of it is damaged.
    """
    found = [_assessed(folder, level) for folder in folders]
    groups = group_runs([run.record for run, _ in found])
    labels = {id(record): group.label for group in groups for record in group.runs}
    order = {key: place for place, key in enumerate(labels)}
    found.sort(key=lambda pair: order[id(pair[0].record)])
    # configurations of one algorithm are compared too, each under its label
    runs = [_labelled(run, labels[id(run.record)]) for run, _ in found]
    local = {labels[id(run.record)] for run, _ in found if run.record.algorithm == LOCAL}
    alike = [run for run in runs if _alike(runs, runs[0].record.algorithm, run.record.algorithm)]
    alone = next((run for run in alike if run.record.algorithm in local), None)
    return Evidence(
        runs=tuple(_evidence(run, why) for run, why in found),
        by_rows=_row_gains(alike),
        over_local=() if alone is None else _row_gains([alone, *(run for run in alike if run is not alone)]),
        over_seeds=tuple(SeedGain(*row) for row in over_seeds(alike)),
    )


def _assessed(folder: Path, level: float) -> tuple[AssessedRun, str]:
    """A run, and why it cannot be assessed, if so: one of a model beyond the finite numbers is filed too."""
    record, file = load_run(folder), folder / FILE
    rows = read(file) if file.exists() else None
    if worst_interval(record) is None:
        return AssessedRun(folder, record, None, rows), why_nothing(record)
    assessment = assessment_of(record, level=level, independent=rows is None or not rows.shared)
    return AssessedRun(folder, record, assessment, rows), ""


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


def _row_gains(runs: Sequence[AssessedRun]) -> tuple[RowGain, ...]:
    return tuple(
        RowGain(pair.first.record.algorithm, pair.second.record.algorithm, pair.first.record.seed, pair.gain)
        for pair in paired(runs)
    )


def _evidence(run: AssessedRun, why: str) -> RunEvidence:
    return RunEvidence(
        record=run.record,
        assessment=run.assessment,
        nothing=why,
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
