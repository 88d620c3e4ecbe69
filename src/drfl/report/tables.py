"""Tables of a report."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from drfl.measure import Measure
from drfl.report.content import Cell, Table
from drfl.report.formatting import (
    NOTHING,
    THIN,
    clean,
    count,
    duration,
    mean,
    percent,
    scientific,
    scored,
    size,
    spread,
)
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, number, table, worst_first

METRICS = {
    "avg_score": "Average",
    "worst_score": "Worst client",
    "std_score": "Std over clients",
    "worst20_score": f"Worst 20{THIN}%",
}
TABLE_ROWS = 1000


def summary_table(groups: Sequence[Group]) -> Table:
    """A row per algorithm: the score, mean ± std over seeds, the best in bold, other measures, and what it cost."""
    score, *others = groups[0].measures
    heads = dict(METRICS) | {f"{what}_{m.name}": f"{word} {m.words}" for m in others for what, word in WORDS.items()}
    shown = {name: _bold_best(groups, name, score) for name in METRICS}
    for measure in others:
        shown |= {f"{what}_{measure.name}": _bold_best(groups, f"{what}_{measure.name}", measure) for what in WORDS}
    rows = [
        [
            Cell(group.label, line=group),
            *(shown[name][i] for name in heads),
            size(mean(run.ledger("bytes_up") for run in group.runs)),
            size(mean(run.ledger("bytes_down") for run in group.runs)),
            str(len(group.runs)),
        ]
        for i, group in enumerate(groups)
    ]
    many = max(len(group.runs) for group in groups) > 1
    unit = ", in percent" if score.percent else ""
    caption = f"Test {score.words} of the final model over clients{unit}" + (
        "; mean ± sample standard deviation over seeds" if many else ""
    )
    head = ["Algorithm", *heads.values(), "Sent up", "Sent down", "Seeds"]
    return Table(caption, head, rows)


WORDS = {"avg": "Average", "worst": "Worst"}
"""What is said of the measures beside the score."""


def _bold_best(groups: Sequence[Group], name: str, measure: Measure) -> list[Cell]:
    """(groups,) the cells of a statistic of this measure; what is shown alike is bold alike."""
    means = [round(measure.scale * mean(group.finals(name)), measure.digits) for group in groups]
    finite = [value for value in means if math.isfinite(value)]
    small = name == "std_score" or not measure.more_is_better
    top = (min if small else max)(finite) if finite and len(groups) > 1 else None
    return [
        Cell(scored(group.finals(name), measure), strong=value == top)
        for group, value in zip(groups, means, strict=True)
    ]


def certificate_table(groups: Sequence[Group]) -> Table:
    """A row per algorithm: both sides of the final duality gap, mean ± std over seeds."""
    rows = [
        [
            Cell(group.label, line=group),
            *(scientific(group.finals(name)) for name in ("primal", "lower", "gap", "gradient_norm")),
            "yes" if all(run.proven for run in group.runs) else "no",
        ]
        for group in groups
    ]
    head = ["Algorithm", "Worst case over Λ", "Lower bound", "Gap", "Gradient norm", "Proven"]
    return Table("Certificate of the final (w, λ), on training data", head, rows)


def client_table(run: RunRecord) -> Table:
    """Every client of a run, worst first."""
    clients = worst_first(run).head(TABLE_ROWS)
    score, *others = (measure for measure in run.measures if measure is run.score or measure.name in clients)
    names = ("score", *(measure.name for measure in others), "loss", "samples", "train_samples", "lambda")
    rows = [
        [
            clean(name, 60),
            *(scored([value], measure) for value, measure in zip(values, (score, *others), strict=False)),
            spread([values[-4]], 3), count(values[-3]), count(values[-2]), percent([values[-1]], 2),
        ]
        for name, *values in zip(clients["client"], *(clients[c].astype(float) for c in names), strict=True)
    ]  # fmt: skip
    measured = [m.words[:1].upper() + m.words[1:] + (" (%)" if m.percent else "") for m in (score, *others)]
    head = ["Client", *measured, "Loss", "Test samples", "Training samples", "λ (%)"]
    caption = "Clients of the final model, worst first"
    if len(run.clients) > TABLE_ROWS:
        caption = f"The {TABLE_ROWS} worst of {len(run.clients)} clients; clients.csv has them all"
    return Table(caption, head, rows)


MOST_NAMED = 30
"""Clients with a row of their own in a report of several runs."""

NUMBERED = re.compile(r"client-\d+")
"""A client of a random partition, who is another one at every seed."""


def by_client_tables(groups: Sequence[Group]) -> list[Table]:
    """Of several runs on the same few clients with names of their own: for each measure, clients against algorithms."""
    runs = [run for group in groups for run in group.runs]
    names = runs[0].clients["client"].tolist()
    same = all(run.clients["client"].tolist() == names for run in runs)
    if len(runs) == 1 or not same or len(names) > MOST_NAMED or any(NUMBERED.fullmatch(name) for name in names):
        return []
    found = []
    for measure in groups[0].measures:
        kept = "score" if measure is groups[0].score else measure.name
        if not all(kept in run.clients for run in runs):
            continue
        rows = [
            [
                clean(name, 60),
                *(scored([float(run.clients[kept].iloc[i]) for run in group.runs], measure) for group in groups),
            ]
            for i, name in enumerate(names)
        ]
        caption = f"{measure.words[:1].upper()}{measure.words[1:]} by client" + (", in percent" * measure.percent)
        found.append(Table(caption, ["Client", *(group.label for group in groups)], rows))
    return found


def runs_table(groups: Sequence[Group]) -> Table:
    """A row per run: how it ended."""
    rows = [
        [
            clean(run.label),
            group.label,
            clean(run.seed, 24),
            count(number(run.summary, "rounds")),
            scored([run.final("avg_score")], group.score),
            scored([run.final("worst_score")], group.score),
            spread([run.final("worst_loss")], 3),
            clean(run.summary.get("device", NOTHING), 40),
            duration(number(run.summary, "wall_seconds")),
        ]
        for group in groups
        for run in group.runs
    ]
    unit = " (%)" if groups[0].score.percent else ""
    head = ["Run", "Algorithm", "Seed", "Rounds", f"Average{unit}", f"Worst{unit}", "Worst loss", "Device", "Time"]
    return Table("Runs", head, rows, words=2)


def ledger_table(groups: Sequence[Group]) -> Table:
    """A row per run: what it cost."""
    rows = [
        [
            clean(run.label),
            size(run.ledger("bytes_up")),
            size(run.ledger("bytes_down")),
            *(count(run.ledger(name)) for name in ("messages", "gradient_evaluations", "loss_evaluations")),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["Run", "Sent up", "Sent down", "Messages", "Gradient evaluations", "Loss evaluations"]
    return Table("Communication and computation, whole run", head, rows)


def versions_table(groups: Sequence[Group]) -> Table | None:
    """The versions of the software, several where runs differ; None where no run says."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for name, version in table(run.summary, "versions").items():
                seen = found.setdefault(name, [])
                if str(version) not in seen:
                    seen.append(str(version))
    if not found:
        return None
    rows = [[clean(name), clean(", ".join(versions))] for name, versions in found.items()]
    return Table("Versions", ["Software", "Version"], rows, words=2)
