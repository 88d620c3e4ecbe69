"""Make the tables of EXPERIMENTS.md and docs/three-results.md: how far a method is ahead of the others.

`make pages` writes them into the pages.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown

from drfl.assessment.seeds import T_FROM, SeedDifference, holm_family, seed_difference, verdict
from drfl.core.run_end import FAILURES
from drfl.experiments.run.measures import column, signed_text
from drfl.task.measure import NOTHING

RESULTS = Path(__file__).parent / "results"
Row = Mapping[str, str]


class Leads(NamedTuple):
    """A column: the reference method's leads in a table.

    Args:
        head: the heading.
        result: the table or figure.
        metric: one of its accuracies.
        equal_gradients: whether methods are compared after equally many gradients instead of rounds.
    """

    head: str
    result: str
    metric: str
    equal_gradients: bool = False


class Lead(NamedTuple):
    """The reference minus another method, as a mean over a table's settings.

    Args:
        difference: difference over the seeds that both finished in every setting, as a fraction.
        shown: whether the difference is significant.
        ahead: number of settings in which the reference is significantly better.
        behind: number of settings in which it is significantly worse.
        settings: number of settings; 0 if single settings were not tested.
    """

    difference: SeedDifference
    shown: bool
    ahead: int
    behind: int
    settings: int


def rows_of(result: str, file: str) -> list[Row]:
    """The rows of a result's CSV file; none if it has no such file."""
    path = RESULTS / result / file
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as opened:
        return list(csv.DictReader(opened))


def runs_of(result: str, file: str) -> dict[str, dict[str, dict[str, Row]]]:
    """Finished runs by method, seed and setting."""
    runs: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows_of(result, file):
        if row.get("stopped") not in FAILURES:
            runs.setdefault(row["method"], {}).setdefault(row["seed"], {})[row["setting"]] = row
    return runs


def leads(asked: Leads) -> dict[str, Lead]:
    """Leads by method. The means of all methods and metrics are one family for Holm's correction, as in the tables."""
    runs = runs_of(asked.result, "equal_gradients.csv" if asked.equal_gradients else "cells.csv")
    compared = rows_of(asked.result, "paired.csv")
    settings = list(dict.fromkeys(row["setting"] for row in compared))
    pairs = list(dict.fromkeys((row["metric"], row["reference"], row["method"]) for row in compared))
    tested = []
    for metric, reference, method in pairs:
        first, other = runs.get(reference, {}), runs.get(method, {})
        whole = [seed for seed, own in first.items() if {*settings} <= own.keys() & other.get(seed, {}).keys()]
        apart = [[float(first[seed][s][metric]) - float(other[seed][s][metric]) for s in settings] for seed in whole]
        tested.append(seed_difference([fmean(values) for values in apart]))
    found = {}
    for (metric, _, method), difference, p in zip(pairs, tested, holm_family(tested), strict=True):
        if metric != asked.metric or not difference.n:
            continue
        shown = verdict(difference, float(p), less_is_better=column(metric).small) in ("better", "worse")
        each = [] if asked.equal_gradients else [(row["metric"], row["method"], row["seen"]) for row in compared]
        ahead, behind = (each.count((metric, method, seen)) for seen in ("better", "worse"))
        found[method] = Lead(difference, shown, ahead, behind, len(settings) if each else 0)
    return found


def told(lead: Lead | None) -> str:
    """Format a lead in points with its interval, bold if significant, and the settings with a significant lead."""
    if lead is None:
        return NOTHING
    n, mean, low, high, *_ = lead.difference
    text = signed_text(100 * mean, 1)
    text = f"**{text}**" if lead.shown else text
    if not math.isnan(low):
        text += f" [{signed_text(100 * low, 1)}, {signed_text(100 * high, 1)}]"
    if lead.settings > 1 and n >= T_FROM:
        counts = [f"{lead.ahead} of {lead.settings}"] if lead.ahead or not lead.behind else []
        counts += [f"{lead.behind} of {lead.settings} behind"] if lead.behind else []
        text += f"; {', '.join(counts)}"
    return text


def gradients(results: Sequence[str], method: str, reference: str) -> str:
    """Format a method's gradients as a multiple of the reference's, over the tables that have the method."""
    spent: dict[str, list[float]] = {method: [], reference: []}
    for result in dict.fromkeys(results):
        rows = [row for row in rows_of(result, "cells.csv") if row["stopped"] not in FAILURES]
        if any(row["method"] == method for row in rows):
            for row in (row for row in rows if row["method"] in spent):
                spent[row["method"]].append(float(row["gradient_evaluations"]))
    return f"{fmean(spent[method]) / fmean(spent[reference]):.2g}"


def table(*columns: Leads, of: Sequence[str] = ()) -> str:
    """Table of leads: a row per method, with its gradients as a multiple of the reference's.

    Args:
        columns: the columns.
        of: the methods to show; all compared ones if empty.
    """
    results, found = [one.result for one in columns], [leads(one) for one in columns]
    reference = rows_of(results[0], "paired.csv")[0]["reference"]
    methods = of or dict.fromkeys(method for own in found for method in own)
    rows = [
        [f"{reference} − {m}", gradients(results, m, reference), *(told(own.get(m)) for own in found)] for m in methods
    ]
    return markdown(["", "gradients", *(one.head for one in columns)], rows)


def both(first: str, second: str) -> str:
    """Table of the average and the worst client in two tables, after equally many rounds and gradients."""
    ways = [("average", "avg_accuracy", False), ("worst client", "worst_accuracy", False)]
    ways.append(("worst client at equal gradients", "worst_accuracy", True))
    return table(
        *(
            Leads(f"Table {result.rpartition('-')[2]}: {head}", result, metric, equal)
            for result in (first, second)
            for head, metric, equal in ways
        )
    )


def without_lambda() -> str:
    """Compare DRDM with methods without λ, and with itself with a uniform λ."""
    words = {"avg_accuracy": "average", "worst_accuracy": "worst client"}
    places = {"drdm-table-3": "MNIST, Table 3", "drdm-table-6": "features, Table 6"}
    return table(
        *(Leads(f"{name}: {words[metric]}", result, metric) for result, name in places.items() for metric in words),
        of=["SCAFFOLD", "SCAFFOLD (η_g = 1)", "FedDyn", "DRDM (γ = 0)", "dual DRDM"],
    )


def participation() -> str:
    """Compare DRDM with SCAFF-PD with all clients and with 20, after equally many rounds and gradients."""
    places = {"drdm-table-3": "MNIST, Table 3", "drdm-table-5": "features, Table 5"}
    ways = {"worst client": False, "at equal gradients": True}
    return table(
        *(
            Leads(f"{name}: {head}", result, "worst_accuracy", equal)
            for result, name in places.items()
            for head, equal in ways.items()
        ),
        of=["SCAFF-PD", "SCAFF-PD (minibatch reports)", "SCAFF-PD (m = 20)"],
    )


BLOCKS: dict[str, Callable[[], str]] = {
    "three-results.without-lambda": without_lambda,
    "three-results.participation": participation,
    "EXPERIMENTS.drdm-linear": lambda: both("drdm-table-3", "drdm-table-4"),
    "EXPERIMENTS.drdm-features": lambda: both("drdm-table-5", "drdm-table-6"),
    "EXPERIMENTS.drdm-cnn": lambda: both("drdm-table-1", "drdm-table-2"),
    "EXPERIMENTS.scaffpd-features": lambda: table(
        Leads("Table 1: average", "scaffpd-table-1", "avg_accuracy"),
        Leads("Table 1: worst fifth", "scaffpd-table-1", "worst20_accuracy"),
        Leads("Table 1: worst fifth at equal gradients", "scaffpd-table-1", "worst20_accuracy", equal_gradients=True),
        Leads("Table 2: worst fifth", "scaffpd-table-2", "worst20_accuracy"),
        Leads("Table 3: average", "scaffpd-table-3", "avg_accuracy"),
        Leads("Table 3: worst fifth", "scaffpd-table-3", "worst20_accuracy"),
        Leads("Table 4: average", "scaffpd-table-4", "avg_accuracy"),
        Leads("Table 4: worst fifth", "scaffpd-table-4", "worst20_accuracy"),
    ),
}
"""Page and block → function that writes it."""
