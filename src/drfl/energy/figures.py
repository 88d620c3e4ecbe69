"""The plan as a picture, after Figure 4 of DRDM (Krouka et al. 2025)."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path

from drfl.energy.planner import Plan
from drfl.energy.tables import NONE, axes, grid, hertz
from drfl.errors import InputError

METADATA = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
"""No date and no version in the files."""


def require() -> None:
    """Raise an InputError unless matplotlib is there."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("the heat map needs matplotlib: pip install 'drfl[experiments]'")


def save_heatmap(plan: Plan, paths: Sequence[Path], title: str = "") -> None:
    """Draw the best number of local steps over SNR and bandwidth.

    Args:
        plan: on a full grid of SNRs and bandwidths.
        paths: files to write, each ending in .png or .svg; the same plan gives the same bytes.
        title: above the picture.

    Raises:
        InputError: matplotlib is missing.
    """
    require()
    import matplotlib
    from matplotlib.figure import Figure

    snrs, bandwidths = axes([cell.place for cell in plan.cells])
    cells = grid(plan)
    best = [[cells[snr, bandwidth].best for snr in snrs] for bandwidth in bandwidths]
    values = [[math.nan if b is None else float(b.tau) for b in row] for row in best]
    known = [value for row in values for value in row if not math.isnan(value)]
    # the salt and matplotlib's own font make the same plan the same bytes
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
                text = NONE if candidate is None else str(candidate.tau)
                axis.text(x, y, text, ha="center", va="center", color="white" if dark else "black")
        axis.set_xticks(range(len(snrs)), [f"{snr:g}" for snr in snrs])
        axis.set_yticks(range(len(bandwidths)), [hertz(bandwidth) for bandwidth in bandwidths])
        axis.set(xlabel="SNR, dB", ylabel="bandwidth")
        axis.set_title(title, fontsize="medium")
        figure.colorbar(image, label="local steps τ")
        for path in paths:
            kind = path.suffix[1:].lower()
            figure.savefig(path, format=kind, metadata=METADATA[kind])
