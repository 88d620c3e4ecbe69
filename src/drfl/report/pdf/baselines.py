"""Each client alone, all data in one place, a model tuned locally: the baselines beside the federated models."""

from __future__ import annotations

import math

from drfl.report.content import TableBlock
from drfl.report.formatting import NOTHING, count, listing, plural
from drfl.report.groups import Group
from drfl.report.pdf.comparisons import gains_table
from drfl.report.pdf.content import Block, Paragraph, Points, Question
from drfl.report.pdf.evidence import Evidence
from drfl.report.pdf.names import client_names, printable
from drfl.report.pdf.worst import MOST, places

ASKED = "What would each client have alone?"

LOCAL = "LocalOnly"
BASELINES = (LOCAL, "Pooled", "FineTuned")

ALGORITHMS = 3
"""Federated algorithms with a column of their own: a page has no room for more."""

NONE = "That was not measured: no run of LocalOnly, Pooled or FineTuned was given."

HOW = (
    "To make one: drfl run CONFIG --algorithm LocalOnly, or drfl compare CONFIG --algorithms …,LocalOnly,Pooled,"
    "FineTuned, on the same data, partition and seeds. Baselines are for simulations: of a deployment each site can "
    "train alone on its own rows, and compare."
)

NOTE = (
    "Value (95 % interval, simultaneous over the clients). LocalOnly: every client trains alone and is served by its "
    "own model. Pooled: all training rows in one place. FineTuned: FedAvg, then local steps at every client."
)

GAIN = (
    "Gain: of the worst client, whoever it is, over the worst of the clients' own models. Better at, worse at: clients "
    "who are shown to gain by joining, or to lose (Holm's correction)."
)


def alone(evidence: Evidence) -> Question:
    """The section: clients against baselines and federated models, and who is shown to gain by joining."""
    groups = evidence.groups
    own = [group for name in BASELINES for group in groups if group.runs[0].algorithm == name]
    federated = [group for group in groups if group.runs[0].algorithm not in BASELINES]
    if not own:
        return Question(ASKED, NONE, [Points([HOW])])
    shown = [*federated[:ALGORITHMS], *own]
    blocks: list[Block] = [_table(evidence, shown), Paragraph(NOTE, small=True)]
    if len(federated) > ALGORITHMS:
        more = listing([printable(group.label, 60) for group in federated[ALGORITHMS:]])
        blocks.append(Paragraph(f"Not in this table: {more}.", small=True))
    if evidence.over_local:
        blocks += gains_table(evidence.over_local, "Against each client alone, on the same test rows", GAIN)
    if not any(group.runs[0].algorithm == LOCAL for group in own):
        answer = f"That was not measured: there is no run of LocalOnly, but of {listing([g.label for g in own])}."
    elif not evidence.over_local:
        answer = "Beside the models stands what each client has alone; the two cannot be compared row by row."
    else:
        # Only the first algorithm: the table has the others.
        first = evidence.over_local[0]
        gain, label = first.gain, printable(first.second, 60)
        better, worse = len(gain.better), len(gain.worse)
        left = len(gain.names) - len(gain.undefined) - better - worse
        answer = (
            f"With {label}, {plural(better, 'client')} of {len(gain.names)} {'is' if better == 1 else 'are'} shown to "
            f"be better off than alone and {count(worse)} to be worse off; for {count(left)} no difference is "
            f"shown{gain.note}."
        )
    return Question(ASKED, answer, blocks)


def _table(evidence: Evidence, groups: list[Group]) -> TableBlock:
    """A row a client, a column a group: its first run."""
    runs = [evidence.first_of(group) for group in groups]
    first = runs[0].record
    names, own = first.clients["client"].tolist(), first.score
    shown = client_names(names)
    columns = []
    for run in runs:
        frame, score, found = run.record.clients, run.record.score, run.assessment
        values = dict(zip(frame["client"].tolist(), frame["score"].to_numpy(float), strict=True))
        intervals = {}
        if found is not None:
            for name, low, high in zip(found.names, found.low, found.high, strict=True):
                intervals[name] = f" ({found.measure.interval(float(low), float(high))})"
        column = []
        for name in names:
            value = values.get(name, math.nan)  # runs may have different clients
            cell = f"{score.scale * value:.{score.digits}f}{intervals.get(name, '')}"
            column.append(cell if math.isfinite(value) else NOTHING)
        columns.append(column)
    samples = first.clients["samples"].to_numpy(float)
    rows = [
        [shown[i], count(samples[i]), *(column[i] for column in columns)]
        for i in places(first)[: first.most_shown(MOST)]
    ]
    caption = (
        f"{own.words[:1].upper()}{own.words[1:]}{f', {own.unit}' if own.unit else ''} by client, seed "
        f"{printable(first.seed, 24)}, the worst with {printable(groups[0].label, 60)} first"
    )
    if len(rows) < len(names):
        caption += f"; {len(rows)} of {count(len(names))} clients"
    return TableBlock(caption, ["Client", "Test rows", *(printable(group.label, 40) for group in groups)], rows)
