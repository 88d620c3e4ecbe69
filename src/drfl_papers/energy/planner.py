"""How many local steps reach a target with the least energy: DRDM (Krouka et al. 2025), §IV.B.3 and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from drfl.core.errors import InputError
from drfl_papers.energy.channel import LinkConditions
from drfl_papers.energy.cost import Cost


class Measurement(NamedTuple):
    """How long one run took to reach the target.

    Args:
        tau: its local steps τ.
        seed: its seed.
        rounds: rounds until the target; None where it was never reached.
        outage: probability with which a client was in outage in a round of this run.
    """

    tau: int
    seed: int
    rounds: int | None
    outage: float = 0.0


class Candidate(NamedTuple):
    """A number of local steps with which every seed reached the target; means over seeds.

    Args:
        tau: τ.
        rounds: T.
        joules: energy of all clients together.
        seconds: time.
    """

    tau: int
    rounds: float
    joules: float
    seconds: float


class PlannedSteps(NamedTuple):
    """The plan for one kind of channel.

    Args:
        place: which.
        best: the candidate with the least energy; None where no τ reached the target.
        runner_up: the next; None where there is none.
    """

    place: LinkConditions
    best: Candidate | None
    runner_up: Candidate | None


class LocalStepsPlan(NamedTuple):
    """The plan for every kind of channel.

    Args:
        cells: one a place, in the order given.
        notes: sentences on what was left out.
    """

    cells: tuple[PlannedSteps, ...]
    notes: tuple[str, ...]


def choose(measurements: Sequence[Measurement], cost: Cost) -> list[Candidate]:
    """All τ with which every seed reached the target, the least mean energy first, the smaller τ first among equals.

    Args:
        measurements: of one kind of channel, every τ at the same seeds.
        cost: of a round there.
    """
    found: list[Candidate] = []
    for tau, runs in by_tau(measurements).items():
        reached = [run.rounds for run in runs if run.rounds is not None]
        if len(reached) == len(runs):
            rounds = fmean(reached)
            found.append(Candidate(tau, rounds, cost.joules(tau, rounds), cost.seconds(tau, rounds)))
    return sorted(found, key=lambda candidate: (candidate.joules, candidate.tau))


def by_tau(measurements: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    """τ → its runs, both ascending."""
    table: dict[int, list[Measurement]] = {}
    for run in sorted(measurements, key=lambda run: (run.tau, run.seed)):
        table.setdefault(run.tau, []).append(run)
    return table


def plan(measurements: Sequence[Measurement], costs: Mapping[LinkConditions, Cost]) -> LocalStepsPlan:
    """The τ with the least energy for every kind of channel.

    A τ with which some seed did not reach the target is left out, and a note says so. Runs without outage serve every
    place that none was made for; a note says that too.

    Args:
        measurements: rounds until the target.
        costs: what a round costs at each place.

    Raises:
        InputError: there are none, one is given twice, or some τ lacks a seed that another has.
    """
    check_complete(measurements)
    groups: dict[float, list[Measurement]] = {}
    for run in measurements:
        groups.setdefault(run.outage, []).append(run)
    cells: list[PlannedSteps] = []
    strangers: list[LinkConditions] = []
    for place, cost in costs.items():
        if place.outage not in groups:
            strangers.append(place)
        order = choose(groups.get(place.outage, groups.get(0.0, [])), cost)
        cells.append(PlannedSteps(place, *[*order, None, None][:2]))
    notes: list[str] = []
    for outage, group in groups.items():
        where = f" with {100 * outage:.3g} % outage" if outage else ""
        for tau, runs in by_tau(group).items():
            failed = [str(run.seed) for run in runs if run.rounds is None]
            if failed:
                seeds = f"seed{'s' if len(failed) > 1 else ''} {', '.join(failed)}"
                notes.append(f"τ = {tau}{where} is left out: {seeds} never reached the target")
    if strangers and 0.0 in groups:
        worst = max(place.outage for place in strangers)
        notes.append(
            f"rounds were measured without outage and are taken for channels with up to {100 * worst:.3g} % outage, "
            "which would need more"
        )
    elif strangers:
        notes.append(f"{len(strangers)} kinds of channel have an outage at which nothing was measured")
    return LocalStepsPlan(tuple(cells), tuple(notes))


def check_complete(measurements: Sequence[Measurement]) -> None:
    """Raise an InputError unless every τ was measured once at each of the same seeds."""
    if not measurements:
        raise InputError(
            "there are no measurements: give at least one row tau,seed,rounds", code="no-rows", field="measurements"
        )
    for outage in {run.outage for run in measurements}:
        runs = [(run.tau, run.seed) for run in measurements if run.outage == outage]
        twice = next((pair for pair in runs if runs.count(pair) > 1), None)
        if twice is not None:
            raise InputError(
                f"τ = {twice[0]} at seed {twice[1]} is measured twice: keep one of the two",
                code="given-twice",
                field="measurements",
            )
        seeds = {seed for _, seed in runs}
        for tau in sorted({tau for tau, _ in runs}):
            missing = seeds - {seed for t, seed in runs if t == tau}
            if missing:
                raise InputError(
                    f"τ = {tau} is not measured at seed {min(missing)}, another τ is: add that run (with no number of "
                    "rounds if it never reached the target)",
                    code="missing-values",
                    field="measurements",
                )
