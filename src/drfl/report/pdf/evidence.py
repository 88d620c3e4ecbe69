"""What a printed report is made from: the runs, what may be said of them, and what their files are known by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from drfl.assessment.clients import Assessment
from drfl.assessment.gains import GainAssessment
from drfl.assessment.seeds import SeedDifference
from drfl.report.groups import Group, group_runs
from drfl.report.read_run import FailedRun, RunRecord


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


class SeedGain(NamedTuple):
    """Two algorithms over the seeds that both have.

    Args:
        first: label of the one compared with.
        second: label of the one whose gain it is.
        gain: the second's worst client minus the first's, turned such that larger is better.
        verdict: see :func:`drfl.assessment.seeds.verdict`, after Holm's correction over all that are here.
        undefined: the share of clients at which the score is undefined, see :func:`drfl.task.measure.undefined_share`.
        scope: what the difference holds for, see :class:`drfl.assessment.scope.Redrawn`.
    """

    first: str
    second: str
    gain: SeedDifference
    verdict: str
    undefined: str = ""
    scope: str = ""


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that a printed report is made from.

    Args:
        runs: at least one, in the order in which they were given; all judged by the same measures.
        by_rows: the first algorithm's model against each other's, at the first seed.
        over_local: the local-only models against each other algorithm's, at the first seed; none without such a run.
        over_seeds: the first algorithm against each other over seeds.
        unpaired: why models are missing in ``by_rows``, a sentence each.
        failed: runs beside them that left no results.
    """

    runs: tuple[RunEvidence, ...]
    by_rows: tuple[RowGain, ...] = ()
    over_local: tuple[RowGain, ...] = ()
    over_seeds: tuple[SeedGain, ...] = ()
    unpaired: tuple[str, ...] = ()
    failed: tuple[FailedRun, ...] = ()

    @cached_property
    def groups(self) -> list[Group]:
        """The runs by algorithm and configuration, in order."""
        return group_runs([run.record for run in self.runs], self.failed)

    def of(self, record: RunRecord) -> RunEvidence:
        """The evidence on one of the runs."""
        return next(run for run in self.runs if run.record is record)

    def first_of(self, group: Group) -> RunEvidence:
        """The evidence on the first run of a group."""
        return self.of(group.runs[0])
