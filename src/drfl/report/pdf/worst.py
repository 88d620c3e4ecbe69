"""Who is the worst, and how sure is that?"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from drfl.assessment.clients import Assessment
from drfl.assessment.sentences import headline, sentences
from drfl.report.content import TableBlock
from drfl.report.formatting import NOTHING, count, plural
from drfl.report.pdf.content import Block, Forest, ForestRow, Paragraph, Points, Question
from drfl.report.pdf.evidence import Evidence, RunEvidence
from drfl.report.pdf.names import client_names, printable
from drfl.report.read_run import RunRecord, constant_line, worst_first
from drfl.report.tables import UNDEFINED
from drfl.task.measure import PLAIN, undefined_note, undefined_share

ASKED = "Who is the worst, and how sure is that?"

MOST = 30
"""Clients in the forest plot of one algorithm."""

FEW = 12
"""Of each, where there are several algorithms."""

MARGIN = 0.04
"""Of the axis, beyond the outermost ends."""


def worst(evidence: Evidence) -> Question:
    """The section: one model's clients with their intervals, or each algorithm's first model and a table of all."""
    if len(evidence.runs) == 1:
        (run,) = evidence.runs
        found = named(run)
        if found is None:
            return Question(ASKED, _unsure(run), [_values(run.record)])
        return Question(ASKED, f"{headline(found)}.", _one(run.record, found, "", MOST))
    blocks: list[Block] = []
    legend: list[Block] = []
    for group in evidence.groups:
        run = evidence.first_of(group)
        found, title = named(run), printable(f"{group.label}, seed {run.record.seed}")
        if found is None:
            blocks += [Paragraph(title, heading=True), Paragraph(_unsure(run)), _values(run.record)]
        else:
            blocks += _one(run.record, found, title, FEW if len(evidence.groups) > 1 else MOST)
            # Explain the plot once, before the first one.
            legend = legend or notes(found)
    blocks = [_every_run(evidence), *legend, *blocks]

    score = evidence.runs[0].record.score
    worsts = [(run.record.final("worst_score"), run) for run in evidence.runs]
    known = sorted(
        (pair for pair in worsts if math.isfinite(pair[0])), key=lambda p: p[0], reverse=not score.more_is_better
    )
    if not known:
        answer = f"None of the {len(worsts)} models has a worst client: {score.words} is undefined at every client."
        return Question(ASKED, answer, blocks)
    label = {id(run): group.label for group in evidence.groups for run in group.runs}
    ends = [
        f"{score.shown(value)} ({printable(label[id(run.record)])}, seed {printable(run.record.seed, 24)})"
        for value, run in (known[0], known[-1])
    ]
    answer = (
        f"Each of the {len(evidence.runs)} models has its own worst client, who measures between {ends[0]} and "
        f"{ends[1]}{_note(evidence.runs)}; the table says within which bounds the truth lies, and how many clients "
        "could be it."
    )
    return Question(ASKED, answer, blocks)


def named(run: RunEvidence) -> Assessment | None:
    """The assessment of a run with its clients' names as they are printed."""
    if run.assessment is None:
        return None
    return dataclasses.replace(run.assessment, names=client_names(run.assessment.names))


def places(record: RunRecord) -> list[int]:
    """The clients' places in clients.csv, the worst measured first, those without a value last."""
    return [int(place) for place in worst_first(record).index]


def _unsure(run: RunEvidence) -> str:
    """Who measures worst, where nothing is known of how sure that is."""
    score, i, frame = run.record.score, places(run.record)[0], run.record.clients
    if not frame["score"].notna().any():
        return printable(run.nothing)
    who, rows = client_names(frame["client"].tolist())[i], count(float(frame["samples"].iloc[i]))
    value = score.shown(float(frame["score"].iloc[i]))
    return f"{who} measures worst, {score.words} {value} on {rows} test rows{_note([run])}. {printable(run.nothing)}"


def _note(runs: Sequence[RunEvidence]) -> str:
    """What follows a statement on the worst clients of some models."""
    records = [run.record for run in runs]
    return undefined_note([record.undefined(record.score) for record in records], [len(r.clients) for r in records])


def _every_run(evidence: Evidence) -> TableBlock:
    score, level, some = evidence.runs[0].record.score, 0.95, bool(_note(evidence.runs))
    rows: list[list[str]] = []
    for group in evidence.groups:
        for record in group.runs:
            found = named(evidence.of(record))
            start = [printable(group.label, 60), printable(record.seed, 24)]
            left_out = [undefined_share([record.undefined(score)], [len(record.clients)])] if some else []
            if found is None:
                who = client_names(record.clients["client"].tolist())[places(record)[0]]
                value = record.final("worst_score")
                named_worst = who if math.isfinite(value) else NOTHING
                rows.append([*start, named_worst, score.shown(value), NOTHING, NOTHING, *left_out])
                continue
            level, i = found.level, found.order[0]
            rows.append(
                [
                    *start, found.names[i], score.shown(float(found.values[i])),
                    score.interval(found.worst.low, found.worst.high),
                    f"{int(found.candidates.sum())} of {len(found.names)}",
                    *left_out,
                ]
            )  # fmt: skip
    truly = f"truly, {100 * level:g} %"
    caption = f"The worst client of each model: its {score.words}, measured and truly"
    head = ["Algorithm", "Seed", "Measures worst", "Measured", truly, "Could be it", *([UNDEFINED] if some else [])]
    return TableBlock(caption, head, rows, words=3)


def _one(record: RunRecord, found: Assessment, title: str, most: int) -> list[Block]:
    """A model's clients, and what may be said of them; of the only model the answer has said the first of it."""
    lines, most = sentences(found), record.most_shown(most)
    beside = constant_line(record.summary) if found.measure.name == PLAIN.name else None
    if beside is not None:
        lines.insert(1, f"{printable(beside[:1].upper() + beside[1:])}.")
    if not title:
        return [forest(found, "", most), *notes(found), Points(lines[1:])]
    # two more sentences may stand before the rest: of undefined clients, and of a constant answer
    return [forest(found, title, most), Points(lines[: 2 + bool(found.undefined) + (beside is not None)])]


def forest(found: Assessment, title: str, most: int) -> Forest:
    """The forest plot of a model's worst clients.

    Args:
        found: the assessment, names as they are printed.
        title: said above.
        most: clients shown.
    """
    own, scale = found.measure, found.measure.scale
    shown = found.order[:most]
    rows: list[ForestRow] = []
    for i in shown:
        name, size, value = found.names[i], count(float(found.samples[i])), float(found.values[i])
        low, high = float(found.low[i]), float(found.high[i])
        if math.isnan(value):
            rows.append(ForestRow(name, size, NOTHING, "not known", value, low, high, True))
            continue
        drawn, candidate = (scale * value, scale * low, scale * high), bool(found.candidates[i])
        rows.append(ForestRow(name, size, own.shown(value), own.interval(low, high), *drawn, candidate))
    low, high = found.worst.low, found.worst.high
    who = ForestRow(
        "The worst client, whoever it is", "", own.shown(found.worst.value), own.interval(low, high),
        scale * found.worst.value, scale * low, scale * high, True,
    )  # fmt: skip
    band = None if found.equal is None else (scale * found.equal.low, scale * found.equal.high)
    known = [value for value in found.values.tolist() if math.isfinite(value)]
    line = scale * sum(known) / len(known)
    finite = [x for row in (*rows, who) for x in (row.value, row.low, row.high) if math.isfinite(x)] + list(band or ())
    room = MARGIN * (max(finite) - min(finite)) or 1.0
    ends = min(finite) - room, max(finite) + room
    if own.percent:  # the axis of a share ends just beyond 0 and 100
        ends = max(ends[0], -room), min(ends[1], 100 + room)
    axis = f"{own.words}, {own.unit}".rstrip(", ") + ("" if own.more_is_better else " (less is better)")
    about = _which(len(rows), len(found.names))
    return Forest(
        caption=f"{title}: {about}" if title else about[:1].upper() + about[1:],
        axis=axis, rows=rows, worst=who, band=band,
        line=line, ends=ends,
    )  # fmt: skip


def _which(shown: int, clients: int) -> str:
    if shown == clients:
        return f"{plural(clients, 'client')}, the worst first"
    return f"the {shown} worst of {count(clients)} clients; clients.csv has all"


def notes(found: Assessment) -> list[Block]:
    """How a plot is read."""
    percent = f"{100 * found.level:g} %"
    lines = [
        f"Filled square: could be the worst client ({percent} confidence); open circle: could not. Line: the client's "
        f"{percent} interval, all clients' together (Bonferroni; {found.method}). Diamond: the true value of whichever "
        "client is truly the worst. Dotted line: average over clients."
    ]
    if found.equal is not None:
        lines.append(
            "Grey band: where the worst would measure in 95 of 100 federations if all clients were equally good."
        )
    # Values without bounds have endless intervals if there are few rows.
    if any(math.isinf(x) for ends in (found.low, found.high) for x in ends.tolist()):
        lines.append("Arrow: the interval goes beyond the axis.")
    return [Paragraph(" ".join(lines), small=True)]


def _values(record: RunRecord) -> TableBlock:
    """The clients of a measure that has no intervals."""
    score, names = record.score, client_names(record.clients["client"].tolist())
    values, samples = (record.clients[column].to_numpy(float) for column in ("score", "samples"))
    rows = [
        [names[i], count(samples[i]), score.shown(values[i]) if math.isfinite(values[i]) else NOTHING]
        for i in places(record)[: record.most_shown(MOST)]
    ]
    caption = f"{score.words[:1].upper()}{score.words[1:]}: {_which(len(rows), len(names))}"
    return TableBlock(caption, ["Client", "Test rows", score.words], rows)
