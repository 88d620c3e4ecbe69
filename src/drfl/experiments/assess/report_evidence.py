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
    # Configurations of one algorithm are compared too, each under its label.
    runs: list[AssessedRun] = []
    for run in found:
        summary = {**run.record.summary, "algorithm": labels[id(run.record)]}
        runs.append(run._replace(record=dataclasses.replace(run.record, summary=summary)))
    local = {labels[id(run.record)] for run in found if run.record.algorithm == LOCAL}
    by_seed: dict[str, dict[object, AssessedRun]] = {}
    for run in runs:
        by_seed.setdefault(run.record.algorithm, {})[run.record.seed] = run
    first, apart = by_seed[runs[0].record.algorithm], set[str]()
    for name, own in by_seed.items():
        for a, b in ((first[seed], own[seed]) for seed in first if seed in own):
            same = _setting(a.record) == _setting(b.record)
            # A run without a file of test rows counts as tested on the same rows.
            if a.rows is not None and b.rows is not None:
                same = same and torch.equal(a.rows.starts, b.rows.starts) and torch.equal(a.rows.rows, b.rows.rows)
            if not same:
                apart.add(name)
    # Compare worst clients only between algorithms that ran on the same data.
    alike = [run for run in runs if run.record.algorithm not in apart]
    alone = next((run for run in alike if run.record.algorithm in local), None)
    by_rows, unpaired = paired(alike)
    if len(alike) < len(runs):
        unpaired.append("the runs are not all on the same data, partition and test rows")
    evidence: list[RunEvidence] = []
    for run in found:
        # Rows that the partition gave a client and that it did not train on; None if unknown.
        path, held_out = run.directory / PARTITION, None
        if is_file(path):
            partition, frame = Partition.load(path), run.record.clients
            given = dict(zip(partition.names, partition.sizes.tolist(), strict=True))
            pairs = zip(frame["client"].tolist(), frame["train_samples"].to_numpy(float).tolist(), strict=True)
            left = tuple(given.get(name, -1) - int(trained) for name, trained in pairs)
            held_out = None if any(rows < 0 for rows in left) else left
        evidence.append(
            RunEvidence(
                record=run.record,
                assessment=run.assessment,
                nothing="" if run.assessment is not None else why_nothing(run.record),
                files={
                    name: sha256_of(run.directory / name, follow=False)
                    for name in FILES
                    if is_file(run.directory / name)
                },
                data="" if run.rows is None else run.rows.data,
                shared=None if run.rows is None else run.rows.shared,
                validation=held_out,
                deployed=is_file(run.directory / DEPLOYED),
                over_last=over_last(run),
            )
        )
    return Evidence(
        runs=tuple(evidence),
        by_rows=_row_gains(by_rows),
        over_local=() if alone is None else _row_gains(paired([alone, *(r for r in alike if r is not alone)])[0]),
        over_seeds=tuple(SeedGain(*row) for row in over_seeds(alike, [g.label for g in groups if g.failed])),
        unpaired=tuple(unpaired),
        failed=tuple(failed),
    )


def _setting(record: RunRecord) -> tuple[str, str, list[str]]:
    recipe = table(record.summary, "partition")
    return text(record.summary, "dataset"), json.dumps(recipe, sort_keys=True), record.clients["client"].tolist()


def _row_gains(pairs: Sequence[PairedRuns]) -> tuple[RowGain, ...]:
    return tuple(
        RowGain(pair.first.record.algorithm, pair.second.record.algorithm, pair.first.record.seed, pair.gain)
        for pair in pairs
    )
