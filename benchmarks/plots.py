"""Draw the figures of docs/results/speed.md and docs/scale.md from the stored results.

    python benchmarks/plots.py [--smoke]

The script reads the available files of results/{peers,algorithms,scaling}.json and writes docs/speed-*.png.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from jobs import RESULTS, script

mpl.use("Agg")
import matplotlib.pyplot as plt

DOCS = Path(__file__).parents[1] / "docs"
OURS, OTHERS, FLOOR = "#1f6fae", "#b8c4ce", "#8a3b12"


def peers(found: dict[str, Any]) -> plt.Figure:
    """Draw the milliseconds per round of each framework, one panel per job, with drfl in blue."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2))
    for axis, (job, part) in zip(axes, found["jobs"].items(), strict=True):
        median = {name: 1e3 * line["median_s"] for name, line in part["beside"]["0"].items() if "median_s" in line}
        names = sorted(median, key=lambda name: -median[name])
        bars = axis.barh(names, [median[n] for n in names], color=[OURS if n == "drfl" else OTHERS for n in names])
        axis.bar_label(bars, [f"{median[n]:.0f}" if median[n] >= 100 else f"{median[n]:.1f}" for n in names], padding=3)
        axis.set(title=f"{job} on {part['data']}", xlabel="ms a round", xlim=(0, 1.2 * max(median.values())))
    return figure


def algorithms(found: dict[str, Any]) -> plt.Figure:
    """Draw the time of each algorithm's round relative to FedAvg's."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axis, (job, lines) in zip(axes, found["jobs"].items(), strict=True):
        names = list(lines)[::-1]
        bars = axis.barh(names, [lines[n]["over_fedavg"] for n in names], color=OTHERS)
        axis.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
        axis.axvline(1, color=OURS, linewidth=1)
        axis.set(
            title=job, xlabel="round time over FedAvg's", xlim=(0, 1.2 * max(v["over_fedavg"] for v in lines.values()))
        )
    return figure


def scaling(found: dict[str, Any]) -> plt.Figure:
    """Draw time and memory against N, and time against m."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
    panels = (
        ("clients", "round_s", "s a round"),
        ("clients", "peak_mib", "peak MiB"),
        ("cohort", "round_s", "s a round"),
    )
    for axis, (sweep, value, label) in zip(axes, panels, strict=True):
        rows = found[sweep]["rows"]
        for name in found["clients"]["ratio_100000_to_1000"]:
            mine = [row for row in rows if row["algorithm"] == name]
            axis.plot([row[sweep] for row in mine], [row[value] for row in mine], marker="o", label=name)
        axis.set(xscale="log", xlabel={"clients": "clients N", "cohort": "cohort m"}[sweep], ylabel=label)
        if sweep == "cohort":
            axis.set(yscale="log")
        else:
            axis.set(ylim=(0, None))
    axes[0].legend(fontsize=8)
    return figure


PLOTS: dict[str, Callable[[dict[str, Any]], plt.Figure]] = {
    "peers": peers,
    "algorithms": algorithms,
    "scaling": scaling,
}


def main() -> None:
    """Draw all figures that have stored results."""
    options = script.parser(__doc__, DOCS).parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, draw in PLOTS.items():
        path = RESULTS / f"{name}.json"
        if path.exists():
            figure = draw(json.loads(path.read_text()))
            for axis in figure.axes:
                axis.spines[["top", "right"]].set_visible(False)
            figure.tight_layout()
            figure.savefig(options.out / f"speed-{name}.png", dpi=130)
            print(options.out / f"speed-{name}.png")


if __name__ == "__main__":
    main()
