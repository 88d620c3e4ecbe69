"""Tables and figures of an energy study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from drfl.core.csv_cells import csv_text
from drfl.task.measure import NOTHING
from drfl.training import figure_style
from drfl_papers.energy.channel import LinkConditions
from drfl_papers.energy.planner import LocalStepsPlan, PlannedSteps, StepsCandidate

HEADER = (
    "snr_db", "bandwidth_hz", "outage", "tau", "joules", "seconds", "rounds", "runner_up_tau", "runner_up_joules",
)  # fmt: skip

SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def hertz(bandwidth: float) -> str:
    """Format a bandwidth with its unit, e.g. "1 MHz"."""
    scale, prefix = next(((scale, prefix) for scale, prefix in SI if bandwidth >= scale), (1.0, ""))
    return f"{bandwidth / scale:.6g} {prefix}Hz"


def axes(places: Sequence[LinkConditions]) -> tuple[list[float], list[float]]:
    """Return the SNRs and the bandwidths of a grid, in the order in which they first appear."""
    return list(dict.fromkeys(p.snr_db for p in places)), list(dict.fromkeys(p.bandwidth for p in places))


def grid(plan: LocalStepsPlan) -> dict[tuple[float, float], PlannedSteps]:
    """Map (SNR, bandwidth) to the cell."""
    return {(cell.place.snr_db, cell.place.bandwidth): cell for cell in plan.cells}


def to_csv(plan: LocalStepsPlan) -> str:
    """Format one row per cell; the columns of the best τ are empty if no τ reaches the target."""
    rows = []
    for place, best, second in plan.cells:
        chosen = (
            ("",) * 4 if best is None else (best.tau, f"{best.joules:.6g}", f"{best.seconds:.6g}", f"{best.rounds:g}")
        )
        other = ("", "") if second is None else (second.tau, f"{second.joules:.6g}")
        rows.append([f"{place.snr_db:g}", f"{place.bandwidth:g}", f"{place.outage:.6f}", *chosen, *other])
    return csv_text(HEADER, rows)


def to_markdown(plan: LocalStepsPlan) -> str:
    """Format a table of the best τ by SNR and bandwidth, a table of all cells with energy and time, and the notes."""
    snrs, bandwidths = axes([cell.place for cell in plan.cells])
    cells = grid(plan)
    top = ["| bandwidth | " + " | ".join(f"{snr:g} dB" for snr in snrs) + " |", "| --- |" + " ---: |" * len(snrs)]
    for bandwidth in bandwidths:
        best = (cells[snr, bandwidth].best for snr in snrs)
        top.append(f"| {hertz(bandwidth)} | " + " | ".join(NOTHING if b is None else str(b.tau) for b in best) + " |")
    below = [
        "| SNR | bandwidth | outage | best τ | energy, J | time, s | rounds | next best τ | its energy, J |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for place, best, second in plan.cells:
        conditions = [f"{place.snr_db:g} dB", hertz(place.bandwidth), f"{100 * place.outage:.3g} %"]
        below.append("| " + " | ".join([*conditions, *_numbers(best), *_numbers(second)[:2]]) + " |")
    notes = [f"- {note}" for note in plan.notes]
    parts = (["# Local steps with the least energy"], top, below, *([notes] if notes else []))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _numbers(candidate: StepsCandidate | None) -> list[str]:
    if candidate is None:
        return [NOTHING] * 4
    tau, rounds, joules, seconds = candidate
    return [str(tau), f"{joules:.3g}", f"{seconds:.3g}", f"{rounds:.4g}"]


METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""Metadata without date and version, so that the same plan gives the same bytes."""


def save_heatmap(plan: LocalStepsPlan, paths: Sequence[Path], title: str = "") -> None:
    """Draw the best number of local steps by SNR and bandwidth.

    Args:
        plan: The plan of a full grid of SNRs and bandwidths.
        paths: Files to write, each ending in .png or .svg; the same plan gives the same bytes.
        title: Title of the figure.

    Raises:
        InputError: If matplotlib is missing.
    """
    figure_style.check()
    import matplotlib
    from matplotlib.figure import Figure

    snrs, bandwidths = axes([cell.place for cell in plan.cells])
    cells = grid(plan)
    best = [[cells[snr, bandwidth].best for snr in snrs] for bandwidth in bandwidths]
    values = [[math.nan if b is None else float(b.tau) for b in row] for row in best]
    known = [value for row in values for value in row if not math.isnan(value)]
    # The salt and matplotlib's own font make the same plan give the same bytes.
    with matplotlib.rc_context({"svg.hashsalt": "drfl", "svg.fonttype": "path", "font.family": "DejaVu Sans"}):
        figure = Figure(
            figsize=(max(4.8, 1.8 + 0.8 * len(snrs)), max(2.6, 1.4 + 0.6 * len(bandwidths))),
            dpi=150,
            layout="constrained",
        )
        axis = figure.add_subplot()
        colours = matplotlib.colormaps["viridis"].with_extremes(bad="0.85")
        low, high = (min(known), max(known)) if known else (0.0, 1.0)
        image = axis.imshow(values, cmap=colours, vmin=low, vmax=max(high, low + 1), aspect="auto", origin="lower")
        for y, row in enumerate(best):
            for x, candidate in enumerate(row):
                dark = candidate is not None and candidate.tau < (low + max(high, low + 1)) / 2
                text = NOTHING if candidate is None else str(candidate.tau)
                axis.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
        axis.set_xticks(range(len(snrs)), [f"{snr:g}" for snr in snrs])
        axis.set_yticks(range(len(bandwidths)), [hertz(bandwidth) for bandwidth in bandwidths])
        axis.set(xlabel="SNR, dB", ylabel="bandwidth")
        axis.set_title(title, fontsize="medium")
        figure.colorbar(image, label="local steps τ")
        for path in paths:
            kind = path.suffix[1:].lower()
            figure.savefig(path, format=kind, metadata=METADATA[kind])
