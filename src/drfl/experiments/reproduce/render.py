"""What a reproduced table or figure leaves behind: the files of its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from drfl.errors import unknown
from drfl.experiments.reproduce import canvas, convergence, curves, figures, paired, reached, tables
from drfl.experiments.reproduce.convergence import ways
from drfl.experiments.reproduce.measures import measure
from drfl.experiments.reproduce.plan import Collected, Plan
from drfl.experiments.reproduce.runs import runs
from drfl.experiments.reproduce.summary import summary
from drfl.experiments.reproduce.tables import Table, plain
from drfl.experiments.rundir import json_text
from drfl.history import DIGITS, LEDGER_COLUMNS, Metrics, csv_text

COLUMNS = ("setting", "method", "algorithm", "seed", "stopped", "rounds", *Metrics._fields, *LEDGER_COLUMNS)
DISTANCE_COLUMNS = ("setting", "method", "algorithm", "seed", "stopped", "rounds", "squared_distance", "chosen")

LEGENDS = {
    "curves": "Curves are means over the repeats, bands the 95 % t-intervals of the means.",
    "scatter": "Points are means over the repeats, crosses the 95 % t-intervals of the means.",
    "distance": "Curves are medians over the repeats; bands go from the least to the greatest.",
}
"""What a figure's marks mean where there are repeats, by kind."""


def check(plan: Plan) -> None:
    """Make sure before anything runs that the result can be drawn.

    Raises:
        InputError: matplotlib is missing, an axis or metric is unknown, or an energy map lacks its grid.
    """
    spec = plan.spec
    if spec.kind == "table":
        return
    canvas.check()
    for panel in spec.panels if spec.kind in ("curves", "scatter") else ():
        measure(panel.y)
        if spec.kind == "scatter":
            measure(panel.x)
        elif panel.x not in curves.AXES:
            raise unknown("x axis", panel.x, curves.AXES)
    if spec.kind == "energy":
        from drfl.experiments.reproduce import energymap

        energymap.check(plan)


def write(collected: Collected, folder: Path, command: str) -> None:
    """Fill an existing, empty folder; the same records give the same bytes.

    Args:
        collected: what ran.
        folder: where.
        command: that makes these results, for `summary.json`.

    Raises:
        InputError: a figure cannot be drawn, as matplotlib is missing or an axis is unknown.
        OSError: the folder cannot be written to.
    """
    drawn = _draw(collected, folder)
    texts = {
        **_csvs(collected),
        "summary.json": json_text(summary(collected, command), indent=2) + "\n",
        "table.md": markdown(collected, drawn),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")


def contents(collected: Collected) -> tuple[Table, ...]:
    """All tables of a result, in order."""
    kind = collected.plan.spec.kind
    if kind == "distance":
        return convergence.tables(collected)
    first: tuple[Table, ...] = ()
    if kind == "energy":
        from drfl.experiments.reproduce import energymap

        first = energymap.tables(collected)
    compared = paired.tables(collected) if kind != "energy" else ()
    return (*first, *reached.tables(collected), *tables.final(collected), *compared)


def markdown(collected: Collected, drawn: list[str]) -> str:
    """`table.md`: what it is, on which data, the figures, the tables.

    Args:
        collected: what ran.
        drawn: names of the figures beside it, without ending.
    """
    spec = collected.plan.spec
    parts = [f"# {plain(spec.title)} ({plain(spec.paper)})", *head(collected.plan)]
    about = collected.plan.settings if len(drawn) > 1 else [spec.title]
    parts += [f"![{plain(what)}]({name}.png)" for what, name in zip(about, drawn, strict=False)]
    if drawn and collected.plan.repeats > 1 and spec.kind in LEGENDS:
        parts.append(LEGENDS[spec.kind] + (" Dashed lines are the targets." if spec.targets else ""))
    return "\n\n".join([*parts, *(table.markdown().rstrip("\n") for table in contents(collected))]) + "\n"


def head(plan: Plan) -> list[str]:
    """The sentences before the tables: the stand-in, how much was run, where parameters come from, the note."""
    spec, scale = plan.spec, plan.scale
    lines = []
    if scale.stand_in and spec.stand_in is not None:
        text = f"**Stand-in:** {plain(spec.stand_in.why)}"
        lines.append(f"{text} The paper's numbers are on its own data." if spec.values or spec.reached else text)
    lines.append(_size(plan))
    if plan.hyperparameters is not None:
        own = [method.name for method in spec.methods if not method.tuned]
        but = f", except those of {' and of '.join(own)}" if own else ""
        lines.append(f"Hyperparameters are tuned{but}: `summary.json` says which they are and how they were found.")
    return [*lines, *([plain(spec.note)] if spec.note else [])]


def _size(plan: Plan) -> str:
    spec = plan.spec
    repeats = (
        "One run a cell, seed 0" if plan.repeats == 1 else f"{plan.repeats} repeats, seeds 0 to {plan.repeats - 1}"
    )
    text = f"{repeats}; {_rounds(plan)}."
    if (plan.repeats, plan.rounds) != (spec.repeats, spec.rounds):
        text += f" The specification asks for {_count(spec.repeats, 'repeat')} of {_count(spec.rounds, 'round')}."
    left = [setting.name for setting in spec.settings if setting.name not in plan.settings]
    return f"{text} Left out: {', '.join(left)}." if left else text


def _rounds(plan: Plan) -> str:
    """Rounds of communication, method by method where they differ."""
    found: dict[int, list[str]] = {}
    for planned in plan.cells:
        rounds = planned.cell.job.get("rounds", plan.rounds)
        names = found.setdefault(rounds if isinstance(rounds, int) else plan.rounds, [])
        if planned.method not in names:
            names.append(planned.method)
    base = plan.rounds if plan.rounds in found else next(iter(found))
    others = "; ".join(f"{rounds} for {' and '.join(names)}" for rounds, names in found.items() if rounds != base)
    return _count(base, "round") + (f" ({others})" if others else "")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _draw(collected: Collected, folder: Path) -> list[str]:
    kind = collected.plan.spec.kind
    if kind in ("curves", "scatter"):
        return figures.draw(collected, folder)
    if kind == "distance":
        return convergence.draw(collected, folder)
    if kind == "energy":
        from drfl.experiments.reproduce import energymap

        return energymap.draw(collected, folder)
    return []


def _csvs(collected: Collected) -> dict[str, str]:
    spec = collected.plan.spec
    if spec.kind == "distance":
        cells = csv_text(DISTANCE_COLUMNS, _distances(collected))
        return {"cells.csv": cells, "curves.csv": convergence.to_csv(collected)}
    texts = {"cells.csv": csv_text(COLUMNS, _cells(collected))}
    if spec.kind != "energy":
        texts["paired.csv"] = paired.to_csv(collected)
    if spec.kind == "curves":
        texts["curves.csv"] = curves.to_csv(collected)
    if reached.levels(spec):
        texts["reached.csv"] = reached.to_csv(collected)
    if spec.kind == "energy":
        from drfl.experiments.reproduce import energymap

        texts["energy.csv"] = energymap.to_csv(collected)
    return texts


def _cells(collected: Collected) -> Iterator[list[object]]:
    algorithms = {method.name: method.algorithm for method in collected.plan.spec.methods}
    for (setting, method), group in runs(collected).items():
        for run in group:
            values: list[object] = [""] * (len(Metrics._fields) + len(LEDGER_COLUMNS))
            if run.ended:
                metrics = (f"{run.final[name]:.{DIGITS}f}" for name in Metrics._fields)
                values = [*metrics, *(int(run.final[name]) for name in LEDGER_COLUMNS)]
            yield [setting, method, algorithms[method], run.seed, run.stopped, run.rounds, *values]


def _distances(collected: Collected) -> Iterator[list[object]]:
    algorithms = {method.name: method.algorithm for method in collected.plan.spec.methods}
    for (setting, method), group in ways(collected).items():
        for way in group:
            last = f"{way.errors[-1]:.6e}" if way.errors else ""
            chosen = " ".join(f"{name}={value:g}" for name, value in way.chosen.items())
            rounds = len(way.errors) - 1 if way.errors else 0
            yield [setting, method, algorithms[method], way.seed, way.stopped, rounds, last, chosen]
