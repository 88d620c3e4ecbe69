"""What was decided on which rows: did the test rows have a say in the model that they judge?"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from drfl.core.run_end import SET_BACK
from drfl.report.content import Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.formatting import NOTHING, clean, count, listing
from drfl.report.read_run import RunRecord, listed, number, table, text

ASKED = "What was decided on which data?"


class Decision(NamedTuple):
    """What was decided.

    Args:
        what: the decision.
        by: the rows that it went by.
        came: what came out, with {} for a number.
        value: that number; NaN for none.
    """

    what: str
    by: str
    came: str
    value: float = math.nan


UNKNOWN = "not known"
MODEL = "Which model is returned"
RETURNED = {
    "average": Decision(MODEL, "no rows", "the decaying average of the server's models, as planned"),
    "last": Decision(MODEL, "no rows", "that of the last round, as planned"),
    "best": Decision(
        MODEL,
        "training rows",
        "of the decaying average and the last iterate the one with the smaller largest training loss",
    ),
}
"""How a run comes to its model."""


def decided(evidence: Evidence) -> Section:
    """The section: decisions with the rows that they went by, and how many rows there are."""
    # One row per decision if all runs made it in the same way, numbers aside; otherwise one row per way, with its runs.
    rows: list[list[str]] = []
    labels = [", seed ".join(label_of(evidence, run)) for run in evidence.runs]
    for made in zip(*map(_decisions, evidence.runs), strict=True):
        ways: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
        for label, (what, by, came, value) in zip(labels, made, strict=True):
            ways.setdefault((what, by, came), []).append((label, value))
        for (what, by, came), whose in ways.items():
            numbers, span = [value for _, value in whose if math.isfinite(value)], "?"
            if numbers:
                ends = [count(end) if end.is_integer() else f"{end:.3g}" for end in (min(numbers), max(numbers))]
                span = ends[0] if ends[0] == ends[1] else " to ".join(ends)
            out = came.replace("{}", span)
            rows.append([what, by, out if len(ways) == 1 else f"{out} ({_some([label for label, _ in whose])})"])
    head = ["Decision", "Went by", "What came out"]
    decisions = TableBlock("Decisions, and the rows that they went by", head, rows, words=3)

    # Likewise one row for all runs with the same numbers of rows.
    sizes: dict[tuple[str, str, str], list[str]] = {}
    for run, label in zip(evidence.runs, labels, strict=True):
        frame = run.record.clients
        validation = NOTHING if run.validation is None else _sizes(run.validation)
        sizes.setdefault((_sizes(frame["train_samples"]), validation, _sizes(frame["samples"])), []).append(label)
    counted = [["All clients" if len(sizes) == 1 else _some(whose), *cells] for cells, whose in sizes.items()]
    parts = ["", "Training", "Validation", "Test"]
    counts = TableBlock("Rows over all clients (fewest to most at a client)", parts, counted)
    said = [Points(_remarks(evidence)), Paragraph(KEPT, small=True)]
    return Section("decisions", ASKED, _answer(evidence), [decisions, counts, *said])


KEPT = (
    "The table says what a run's files say. What was tried before these runs, by hand or by drfl tune, leaves no trace "
    "in them: whoever files this report may add by what rows the settings were chosen."
)


def on_validation(record: RunRecord) -> bool:
    """Whether what is called test is rows held out of training, the test rows being left alone."""
    return record.config.get("judged_on") == "validation"


def _answer(evidence: Evidence) -> str:
    """Whether test rows had a say."""
    # The first condition that holds gives the answer: those that involve the test rows come first.
    records = [run.record for run in evidence.runs]
    early = [record for record in records if record.stopped_on_test]
    if any(map(on_validation, records)):
        return (
            "The numbers of this report are of validation rows, held out of training; test rows were not looked at, "
            "and what is chosen by these numbers needs them for its own test."
        )
    if early:
        who = "The run" if len(records) == 1 else f"{count(len(early))} of the {count(len(records))} runs"
        return f"{who} stopped when a number on the test rows reached a target: the test rows had a say in the model."
    if any(table(record.summary, "selection").get("metric") is not None for record in records):
        return "The model of a round was chosen by validation rows; the test rows had no say in it."
    if any(text(record.summary, "stopped") in ("patience", "target") for record in records):
        return "Training was stopped by validation rows; the test rows had no say in the model."
    if any(decision.by == UNKNOWN for run in evidence.runs for decision in _decisions(run)):
        return "The files of these runs do not say all that decided on the model: see the table."
    return "Models come from training rows alone; the test rows had no say in them within these runs."


def _decisions(run: RunEvidence) -> list[Decision]:
    """The decisions of a run, in the same order for every run."""
    record = run.record
    summary, rounds = record.summary, number(record.summary, "rounds")
    # {} stands for a number: decisions that differ only in it share a row.
    made = [Decision("Model and the clients' weights λ", "training rows", "in {} rounds", rounds)]

    what, found = "Local step size", table(summary, "step_size")
    lr = number(found, "lr")
    # A finite lr here is one that drfl found; otherwise it is a parameter.
    if math.isfinite(lr):
        came = "{}, by the curvature of the loss" + (", halved as the loss rose" if number(found, "halved") > 0 else "")
        came += f"; {SET_BACK}, {record.marks.counted}" if record.marks.rollbacks else ""
        made.append(Decision(what, "training rows", came, lr))
    else:
        lr = number(table(summary, "parameters"), "lr")
        made.append(Decision(what, "not in the run's files", "given: {}" if math.isfinite(lr) else "given", lr))

    until = clean(record.config.get("until", "its target"), 60)
    by, came = {
        "rounds": ("no rows", "{}, as planned"),
        "target": ("test rows" if record.stopped_on_test else "validation rows", f"{{}}: stopped at {until}"),
        "patience": ("validation rows", "{}: stopped as there was no gain"),
        "interrupted": ("no rows", "{}: interrupted"),
    }.get(text(summary, "stopped"), (UNKNOWN, "{}"))
    made.append(Decision("Number of rounds", by, came, rounds))

    selection, returned = table(summary, "selection"), text(summary, "returned")
    if selection.get("metric") is None:
        made.append(RETURNED.get(returned, Decision(MODEL, UNKNOWN, clean(returned, 60))))
    else:
        metric = clean(selection["metric"], 40).replace("_", " ")
        part = clean(selection.get("part", "validation"), 24)
        came = f"round {{}}, the best by {metric}"
        made.append(Decision(MODEL, f"{part} rows", came, number(selection, "round")))

    judged = f"{clean(record.config.get('judged_on', 'test'), 20)} rows"
    return [
        *made,
        Decision("Settings of the algorithm", "not in the run's files", "as in its configuration, in the last section"),
        Decision("Every score in this report", judged, "{} rows", float(record.clients["samples"].sum())),
    ]


def label_of(evidence: Evidence, run: RunEvidence) -> tuple[str, str]:
    """What a run is called among several: its algorithm and its seed."""
    group = next(group for group in evidence.groups if run.record in group.runs)
    return clean(group.label, 60), clean(run.record.seed, 24)


def _some(labels: Sequence[str]) -> str:
    return listing(labels) if len(labels) <= 3 else f"{', '.join(labels[:2])} and {len(labels) - 2} more"


def _sizes(rows: Iterable[float]) -> str:
    sizes = [float(size) for size in rows]
    if not sum(sizes):
        return "none"
    return f"{count(sum(sizes))} ({count(min(sizes))} to {count(max(sizes))})"


def _remarks(evidence: Evidence) -> list[str]:
    """On rows that clients share, columns that were scaled, and missing numbers."""
    said: list[str] = []
    shared = {run.shared for run in evidence.runs}
    if True in shared:
        said.append("Clients share test rows: sets of candidates and intervals of gains allow for that and are wider.")
    if shared == {False}:
        said.append("No two clients share a test row.")
    if None in shared:
        said.append(
            "Whether clients share test rows is not known here, and taken not to be so: the rows are at the sites."
        )
    if any(run.deployed for run in evidence.runs):
        said.append("In a deployment the sites divide their rows themselves; it holds no validation rows.")
    partitions = set()
    for summary in (run.record.summary for run in evidence.runs):
        value, of = summary.get("partition"), text(summary, "partition")
        if isinstance(value, dict):
            # Without the seed, in which runs on one partition differ.
            parameters = [
                f"{key} {item:.4g}" if isinstance(item, float) else f"{key} {item}"
                for key, item in value.items()
                if key not in ("partition", "name", "seed")
            ]
            of = f"{value.get('partition', value.get('name', '?'))}"
            of += f" ({', '.join(parameters)})" if parameters else ""
        partitions.add(clean(of))
    said.append(f"Who holds which rows: {listing(sorted(partitions))}.")
    if any(listed(run.record.summary, "warnings") for run in evidence.runs):
        said.append("Warnings on the data are at the beginning.")
    return said
