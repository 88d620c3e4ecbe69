"""Compare the methods after equally many gradients instead of equally many rounds."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from drfl.core.csv_cells import csv_text
from drfl.training.history import ACCURACY_COLUMNS, DIGITS
from drfl_papers import paired_tests, tables
from drfl_papers.cost_tables import MEGA
from drfl_papers.plan import Plan
from drfl_papers.records import Runs
from drfl_papers.tables import ResultTable

ALIKE = 1.05
"""Budgets that differ by at most this factor count as equal, and need no separate comparison."""

COLUMNS = ("setting", "method", "seed", "round", "gradient_evaluations", *ACCURACY_COLUMNS)


def cut(plan: Plan, found: Runs) -> Runs | None:
    """Cut the runs at the last evaluated round within a budget of gradients.

    The budget is the fewest gradients that any method spent in that setting at that seed.

    Returns:
        The shorter runs; None if all methods spent about equally many gradients, or if the runs were evaluated only
        at their ends.
    """
    shorter, different = {}, False
    for setting in plan.settings:
        groups = {method.name: found[setting, method.name] for method in plan.spec.methods}
        spent: dict[int, list[float]] = {}
        for run in (run for group in groups.values() for run in group if run.has_ended):
            spent.setdefault(run.seed, []).append(run.final["gradient_evaluations"])
        different |= any(max(values) > ALIKE * min(values) for values in spent.values())
        for name, group in groups.items():
            cuts = []
            for run in group:
                if run.has_ended:
                    budget = min(spent[run.seed])
                    points = tuple(p for p in run.points if p.values["gradient_evaluations"] <= budget)
                    run = replace(run, points=points, rounds=points[-1].round)
                cuts.append(run)
            shorter[setting, name] = tuple(cuts)
    # If runs were evaluated only at their start and end, a cut would leave only the initial model.
    return shorter if different and any(len(run.points) > 2 for group in found.values() for run in group) else None


def result_tables(plan: Plan, found: Runs) -> tuple[ResultTable, ...]:
    """Make the tables of metrics and paired differences at equal gradients; empty if :func:`cut` returns None."""
    shorter = cut(plan, found)
    if shorter is None:
        return ()
    rounds = []
    for method in plan.spec.methods:
        ended = [run.rounds for setting in plan.settings for run in shorter[setting, method.name] if run.has_ended]
        if ended:
            rounds.append(f"{method.name} {fmean(ended):.0f}")
    budget = max(run.final["gradient_evaluations"] for group in shorter.values() for run in group if run.has_ended)
    note = (
        f"Each method at its last evaluated round within the budget: the fewest gradients that any method spends in "
        f"that setting at that seed, at most {budget / MEGA:.3g}·10⁶. Mean rounds: {', '.join(rounds)}."
    )
    titled = []
    for table in (*tables.final(plan, shorter, beside=False), *paired_tests.tables(plan, shorter, stored=False)):
        head = table.title[:1]
        title = (head.lower() if head.isascii() else head) + table.title[1:]  # Greek letters are symbols
        titled.append(replace(table, title=f"At equal gradients: {title}"))
    first, *rest = titled
    return (replace(first, notes=(note, *first.notes)), *rest)


def to_csv(plan: Plan, found: Runs) -> str | None:
    """Format every run at equal gradients as CSV text; None if :func:`cut` returns None."""
    shorter = cut(plan, found)
    if shorter is None:
        return None
    rows = []
    for (setting, method), group in shorter.items():
        for run in (run for run in group if run.has_ended):
            metrics = (f"{run.final[name]:.{DIGITS}f}" for name in ACCURACY_COLUMNS)
            rows.append([setting, method, run.seed, run.rounds, int(run.final["gradient_evaluations"]), *metrics])
    return csv_text(COLUMNS, rows)
