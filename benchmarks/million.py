"""Compare a million clients with a thousand: time per round, evaluation, memory, and updated sums weighted by λ.

    python benchmarks/million.py [--rounds 20] [--pairs 3] [--folder DIR] [--smoke]

The setting is that of scaling.py: the linear model with 7,850 parameters, m = 20, ten local steps of 32 samples, a pool
mapped into memory, and one thread, which `drfl.run` uses for such operations. Every measurement is a separate process.
N = 10³ and N = 10⁶ take turns, and so do updated sums and sums that read every row. A ratio compares the fastest of
each, because other work on the machine only adds time. The script writes results/million.json, with the load averages
before and after.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import scaling
from jobs import RESULTS, script, store

FEW, MANY = script.sized((1_000, 1_000_000), (30, 60))
ALGORITHMS, FOLLOWING = script.sized((tuple(scaling.MORE), ("DualDRDM", "ScaffPD")), (("FedAvg",), ("ScaffPD",)))
"""Algorithms to measure, and those with sums weighted by λ."""
WRITTEN = script.sized(100_000, 60)
"""Number of clients, with all rows written to a file, for the comparison of updated sums with reading all rows."""

FLOOR = 0.5
"""N times the floor of λ there; without a floor, only some tens of clients have λ > 0 after a few rounds."""


def pairs_of(one: dict, other: dict, count: int) -> dict[str, object]:
    """Measure two settings in turn, and return the ratios of their times: of the fastest, and pair by pair."""
    found = [(scaling.in_a_process(one), scaling.in_a_process(other)) for _ in range(count)]
    times = [(a["round_s"], b["round_s"]) for a, b in found]
    fastest, slower = (min(own) for own in zip(*times, strict=True))
    return {"ratio": round(slower / fastest, 3), "ratios": [round(b / a, 3) for a, b in times], "pairs": found}


def main() -> None:
    """Measure all settings, print the results and store them."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=script.sized(20, 1))
    parser.add_argument("--pairs", type=int, default=script.sized(3, 1))
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    load = [os.getloadavg()]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        scaling.make_pool(Path(folder))
        base = {**scaling.BASE, "folder": folder, "rounds": options.rounds, "warm": 3, "threads": 1}
        clients = {
            name: pairs_of(*({**base, "algorithm": name, "clients": n} for n in (FEW, MANY)), options.pairs)
            for name in ALGORITHMS
        }
        full = {**base, "clients": WRITTEN, "filled": True, "on_disk": True, "floor": FLOOR}
        sums = {
            name: pairs_of(*({**full, "algorithm": name, "follow": f} for f in (True, False)), options.pairs)
            for name in FOLLOWING
        }
    load.append(os.getloadavg())
    command = f"python benchmarks/million.py --rounds {options.rounds} --pairs {options.pairs}"
    about = {"rounds": options.rounds, "threads": 1, "load_averages": load}
    for name, part in {**clients, **{f"{name}, all rows read": part for name, part in sums.items()}}.items():
        print(name, part["ratio"], part["ratios"])
    store(options.out, "million", command, {**about, "clients": clients, "sums": sums})


if __name__ == "__main__":
    main()
