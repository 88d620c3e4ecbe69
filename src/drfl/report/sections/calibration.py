"""Calibration error and Brier score by client, if they were measured."""

from __future__ import annotations

import math

from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence
from drfl.report.formatting import NOTHING, UNDEFINED, clean, count, listing
from drfl.report.sections.worst import MOST, order_of_clients
from drfl.task.measure import undefined_note, undefined_share

QUESTION = "Are the predicted probabilities reliable at every client?"

ERROR, MEASURES = "calibration_error", ("calibration_error", "brier", "log_loss")
"""Measures of the quality of probabilities."""

TABLES = 3
"""Maximum number of algorithms with a table by client; of others only the worst and the average are shown."""

NONE = "Not measured: the runs have neither calibration error nor Brier score."

HOW = (
    "To measure it, use --metric calibration-error --metric brier with drfl run or drfl compare, or write "
    'metrics = ["calibration-error", "brier"] in the TOML file, for a deployment in the [job] of server.toml. It needs '
    "predicted class probabilities, so it does not apply to regression."
)

NOTE = (
    "Calibration error: expected calibration error, the weighted mean of |share of right answers − mean confidence| "
    "over 15 bins of confidence. It is computed from all of a client's rows together and has no interval. With few "
    "rows it is above 0 even if the model is calibrated. Brier score and log loss: means over rows, less is better, "
    "with 95 % confidence intervals in brackets, simultaneous over the clients."
)


def calibration_section(evidence: Evidence) -> Section:
    """Build the section: each client's calibration error, Brier score and log loss."""
    measures = [m for name in MEASURES for m in evidence.runs[0].record.measures if m.name == name]
    if not measures:
        return Section("calibration", QUESTION, NONE, [Points([HOW])])
    groups, several = evidence.groups, len(evidence.runs) > 1
    blocks: list[Block] = []
    if several:
        records = [record for group in groups for record in group.runs]
        some = any(record.undefined(m) for record in records for m in measures)
        rows = [
            [
                clean(group.label, 60), clean(record.seed, 24),
                *(m.shown(record.final(f"{statistic}_{m.name}")) for m in measures for statistic in ("avg", "worst")),
                *([undefined_share([record.undefined(m) for m in measures], [len(record.clients)])] if some else []),
            ]
            for group in groups
            for record in group.runs
        ]  # fmt: skip
        heads = [f"{m.title}, {statistic}" for m in measures for statistic in ("average", "worst")]
        heads += [UNDEFINED] if some else []
        blocks.append(
            TableBlock(
                "Average over clients (each counts once) and worst client", ["Algorithm", "Seed", *heads], rows, words=2
            )
        )
    for group, run in evidence.representatives[:TABLES]:
        record = run.record
        assessments = [run.by(measure) for measure in measures]
        samples = record.clients["samples"].to_numpy(float)
        columns = [record.clients[record.column_of(measure)].to_numpy(float).tolist() for measure in measures]
        rows = []
        for i in order_of_clients(record)[: record.display_limit(MOST)]:
            cells = []
            for measure, values, assessed in zip(measures, columns, assessments, strict=True):
                if not math.isfinite(values[i]):
                    cells.append(NOTHING)
                elif assessed is None:
                    cells.append(measure.shown(values[i]))
                else:
                    interval = measure.interval(float(assessed.low[i]), float(assessed.high[i]))
                    cells.append(f"{measure.shown(values[i])} ({interval})")
            rows.append([run.names[i], count(samples[i]), *cells])
        which = f"{clean(group.label, 60)}, seed {clean(record.seed, 24)}" if len(groups) > 1 else "Clients"
        caption = f"{which}, the worst by {record.score.words} first"
        if len(rows) < len(run.names):
            caption += f"; {len(rows)} of {count(len(run.names))} clients"
        blocks.append(TableBlock(caption, ["Client", "Test rows", *(f"{m.title}" for m in measures)], rows))
    if len(groups) > TABLES:
        more = listing([clean(group.label, 60) for group in groups[TABLES:]])
        blocks.append(Paragraph(f"For the values by client of {more}, see the clients.csv of their runs.", small=True))
    blocks.append(Paragraph(NOTE, small=True))
    # The answer is about the first run and the first of the measures.
    run, first = evidence.runs[0], measures[0]
    values = run.record.clients[run.record.column_of(first)].to_numpy(float).tolist()
    known = [i for i in range(len(values)) if math.isfinite(values[i])]
    answer = f"Unknown: {first.words} is undefined on every client's test rows."
    if known:
        i = max(known, key=lambda place: values[place])
        samples = count(run.record.clients["samples"].to_numpy(float)[i])
        mean = first.shown(sum(values[place] for place in known) / len(known))
        note = undefined_note([len(values) - len(known)], [len(values)])
        model = f"With {clean(run.record.algorithm, 60)}, seed {clean(run.record.seed, 24)}, the" if several else "The"
        answer = (
            f"{model} {first.words} is largest at {run.names[i]}: {first.shown(values[i])} on {samples} test rows; the "
            f"average over clients is {mean}{note}."
        )
    return Section("calibration", QUESTION, answer, blocks)
