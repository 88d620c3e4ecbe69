"""Who is the worst, and how sure is that?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.sentences import headline, sentences
from drfl.report import figures
from drfl.report.client_tables import by_client_tables, client_table
from drfl.report.content import Block, Figure, Fold, Heading, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.forest import forests, in_words, legend
from drfl.report.formatting import NOTHING, clean, count, plural
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, constant_line, worst_first
from drfl.report.sections.training import alt_of, legend_of, undefined_sentence
from drfl.report.tables import runs_table
from drfl.task.measure import PLAIN, undefined_note

ASKED = "Who is the worst, and how sure is that?"

MOST = 30
"""Clients in the forest plot of one algorithm."""

FEW = 12
"""Of each, where there are several algorithms."""


def worst(evidence: Evidence) -> Section:
    """The section: a forest plot for each algorithm, its runs, and all clients."""
    groups = evidence.groups
    plots: list[Block] = []
    read: list[Block] = []
    for group, run in evidence.shown:
        plots += _one(group, run, several=len(groups) > 1, seeds=len(evidence.runs) > len(groups))
        # Explain the plot once, before the first one.
        if run.named is not None and not read:
            alone = " Each plot is of one seed: every seed is another model." * (len(evidence.runs) > len(groups))
            read = [Paragraph(legend(run.named) + alone, small=True)]
    blocks: list[Block] = [*read, *plots, runs_table(evidence)]
    if len(groups) > 1:
        blocks.append(
            Paragraph(
                "Overlapping intervals may hide a difference: drfl assess RUN RUN compares two runs row by row.",
                small=True,
            )
        )
    tables = by_client_tables(evidence)
    blocks += [Fold("Clients by algorithm", tables)] if tables else []
    if len(evidence.runs) == 1:
        blocks.append(Fold("All clients", [client_table(evidence.runs[0])]))
    return Section("worst", ASKED, _answer(evidence), [*blocks, *_by_rank(groups)])


def places(record: RunRecord) -> list[int]:
    """The clients' places in clients.csv, the worst measured first, those without a value last."""
    return [int(place) for place in worst_first(record).index]


def _answer(evidence: Evidence) -> str:
    if len(evidence.runs) == 1:
        (run,) = evidence.runs
        return _unsure(run) if run.named is None else f"{headline(run.named)}."
    score = evidence.runs[0].record.score
    label = {id(run): group.label for group in evidence.groups for run in group.runs}
    worsts = [(run.record.final("worst_score"), run.record) for run in evidence.runs]
    known = sorted(
        (pair for pair in worsts if math.isfinite(pair[0])), key=lambda p: p[0], reverse=not score.more_is_better
    )
    if not known:
        return f"None of the {len(worsts)} models has a worst client: {score.words} is undefined at every client."
    ends = [
        f"{score.shown(value)} ({label[id(run)]}, seed {clean(run.seed, 24)})" for value, run in (known[0], known[-1])
    ]
    return (
        f"Each of the {len(worsts)} models has its own worst client, who measures between {ends[0]} and "
        f"{ends[1]}{_note(evidence.runs)}; the table says within which bounds the truth lies, and how many clients "
        "could be it."
    )


def _unsure(run: RunEvidence) -> str:
    """Who measures worst, if nothing is known of how sure that is."""
    score, i, frame = run.record.score, places(run.record)[0], run.record.clients
    if not frame["score"].notna().any():
        return run.nothing
    value, rows = score.shown(float(frame["score"].iloc[i])), count(float(frame["samples"].iloc[i]))
    return f"{run.names[i]} measures worst, {score.words} {value} on {rows} test rows{_note([run])}. {run.nothing}"


def _note(runs: Sequence[RunEvidence]) -> str:
    """What follows a statement on the worst clients of some models."""
    records = [run.record for run in runs]
    return undefined_note([record.undefined(record.score) for record in records], [len(r.clients) for r in records])


def _one(group: Group, run: RunEvidence, *, several: bool, seeds: bool) -> list[Block]:
    """A model's clients, and what may be said of them.

    Args:
        group: its algorithm.
        run: the run that stands for it.
        several: whether there are other algorithms.
        seeds: whether there are other seeds, each of which is another model.
    """
    title = f"{group.label}, seed {clean(run.record.seed, 24)}" if several or seeds else ""
    found = run.named
    if found is None:
        said = [Heading(title), Paragraph(_unsure(run))] if title else []
        return [*said, _values(run)]
    most = run.record.most_shown(FEW if several else MOST)
    which = _which(min(most, len(found.names)), len(found.names))
    heading = f"{title}: {which}" if title else which[:1].upper() + which[1:]
    lines = sentences(found)
    beside = constant_line(run.record.summary) if found.measure.name == PLAIN.name else None
    if beside is not None:
        lines.insert(1, f"{clean(beside[:1].upper() + beside[1:])}.")
    if several:
        # After the first two, sentences on undefined clients and on a constant answer may stand before the rest.
        lines = lines[: 2 + bool(found.undefined) + (beside is not None)]
    elif not seeds:  # the answer has the first one
        lines = lines[1:]
    alt = in_words(found, group.label)
    first, *more = forests(found, most)
    return [Figure(first, alt, heading=heading), *(Figure(one, f"{alt} (continued)") for one in more), Points(lines)]


def _which(shown: int, clients: int) -> str:
    if shown == clients:
        return f"{plural(clients, 'client')}, the worst first"
    return f"the {shown} worst of {count(clients)} clients; clients.csv has all"


def _values(run: RunEvidence) -> TableBlock:
    """The clients of a measure that has no intervals."""
    score = run.record.score
    values, samples = (run.record.clients[column].to_numpy(float) for column in ("score", "samples"))
    rows = [
        [run.names[i], count(samples[i]), score.shown(values[i]) if math.isfinite(values[i]) else NOTHING]
        for i in places(run.record)[: run.record.most_shown(MOST)]
    ]
    caption = f"{score.words[:1].upper()}{score.words[1:]}: {_which(len(rows), len(values))}"
    return TableBlock(caption, ["Client", "Test rows", score.words], rows)


def _by_rank(groups: Sequence[Group]) -> list[Block]:
    """The final score of every client, from worst to best."""
    score = groups[0].score
    note = "Each mark is a client under the final model."
    if max(len(group.runs) for group in groups) > 1:
        note += " Lines are means over seeds at each rank, where the rank is not the same client in every seed."
    if figures.ranks_left_out(groups):
        note += " The clients are too many for the page: marks stand at even steps of the rank, the worst and the best"
        note += " among them; clients.csv has them all."
    if len(groups) > 1:
        note += " Equal service for all is a flat line."
    alt = alt_of(f"Clients' final test {score.words}, from worst to best", groups, "worst_score", "worst client")
    picture = Figure(figures.client_scores(groups), alt, caption=note + undefined_sentence(groups))
    return [Heading("All clients, from worst to best"), *legend_of(groups), picture]
