"""What the methods cost: clients that train in a round, gradients, bytes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from drfl.core.errors import listed
from drfl.core.run_end import SET_BACK
from drfl.task.measure import NOTHING
from drfl_papers.plan import Plan
from drfl_papers.records import Run, Runs
from drfl_papers.tables import ResultTable, TableEntry

MEGA = 1e6

HEADER = ("method", "rounds", "clients a round", "10⁶ gradients", "MB sent, both ways")

NOTE = (
    "Means over settings and repeats, of runs that came to their end. Clients a round are the distinct ones that "
    "train: a client drawn several times trains once. Gradients are counted by sample, those of reports too."
)


def tables(plan: Plan, found: Runs) -> tuple[ResultTable, ...]:
    """One table: the methods down, what they cost across."""
    rows = []
    for method in plan.spec.methods:
        ended = [run for setting in plan.settings for run in found[setting, method.name] if run.ended]
        rows.append((TableEntry(method.name), *map(TableEntry, _texts(ended))))
    return (ResultTable("Participation and cost", HEADER, tuple(rows), (NOTE, *_halved(plan, found))),)


def _halved(plan: Plan, found: Runs) -> list[str]:
    """A sentence on the runs that found their step size too large, where there are any."""
    texts, back = [], []
    for method in plan.spec.methods:
        places = [(setting, run) for setting in plan.settings for run in found[setting, method.name] if run.ended]
        group = [run for _, run in places]
        count = sum(run.halved > 0 for run in group)
        texts += [f"{method.name} in {count} of {len(group)} runs"] if count else []
        back += [
            f"{method.name}, {setting}, seed {run.seed} ({run.set_back})" for setting, run in places if run.set_back
        ]
    said = [f"drfl lowered the step size that it had found, as too large, in these runs: {'; '.join(texts)}."]
    return said * bool(texts) + [f"{SET_BACK.capitalize()}: {listed(back, 'run')}."] * bool(back)


def _texts(ended: Sequence[Run]) -> list[str]:
    if not ended:
        return [NOTHING] * (len(HEADER) - 1)
    gradients = fmean(run.final["gradient_evaluations"] for run in ended) / MEGA
    return [
        f"{fmean(run.rounds for run in ended):.4g}",
        f"{fmean(run.clients for run in ended):.1f}",
        f"{gradients:.3g}",
        f"{fmean(run.points[-1].bytes for run in ended) / MEGA:.3g}",
    ]
