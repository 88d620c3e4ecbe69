"""Run for a long time with all kinds of failures: memory must stay constant, and files grow only by rows written.

    python evidence/soak.py [--rounds 50000] [--smoke]

The job is dual DRDM on digits with twelve clients. Every round has client dropout, outages, crashes, duplicate replies,
stragglers and a deadline. One client's updates are a million times too long, and another's have the wrong sign. The
aggregation rule is centred clipping, which has a memory; rounds with fewer than four replies are skipped; a checkpoint
is written every 50 rounds. Every 1,000 rounds the script records the resident memory, the open files and the size of
every file in the run's folder. It writes results/soak/. It runs only on Linux.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

import script
from drfl.core.csv_cells import csv_text
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config
from drfl.experiments.run.artifacts import versions
from drfl.experiments.run.resume import checkpoint_writer
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.runner import execute
from drfl.resilience import Memory
from drfl.testing.attacks import ScaledUpdates, SignFlip
from drfl.training.checkpoint import newest
from drfl.training.run_state import RunState

RESULTS = Path(__file__).parent / "results" / "soak"
EVERY, CHECKPOINT = script.sized((1000, 50), (10, 5))
FAULTS = {
    "drop": 0.2, "outage": 0.02, "groups": 4, "outage_rounds": 3, "crash": 0.05, "duplicate": 0.05, "slow": 0.2,
    "deadline": 30,
}  # fmt: skip
JOB = {
    "clients": 12, "cohort": 12, "steps": 1, "batch": 4, "algorithm": "DualDRDM", "aggregator": "centred-clip",
    "algorithms": {"DualDRDM": {"sampling": "everybody", "ambiguity": "cvar:alpha=0.5"}},
    "min_replies": 4, "faults": FAULTS, "evaluate_every": EVERY, "checkpoint_every": CHECKPOINT, "threads": 1,
}  # fmt: skip
PAGES = os.sysconf("SC_PAGE_SIZE")

Level = tuple[int, int, int, int]


def files(folder: Path) -> dict[str, int]:
    """The bytes of the newest checkpoint's files, and of the files beside it."""
    kept = newest(folder / "checkpoint")
    assert kept is not None
    parts = [path for path in kept.folder.iterdir() if path.is_file()]
    others = [path for path in (folder / "checkpoint").iterdir() if path.is_file()]
    return {path.name: path.stat().st_size for path in (*others, *parts)}


def measured(rounds: int, folder: Path) -> tuple[list[Level], list[dict[str, int]], dict[str, int]]:
    """Run, and record (round, resident KiB, open files, checkpoints) and file sizes every `EVERY` rounds."""
    job = build(Config(rounds=rounds, **JOB))
    job = replace(job, fed=SignFlip(ScaledUpdates(job.fed, [0], 1e6), [1]))
    levels: list[Level] = []
    sizes: list[dict[str, int]] = []

    def measure(progress: RunState) -> None:
        # One round later, when the checkpoint of the previous round is on the disk.
        if progress.round % EVERY == 1 and progress.round > 1:
            gc.collect()
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGES // 1024
            kept = sum(path.is_dir() for path in (folder / "checkpoint").iterdir())
            levels.append((progress.round - 1, resident, len(os.listdir("/proc/self/fd")), kept))
            sizes.append(files(folder))

    with claim_folder(folder) as claim:
        found = execute(job, [measure], keep=checkpoint_writer(claim, job))
        claim.finished = True
    state = found.result.state
    while not isinstance(state.memory, Memory):
        state = state.inner
    counts = {
        "skipped": found.result.skipped, "rejected": int(state.memory.rejected), "too_few": int(state.memory.too_few),
        "worst_score": round(float(found.result.evaluation.score[2:].min()), 3),
    }  # fmt: skip
    return levels, sizes, counts


def main() -> None:
    """Run the job and write the results."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--rounds", type=int, default=script.sized(50_000, 31))
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("drfl").setLevel(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="drfl-soak-"))
    try:
        levels, sizes, counts = measured(options.rounds, folder / "run")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    warm = [level for level in levels if level[0] >= min(2000, options.rounds // 2)]
    memory = [kib for _, kib, *_ in warm]
    names = sorted({name for size in sizes for name in size})
    # A checkpoint may only grow by a row of history and of λ per tested round.
    tested = (levels[-1][0] - levels[0][0]) // EVERY
    grown = {name: sizes[-1].get(name, 0) - sizes[0].get(name, 0) for name in names}
    rows = [(*level, *(size.get(name, 0) for name in names)) for level, size in zip(levels, sizes, strict=True)]
    columns = ("round", "resident_kib", "open_files", "checkpoints", *names)
    summary = {
        "command": f"python evidence/soak.py --rounds {options.rounds}",
        "rounds": options.rounds,
        "job": JOB,
        **counts,
        "resident_mib": round(memory[0] / 1024),
        "growth_after_warm_up": round(max(memory) / memory[0] - 1, 4),
        "open_files": sorted({count for _, _, count, _ in warm}),
        "checkpoints": sorted({count for *_, count in warm}),
        "bytes_grown_per_tested_round": {name: round(grown[name] / tested, 1) for name in names},
        "seed": 0,
        "device": "cpu",
        "versions": versions(),
    }
    script.store(options.out, {"levels.csv": csv_text(columns, rows), "summary.json": summary})
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
