"""Tables of a report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

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
    size,
    spread,
)
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, number, table

METRICS = (
    ("avg_accuracy", "Average", max),
    ("worst_accuracy", "Worst client", max),
    ("std_accuracy", "Std over clients", min),
    ("worst20_accuracy", f"Worst 20{THIN}%", max),
)
TABLE_ROWS = 1000


def summary_table(groups: Sequence[Group]) -> Table:
    """A row per algorithm: accuracies in percent, mean ± std over seeds, the best in bold, and what it cost."""
    shown = {metric: _bold_best(groups, metric, best) for metric, _, best in METRICS}
    rows = [
        [
            Cell(group.label, line=group),
            *(shown[metric][i] for metric, _, _ in METRICS),
            size(mean(run.ledger("bytes_up") for run in group.runs)),
            size(mean(run.ledger("bytes_down") for run in group.runs)),
            str(len(group.runs)),
        ]
        for i, group in enumerate(groups)
    ]
    many = max(len(group.runs) for group in groups) > 1
    caption = "Test accuracy of the final model over clients, in percent" + (
        "; mean ± sample standard deviation over seeds" if many else ""
    )
    head = ["Algorithm", *(title for _, title, _ in METRICS), "Sent up", "Sent down", "Seeds"]
    return Table(caption, head, rows)


def _bold_best(groups: Sequence[Group], metric: str, best: Callable[[list[float]], float]) -> list[Cell]:
    """(groups,) the metric's cells; what is shown alike is bold alike."""
    means = [round(100 * mean(group.finals(metric)), 1) for group in groups]
    finite = [value for value in means if math.isfinite(value)]
    top = best(finite) if finite and len(groups) > 1 else None
    return [
        Cell(percent(group.finals(metric)), strong=value == top) for group, value in zip(groups, means, strict=True)
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
    clients = run.clients.sort_values("accuracy", kind="stable").head(TABLE_ROWS)
    rows = [
        [clean(name, 60), percent([accuracy]), spread([loss], 3), count(test), count(train), percent([lam], 2)]
        for name, accuracy, loss, test, train, lam in zip(
            clients["client"],
            *(clients[c].astype(float) for c in ("accuracy", "loss", "samples", "train_samples", "lambda")),
            strict=True,
        )
    ]
    head = ["Client", "Accuracy (%)", "Loss", "Test samples", "Training samples", "λ (%)"]
    caption = "Clients of the final model, worst first"
    if len(run.clients) > TABLE_ROWS:
        caption = f"The {TABLE_ROWS} worst of {len(run.clients)} clients; clients.csv has them all"
    return Table(caption, head, rows)


def runs_table(groups: Sequence[Group]) -> Table:
    """A row per run: how it ended."""
    rows = [
        [
            clean(run.label),
            group.label,
            clean(run.seed, 24),
            count(number(run.summary, "rounds")),
            percent([run.final("avg_accuracy")]),
            percent([run.final("worst_accuracy")]),
            spread([run.final("worst_loss")], 3),
            clean(run.summary.get("device", NOTHING), 40),
            duration(number(run.summary, "wall_seconds")),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["Run", "Algorithm", "Seed", "Rounds", "Average (%)", "Worst (%)", "Worst loss", "Device", "Time"]
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
