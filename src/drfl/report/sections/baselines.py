"""Baselines beside the federated models: each client alone, all data in one place, a model tuned locally."""

from __future__ import annotations

import math

from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import LOCAL, Evidence
from drfl.report.formatting import NOTHING, clean, count, listing, plural
from drfl.report.sections.comparisons import gains_table
from drfl.report.sections.worst import MOST, order_of_clients

QUESTION = "What would each client achieve alone?"

BASELINES = (LOCAL, "Pooled", "FineTuned")

ALGORITHMS = 3
"""Maximum number of federated algorithms with a column; a page has no room for more."""

NONE = "Not measured: the report has no run of LocalOnly, Pooled or FineTuned."

HOW = (
    "To add one, use drfl run CONFIG --algorithm LocalOnly, or drfl compare CONFIG --algorithms …,LocalOnly,Pooled,"
    "FineTuned, on the same data, partition and seeds. Baselines are for simulations. In a deployment, each site can "
    "train alone on its rows and compare."
)

NOTE = (
    "Each cell: value (95 % confidence interval, simultaneous over the clients). LocalOnly: every client trains alone "
    "and uses its own model. Pooled: all training rows in one place. FineTuned: FedAvg, then local steps at every "
    "client."
)

GAIN = (
    "Gain: the worst client, whichever it is, compared with the worst client under LocalOnly. Better at, worse at: "
    "number of clients that gain or lose significantly by joining (Holm's correction)."
)


def baselines_section(evidence: Evidence) -> Section:
    """Build the section: clients against baselines and federated models, and which clients gain by joining."""
    baselines = [pair for name in BASELINES for pair in evidence.representatives if pair[1].record.algorithm == name]
    federated = [pair for pair in evidence.representatives if pair[1].record.algorithm not in BASELINES]
    if not baselines:
        return Section("alone", QUESTION, NONE, [Points([HOW])])
    shown = [*federated[:ALGORITHMS], *baselines]
    # A row per client and a column per group, from the group's representative run.
    groups, runs = zip(*shown, strict=True)
    first = runs[0].record
    names, measure = first.clients["client"].tolist(), first.score
    columns = []
    for run in runs:
        frame, score, assessment = run.record.clients, run.record.score, run.assessment
        values = dict(zip(frame["client"].tolist(), frame["score"].to_numpy(float), strict=True))
        intervals = {}
        if assessment is not None:
            for name, low, high in zip(assessment.names, assessment.low, assessment.high, strict=True):
                intervals[name] = f" ({assessment.measure.interval(float(low), float(high))})"
        column = []
        for name in names:
            value = values.get(name, math.nan)  # runs may have different clients
            cell = f"{score.scale * value:.{score.digits}f}{intervals.get(name, '')}"
            column.append(cell if math.isfinite(value) else NOTHING)
        columns.append(column)
    samples = first.clients["samples"].to_numpy(float)
    rows = [
        [runs[0].names[i], count(samples[i]), *(column[i] for column in columns)]
        for i in order_of_clients(first)[: first.display_limit(MOST)]
    ]
    caption = (
        f"{measure.title}{f', {measure.unit}' if measure.unit else ''} by client, seed "
        f"{clean(first.seed, 24)}, the worst with {clean(groups[0].label, 60)} first"
    )
    if len(rows) < len(names):
        caption += f"; {len(rows)} of {count(len(names))} clients"
    table = TableBlock(caption, ["Client", "Test rows", *(clean(group.label, 40) for group in groups)], rows)
    blocks: list[Block] = [table, Paragraph(NOTE, small=True)]
    if len(federated) > ALGORITHMS:
        more = listing([clean(group.label, 60) for group, _ in federated[ALGORITHMS:]])
        blocks.append(Paragraph(f"Not in this table: {more}.", small=True))
    if evidence.over_local:
        blocks += gains_table(evidence.over_local, "Compared with each client alone, on the same test rows", GAIN)
    if not any(run.record.algorithm == LOCAL for _, run in baselines):
        answer = (
            "Not measured: the report has no run of LocalOnly; its baselines are "
            f"{listing([group.label for group, _ in baselines])}."
        )
    elif not evidence.over_local:
        answer = "The table shows what each client achieves alone; a comparison row by row was not possible."
    else:
        # The answer is about the first algorithm; the table has the others.
        first = evidence.over_local[0]
        gain, label = first.gain, clean(first.second.record.algorithm, 60)
        better, worse = len(gain.better), len(gain.worse)
        remaining = len(gain.names) - len(gain.undefined) - better - worse
        answer = (
            f"With {label}, {plural(better, 'client')} of {len(gain.names)} {'is' if better == 1 else 'are'} "
            f"significantly better than alone and {count(worse)} significantly worse; for {count(remaining)} the "
            f"difference is not significant{gain.note}."
        )
    return Section("alone", QUESTION, answer, blocks)
