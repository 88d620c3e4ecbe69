"""Test that run, compare, tune and a deployment resume to the same bytes after signals at random moments.

``evidence/signal_storm.py`` sends more signals, also to Flower's processes, and stores the counts.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.run_files import different, results_in

from drfl.experiments.run.manifest import is_finished
from drfl.report.formatting import duration

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
SENT = {
    "run": NUMBERS,
    "run, no checkpoints": NUMBERS[2:],
    "compare": NUMBERS[:1],
    "compare, 2 jobs": NUMBERS[1:],
    "tune, 2 jobs": NUMBERS[::2],
    "deployment": NUMBERS[1:],
}
"""Kind of job → signals of the test."""

PATIENCE = 300
"""Seconds after which a process counts as hanging."""

SMALL = ["--engine", "loop", "--clients", "5", "--cohort", "3", "--steps", "20", "--threads", "1"]

TUNED = """
dataset = "digits"
clients = 4
rounds = 20
steps = 5
engine = "loop"
"""

DEPLOYED = """
out = "out"
timeout = 30.0
wait = 0.05
insecure = true
[job]
algorithm = "DualDRDM"
rounds = 40
cohort = 4
lr = 0.05
{more}
"""

SERVER = """
from pathlib import Path
if __name__ == "__main__":
    from drfl.flower import nodes, server_app
    from tests.flower.conftest import grid_of
    nodes.PAUSE = 0.01
    server_app.serve(grid_of(), Path("server.toml"))
"""


class Kind(NamedTuple):
    """A kind of job that is interrupted.

    Args:
        start: the command.
        resume: the command that continues it if its folder exists.
        files: files written before.
        group: whether a signal goes to the whole process group, as those of terminals and clusters do.
        command: whether the process is drfl's command, which handles signals.
    """

    start: Sequence[str]
    resume: Sequence[str]
    files: Mapping[str, str] = {}
    group: bool = False
    command: bool = True

    def again(self, folder: Path) -> Sequence[str]:
        """Return the command that continues the content of a folder."""
        work = folder / "out"
        begun = any((work / name).is_file() for name in ("config.toml", "checkpoint/config.toml"))
        return self.resume if begun else [*self.start, *(["--resume"] if self.start != self.resume else [])]


def drfl(*words: str) -> list[str]:
    """Return the command line of drfl."""
    return [sys.executable, "-m", "drfl", *words]


def kinds() -> dict[str, Kind]:
    """Return the jobs by name; each takes a few seconds."""
    rounds = ["--rounds", "40"]
    run = ["run", *SMALL, *rounds, "--evaluate-every", "5", "--out", "out"]
    compare = ["compare", *SMALL, *rounds, "--algorithms", "FedAvg,DRDM", "--seeds", "2", "--out", "out"]
    resumed = ["--resume", "--out", "out"]
    tune = drfl("tune", "job.toml", "--algorithms", "FedAvg", "--trials", "2", "--seeds", "2", "--jobs", "2", "--out")
    tune.append("out")
    server = [sys.executable, "server.py"]
    sites = "".join(f'[[sites]]\nname = "{name}"\n' for name in "abcd")
    return {
        "run": Kind(drfl(*run), drfl("run", *resumed)),
        "run, no checkpoints": Kind(drfl(*run, "--checkpoint-every", "0"), drfl("run", *resumed)),
        "compare": Kind(drfl(*compare), drfl("compare", *resumed)),
        "compare, 2 jobs": Kind(
            drfl(*compare, "--jobs", "2"), drfl("compare", *resumed, "--jobs", "2"), group=True
        ),
        "tune, 2 jobs": Kind(tune, tune, {"job.toml": TUNED}, group=True),
        "deployment": Kind(
            server, server, {"server.py": SERVER, "server.toml": DEPLOYED.format(more="") + sites}, command=False
        ),
    }  # fmt: skip


KINDS = kinds()


class Stroke(NamedTuple):
    """A signal and its effect.

    Args:
        kind: kind of the job.
        signal: name of the signal.
        after: seconds from the start of the process.
        code: the exit code.
        phase: state of the folder at that time.
    """

    kind: str
    signal: str
    after: float
    code: int
    phase: str


def phase_of(work: Path) -> str:
    """Return the state of a folder after a signal."""
    if not work.exists():
        return "start-up"
    if any(work.glob("**/checkpoint/round-*")) or any(work.glob("**/.cells/*.json")):
        return "under way"
    return "before the first checkpoint"


def is_ready(pid: int) -> bool:
    """Return whether a process handles SIGTERM, as drfl's do once they have imported drfl."""
    with suppress(OSError, StopIteration):  # the process has ended, or the system has no /proc
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        caught = next(line for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    return False


def expected(number: int, code: int, ready: bool, log: str) -> bool:
    """Return whether a process that received a signal may end with this code.

    Before drfl's code runs, the signal kills Python, and Ctrl-C can end it while it loads site-packages or modules for
    `python -m`. Python aborts if Ctrl-C ends the main thread while foreign threads run, which drfl cannot prevent.
    """
    if number == signal.SIGKILL or (code != 128 + number and not ready):
        early = "init_import_site" in log or ("KeyboardInterrupt" in log and f"{os.sep}drfl{os.sep}" not in log)
        interrupted = number == signal.SIGINT and (
            (code == 1 and early) or (code == -signal.SIGABRT and "KeyboardInterrupt" in log)
        )
        return code == -number or interrupted
    return code == 128 + number


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start a process in a folder, in its own process group."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def storm(name: str, kind: Kind, numbers: Sequence[int], draw: random.Random, root: Path) -> list[Stroke]:
    """Interrupt the job by these signals in turn, at random moments, and compare its bytes at every end.

    A signal after the end of the work does not count.
    """
    whole, folder, found = root / f"{name}-whole", root / name, []
    for place in (whole, folder):
        place.mkdir(parents=True)
        for file, text in kind.files.items():
            (place / file).write_text(text)
    began = time.monotonic()
    with started(kind.start, whole) as process:
        assert process.wait(PATIENCE) == 0, (whole / "log").read_text()
    span, undisturbed = time.monotonic() - began, results_in(whole / "out")
    command = kind.start
    while len(found) < len(numbers):
        number = numbers[len(found)]
        after = draw.uniform(0.0, 0.9 * span)
        before = (folder / "log").stat().st_size if (folder / "log").exists() else 0
        with started(command, folder) as process:
            time.sleep(after)
            ready = kind.command and is_ready(process.pid)
            sent = process.poll() is None
            if sent:
                (os.killpg if kind.group else os.kill)(process.pid, number)
            code = process.wait(PATIENCE)
        log = (folder / "log").read_text()[before:]
        assert code == 0 or expected(number, code, ready, log), (name, number, code, after, ready, log)
        ended = code == 0 or is_finished(folder / "out")
        if ended:
            assert different(results_in(folder / "out"), undisturbed) == [], (name, log)
            shutil.rmtree(folder / "out")
            command = kind.start
        else:
            found.append(Stroke(name, signal.Signals(number).name, after, code, phase_of(folder / "out")))
            command = kind.again(folder)
    with started(command, folder) as process:
        assert process.wait(PATIENCE) == 0, (name, (folder / "log").read_text())
    assert different(results_in(folder / "out"), undisturbed) == [], (name, (folder / "log").read_text())
    return found


def semaphores() -> set[str]:
    """Return the semaphores of Python's multiprocessing on this system."""
    return (
        {name for name in os.listdir("/dev/shm") if name.startswith("sem.mp-")} if os.path.isdir("/dev/shm") else set()
    )


def test_wall_times_are_ignored_in_comparisons(tmp_path):
    seen = []
    for place, seconds in enumerate((2e-5, 0.37, 59.8, 61.4, 3599, 7260)):
        folder = tmp_path / str(place)
        folder.mkdir()
        (folder / "report.html").write_text(f"<td>{duration(seconds)}</td><td>4 rounds</td>")
        (folder / "summary.json").write_text(json.dumps({"wall_seconds": seconds, "rounds": 4}))
        (folder / "timing.csv").write_text(str(seconds))
        seen.append(results_in(folder))
    assert [different(seen[0], one) for one in seen] == [[]] * 6
    assert b"4 rounds" in seen[0]["report.html"]
    assert b'"rounds": 4' in seen[0]["summary.json"]


@pytest.mark.long
@pytest.mark.parametrize("name", SENT)
def test_every_job_resumes_to_the_same_bytes(name, tmp_path):
    before = semaphores()
    found = storm(name, KINDS[name], SENT[name], random.Random(name), tmp_path)
    assert [stroke.signal for stroke in found] == [signal.Signals(number).name for number in SENT[name]]
    assert semaphores() <= before
