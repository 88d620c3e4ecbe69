"""Measure how often a better worst client is significant, and how many clients could be the worst.

Run by `python evidence/assessment_coverage.py`, which stores results/assessment_coverage/power.csv and power.png.

``gain``: the worst client of model A has a true accuracy of 70 % and the others 90 %. With model B the worst client is
better by the difference, up to 90 %. The models agree on nine tenths of the rows on which they could agree. ``set``:
one client with 80 % is worse than the others by the difference.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import matplotlib as mpl
import numpy as np

import script
from drfl.assessment.differences import worst_gain
from drfl.assessment.worst import could_be_worst
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key

mpl.use("Agg")
import matplotlib.pyplot as plt

COLUMNS = ("question", "clients", "rows", "difference", "federations", "answer", "value")
CLIENTS, ROWS = (4, 30), (50, 200, 1000)
GAINS = (0.0, 0.025, 0.05, 0.075, 0.10, 0.15, 0.20)
GAPS = (0.0, 0.02, 0.05, 0.10, 0.15, 0.20, 0.30)
FEDERATIONS, ALPHA = script.sized(1000, 2), 0.05
STYLES = ("-", "--", ":")


def federations(name: str, n: int, rows: int, difference: float):
    """Simulate the federations of one point of a curve."""
    binary = importlib.import_module("tests.assessment.simulated").binary
    key = Key(0).fold(name, n, rows, str(difference))
    if name == "gain":
        worst, others = np.r_[0.7, [0.9] * (n - 1)], [0.9] * (n - 1)
        setting = binary(name, np.full(n, rows), worst, np.r_[0.7 + difference, others], agree=0.9)
    else:
        setting = binary(name, np.full(n, rows), np.r_[0.8 - difference, [0.8] * (n - 1)])
    return setting.draw(key.generator(), FEDERATIONS)


def gain(n: int, rows: int, difference: float) -> dict[str, float]:
    """Shares of federations in which B's worst client is significantly better, or measures better."""
    drawn = federations("gain", n, rows, difference)
    shown = [worst_gain(*one, ALPHA).shown == "better" for one in drawn.each()]
    assert drawn.b is not None
    return {
        "shown to be better": float(np.mean(shown)),
        "measured minimum larger": float(np.mean(drawn.b.values.min(1) > drawn.a.values.min(1))),
    }


def candidates(n: int, rows: int, difference: float) -> dict[str, float]:
    """The number of clients that could be the worst, and how often the truly worst one measures worst."""
    drawn = federations("set", n, rows, difference)
    sizes = [np.count_nonzero(could_be_worst(one.a, ALPHA) > ALPHA) for one in drawn.each()]
    return {
        "clients that could be the worst": float(np.mean(sizes)),
        "one client alone": float(np.mean(np.array(sizes) == 1)),
        "the truly worst measures worst": float(np.mean(drawn.a.values.argmin(1) == 0)),
    }


def measure(folder: Path) -> None:
    """Write power.csv and power.png unless they exist."""
    if (folder / "power.png").exists():
        return
    lines: list[list[object]] = []
    for n in CLIENTS:
        for rows in ROWS:
            for question, answers, differences in (("gain", gain, GAINS), ("set", candidates, GAPS)):
                for d in differences:
                    for answer, value in answers(n, rows, d).items():
                        lines.append([question, n, rows, d, FEDERATIONS, answer, f"{value:.4f}"])
        print("power,", n, "clients", flush=True)
    script.store(folder, {"power.csv": csv_text(COLUMNS, lines)})
    draw(lines, folder / "power.png")


def draw(lines: list[list[object]], path: Path) -> None:
    """Draw both questions for two numbers of clients; line styles are test rows, and grey lines measured values."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharey="row", layout="constrained")
    shown = {"gain": ("shown to be better", "measured minimum larger"), "set": ("clients that could be the worst",)}
    for (question, answers), row in zip(shown.items(), axes, strict=True):
        for n, axis in zip(CLIENTS, row, strict=True):
            for rows, style in zip(ROWS, STYLES, strict=True):
                for answer, colour, marker in zip(answers, ("black", "0.6"), ("o", "s"), strict=False):
                    mine = [line for line in lines if [line[k] for k in (0, 1, 2, 5)] == [question, n, rows, answer]]
                    x, y = [float(str(line[3])) for line in mine], [float(str(line[6])) for line in mine]
                    y = [value / n for value in y] if question == "set" else y
                    label = f"{answer}, {rows:,} rows" if question == "gain" else f"{rows:,} rows"
                    axis.plot(x, y, style, color=colour, marker=marker, markersize=3, label=label)
            axis.set_title(f"{n} clients", fontsize=10)
            axis.set_xlabel("true gain of the worst client" if question == "gain" else "gap below the other clients")
            axis.set_ylim(-0.03, 1.03)
            if question == "gain":
                axis.axhline(ALPHA, color="0.3", linewidth=0.6)
    axes[0][0].set_ylabel("share said to be better")
    axes[1][0].set_ylabel("share of clients that could be the worst")
    for row in axes:
        row[0].legend(fontsize=7)
    figure.savefig(path, dpi=110)
    plt.close(figure)
