"""Each client alone, all data in one place, a model tuned locally: the baselines beside the federated models."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import LOCAL, Evidence, RunEvidence
from drfl.report.formatting import NOTHING, clean, count, listing, plural
from drfl.report.groups import Group
from drfl.report.sections.comparisons import gains_table
from drfl.report.sections.worst import MOST, places

ASKED = "What would each client have alone?"

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


def alone(evidence: Evidence) -> Section:
    """The section: clients against baselines and federated models, and who is shown to gain by joining."""
    own = [pair for name in BASELINES for pair in evidence.shown if pair[1].record.algorithm == name]
    federated = [pair for pair in evidence.shown if pair[1].record.algorithm not in BASELINES]
    if not own:
        return Section("alone", ASKED, NONE, [Points([HOW])])
    shown = [*federated[:ALGORITHMS], *own]
    blocks: list[Block] = [_table(shown), Paragraph(NOTE, small=True)]
    if len(federated) > ALGORITHMS:
        more = listing([clean(group.label, 60) for group, _ in federated[ALGORITHMS:]])
        blocks.append(Paragraph(f"Not in this table: {more}.", small=True))
    if evidence.over_local:
        blocks += gains_table(evidence.over_local, "Against each client alone, on the same test rows", GAIN)
    if not any(run.record.algorithm == LOCAL for _, run in own):
        answer = (
            f"That was not measured: there is no run of LocalOnly, but of {listing([group.label for group, _ in own])}."
        )
    elif not evidence.over_local:
        answer = "Beside the models stands what each client has alone; the two cannot be compared row by row."
    else:
        # Only the first algorithm: the table has the others.
        first = evidence.over_local[0]
        gain, label = first.gain, clean(first.second, 60)
        better, worse = len(gain.better), len(gain.worse)
        left = len(gain.names) - len(gain.undefined) - better - worse
        answer = (
            f"With {label}, {plural(better, 'client')} of {len(gain.names)} {'is' if better == 1 else 'are'} shown to "
            f"be better off than alone and {count(worse)} to be worse off; for {count(left)} no difference is "
            f"shown{gain.note}."
        )
    return Section("alone", ASKED, answer, blocks)


def _table(shown: Sequence[tuple[Group, RunEvidence]]) -> TableBlock:
    """A row a client, a column a group: the run that stands for it."""
    groups, runs = zip(*shown, strict=True)
    first = runs[0].record
    names, own = first.clients["client"].tolist(), first.score
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
        [runs[0].names[i], count(samples[i]), *(column[i] for column in columns)]
        for i in places(first)[: first.most_shown(MOST)]
    ]
    caption = (
        f"{own.words[:1].upper()}{own.words[1:]}{f', {own.unit}' if own.unit else ''} by client, seed "
        f"{clean(first.seed, 24)}, the worst with {clean(groups[0].label, 60)} first"
    )
    if len(rows) < len(names):
        caption += f"; {len(rows)} of {count(len(names))} clients"
    return TableBlock(caption, ["Client", "Test rows", *(clean(group.label, 40) for group in groups)], rows)
