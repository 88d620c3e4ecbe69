"""Tables of clients: of one run, and of several against each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drfl.report.compared import same_clients
from drfl.report.content import TableBlock
from drfl.report.formatting import NOTHING, THIN, clean, count, percent, scored, span, spread
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, worst_first
from drfl.report.side_by_side import at_one_seed, which_seed
from drfl.report.tables import beside, interval_head

if TYPE_CHECKING:
    from drfl.assessment.clients import Assessment

TABLE_ROWS = 1000

MOST_NAMED = 30
"""Clients with a row of their own in a report of several runs."""

NUMBERED = re.compile(r"client-\d+")
"""A client of a random partition, who is another one at every seed."""

COULD = "* "
"""Before the interval of a client that could be the worst."""


def client_table(run: RunRecord, found: Assessment | None) -> TableBlock:
    """Every client of a run, worst first, with the intervals of its score.

    Args:
        run: the run.
        found: its assessment; None where nothing can be said.
    """
    clients = worst_first(run).head(TABLE_ROWS)
    score, *others = (measure for measure in run.measures if measure is run.score or measure.name in clients)
    names = (*(measure.name for measure in others), "loss", "samples", "train_samples", "lambda")
    rows = []
    for i, name, value, *values in zip(
        clients.index, clients["client"], clients["score"], *(clients[c].astype(float) for c in names), strict=True
    ):
        sure = [] if found is None else [_ends(found, i), _could(found, i)]
        rows.append(
            [
                # `values` holds the other measures, then loss, samples, training samples and λ.
                clean(name, 60), scored([value], score), *sure,
                *(scored([other], measure) for other, measure in zip(values, others, strict=False)),
                spread([values[-4]], 3), count(values[-3]), count(values[-2]), percent([values[-1]], 2),
            ]
        )  # fmt: skip
    measured = [m.words[:1].upper() + m.words[1:] + (" (%)" if m.percent else "") for m in (score, *others)]
    if found is not None:
        measured[1:1] = [f"95{THIN}%", "Could be the worst"]
    head = ["Client", *measured, "Loss", "Test samples", "Training samples", "λ (%)"]
    caption = "Clients of the final model, worst first"
    if len(run.clients) > TABLE_ROWS:
        caption = f"The {TABLE_ROWS} worst of {len(run.clients)} clients; clients.csv has them all"
    if found is not None:
        caption += f"; 95{THIN}%: intervals that hold for all clients together"
    return TableBlock(caption + beside([run]), head, rows)


def _could(found: Assessment, client: int) -> str:
    if math.isnan(found.values[client]):
        return "not known"
    return "yes" if found.candidates[client] else ""


def _ends(found: Assessment, client: int) -> str:
    return found.measure.interval(float(found.low[client]), float(found.high[client]))


def by_client_tables(groups: Sequence[Group]) -> list[TableBlock]:
    """Of several runs on the same few clients, for each measure, clients against algorithms, with intervals.

    Clients with names of their own have means over seeds; the numbered ones of a random partition, who are others at
    every seed, are those of one seed.
    """
    firsts = at_one_seed(groups)
    names = firsts[0].clients["client"].tolist()
    if sum(len(group.runs) for group in groups) == 1 or len(names) > firsts[0].most_shown(MOST_NAMED):
        return []
    numbered = any(NUMBERED.fullmatch(name) for name in names)
    shown = [[run] for run in firsts] if numbered else [list(group.runs) for group in groups]
    if numbered:
        same = all(same_clients(run, firsts[0]) and run.seed == firsts[0].seed for run in firsts)
    else:
        same = all(run.clients["client"].tolist() == names for runs in shown for run in runs)
    if not same:
        return []
    from drfl.report.assessed import told_of  # loads scipy

    every, tables = [run for runs in shown for run in runs], []
    common = [m for m in groups[0].measures if all(m == run.score or m.name in run.clients for run in every)]
    for measure in common:
        column = "score" if measure == groups[0].score else measure.name
        rows = [
            [clean(name, 60), span(float(run.clients["samples"].iloc[i]) for run in every)]
            for i, name in enumerate(names)
        ]
        # Two columns per algorithm: the value or its mean over seeds, and the interval at one seed, as a mean has none.
        head, marked = ["Client", "Test samples"], False
        for group, runs, first in zip(groups, shown, firsts, strict=True):
            found = told_of(first, measure)
            head += [group.label, interval_head(groups)]
            for i, row in enumerate(rows):
                row.append(scored([float(run.clients[column].iloc[i]) for run in runs], measure))
                could = found is not None and _could(found, i) == "yes"
                row.append(NOTHING if found is None else COULD * could + _ends(found, i))
                marked |= could
        caption = f"{measure.words[:1].upper()}{measure.words[1:]} by client{', in percent' * measure.percent}"
        if len(shown[0]) < len(groups[0].runs):
            caption += f", {which_seed(groups)}"
        elif len(every) > len(groups):
            caption += "; mean ± sample standard deviation over seeds"
        if marked:
            caption += (
                f"; 95{THIN}%: intervals that hold for all clients of an algorithm together; * could be the worst "
                "client"
            )
        tables.append(TableBlock(caption, head, rows))
    return tables
