"""The worst client, and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.sentences import headline, sentences
from drfl.report import figures
from drfl.report.client_tables import by_client_tables, client_table
from drfl.report.content import Block, Figure, Fold, Heading, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.forest import describe_forest, draw_forests, legend
from drfl.report.formatting import NOTHING, clean, count, plural
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, constant_line, sort_worst_first
from drfl.report.sections.training import alt_of, legend_of, undefined_sentence
from drfl.report.tables import runs_table
from drfl.task.measure import PLAIN, undefined_note

QUESTION = "Which client is the worst, and how certain is that?"

MOST = 30
"""Maximum number of clients in the forest plot of a single algorithm."""

FEW = 12
"""Maximum number of clients in each plot of several algorithms."""


def worst_section(evidence: Evidence) -> Section:
    """Build the section: a forest plot for each algorithm, its runs, and all clients."""
    groups = evidence.groups
    plots: list[Block] = []
    read: list[Block] = []
    for group, run in evidence.representatives:
        plots += _one(group, run, several=len(groups) > 1, seeds=len(evidence.runs) > len(groups))
        # Explain the plots once, before the first one.
        if run.named_assessment is not None and not read:
            alone = " Each plot is of one seed, because each seed gives another model." * (
                len(evidence.runs) > len(groups)
            )
            read = [Paragraph(legend(run.named_assessment) + alone, small=True)]
    blocks: list[Block] = [*read, *plots, runs_table(evidence)]
    if len(groups) > 1:
        blocks.append(
            Paragraph(
                "A difference may be significant although intervals overlap. To compare two runs row by row, use drfl "
                "assess RUN RUN.",
                small=True,
            )
        )
    tables = by_client_tables(evidence)
    blocks += [Fold("Clients by algorithm", tables)] if tables else []
    if len(evidence.runs) == 1:
        blocks.append(Fold("All clients", [client_table(evidence.runs[0])]))
    score = groups[0].score
    note = "Each mark is a client under the final model."
    if max(len(group.runs) for group in groups) > 1:
        note += " Lines are means over seeds at each rank; a rank is not the same client at every seed."
    if figures.has_omitted_ranks(groups):
        note += " There are too many clients for the page: the marks are evenly spaced ranks, including the worst and"
        note += " the best; see clients.csv for all."
    if len(groups) > 1:
        note += " If all clients were served equally, the line would be flat."
    alt = alt_of(f"Clients' final test {score.words}, from worst to best", groups, "worst_score", "worst client")
    picture = Figure(figures.client_scores(groups), alt, caption=note + undefined_sentence(groups))
    blocks += [Heading("All clients, from worst to best"), *legend_of(groups), picture]
    return Section("worst", QUESTION, _answer(evidence), blocks)


def order_of_clients(record: RunRecord) -> list[int]:
    """Return the clients' positions in clients.csv, the worst measured first, those without a value last."""
    return [int(place) for place in sort_worst_first(record).index]


def _answer(evidence: Evidence) -> str:
    if len(evidence.runs) == 1:
        (run,) = evidence.runs
        return _unsure(run) if run.named_assessment is None else f"{headline(run.named_assessment)}."
    score = evidence.runs[0].record.score
    label = {id(run): group.label for group in evidence.groups for run in group.runs}
    worsts = [(run.record.final("worst_score"), run.record) for run in evidence.runs]
    known = sorted(
        (pair for pair in worsts if math.isfinite(pair[0])), key=lambda p: p[0], reverse=not score.more_is_better
    )
    if not known:
        return (
            f"None of the {len(worsts)} models has a worst client, because {score.words} is undefined at every client."
        )
    ends = [
        f"{score.shown(value)} ({label[id(run)]}, seed {clean(run.seed, 24)})" for value, run in (known[0], known[-1])
    ]
    return (
        f"Each of the {len(worsts)} models has its own worst client; its measured value is between {ends[0]} and "
        f"{ends[1]}{_note(evidence.runs)}. The table has confidence intervals for the true value, and how many clients "
        "could be the worst."
    )


def _unsure(run: RunEvidence) -> str:
    """Name the client with the worst measured score, without an interval."""
    score, i, frame = run.record.score, order_of_clients(run.record)[0], run.record.clients
    if not frame["score"].notna().any():
        return run.missing_reason
    value, rows = score.shown(float(frame["score"].iloc[i])), f"{count(float(frame['samples'].iloc[i]))} test rows"
    if "patients" in frame and frame["patients"].iloc[i] < frame["samples"].iloc[i]:
        rows += f" of {plural(int(frame['patients'].iloc[i]), 'patient')}"
    worst = f"{run.names[i]} has the {score.worst_word} measured {score.words}, {value} on {rows}{_note([run])}"
    return f"{worst}. {run.missing_reason}"


def _note(runs: Sequence[RunEvidence]) -> str:
    """Return the note on undefined clients that follows a statement on the worst clients of some models."""
    records = [run.record for run in runs]
    return undefined_note([record.undefined(record.score) for record in records], [len(r.clients) for r in records])


def _one(group: Group, run: RunEvidence, *, several: bool, seeds: bool) -> list[Block]:
    """Show a model's clients with the conclusions from their intervals.

    Args:
        group: Its algorithm.
        run: The representative run of the group.
        several: Whether there are other algorithms.
        seeds: Whether there are other seeds, each of which gives another model.
    """
    title = f"{group.label}, seed {clean(run.record.seed, 24)}" if several or seeds else ""
    assessment = run.named_assessment
    if assessment is None:
        # A measure without intervals has a table in place of the plot.
        score, rows = run.record.score, []
        values, samples = (run.record.clients[column].to_numpy(float) for column in ("score", "samples"))
        for i in order_of_clients(run.record)[: run.record.display_limit(MOST)]:
            value = score.shown(values[i]) if math.isfinite(values[i]) else NOTHING
            rows.append([run.names[i], count(samples[i]), value])
        caption = f"{score.title}: {_which(len(rows), len(values))}"
        head = [Heading(title), Paragraph(_unsure(run))] if title else []
        return [*head, TableBlock(caption, ["Client", "Test rows", score.words], rows)]
    most = run.record.display_limit(FEW if several else MOST)
    which = _which(min(most, len(assessment.names)), len(assessment.names))
    heading = f"{title}: {which}" if title else which[:1].upper() + which[1:]
    lines = sentences(assessment)
    beside = constant_line(run.record.summary) if assessment.measure.name == PLAIN.name else None
    if beside is not None:
        lines.insert(1, f"{clean(beside[:1].upper() + beside[1:])}.")
    if several:
        # Keep the first two sentences, and those on undefined clients and on constant predictions between them.
        lines = lines[: 2 + bool(assessment.undefined) + (beside is not None)]
    elif not seeds:  # the section's answer has the first sentence
        lines = lines[1:]
    alt = describe_forest(assessment, group.label)
    first, *more = draw_forests(assessment, most)
    return [Figure(first, alt, heading=heading), *(Figure(plot, f"{alt} (continued)") for plot in more), Points(lines)]


def _which(shown: int, clients: int) -> str:
    if shown == clients:
        return f"{plural(clients, 'client')}, the worst first"
    return f"the {shown} worst of {count(clients)} clients; see clients.csv for all"
