"""Find the number of local steps with the least energy: DRDM (Krouka et al. 2025), §IV.B.3 and Figure 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from drfl.core.errors import InputError
from drfl_papers.energy.channel import LinkConditions
from drfl_papers.energy.cost import Cost


class Measurement(NamedTuple):
    """The rounds that one run took to reach the target.

    Args:
        tau: Local steps τ of the run.
        seed: Seed of the run.
        rounds: Rounds until the target; None if it was never reached.
        outage: Probability that a client was in outage in a round of this run.
    """

    tau: int
    seed: int
    rounds: int | None
    outage: float = 0.0


class StepsCandidate(NamedTuple):
    """A number of local steps with which every seed reached the target; means over seeds.

    Args:
        tau: τ.
        rounds: T.
        joules: Energy of all clients together, in J.
        seconds: Time in s.
    """

    tau: int
    rounds: float
    joules: float
    seconds: float


class PlannedSteps(NamedTuple):
    """The plan for one kind of channel.

    Args:
        place: The channel.
        best: The candidate with the least energy; None if no τ reached the target.
        runner_up: The next best candidate; None if there is none.
    """

    place: LinkConditions
    best: StepsCandidate | None
    runner_up: StepsCandidate | None


class LocalStepsPlan(NamedTuple):
    """The plan for every kind of channel.

    Args:
        cells: One plan per channel, in the order of the costs.
        notes: Sentences about excluded τ and missing outages.
    """

    cells: tuple[PlannedSteps, ...]
    notes: tuple[str, ...]


def choose(measurements: Sequence[Measurement], cost: Cost) -> list[StepsCandidate]:
    """Return all τ with which every seed reached the target, by increasing mean energy; the smaller τ wins a tie.

    Args:
        measurements: Measurements for one kind of channel, every τ at the same seeds.
        cost: Cost of a round with this channel.
    """
    candidates: list[StepsCandidate] = []
    for tau, runs in by_tau(measurements).items():
        reached = [run.rounds for run in runs if run.rounds is not None]
        # A mean over the seeds that reached the target would flatter a τ that fails at the others.
        if len(reached) == len(runs):
            rounds = fmean(reached)
            candidates.append(StepsCandidate(tau, rounds, cost.joules(tau, rounds), cost.seconds(tau, rounds)))
    return sorted(candidates, key=lambda candidate: (candidate.joules, candidate.tau))


def by_tau(measurements: Sequence[Measurement]) -> dict[int, list[Measurement]]:
    """Group runs by τ, both in ascending order."""
    table: dict[int, list[Measurement]] = {}
    for run in sorted(measurements, key=lambda run: (run.tau, run.seed)):
        table.setdefault(run.tau, []).append(run)
    return table


def plan(measurements: Sequence[Measurement], costs: Mapping[LinkConditions, Cost]) -> LocalStepsPlan:
    """Find the τ with the least energy for every kind of channel.

    A τ with which some seed did not reach the target is excluded, and a note says so. For channels with an outage that
    was not measured, runs without outage are used; a note says that too.

    Args:
        measurements: Rounds until the target.
        costs: Cost of a round at each place.

    Raises:
        InputError: If there are no measurements, one is given twice, or some τ lacks a seed that another has.
    """
    check_complete(measurements)
    groups: dict[float, list[Measurement]] = {}
    for run in measurements:
        groups.setdefault(run.outage, []).append(run)
    cells: list[PlannedSteps] = []
    unmeasured: list[LinkConditions] = []
    for place, cost in costs.items():
        if place.outage not in groups:
            unmeasured.append(place)
        order = choose(groups.get(place.outage, groups.get(0.0, [])), cost)
        cells.append(PlannedSteps(place, *[*order, None, None][:2]))
    notes: list[str] = []
    for outage, group in groups.items():
        suffix = f" with {100 * outage:.3g} % outage" if outage else ""
        for tau, runs in by_tau(group).items():
            failed = [str(run.seed) for run in runs if run.rounds is None]
            if failed:
                seeds = f"seed{'s' if len(failed) > 1 else ''} {', '.join(failed)}"
                notes.append(f"τ = {tau}{suffix} is excluded: {seeds} never reached the target")
    if unmeasured and 0.0 in groups:
        worst = max(place.outage for place in unmeasured)
        notes.append(
            f"rounds were measured without outage and are used for channels with up to {100 * worst:.3g} % outage, "
            "which would need more rounds"
        )
    elif unmeasured:
        notes.append(f"{len(unmeasured)} kinds of channel have an outage at which nothing was measured")
    return LocalStepsPlan(tuple(cells), tuple(notes))


def check_complete(measurements: Sequence[Measurement]) -> None:
    """Raise an InputError unless every τ was measured once at each of the same seeds."""
    if not measurements:
        raise InputError(
            "no measurements. Pass at least one row tau,seed,rounds.", code="no-rows", field="measurements"
        )
    for outage in {run.outage for run in measurements}:
        runs = [(run.tau, run.seed) for run in measurements if run.outage == outage]
        duplicate = next((pair for pair in runs if runs.count(pair) > 1), None)
        if duplicate is not None:
            raise InputError(
                f"τ = {duplicate[0]} at seed {duplicate[1]} is measured twice. Remove one of the two.",
                code="given-twice",
                field="measurements",
            )
        seeds = {seed for _, seed in runs}
        for tau in sorted({tau for tau, _ in runs}):
            missing = seeds - {seed for t, seed in runs if t == tau}
            if missing:
                raise InputError(
                    f"τ = {tau} is not measured at seed {min(missing)}, but another τ is. Add this run; if it never "
                    "reached the target, leave the number of rounds empty.",
                    code="missing-values",
                    field="measurements",
                )
