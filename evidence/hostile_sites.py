"""Test real deployments with a registered site that sends false data, fails or is slow.

    python evidence/hostile_sites.py [--algorithms DRDM,ScaffPD] [--rounds 2] [--only TEXT] [--resume] [--table]
        [--smoke]

A SuperLink and six SuperNodes run as separate processes, over TLS with node authentication on loopback. Two sites are
honest; the others behave as described in ``scripts/hostile_site.py``. Four sites misbehave at a time if replies are
corrupted, one if its description of itself is. A run must end with complete results of the honest sites, or with a
one-line error. After all runs the deployment must still train and give the model of a simulation.

The script writes ``results/hostile_sites/ALGORITHM.json`` and, with --table, ``table.md`` from these; it exits with 1
if a result is not as required. Algorithms run one after the other; to run them in parallel, start one process for each.
With --smoke one site misbehaves in one run of one round, and the table is written too.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import script

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "evidence" / "results" / "hostile_sites"
HONEST = {"cleveland": "Cleveland", "hungary": "Hungary"}
HOSTILE = ("va-1", "va-2", "va-3", "va-4")[: script.sized(4, 1)]
"""Sites that all have the data of one hospital."""

TIMEOUT = script.sized(30.0, 120.0)
JOB = {
    "model": "linear", "engine": "loop", "lr": 0.05, "cohort": len(HONEST) + len(HOSTILE), "seed": 0,
    "standardise": False,  # as in the simulation that the honest run is compared with
}  # fmt: skip
TOLERANCE = 1e-6

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "examples" / "hospitals")]


def groups(behaviours: list) -> list[list]:
    """Group the behaviours by run: as many as there are hostile sites, or a single one if it could disturb the others.

    A false identity may end the run, and a model of 1e30 spoils the average. Sites that hang or die come last.
    """
    behaviours = sorted(behaviours, key=lambda one: one.process)
    alone = [one for one in behaviours if one.of == "identity" or "1e30" in one.name]
    others = [one for one in behaviours if one not in alone]
    return [*(others[i : i + len(HOSTILE)] for i in range(0, len(others), len(HOSTILE))), *([one] for one in alone)]


def outcomes(trial, group: list, out: str, code: int, told: str) -> list[tuple[str, bool]]:
    """How a run ended for each hostile site, and whether this is allowed."""
    lines = [line for line in told.splitlines() if line.startswith("drfl: ")]
    if "Traceback" in told:
        return [("a traceback", False)] * len(group)
    if code:
        plain = re.sub(r"run \d+ failed: ServerApp failed with exception: ", "", lines[-1]) if lines else told[-200:]
        reasons = re.findall(r"WARNING node \d+: (.*)", told)
        plain = "; ".join([plain, *reasons[-1:]])
        return [(plain, len(lines) == 1)] * len(group)
    folder = trial.folder / out
    with (folder / "clients.csv").open(newline="") as file:
        rows = {row["client"]: row for row in csv.DictReader(file)}
    whole = all(math.isfinite(float(rows[name][column])) for name in HONEST for column in ("accuracy", "loss"))
    sites = json.loads((folder / "traffic.json").read_text())["sites"]
    unharmed = all(not sites[name]["rejected"] + sites[name]["failed"] + sites[name]["silent"] for name in HONEST)
    right = whole and unharmed and list(rows) == trial.sites
    kinds = ("answered", "rejected", "failed", "silent", "left_out")
    told_of = []
    for _, name in zip(group, HOSTILE, strict=False):
        counts = ", ".join(f"{sites[name][kind]} {kind.replace('_', ' ')}" for kind in kinds if sites[name][kind])
        told_of.append((f"results; {counts}{'; its data changed' if sites[name]['data_changed'] else ''}", right))
    return told_of


def tried(trial, group: list, job: dict[str, object], place: int) -> list[dict[str, object]]:
    """Run a group of behaviours, each at a separate site."""
    out = f"run-{place}"
    modes = {name: one.name for name, one in zip(HOSTILE, group, strict=False)}
    for name in HOSTILE:
        (trial.folder / "sites" / name / "first").unlink(missing_ok=True)
        (trial.folder / "sites" / name / "mode").write_text(modes.get(name, ""), encoding="utf-8")
    trial.job(out, timeout=TIMEOUT, **job)
    start = time.monotonic()
    code, told = trial.run()
    seconds = round(time.monotonic() - start)
    alive = all(trial.programs[name].poll() is None for name in ("superlink", *HONEST))
    rows = []
    for one, (what, right) in zip(group, outcomes(trial, group, out, code, told), strict=True):
        rows.append({"behaviour": one.name, "of": one.of, "run": place, "outcome": what, "right": right and alive})
        print(json.dumps({**rows[-1], "seconds": seconds}), flush=True)
    if not all(row["right"] for row in rows):
        print(told, flush=True)
    for name, one in zip(HOSTILE, group, strict=False):
        if one.process:  # its SuperNode may be waiting for the hanging process
            trial.kill(name, signal.SIGTERM)
            trial.keep_starting(name)
    return rows


def afterwards(trial, job: dict[str, object]) -> float:
    """Return max |w − w_sim| of a run of the same processes with only honest sites."""
    from trial_folder import kept
    from try_deployment import simulated

    trial.job("run-clean", timeout=120.0, **job)
    code, told = trial.run()
    if code:
        raise SystemExit(f"the last run, in which nobody is hostile, ended with {code}\n{told}")
    there = simulated(trial, job)
    return float((kept(trial.folder / "run-clean", there.names)[0] - there.w).abs().max())


def store(out: Path, job: dict[str, object], rows: list, difference: float | None = None) -> None:
    """Store the results so far."""
    from drfl.experiments.run.artifacts import versions

    content = {
        "command": f"python evidence/hostile_sites.py --algorithms {job['algorithm']} --rounds {job['rounds']}",
        "device": f"cpu, {os.cpu_count()} cores, loopback",
        "versions": {**versions(), "flwr": importlib.metadata.version("flwr")},
        "job": job, "timeout": TIMEOUT,
        "max |w - w_sim| of an honest run afterwards": difference, "behaviours": rows,
    }  # fmt: skip
    script.store(out, {f"{job['algorithm']}.json": content})


def all_of(algorithm: str, given: argparse.Namespace) -> bool:
    """Test every behaviour with one algorithm; return whether all results are as required."""
    import hostile_site
    from prepare import prepare  # pyright: ignore[reportMissingImports]
    from trial_folder import Trial

    job: dict[str, object] = {**JOB, "algorithm": algorithm, "rounds": given.rounds}
    place = Path(tempfile.mkdtemp(prefix="drfl-hostile-"))
    prepare(place / "data", 0)
    chosen = [one for one in hostile_site.behaviours() if one.first and given.only in one.name]
    stored = given.out / f"{algorithm}.json"
    rows = json.loads(stored.read_text())["behaviours"] if given.resume and stored.exists() else []
    done = {row["behaviour"] for row in rows}
    tries = groups([one for one in chosen if one.name not in done])[: script.sized(None, 1)]
    try:
        sites = {name: place / "data" / f"{file}.npz" for name, file in HONEST.items()}
        sites |= dict.fromkeys(HOSTILE, place / "data" / "VA Long Beach.npz")
        with Trial(place / "deployment", sites, timeout=120.0) as trial:
            for name in HOSTILE:
                shutil.copy(ROOT / "scripts" / "hostile_site.py", trial.folder / "sites" / name)
                trial.site(name, data={"loader": "hostile_site:load"})
            for number, group in enumerate(tries):
                rows += tried(trial, group, job, number)
                if not given.only:
                    store(given.out, job, rows)
            for name in HOSTILE:
                trial.site(name, data={"npz": "data.npz"})
            difference = afterwards(trial, job)
    finally:
        if not given.keep:
            shutil.rmtree(place, ignore_errors=True)
    if not given.only:
        store(given.out, job, rows, difference)
    print(f"{algorithm}: {sum(row['right'] for row in rows)} of {len(rows)} right; an honest run after: {difference:g}")
    return all(row["right"] for row in rows) and difference <= TOLERANCE


def table(folder: Path) -> str:
    """Format the stored results: the summary, and a row for each behaviour."""
    import hostile_site

    import tables

    stored = tables.behaviours(folder)
    found = {name: {row["behaviour"]: str(row["outcome"]) for row in rows} for name, rows in stored.items()}
    lines = [f"| behaviour | {' | '.join(found)} |", f"| --- |{' --- |' * len(found)}"]
    for name in (one.name for one in hostile_site.behaviours()):
        if any(name in rows for rows in found.values()):
            cells = (name, *(rows.get(name, "not tried") for rows in found.values()))
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return f"{tables.hostile_sites(folder)}\n\n" + "\n".join(lines) + "\n"


def main() -> int:
    """Test the selected behaviours."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--algorithms", default=script.sized("DRDM,ScaffPD", "DRDM"))
    parser.add_argument("--rounds", type=int, default=script.sized(2, 1))
    parser.add_argument("--only", default="", help="only behaviours whose names contain TEXT; stores nothing")
    parser.add_argument("--resume", action="store_true", help="skip stored results")
    parser.add_argument("--table", action="store_true", help="write table.md from the stored results, and run nothing")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped
    right = [] if given.table else [all_of(name, given) for name in given.algorithms.split(",")]
    if given.table or given.smoke:
        script.store(given.out, {"table.md": table(given.out)})
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
