"""Which rows each decision used, and in particular whether test rows influenced the model that they evaluate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from drfl.core.run_end import RESET
from drfl.report.content import Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RunEvidence
from drfl.report.formatting import NOTHING, clean, count, listing
from drfl.report.read_run import RunRecord, nested_list, nested_table, number, text

QUESTION = "What was decided on which data?"


class Decision(NamedTuple):
    """A decision in a run.

    Args:
        what: The decision.
        basis: The rows that it used.
        outcome: The outcome, with {} for a number.
        value: That number; NaN if there is none.
    """

    what: str
    basis: str
    outcome: str
    value: float = math.nan


UNKNOWN = "unknown"
MODEL = "Which model is returned"
RETURNED = {
    "average": Decision(MODEL, "no rows", "the decaying average of the server's models, as planned"),
    "last": Decision(MODEL, "no rows", "the model of the last round, as planned"),
    "best": Decision(
        MODEL,
        "training rows",
        "the decaying average or the last iterate, whichever had the smaller worst training loss",
    ),
    "earlier": Decision(MODEL, "training rows", "the best earlier model, as the training loss was higher at the end"),
    "initial": Decision(MODEL, "training rows", "the initial one, as the largest training loss was higher later"),
}
"""How the returned model was chosen, by the entry `returned` of the summary."""


def decisions_section(evidence: Evidence) -> Section:
    """Build the section: the decisions with the rows that they used, and the number of rows."""
    # One row per decision if all runs made it in the same way, apart from numbers; otherwise one row per way, with its
    # runs.
    rows: list[list[str]] = []
    labels = [", seed ".join(label_of(evidence, run)) for run in evidence.runs]
    for decision_of_runs in zip(*map(_decisions, evidence.runs), strict=True):
        outcomes: dict[tuple[str, str, str], list[tuple[str, float]]] = {}
        for label, (decision, basis, result, value) in zip(labels, decision_of_runs, strict=True):
            outcomes.setdefault((decision, basis, result), []).append((label, value))
        for (decision, basis, result), labelled_values in outcomes.items():
            values, numeral = [value for _, value in labelled_values if math.isfinite(value)], "?"
            if values:
                ends = [count(end) if end.is_integer() else f"{end:.3g}" for end in (min(values), max(values))]
                numeral = ends[0] if ends[0] == ends[1] else " to ".join(ends)
            outcome = result.replace("{}", numeral)
            rows.append(
                [
                    decision,
                    basis,
                    outcome if len(outcomes) == 1 else f"{outcome} ({_some([label for label, _ in labelled_values])})",
                ]
            )
    head = ["Decision", "Based on", "Outcome"]
    decisions = TableBlock("Decisions and the rows on which they were based", head, rows, words=3)

    # Also one row for all runs with the same numbers of rows.
    sizes: dict[tuple[str, str, str], list[str]] = {}
    for run, label in zip(evidence.runs, labels, strict=True):
        frame = run.record.clients
        validation = NOTHING if run.validation is None else _sizes(run.validation)
        sizes.setdefault((_sizes(frame["train_samples"]), validation, _sizes(frame["samples"])), []).append(label)
    counted = [["All clients" if len(sizes) == 1 else _some(run_labels), *cells] for cells, run_labels in sizes.items()]
    parts = ["", "Training", "Validation", "Test"]
    counts = TableBlock("Rows over all clients (smallest to largest client)", parts, counted)
    remarks: list[str] = []
    shared = {run.shared for run in evidence.runs}
    if True in shared:
        remarks.append(
            "Clients share test rows. Sets of possible worst clients and intervals of gains are therefore wider."
        )
    if shared == {False}:
        remarks.append("No two clients share a test row.")
    if None in shared:
        remarks.append(
            "It is unknown whether clients share test rows, because the rows stayed at the sites. The report assumes "
            "that they do not."
        )
    if any(run.is_deployed for run in evidence.runs):
        remarks.append("In a deployment, the sites split their rows themselves; there are no validation rows.")
    partitions = set()
    for summary in (run.record.summary for run in evidence.runs):
        value, name = summary.get("partition"), text(summary, "partition")
        if isinstance(value, dict):
            # Omit the seed, in which runs on one partition differ.
            parameters = [
                f"{key} {item:.4g}" if isinstance(item, float) else f"{key} {item}"
                for key, item in value.items()
                if key not in ("partition", "name", "seed")
            ]
            name = f"{value.get('partition', value.get('name', '?'))}"
            name += f" ({', '.join(parameters)})" if parameters else ""
        partitions.add(clean(name))
    remarks.append(f"Partition: {listing(sorted(partitions))}.")
    if any(nested_list(run.record.summary, "warnings") for run in evidence.runs):
        remarks.append("Warnings about the data are at the beginning of the report.")
    blocks = [decisions, counts, Points(remarks), Paragraph(ARCHIVE_NOTE, small=True)]
    return Section("decisions", QUESTION, _answer(evidence), blocks)


ARCHIVE_NOTE = (
    "The table is based on the files of the runs. They do not record earlier trials, by hand or with drfl tune. If you "
    "archive this report, add which rows were used to choose the settings."
)


def on_validation(record: RunRecord) -> bool:
    """Check whether the reported numbers are of validation rows, with the test rows unused."""
    return record.config.get("judged_on") == "validation"


def _answer(evidence: Evidence) -> str:
    """State whether test rows influenced the model."""
    # The first condition that is true gives the answer; conditions on test rows come first.
    records = [run.record for run in evidence.runs]
    stopped = [record for record in records if record.stopped_on_test]
    if any(map(on_validation, records)):
        return (
            "The numbers in this report are from validation rows, which were held out of training. The test rows were "
            "not used; test whatever you choose by these numbers on them."
        )
    if stopped:
        subject = "The run" if len(records) == 1 else f"{count(len(stopped))} of the {count(len(records))} runs"
        return (
            f"{subject} stopped when a metric on the test rows reached a target, so the test rows influenced the model."
        )
    if any(nested_table(record.summary, "selection").get("metric") is not None for record in records):
        return "Validation rows chose the round of the model; the test rows did not influence it."
    if any(text(record.summary, "stopped") in ("patience", "target") for record in records):
        return "Validation rows stopped the training; the test rows did not influence the model."
    if any(decision.basis == UNKNOWN for run in evidence.runs for decision in _decisions(run)):
        return "The files of these runs do not record every decision on the model: see the table."
    return "The models depend on training rows only; within these runs the test rows did not influence them."


def _decisions(run: RunEvidence) -> list[Decision]:
    """List the decisions of a run, in the same order for every run."""
    record = run.record
    summary, rounds = record.summary, number(record.summary, "rounds")
    # {} is a placeholder for a number. Decisions that differ only in the number share a row.
    decisions = [Decision("Model and the clients' weights λ", "training rows", "in {} rounds", rounds)]

    decision, step_size = "Local step size", nested_table(summary, "step_size")
    lr = number(step_size, "lr")
    # A finite lr here was found by drfl; otherwise lr is a parameter.
    if math.isfinite(lr):
        outcome = "{}, from the curvature of the loss" + (
            ", halved after the loss rose" if number(step_size, "halved") > 0 else ""
        )
        outcome += f"; {RESET}, {record.marks.rounds_text}" if record.marks.rollbacks else ""
        decisions.append(Decision(decision, "training rows", outcome, lr))
    else:
        lr = number(nested_table(summary, "parameters"), "lr")
        decisions.append(
            Decision(decision, "not in the run's files", "set to {}" if math.isfinite(lr) else "set by the user", lr)
        )

    until = clean(record.config.get("until", "its target"), 60)
    basis, outcome = {
        "rounds": ("no rows", "{}, as planned"),
        "target": ("test rows" if record.stopped_on_test else "validation rows", f"{{}}: stopped at {until}"),
        "patience": ("validation rows", "{}: stopped without improvement"),
        "interrupted": ("no rows", "{}: interrupted"),
    }.get(text(summary, "stopped"), (UNKNOWN, "{}"))
    decisions.append(Decision("Number of rounds", basis, outcome, rounds))

    selection, returned = nested_table(summary, "selection"), text(summary, "returned")
    if selection.get("metric") is None:
        decisions.append(RETURNED.get(returned, Decision(MODEL, UNKNOWN, clean(returned, 60))))
    else:
        metric = clean(selection["metric"], 40).replace("_", " ")
        part = clean(selection.get("part", "validation"), 24)
        outcome = f"round {{}}, the best by {metric}"
        decisions.append(Decision(MODEL, f"{part} rows", outcome, number(selection, "round")))

    judged = f"{clean(record.config.get('judged_on', 'test'), 20)} rows"
    return [
        *decisions,
        Decision("Settings of the algorithm", "not in the run's files", "see its configuration in the last section"),
        Decision("Every score in this report", judged, "{} rows", float(record.clients["samples"].sum())),
    ]


def label_of(evidence: Evidence, run: RunEvidence) -> tuple[str, str]:
    """Return the algorithm and the seed, which identify a run among several."""
    group = next(group for group in evidence.groups if run.record in group.runs)
    return clean(group.label, 60), clean(run.record.seed, 24)


def _some(labels: Sequence[str]) -> str:
    return listing(labels) if len(labels) <= 3 else f"{', '.join(labels[:2])} and {len(labels) - 2} more"


def _sizes(rows: Iterable[float]) -> str:
    sizes = [float(size) for size in rows]
    if not sum(sizes):
        return "none"
    return f"{count(sum(sizes))} ({count(min(sizes))} to {count(max(sizes))})"
