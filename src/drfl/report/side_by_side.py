"""One run of each algorithm, at one seed, that can be shown beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from drfl.report.compared import same_clients
from drfl.report.formatting import clean
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord

if TYPE_CHECKING:
    from drfl.assessment.clients import Assessment


class Told(NamedTuple):
    """A run of an algorithm and what may be said of it.

    Args:
        group: the algorithm.
        run: one of its runs.
        found: the assessment by its score.
    """

    group: Group
    run: RunRecord
    found: Assessment


def at_one_seed(groups: Sequence[Group]) -> list[RunRecord]:
    """A run of each algorithm: at the first seed that all have, or each one's first."""
    # Reversed: of two runs at one seed the first one wins.
    seeds = [{run.seed: run for run in reversed(group.runs)} for group in groups]
    shared = next((run.seed for run in groups[0].runs if all(run.seed in own for own in seeds)), None)
    return [group.runs[0] if shared is None else own[shared] for group, own in zip(groups, seeds, strict=True)]


def which_seed(groups: Sequence[Group]) -> str:
    """Of which runs those of :func:`at_one_seed` are: "" where each algorithm has one, "seed 0", or "first seed"."""
    if all(len(group.runs) == 1 for group in groups):
        return ""
    seeds = {run.seed for run in at_one_seed(groups)}
    return f"seed {clean(seeds.pop(), 24)}" if len(seeds) == 1 else "first seed"


def side_by_side(groups: Sequence[Group]) -> list[list[Told]]:
    """The runs of :func:`at_one_seed` with their assessments, in a list for each federation of clients.

    Those of which nothing can be said, for their measure or their files, are left out.
    """
    from drfl.report.assessed import told_of  # loads scipy

    found: list[list[Told]] = []
    for group, run in zip(groups, at_one_seed(groups), strict=True):
        assessment = told_of(run)
        if assessment is None:
            continue
        told = Told(group, run, assessment)
        alike = next((own for own in found if same_clients(own[0].run, run) and own[0].run.seed == run.seed), None)
        if alike is None:
            found.append([told])
        else:
            alike.append(told)
    return found
