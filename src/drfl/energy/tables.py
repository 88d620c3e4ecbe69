"""A plan as CSV, as Markdown, and as short text."""

from __future__ import annotations

from collections.abc import Sequence

from drfl.energy.channel import Place
from drfl.energy.planner import Candidate, Cell, Plan
from drfl.history import csv_text

NONE = "–"
"""Where no number of local steps reaches the target."""

HEADER = (
    "snr_db", "bandwidth_hz", "outage", "tau", "joules", "seconds", "rounds", "runner_up_tau", "runner_up_joules",
)  # fmt: skip

SI = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def hertz(bandwidth: float) -> str:
    """A bandwidth with its unit, e.g. "1 MHz"."""
    scale, prefix = next(((scale, prefix) for scale, prefix in SI if bandwidth >= scale), (1.0, ""))
    return f"{bandwidth / scale:.6g} {prefix}Hz"


def axes(places: Sequence[Place]) -> tuple[list[float], list[float]]:
    """The SNRs and the bandwidths of a grid, in the order in which they first appear."""
    return list(dict.fromkeys(p.snr_db for p in places)), list(dict.fromkeys(p.bandwidth for p in places))


def grid(plan: Plan) -> dict[tuple[float, float], Cell]:
    """(SNR, bandwidth) → the cell."""
    return {(cell.place.snr_db, cell.place.bandwidth): cell for cell in plan.cells}


def to_csv(plan: Plan) -> str:
    """A row a cell; the columns of the best are empty where no τ reaches the target."""
    return csv_text(HEADER, (_row(cell) for cell in plan.cells))


def _row(cell: Cell) -> list[object]:
    best, second = cell.best, cell.runner_up
    return [
        f"{cell.place.snr_db:g}",
        f"{cell.place.bandwidth:g}",
        f"{cell.place.outage:.6f}",
        *(("",) * 4 if best is None else (best.tau, f"{best.joules:.6g}", f"{best.seconds:.6g}", f"{best.rounds:g}")),
        *(("", "") if second is None else (second.tau, f"{second.joules:.6g}")),
    ]


def to_markdown(plan: Plan) -> str:
    """Two tables, the best τ over SNR and bandwidth and every cell with its energy and time, and the notes."""
    snrs, bandwidths = axes([cell.place for cell in plan.cells])
    cells = grid(plan)
    top = ["| bandwidth | " + " | ".join(f"{snr:g} dB" for snr in snrs) + " |", "| --- |" + " ---: |" * len(snrs)]
    for bandwidth in bandwidths:
        best = (cells[snr, bandwidth].best for snr in snrs)
        top.append(f"| {hertz(bandwidth)} | " + " | ".join(NONE if b is None else str(b.tau) for b in best) + " |")
    below = [
        "| SNR | bandwidth | outage | best τ | energy, J | time, s | rounds | next best τ | its energy, J |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_line(cell) for cell in plan.cells),
    ]
    notes = [f"- {note}" for note in plan.notes]
    parts = (["# Local steps with the least energy"], top, below, *([notes] if notes else []))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _line(cell: Cell) -> str:
    where = [f"{cell.place.snr_db:g} dB", hertz(cell.place.bandwidth), f"{100 * cell.place.outage:.3g} %"]
    return "| " + " | ".join([*where, *_numbers(cell.best), *_numbers(cell.runner_up)[:2]]) + " |"


def _numbers(candidate: Candidate | None) -> list[str]:
    if candidate is None:
        return [NONE] * 4
    tau, rounds, joules, seconds = candidate
    return [str(tau), f"{joules:.3g}", f"{seconds:.3g}", f"{rounds:.4g}"]
