"""What a report is made from: the runs, what may be said of them, and what their files are known by."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch

from drfl.assessment.clients import Assessment
from drfl.assessment.gains import GainAssessment
from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError
from drfl.core.files import sha256_of
from drfl.data.partition.partition import Partition
from drfl.report.assessed import assessment_of, why_nothing
from drfl.report.groups import Group, at_one_seed, group_runs
from drfl.report.read_run import FILES, REPORT, FailedRun, RunRecord, table, text
from drfl.report.run_gains import AssessedRun, OverSeeds, PairedRuns, assessed, over_last, over_seeds, paired
from drfl.task.measure import Measure

DEPLOYED = "traffic.json"
"""A file that only a deployment leaves."""

PARTITION = "partition.json"

LOCAL = "LocalOnly"
"""The algorithm of which every client has a model of its own."""


@dataclass(frozen=True, eq=False)
class RunEvidence:
    """A run, with what its folder says beside the tables.

    Args:
        record: its files.
        assessment: by its score; None where there is none.
        nothing: why there is none, in a sentence; "" where there is one.
        files: SHA-256 of the files that drfl left in its folder, by name.
        data: digest of the clients' rows, who holds which included; "" where the folder keeps none.
        shared: whether two clients share a test row; None where that is not known.
        validation: (N,) validation rows of the clients; None where that is not known.
        deployed: whether the data stayed at sites.
        over_last: the returned model's gain over the last iterate; None where both were not tested row by row.
    """

    record: RunRecord
    assessment: Assessment | None
    nothing: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    data: str = ""
    shared: bool | None = None
    validation: tuple[int, ...] | None = None
    deployed: bool = False
    over_last: GainAssessment | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) the clients' names as they are shown, in the order of clients.csv."""
        return self.record.display_names

    @cached_property
    def named(self) -> Assessment | None:
        """The assessment with the clients' names as they are shown."""
        return None if self.assessment is None else dataclasses.replace(self.assessment, names=self.names)

    def by(self, measure: Measure) -> Assessment | None:
        """The assessment by one of its measures; None where there is none."""
        if measure == self.record.score:
            return self.assessment
        shared = self.record.shared_test_rows if self.shared is None else self.shared
        return assessment_of(self.record, measure, independent=not shared, equality=False)


class RowGain(NamedTuple):
    """Two algorithms' models on the same test rows.

    Args:
        first: label of the one compared with.
        second: label of the one whose gain it is.
        seed: of both.
        gain: of the second over the first.
    """

    first: str
    second: str
    seed: str
    gain: GainAssessment


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a report is made from.

    Args:
        runs: at least one, in the order in which they were given; all judged by the same measures.
        by_rows: the first algorithm's model against each other's, at the first seed.
        over_local: the local-only models against each other algorithm's, at the first seed; none without such a run.
        over_seeds: the first algorithm against each other over seeds.
        unpaired: why models are missing in ``by_rows``, a sentence each.
        failed: runs beside them that left no results.

    Raises:
        InputError: there is no run, or the runs are judged by different measures.
    """

    runs: tuple[RunEvidence, ...]
    by_rows: tuple[RowGain, ...] = ()
    over_local: tuple[RowGain, ...] = ()
    over_seeds: tuple[OverSeeds, ...] = ()
    unpaired: tuple[str, ...] = ()
    failed: tuple[FailedRun, ...] = ()

    def __post_init__(self) -> None:
        _check([run.record for run in self.runs])

    @cached_property
    def groups(self) -> list[Group]:
        """The runs by algorithm and configuration, in order."""
        return group_runs([run.record for run in self.runs], self.failed)

    def of(self, record: RunRecord) -> RunEvidence:
        """The evidence on one of the runs."""
        return next(run for run in self.runs if run.record is record)

    @cached_property
    def shown(self) -> list[tuple[Group, RunEvidence]]:
        """Each group with the one of its runs that stands for it, see :func:`drfl.report.groups.at_one_seed`."""
        return [(group, self.of(run)) for group, run in zip(self.groups, at_one_seed(self.groups), strict=True)]


def gathered(records: Sequence[RunRecord], failed: Sequence[FailedRun] = ()) -> Evidence:
    """Assess each run, and compare them row by row and over seeds.

    Args:
        records: the runs, at least one.
        failed: runs beside them that left no results.

    Raises:
        InputError: there is no run, the runs are judged by different measures, or a file of a run is damaged.
    """
    _check(records)
    groups = group_runs(records, failed)
    labels = {id(record): group.label for group in groups for record in group.runs}
    shown = {id(record) for record in at_one_seed(groups)}
    ordered = (record for group in groups for record in group.runs)
    # The other seeds are not compared with equally good clients: that takes long, and no report shows it.
    found = [assessed(record, equality=id(record) in shown) for record in ordered]
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
    return Evidence(
        runs=tuple(map(_evidence_on, found)),
        by_rows=_row_gains(by_rows),
        over_local=() if alone is None else _row_gains(paired([alone, *(r for r in alike if r is not alone)])[0]),
        over_seeds=tuple(over_seeds(alike, [group.label for group in groups if group.failed])),
        unpaired=tuple(unpaired),
        failed=tuple(failed),
    )


def _check(records: Sequence[RunRecord]) -> None:
    if not records:
        raise InputError(
            "a report needs at least one run: give a folder that `drfl run` wrote", code="empty", field="runs"
        )
    measured = {run.measures for run in records}
    if len(measured) > 1:
        each = "; ".join(sorted(", ".join(m.name for m in measures) for measures in measured))
        raise InputError(f"the runs measure different things ({each}): give runs of one kind", code="runs-differ")


def _evidence_on(run: AssessedRun) -> RunEvidence:
    record, folder = run.record, run.record.directory
    held_out, names = None, list[str]()
    if folder is not None:  # not the report: it cannot have its own digest
        names = [name for name in FILES if name != REPORT and is_file(folder / name)]
    # Rows that the partition gave a client and that it did not train on; None if unknown.
    if folder is not None and PARTITION in names:
        partition, frame = Partition.load(folder / PARTITION), record.clients
        given = dict(zip(partition.names, partition.sizes.tolist(), strict=True))
        pairs = zip(frame["client"].tolist(), frame["train_samples"].to_numpy(float).tolist(), strict=True)
        left = tuple(given.get(name, -1) - int(trained) for name, trained in pairs)
        held_out = None if any(rows < 0 for rows in left) else left
    return RunEvidence(
        record=record,
        assessment=run.assessment,
        nothing="" if run.assessment is not None else why_nothing(record),
        files={} if folder is None else {name: sha256_of(folder / name, follow=False) for name in names},
        data="" if run.rows is None else run.rows.data,
        shared=None if run.rows is None else run.rows.shared,
        validation=held_out,
        deployed=DEPLOYED in names,
        over_last=over_last(run),
    )


def _setting(record: RunRecord) -> tuple[str, str, list[str]]:
    recipe = table(record.summary, "partition")
    return text(record.summary, "dataset"), json.dumps(recipe, sort_keys=True), record.clients["client"].tolist()


def _row_gains(pairs: Sequence[PairedRuns]) -> tuple[RowGain, ...]:
    return tuple(
        RowGain(pair.first.record.algorithm, pair.second.record.algorithm, pair.first.record.seed, pair.gain)
        for pair in pairs
    )
