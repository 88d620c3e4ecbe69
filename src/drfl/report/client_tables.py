"""Tables of clients: for one run, and for several runs side by side."""

from __future__ import annotations

import math
import re

import numpy as np

from drfl.assessment.clients import Assessment, flip_direction
from drfl.report.compared import have_same_clients
from drfl.report.content import TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.formatting import NOTHING, THIN, count, percent, plural, score_text, span, spread
from drfl.report.groups import which_seed
from drfl.report.read_run import sort_worst_first
from drfl.report.tables import common_remarks, interval_head

TABLE_ROWS = 1000
"""Maximum number of rows in the table of one run."""

MOST, FEWEST, CELLS = 30, 10, 120
"""Clients with a separate row in a report of several runs; fewer for many algorithms, because rows are long."""

NUMBERED = re.compile(r"client-\d+")
"""Name of a client in a random partition; it is a different client at every seed."""

COUNTS = {
    "samples": "Test samples",
    "patients": "Test patients",
    "train_samples": "Training samples",
    "train_patients": "Training patients",
}
"""Columns of clients.csv with numbers of rows and patients, and their heads; files without patients lack theirs."""

COULD = "* "
"""Mark before the interval of a client that could be the worst."""


def client_table(run: RunEvidence) -> TableBlock:
    """List every client of a run, worst first, with the intervals of its score."""
    record, assessment = run.record, run.assessment
    clients = sort_worst_first(record).head(TABLE_ROWS)
    score, *others = (measure for measure in record.measures if measure is record.score or measure.name in clients)
    counts = [name for name in COUNTS if name in clients]
    rows = []
    for i, client in zip(clients.index.tolist(), clients.to_dict("records"), strict=True):
        interval = [] if assessment is None else [_ends(assessment, i), _could(assessment, i)]
        rows.append(
            [
                run.names[i], score_text([client["score"]], score), *interval,
                *(score_text([client[measure.name]], measure) for measure in others),
                spread([client["loss"]], 3), *(count(client[name]) for name in counts), percent([client["lambda"]], 2),
            ]
        )  # fmt: skip
    measured = [f"{m.title} (%)" if m.percent else m.title for m in (score, *others)]
    if assessment is not None:
        measured[1:1] = [f"95{THIN}%", "Could be the worst"]
    head = ["Client", *measured, "Loss", *(COUNTS[name] for name in counts), "λ (%)"]
    caption = "Clients of the final model, worst first"
    if len(record.clients) > TABLE_ROWS:
        caption = f"The {TABLE_ROWS} worst of {len(record.clients)} clients; see clients.csv for all"
    if assessment is not None:
        caption += f"; 95{THIN}%: confidence intervals, simultaneous over all clients"
    return TableBlock(caption + common_remarks([record]), head, rows)


def by_client_tables(evidence: Evidence) -> list[TableBlock]:
    """Compare several runs on the same clients: for each measure, clients against algorithms, with intervals.

    Named clients have means over seeds. The numbered clients of a random partition are different ones at every seed, so
    their values are of one seed. With many clients the table has those that some algorithm serves worst.
    """
    groups, firsts = evidence.groups, [run for _, run in evidence.representatives]
    names = firsts[0].record.clients["client"].tolist()
    numbered = any(NUMBERED.fullmatch(name) for name in names)
    shown = [[run.record] for run in firsts] if numbered else [list(group.runs) for group in groups]
    every = [run for runs in shown for run in runs]
    if numbered:
        is_comparable = all(have_same_clients(run, every[0]) and run.seed == every[0].seed for run in every)
    else:
        is_comparable = all(run.clients["client"].tolist() == names for run in every)
    if len(evidence.runs) == 1 or not is_comparable:
        return []
    common = [m for m in groups[0].measures if all(m == run.score or m.name in run.clients for run in every)]
    tables = []
    for measure in common:
        column = firsts[0].record.column_of(measure)
        assessments = [run.by(measure) for run in firsts]
        values = [run.record.clients[column].to_numpy(float) for run in firsts]
        most = firsts[0].record.display_limit(min(MOST, max(FEWEST, CELLS // len(values))))
        order = list(range(len(names)))
        if len(names) > max(MOST, most):
            # fmin ignores NaN, because one algorithm may lack a value that others have.
            lowest = np.fmin.reduce([flip_direction(scores, measure) for scores in values])
            order = np.argsort(lowest, kind="stable")[:most].tolist()
        counts = [name for name in ("samples", "patients") if all(name in run.clients for run in every)]
        cells = [[span(float(run.clients[name].iloc[i]) for run in every) for name in counts] for i in order]
        # Two columns per algorithm: the value or its mean over seeds, and the interval at one seed; a mean has none.
        head, marked = ["Client", *(COUNTS[name] for name in counts)], False
        for group, runs, assessment in zip(groups, shown, assessments, strict=True):
            head += [group.label, interval_head(groups)]
            for i, row in zip(order, cells, strict=True):
                row.append(score_text([float(run.clients[column].iloc[i]) for run in runs], measure))
                could = assessment is not None and _could(assessment, i) == "yes"
                row.append(NOTHING if assessment is None else COULD * could + _ends(assessment, i))
                marked |= could
        caption = f"{measure.title} by client{', in percent' * measure.percent}"
        if len(shown[0]) < len(groups[0].runs):
            caption += f", {which_seed(groups)}"
        elif len(every) > len(groups):
            caption += "; mean ± sample standard deviation over seeds"
        if len(order) < len(names):
            caption += f"; the {len(order)} of {plural(len(names), 'client')} that some algorithm serves worst"
        if marked:
            caption += (
                f"; 95{THIN}%: confidence intervals, simultaneous over the clients of an algorithm; *: could be the "
                "worst client"
            )
        known = firsts[0].names
        tables.append(TableBlock(caption, head, [[known[i], *row] for i, row in zip(order, cells, strict=True)]))
    return tables


def _could(assessment: Assessment, client: int) -> str:
    if math.isnan(assessment.values[client]):
        return "unknown"
    return "yes" if assessment.candidates[client] else ""


def _ends(assessment: Assessment, client: int) -> str:
    return assessment.measure.interval(float(assessment.low[client]), float(assessment.high[client]))
