"""The tables of promise.py, from its stored rows."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

Row = dict[str, str]


def rows_of(path: Path) -> list[Row]:
    """A stored part; nothing where it was not run yet."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def spread(rows: list[Row], column: str) -> str:
    """Mean ± std over seeds, with the number of runs that diverged."""
    values = [float(row[column]) for row in rows if row[column]]
    if not values:
        return "diverged" if rows else "–"
    text = f"{statistics.fmean(values):.1f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.1f}"
    return text + (f" ({len(rows) - len(values)} diverged)" if len(values) < len(rows) else "")


def table(rows: list[Row], column: str) -> list[str]:
    """A column of every job and algorithm, jobs down."""
    jobs, names = (list(dict.fromkeys(row[key] for row in rows)) for key in ("job", "algorithm"))
    lines = [f"| job | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for job in jobs:
        cells = [spread([r for r in rows if (r["job"], r["algorithm"]) == (job, name)], column) for name in names]
        lines.append(f"| {job} | {' | '.join(cells)} |")
    return lines


def over_saddle(rows: list[Row], bounds: list[Row]) -> list[str]:
    """The returned model's largest training objective over the upper bound of the saddle value, mean over seeds."""
    upper = {row["job"]: float(row["upper"]) for row in bounds}
    lines = ["| job | algorithm | over the saddle value |", "| --- | --- | ---: |"]
    for job, name in dict.fromkeys((row["job"], row["algorithm"]) for row in rows):
        own = [row for row in rows if (row["job"], row["algorithm"]) == (job, name) and row["train_worst"]]
        if job in upper and own:
            ratio = statistics.fmean(float(row["train_worst"]) for row in own) / upper[job]
            lines.append(f"| {job} | {name} | {ratio:.3f} |")
    return lines


def text(results: Path) -> str:
    """All that is stored, as Markdown."""
    parts = {name: rows_of(results / f"{name}.csv") for name in ("defaults", "tuned", "steps", "saddle")}
    lines: list[str] = []
    for name in ("defaults", "tuned"):
        if parts[name]:
            lines += [f"## {name}: worst client, %", "", *table(parts[name], "worst_percent"), ""]
            lines += [f"## {name}: average, %", "", *table(parts[name], "avg_percent"), ""]
    if parts["steps"]:
        renamed = [{**row, "algorithm": f"η × {row['factor']}"} for row in parts["steps"]]
        lines += ["## dual DRDM around the step size found: worst client, %", "", *table(renamed, "worst_percent"), ""]
    if parts["saddle"]:
        lines += ["## defaults over the saddle value", "", *over_saddle(parts["defaults"], parts["saddle"]), ""]
    return "\n".join(lines)
