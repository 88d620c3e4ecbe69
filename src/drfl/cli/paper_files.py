"""Figures and tables for papers, which several commands write from a comparison."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from rich import box

from drfl.cli import console
from drfl.core.errors import InputError, unknown
from drfl.core.output_files import check_output, write_bytes
from drfl.core.screen import ScreenTable
from drfl.experiments.compare.comparison_results import Comparison
from drfl.report.formatting import size
from drfl.task.measure import NOTHING, number
from drfl.training.plots import AXES

FORMATS = (".pdf", ".svg", ".png")
"""Suffixes of figures."""


def check_paper_files(
    latex: Path | None, figure: Path | None = None, x_axis: str | None = None, *, overwrite: bool
) -> None:
    """Check that these files can be written, before work that takes long.

    Raises:
        InputError: If one exists, its folder does not, the figure has an unknown format or axis or no file, or
            matplotlib is missing.
    """
    if x_axis is not None and figure is None:
        raise InputError("--x-axis requires --figure: remove it", code="unused-option", field="x-axis")
    if x_axis is not None and x_axis not in AXES:
        raise unknown("axis", x_axis, AXES, field="x-axis")
    for path, name in ((latex, "latex"), (figure, "figure")):
        if path is not None:
            check_output(path, f"--{name}", overwrite=overwrite)
    if figure is not None:
        from drfl.training import figure_style

        if figure.suffix.lower() not in FORMATS:
            raise InputError(
                f"{figure}: a figure's name must end in {', '.join(FORMATS)}", code="unsupported-file", field="figure"
            )
        figure_style.check()


COSTS: dict[str, Callable[[float], str]] = {
    "rounds": lambda value: number(value, 1),
    "bytes": size,
    "gradients": lambda value: NOTHING if math.isnan(value) else f"{value:,.0f}",
    "seconds": lambda value: number(value, 2),
}
"""The costs of reaching a target, and how each is shown."""


def write_paper_files(
    comparison: Comparison, latex: Path | None, figure: Path | None, x_axis: str | None, target: str | None
) -> None:
    """Write the table and the figure that the user asked for, and print the costs of reaching the target on stderr.

    Raises:
        InputError: If a file cannot be written, or the target is not one.
    """
    if target is not None:
        view = ScreenTable(
            "algorithm", "reached", *COSTS, text=("algorithm",), no_wrap=("algorithm",),
            title=f"first evaluated round with {target}, mean and 95 % interval",
            box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0),
        )  # fmt: skip
        for name, row in comparison.costs_to(target).iterrows():
            reached = f"{row['reached']:.0f} of {row['seeds']:.0f}"
            view.add_row(comparison.marked(str(name)), reached, *(shown(row[cost]) for cost, shown in COSTS.items()))
            # Both in one line would be too wide for a terminal.
            ends = [[shown(row[f"{cost}_{end}"]) for end in ("low", "high")] for cost, shown in COSTS.items()]
            if any(low != NOTHING for low, _ in ends):
                view.add_row("", "", *(f"{low} – {high}" if low != NOTHING else "" for low, high in ends))
        console.err.print(view)
    if latex is not None:
        write_bytes(comparison.to_latex(target=target).encode(), latex)
        console.err.print(f"table: {latex}", markup=False)
    if figure is not None:
        comparison.plot(x=x_axis or "rounds").savefig(figure)
        console.err.print(f"figure: {figure}", markup=False)
