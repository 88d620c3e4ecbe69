"""Can the probabilities be believed? Calibration error and Brier score by client, where they were measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.formatting import NOTHING, UNDEFINED, clean, count, listing
from drfl.report.read_run import RunRecord
from drfl.report.sections.worst import MOST, places
from drfl.task.measure import Measure, undefined_note, undefined_share

ASKED = "Can its probabilities be believed, at every client?"

ERROR, MEASURES = "calibration_error", ("calibration_error", "brier", "log_loss")
"""What says how good probabilities are."""

TABLES = 3
"""Algorithms with a table by client; the others have their worst and average alone."""

NONE = "That was not measured: neither calibration error nor Brier score was asked for."

HOW = (
    "To measure it: --metric calibration-error --metric brier with drfl run or drfl compare, in a TOML file "
    'metrics = ["calibration-error", "brier"], in a deployment the same in the [job] of server.toml. Probabilities of '
    "classes are needed; numbers have none."
)

NOTE = (
    "Calibration error: expected calibration error, |share of right answers − mean confidence| in 15 bins of "
    "confidence, weighted. It is a number of all of a client's rows together, without an interval, and on few rows it "
    "is above 0 although the model is calibrated. Brier score and log loss: means over rows, less is better; in "
    "brackets 95 % intervals, simultaneous over the clients."
)


def calibrated(evidence: Evidence) -> Section:
    """The section: each client's calibration error, Brier score and log loss."""
    own = [m for name in MEASURES for m in evidence.runs[0].record.measures if m.name == name]
    if not own:
        return Section("calibration", ASKED, NONE, [Points([HOW])])
    groups, several = evidence.groups, len(evidence.runs) > 1
    blocks: list[Block] = []
    if several:
        records = [record for group in groups for record in group.runs]
        some = any(record.undefined(m) for record in records for m in own)
        rows = [
            [
                clean(group.label, 60), clean(record.seed, 24),
                *(m.shown(record.final(f"{what}_{m.name}")) for m in own for what in ("avg", "worst")),
                *([undefined_share([record.undefined(m) for m in own], [len(record.clients)])] if some else []),
            ]
            for group in groups
            for record in group.runs
        ]  # fmt: skip
        heads = [f"{m.words[:1].upper()}{m.words[1:]}, {what}" for m in own for what in ("average", "worst")]
        heads += [UNDEFINED] if some else []
        blocks.append(TableBlock("Over clients, each counting once", ["Algorithm", "Seed", *heads], rows, words=2))
    blocks += [_clients(run, own, clean(group.label, 60), len(groups) > 1) for group, run in evidence.shown[:TABLES]]
    if len(groups) > TABLES:
        more = listing([clean(group.label, 60) for group in groups[TABLES:]])
        blocks.append(Paragraph(f"By client in the clients.csv of their runs: {more}.", small=True))
    blocks.append(Paragraph(NOTE, small=True))
    return Section("calibration", ASKED, _answer(evidence.runs[0], own, several=several), blocks)


def _answer(run: RunEvidence, own: Sequence[Measure], *, several: bool) -> str:
    """Who is worst by the first of the measures."""
    first, frame = own[0], run.record.clients
    values = _measured(run.record, first)
    known = [i for i in range(len(values)) if math.isfinite(values[i])]
    if not known:
        return f"That is not known: {first.words} is undefined on every client's test rows."
    i = max(known, key=lambda place: values[place])
    rows = count(frame["samples"].to_numpy(float)[i])
    mean = first.shown(sum(values[place] for place in known) / len(known))
    note = undefined_note([len(values) - len(known)], [len(values)])
    model = f"With {clean(run.record.algorithm, 60)}, seed {clean(run.record.seed, 24)}, the" if several else "The"
    return (
        f"{model} {first.words} is largest at {run.names[i]}, {first.shown(values[i])} on {rows} test rows, where the "
        f"average over clients is {mean}{note}."
    )


def _measured(record: RunRecord, own: Measure) -> list[float]:
    """(N,) of the clients."""
    # The column of the score is called "score", whatever it measures.
    return record.clients["score" if own.name == record.score.name else own.name].to_numpy(float).tolist()


def _clients(run: RunEvidence, own: Sequence[Measure], label: str, several: bool) -> TableBlock:
    """A row a client of a run, worst by its score first."""
    record = run.record
    found = [run.by(measure) for measure in own]
    samples = record.clients["samples"].to_numpy(float)
    columns = [_measured(record, measure) for measure in own]
    rows = []
    for i in places(record)[: record.most_shown(MOST)]:
        cells = []
        for measure, values, assessed in zip(own, columns, found, strict=True):
            if not math.isfinite(values[i]):
                cells.append(NOTHING)
            elif assessed is None:
                cells.append(measure.shown(values[i]))
            else:
                interval = measure.interval(float(assessed.low[i]), float(assessed.high[i]))
                cells.append(f"{measure.shown(values[i])} ({interval})")
        rows.append([run.names[i], count(samples[i]), *cells])
    which = f"{label}, seed {clean(record.seed, 24)}" if several else "Clients"
    caption = f"{which}: the worst by {record.score.words} first"
    if len(rows) < len(run.names):
        caption += f"; {len(rows)} of {count(len(run.names))} clients"
    return TableBlock(caption, ["Client", "Test rows", *(f"{m.words[:1].upper()}{m.words[1:]}" for m in own)], rows)
