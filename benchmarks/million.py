"""A million clients against a thousand: seconds a round, an evaluation, and memory; and sums that follow λ.

    python benchmarks/million.py [--rounds 20] [--pairs 3] [--folder DIR]

The setting is that of scaling.py: the linear model of 7,850 parameters, m = 20, ten local steps of 32 samples, a pool
mapped into memory; one thread, which is what `drfl.run` takes for such operations. Every measurement is a process of
its own. N = 10³ and N = 10⁶ take turns, as do the sums that follow λ and those that read every row; a ratio is
that of the fastest of each, as other work on the machine only ever adds time. Writes results/million.json, with the
load averages before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import scaling

from drfl.experiments.artifacts import versions

RESULTS = Path(__file__).parent / "results" / "million.json"
FEW, MANY = 1_000, 1_000_000
WRITTEN = 100_000
"""Clients of whom all rows are written, in a file, where sums that follow λ meet those that do not."""

FLOOR = 0.5
"""N times the floor of λ there: without one, λ leaves all but some tens of clients after a few rounds."""


def pairs_of(one: dict, other: dict, count: int) -> dict[str, object]:
    """Both settings in turn, and by what factor the other takes longer: the fastest of each, and pair by pair."""
    found = [(scaling.in_a_process(one), scaling.in_a_process(other)) for _ in range(count)]
    times = [(a["round_s"], b["round_s"]) for a, b in found]
    fastest, slower = (min(own) for own in zip(*times, strict=True))
    return {"ratio": round(slower / fastest, 3), "ratios": [round(b / a, 3) for a, b in times], "pairs": found}


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    load = [os.getloadavg()]
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        scaling.make_pool(Path(folder))
        base = {**scaling.BASE, "folder": folder, "rounds": options.rounds, "warm": 3, "threads": 1}
        clients = {
            name: pairs_of(*({**base, "algorithm": name, "clients": n} for n in (FEW, MANY)), options.pairs)
            for name in scaling.MORE
        }
        full = {**base, "clients": WRITTEN, "filled": True, "on_disk": True, "floor": FLOOR}
        sums = {
            name: pairs_of(*({**full, "algorithm": name, "follow": f} for f in (True, False)), options.pairs)
            for name in ("DualDRDM", "ScaffPD")
        }
    load.append(os.getloadavg())
    command = f"python benchmarks/million.py --rounds {options.rounds} --pairs {options.pairs}"
    about = {"command": command, "device": f"{os.cpu_count()} cores", "versions": versions()}
    about |= {"rounds": options.rounds, "threads": 1, "load_averages": load}
    for name, part in {**clients, **{f"{name}, all rows read": part for name, part in sums.items()}}.items():
        print(name, part["ratio"], part["ratios"])
    RESULTS.write_text(json.dumps({**about, "clients": clients, "sums": sums}, indent=2) + "\n")


if __name__ == "__main__":
    main()
