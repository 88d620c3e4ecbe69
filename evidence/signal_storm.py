"""Send signals at random moments: all work must resume and end with the bytes of an undisturbed run.

    python evidence/signal_storm.py [--only 1,2,...] [--count N] [--seed S] [--smoke]

SIGINT, SIGTERM and SIGKILL in turn are sent to ``drfl run``, with and without checkpoints, ``compare``, ``compare
--jobs 2``, ``tune`` and the server of a deployment in one process, ten each. The part "flower" sends them to Flower's
real processes on loopback: to the server program and to ``drfl deploy run``. The script writes
``results/signal_storm/summary.json``, in which each part replaces its own earlier counts. If a file differs, it ends
with an error and stores nothing for this part. With --smoke one signal is sent to Flower's processes; the tests send
some to the others.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
from tests.cli.test_signal_storm import KINDS, NUMBERS, Stroke, expected, is_ready, phase_of, semaphores, storm  # noqa: E402
from tests.support.run_files import different, results_in  # noqa: E402
from trial_folder import Trial, descendants, named  # noqa: E402

import script  # noqa: E402
from drfl.experiments.run.artifacts import versions  # noqa: E402
from drfl.experiments.run.manifest import is_finished  # noqa: E402

RESULTS = ROOT / "evidence" / "results" / "signal_storm"
FLOWER = "flower"
JOB = {"model": "linear", "engine": "loop", "algorithm": "DualDRDM", "rounds": 3, "cohort": 2, "checkpoint_every": 1}
JOB |= script.sized({}, {"rounds": 1, "lr": 0.05})  # finding a step size takes many messages


def flower(count: int, draw: random.Random, root: Path) -> list[Stroke]:
    """Interrupt a deployment of two sites: its server program, or the command, whose run is then stopped."""
    generator, sites = np.random.default_rng(0), {}
    for name in ("north", "south"):
        x = generator.standard_normal((60, 6), dtype=np.float32)
        y = (x.sum(1) > 0).astype(np.int64)
        sites[name] = root / f"{name}.npz"
        np.savez(sites[name], train_inputs=x[:40], train_targets=y[:40], test_inputs=x[40:], test_targets=y[40:])
    found: list[Stroke] = []
    with Trial(root / "deployment", sites, timeout=60.0) as trial:
        trial.job("out", timeout=60.0, **JOB)
        out, began = trial.folder / "out", time.monotonic()
        code, told = trial.run()
        assert code == 0, told
        span, undisturbed = time.monotonic() - began, results_in(out)
        shutil.rmtree(out)
        ended, ready, restarts = False, False, 0
        while len(found) < count or not ended:
            number, program = NUMBERS[len(found) % 3], len(found) // 3 % 2 == 0
            after = draw.uniform(0.0, 0.8 * span)
            process = trial.submit()
            if len(found) < count:
                time.sleep(after)
                pids = named("flwr-serverapp", trial.programs["superlink"].pid) if program else [process.pid]
                if not pids:  # the program has not started yet, or has ended
                    pids, program = [process.pid], False
                if not program and number == signal.SIGKILL:
                    pids = [*descendants(process.pid), process.pid]  # or Flower's command submits the run later
                ready = is_ready(process.pid)
                for pid in pids:
                    with suppress(ProcessLookupError):
                        os.kill(pid, number)
            code = process.wait(300)
            log = (trial.folder / "run.log").read_text()
            ended = code == 0
            print("flower", signal.Signals(number).name, f"{after:.1f} s", program, code, log[-300:], flush=True)
            if len(found) == count and code:
                # Flower 1.41: after a run that was stopped a SuperNode may send each reply one message late.
                assert (restarts := restarts + 1) < 3, log
                trial.restart_sites(prefork=True)
                continue
            if not program and code:
                stop_all(trial)
            if ended or is_finished(out):  # after the end, or while it waited for a second Ctrl-C
                assert different(results_in(out), undisturbed) == [], different(results_in(out), undisturbed)
                shutil.rmtree(out)
                continue
            assert code == 1 if program else expected(number, code, ready, log), log
            name = f"{FLOWER}, {'server program' if program else 'drfl deploy run'}"
            found.append(Stroke(name, signal.Signals(number).name, after, code, phase_of(out)))
    return found


def stop_all(trial: Trial) -> None:
    """Stop the run that outlives its command, and wait until its program has ended."""
    last = trial.last_run()
    if not str(last["status"]).startswith("finished"):
        trial.drfl("stop", trial.folder, last["run-id"])
    end = time.monotonic() + 60
    while named("flwr-serverapp", trial.programs["superlink"].pid) and time.monotonic() < end:
        time.sleep(0.5)


def counts(strokes: Sequence[Stroke]) -> dict[str, dict[str, int]]:
    """The number of signals of each kind, by the content of the folder after them."""
    phases = ("start-up", "before the first checkpoint", "under way")
    return {
        kind: {phase: sum(s.phase == phase for s in strokes if s.kind == kind) for phase in phases}
        for kind in dict.fromkeys(s.kind for s in strokes)
    }


def store(folder: Path, part: str, strokes: Sequence[Stroke], left: int) -> None:
    """Store the counts of a part without changing those of the others."""
    path = folder / "summary.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    parts = {**before.get("parts", {}), part: [{**s._asdict(), "after": round(s.after, 2)} for s in strokes]}
    every = [Stroke(**one) for strokes in parts.values() for one in strokes]
    content = {
        "command": "python evidence/signal_storm.py",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {**versions(), "flwr": importlib.metadata.version("flwr")},
        "signals": len(every),
        "by_signal": dict(sorted(Counter(s.signal for s in every).items())),
        "exit_codes": {str(code): n for code, n in sorted(Counter(s.code for s in every).items())},
        "after_the_signal": counts(every),
        "all_resumed_to_the_same_bytes": True,
        "not_compared": "timing.csv, traffic.json, the study's database, wall times in summary.json and report.html",
        "not_counted": "signals after the end of the work, exit code 0",
        "semaphores_left": left,
        "parts": parts,
    }
    script.store(folder, {"summary.json": content})


def main() -> None:
    """Send the signals, print the counts and store them."""
    parts = [*KINDS, FLOWER]
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument(
        "--only", default=script.sized(None, str(len(parts))),
        help="parts by number, from 1: " + ", ".join(parts),
    )  # fmt: skip
    parser.add_argument("--count", type=int, default=script.sized(10, 1), help="signals of each part")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore it
    chosen = parts if options.only is None else [parts[int(number) - 1] for number in options.only.split(",")]
    before = semaphores()
    with tempfile.TemporaryDirectory(prefix="drfl-storm-") as root:
        for part in chosen:
            draw = random.Random(f"{options.seed} {part}")
            if part == FLOWER:
                strokes = flower(options.count, draw, Path(root))
            else:
                strokes = storm(part, KINDS[part], list(islice(cycle(NUMBERS), options.count)), draw, Path(root))
            store(options.out, part, strokes, len(semaphores() - before))
            print(json.dumps(counts(strokes), indent=1), flush=True)


if __name__ == "__main__":
    main()
