"""The cost of each method: clients that train per round, gradients, bytes."""

from __future__ import annotations

from statistics import fmean

from drfl.core.errors import listing
from drfl.core.run_end import RESET
from drfl.task.measure import NOTHING
from drfl_papers.plan import Plan
from drfl_papers.records import Runs
from drfl_papers.tables import ResultTable, TableEntry

MEGA = 1e6

HEADER = ("method", "rounds", "clients per round", "10⁶ gradients", "MB sent, both ways")

NOTE = (
    "Means over settings and repeats, for runs that finished. Clients per round are the distinct clients that train: a "
    "client drawn several times trains once. Gradients are counted per sample, including those for reports."
)


def tables(plan: Plan, found: Runs) -> tuple[ResultTable, ...]:
    """Make one table with a row per method and a column per cost."""
    rows, halved, back = [], [], []
    for method in plan.spec.methods:
        ends = [(setting, run) for setting in plan.settings for run in found[setting, method.name] if run.has_ended]
        ended = [run for _, run in ends]
        texts = [NOTHING] * (len(HEADER) - 1)
        if ended:
            texts = [
                f"{fmean(run.rounds for run in ended):.4g}",
                f"{fmean(run.clients for run in ended):.1f}",
                f"{fmean(run.final['gradient_evaluations'] for run in ended) / MEGA:.3g}",
                f"{fmean(run.points[-1].bytes for run in ended) / MEGA:.3g}",
            ]
        rows.append(tuple(map(TableEntry, (method.name, *texts))))
        count = sum(run.halved > 0 for run in ended)
        if count:
            halved.append(f"{method.name} in {count} of {len(ended)} runs")
        back += [f"{method.name}, {setting}, seed {run.seed} ({run.set_back})" for setting, run in ends if run.set_back]
    notes = [NOTE]
    if halved:
        notes.append(f"drfl halved its automatic step size, as too large, in these runs: {'; '.join(halved)}.")
    if back:
        notes.append(f"{RESET.capitalize()}: {listing(back, 'run')}.")
    return (ResultTable("Participation and cost", HEADER, tuple(rows), tuple(notes)),)
