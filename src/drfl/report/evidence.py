"""The evidence for a report: the runs, their assessments and comparisons, and the digests of their files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from drfl.assessment.clients import Assessment
from drfl.assessment.gains import GainAssessment
from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError
from drfl.core.files import sha256_of
from drfl.data.partition.partition import Partition
from drfl.report.assessed import assessment_of, missing_reason
from drfl.report.groups import Group, group_runs, runs_at_one_seed
from drfl.report.read_run import FILES, REPORT, FailedRun, RunRecord, nested_table, text
from drfl.report.run_gains import (
    AssessedRun,
    PairedRuns,
    SeedComparison,
    assess_record,
    compare_over_seeds,
    gain_over_last,
    named_runs,
    pair_runs,
)
from drfl.task.measure import Measure

DEPLOYED = "traffic.json"
"""File that only a deployment writes."""

PARTITION = "partition.json"

LOCAL = "LocalOnly"
"""The algorithm in which every client trains its own model."""


@dataclass(frozen=True, eq=False)
class RunEvidence:
    """A run with the information of its folder that is not in the tables.

    Args:
        record: The run.
        assessment: Assessment by its score; None if there is none.
        missing_reason: Why the assessment is missing, as a sentence; "" if it is not.
        files: SHA-256 of the files that drfl wrote in its folder, by name.
        data: Digest of the clients' rows, including which client holds which; "" if the folder has none.
        shared: Whether two clients share a test row; None if unknown.
        validation: (N,) Validation rows of the clients; None if unknown.
        is_deployed: Whether the data stayed at sites.
        gain_over_last: Gain of the returned model over the last iterate; None unless both were tested row by row.
    """

    record: RunRecord
    assessment: Assessment | None
    missing_reason: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    data: str = ""
    shared: bool | None = None
    validation: tuple[int, ...] | None = None
    is_deployed: bool = False
    gain_over_last: GainAssessment | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) names of the clients for display, in the order of clients.csv."""
        return self.record.display_names

    @cached_property
    def named_assessment(self) -> Assessment | None:
        """The assessment with the clients' display names."""
        return None if self.assessment is None else dataclasses.replace(self.assessment, names=self.names)

    def by(self, measure: Measure) -> Assessment | None:
        """Assess the run by one of its measures; None if it has no intervals."""
        if measure == self.record.score:
            return self.assessment
        shared = self.record.shared_test_rows if self.shared is None else self.shared
        # No report shows what to expect of other measures if all clients were equal, and it is slow to compute.
        return assessment_of(self.record, measure, independent=not shared, equality=False)


@dataclass(frozen=True, eq=False)
class Evidence:
    """All inputs of a report.

    Args:
        runs: At least one run, in the order in which they were given; all with the same measures.
        by_rows: Gains of the other algorithms' models over the first one's, at the first seed.
        over_local: Gains of the other algorithms over the local-only models, at the first seed; empty without such a
            run.
        over_seeds: Gains of the other algorithms over the first one, over seeds.
        unpaired_reasons: Why models are missing in ``by_rows``, one sentence per reason.
        failed: Further runs that left no results.

    Raises:
        InputError: If no run is given, or the runs have different measures.
    """

    runs: tuple[RunEvidence, ...]
    by_rows: tuple[PairedRuns, ...] = ()
    over_local: tuple[PairedRuns, ...] = ()
    over_seeds: tuple[SeedComparison, ...] = ()
    unpaired_reasons: tuple[str, ...] = ()
    failed: tuple[FailedRun, ...] = ()

    def __post_init__(self) -> None:
        _check([run.record for run in self.runs])

    @cached_property
    def groups(self) -> list[Group]:
        """The runs by algorithm and configuration, in order."""
        return group_runs([run.record for run in self.runs], self.failed)

    @cached_property
    def trained(self) -> Evidence:
        """The evidence without predictions of other tools, whose training is unknown."""
        return dataclasses.replace(self, runs=tuple(run for run in self.runs if not run.record.is_predicted))

    def of(self, record: RunRecord) -> RunEvidence:
        """Return the evidence of a run."""
        return next(run for run in self.runs if run.record is record)

    @cached_property
    def representatives(self) -> list[tuple[Group, RunEvidence]]:
        """Each group with its representative run, see :func:`drfl.report.groups.runs_at_one_seed`."""
        return [(group, self.of(run)) for group, run in zip(self.groups, runs_at_one_seed(self.groups), strict=True)]


def gather_evidence(records: Sequence[RunRecord], failed: Sequence[FailedRun] = ()) -> Evidence:
    """Assess each run, and compare the runs row by row and over seeds.

    Raises:
        InputError: If no run is given, the runs have different measures, or a file of a run is damaged.
    """
    _check(records)
    groups = group_runs(records, failed)
    labels = {id(record): group.label for group in groups for record in group.runs}
    shown = {id(record) for record in runs_at_one_seed(groups)}
    ordered = (record for group in groups for record in group.runs)
    # Compute the scores expected if equal only for the runs shown: it is slow, and no report shows other seeds.
    assessed_runs = [assess_record(record, equality=id(record) in shown) for record in ordered]
    # Compare configurations of one algorithm as well, each under its label.
    runs = named_runs(assessed_runs, labels)
    local = {labels[id(run.record)] for run in assessed_runs if run.record.algorithm == LOCAL}
    by_seed: dict[str, dict[object, AssessedRun]] = {}
    for run in runs:
        by_seed.setdefault(run.record.algorithm, {})[run.record.seed] = run
    first, incomparable = by_seed[runs[0].record.algorithm], set[str]()
    for name, runs_by_seed in by_seed.items():
        for a, b in ((first[seed], runs_by_seed[seed]) for seed in first if seed in runs_by_seed):
            same = _setting(a.record) == _setting(b.record)
            # A run without a file of test rows counts as tested on the same rows.
            if a.rows is not None and b.rows is not None:
                same = same and torch.equal(a.rows.starts, b.rows.starts) and torch.equal(a.rows.rows, b.rows.rows)
            if not same:
                incomparable.add(name)
    # Compare worst clients only between algorithms that ran on the same data.
    comparable = [run for run in runs if run.record.algorithm not in incomparable]
    local_run = next((run for run in comparable if run.record.algorithm in local), None)
    by_rows, unpaired = pair_runs(comparable)
    if len(comparable) < len(runs):
        unpaired.append("the runs are not all on the same data, partition and test rows")
    return Evidence(
        runs=tuple(map(_evidence_on, assessed_runs)),
        by_rows=tuple(by_rows),
        over_local=()
        if local_run is None
        else tuple(pair_runs([local_run, *(r for r in comparable if r is not local_run)])[0]),
        over_seeds=tuple(compare_over_seeds(comparable, [group.label for group in groups if group.failed])),
        unpaired_reasons=tuple(unpaired),
        failed=tuple(failed),
    )


def _check(records: Sequence[RunRecord]) -> None:
    if not records:
        raise InputError(
            "a report needs at least one run. Pass a folder that `drfl run` wrote.", code="empty", field="runs"
        )
    measured = {run.measures for run in records}
    if len(measured) > 1:
        each = "; ".join(sorted(", ".join(m.name for m in measures) for measures in measured))
        raise InputError(
            f"the runs have different measures ({each}). Use runs with the same measures.", code="runs-differ"
        )


def _evidence_on(run: AssessedRun) -> RunEvidence:
    record, folder = run.record, run.record.directory
    held_out, names = None, list[str]()
    if folder is not None:  # except the report, which cannot contain its own digest
        names = [name for name in FILES if name != REPORT and is_file(folder / name)]
    # Validation rows are those that the partition assigned to a client and that it did not train on.
    if folder is not None and PARTITION in names:
        partition, frame = Partition.load(folder / PARTITION), record.clients
        assigned = dict(zip(partition.names, partition.sizes.tolist(), strict=True))
        pairs = zip(frame["client"].tolist(), frame["train_samples"].to_numpy(float).tolist(), strict=True)
        remaining = tuple(assigned.get(name, -1) - int(trained) for name, trained in pairs)
        held_out = None if any(rows < 0 for rows in remaining) else remaining
    return RunEvidence(
        record=record,
        assessment=run.assessment,
        missing_reason="" if run.assessment is not None else missing_reason(record),
        files={} if folder is None else {name: sha256_of(folder / name, follow=False) for name in names},
        data="" if run.rows is None else run.rows.data,
        shared=None if run.rows is None else run.rows.has_shared_rows,
        validation=held_out,
        is_deployed=DEPLOYED in names,
        gain_over_last=gain_over_last(run),
    )


def _setting(record: RunRecord) -> tuple[str, str, list[str]]:
    recipe = nested_table(record.summary, "partition")
    return text(record.summary, "dataset"), json.dumps(recipe, sort_keys=True), record.clients["client"].tolist()
