"""Signals at random moments over run, compare, tune and a deployment: all resume, to the same bytes.

Run as a script it sends sixty and stores what it counted: ``python -m tests.cli.test_signal_storm FILE``.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

PATIENCE = 300
"""Seconds after which a process counts as hanging."""

SMALL = ["--engine", "loop", "--clients", "5", "--cohort", "3", "--steps", "20", "--threads", "1"]

TUNED = """
dataset = "digits"
clients = 4
rounds = 40
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
    from drfl.errors import InputError
    from drfl.flower import nodes, server_app
    from tests.flower.conftest import grid_of
    nodes.PAUSE = 0.01
    try:
        server_app.serve(grid_of(), Path("server.toml"))
    except InputError as error:
        if error.code != "already-finished":
            raise
"""


class Kind(NamedTuple):
    """What is disturbed.

    Args:
        start: the command.
        resume: the command that continues it if its folder is there.
        files: written before.
        group: whether a signal goes to the whole process group, as those of terminals and clusters do.
    """

    start: Sequence[str]
    resume: Sequence[str]
    files: Mapping[str, str] = {}
    group: bool = False

    def again(self, folder: Path) -> Sequence[str]:
        """The command for what is in a folder now."""
        work = folder / "out"
        begun = any((work / name).is_file() for name in ("config.toml", "checkpoint/config.toml"))
        return self.resume if begun else [*self.start, *(["--resume"] if self.start != self.resume else [])]


def drfl(*words: str) -> list[str]:
    """The command."""
    return [sys.executable, "-m", "drfl", *words]


def kinds(quick: bool) -> dict[str, Kind]:
    """The jobs by name, each of a few seconds after its start."""
    rounds = ["--rounds", "6" if quick else "40"]
    run = ["run", *SMALL, *rounds, "--evaluate-every", "5", "--out", "out"]
    compare = ["compare", *SMALL, *rounds, "--algorithms", "FedAvg,DRDM", "--seeds", "2", "--out", "out"]
    resumed = ["--resume", "--out", "out"]
    tune = drfl("tune", "job.toml", "--algorithms", "FedAvg", "--trials", "3", "--seeds", "2", "--jobs", "2", "--out")
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
            server, server, {"server.py": SERVER, "server.toml": DEPLOYED.format(more="") + sites}
        ),
    }  # fmt: skip


def bytes_of(folder: Path) -> dict[str, bytes]:
    """The files of results, without wall times and dates, and of a deployment without the bytes sent to sites."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name in ("timing.csv", "traffic.json", "study.db") or name.startswith(".cells/"):
            continue
        data = path.read_bytes()
        if path.name == "summary.json":
            data = re.sub(rb'"wall_seconds": [0-9.e-]+', b"", data)
        elif path.name == "report.html":
            data = re.sub(r"(\d+\s(h|min)\s)?\d+(\.\d+)?(e-\d+)?\s(s|min)\b", "", data.decode()).encode()
        if (folder / "traffic.json").exists():
            # A restarted server sends its sites once more what they had kept, and its ledger counts that.
            if path.name == "report.html":
                continue
            data = re.sub(rb'"bytes_down": [0-9]+', b"", data)
            if path.name == "history.csv":
                rows = [line.split(b",") for line in data.splitlines()]
                at = rows[0].index(b"bytes_down")
                data = b"\n".join(b",".join(row[:at] + row[at + 1 :]) for row in rows)
        found[name] = data
    return found


def different(folder: Path, undisturbed: Mapping[str, bytes]) -> list[str]:
    """The files that are not those of undisturbed work."""
    own = bytes_of(folder / "out")
    return sorted(name for name in {*own, *undisturbed} if own.get(name) != undisturbed.get(name))


class Stroke(NamedTuple):
    """A signal, and what became of the work.

    Args:
        kind: of the work.
        signal: its name.
        after: seconds from the start of the process.
        code: the exit code.
        phase: what the folder held then.
    """

    kind: str
    signal: str
    after: float
    code: int
    phase: str


def phase_of(work: Path, done: bool) -> str:
    """What a folder holds after a signal."""
    if done:
        return "ended"
    if not work.exists():
        return "start-up"
    if any(work.glob("**/checkpoint/round-*")) or any(work.glob("**/.cells/*.json")):
        return "under way"
    return "before the first checkpoint"


def expected(number: int, code: int) -> bool:
    """Whether a process that a signal reached may end with this code.

    Before any code of drfl runs Python itself dies of the signal.
    """
    return code in (-number, 128 + number) if number != signal.SIGKILL else code == -number


@contextmanager
def started(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a folder, in a group of its own."""
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


def storm(name: str, kind: Kind, count: int, draw: random.Random, root: Path) -> list[Stroke]:
    """Send signals at random moments of a job until each was sent, and compare its bytes at every end."""
    whole, folder, found = root / f"{name}-whole", root / name, []
    for place in (whole, folder):
        place.mkdir(parents=True)
        for file, text in kind.files.items():
            (place / file).write_text(text)
    began = time.monotonic()
    with started(kind.start, whole) as process:
        assert process.wait(PATIENCE) == 0, (whole / "log").read_text()
    span, undisturbed = time.monotonic() - began, bytes_of(whole / "out")
    command = kind.start
    while len(found) < count:
        number = NUMBERS[len(found) % len(NUMBERS)]
        after = draw.uniform(0.0, 0.9 * span)
        with started(command, folder) as process:
            time.sleep(after)
            sent = process.poll() is None
            if sent:
                (os.killpg if kind.group else os.kill)(process.pid, number)
            code = process.wait(PATIENCE)
        log = (folder / "log").read_text()
        assert code == 0 or expected(number, code) or "init_import_site" in log, (name, number, code, log)
        if sent:
            found.append(Stroke(name, signal.Signals(number).name, after, code, phase_of(folder / "out", code == 0)))
        if code == 0:
            assert different(folder, undisturbed) == [], (name, log)
            shutil.rmtree(folder / "out")
            command = kind.start
        else:
            command = kind.again(folder)
    with started(kind.again(folder), folder) as process:
        assert process.wait(PATIENCE) == 0, (name, (folder / "log").read_text())
    assert different(folder, undisturbed) == [], (name, (folder / "log").read_text())
    return found


def semaphores() -> set[str]:
    """Those of Python's multiprocessing that the system has."""
    return (
        {name for name in os.listdir("/dev/shm") if name.startswith("sem.mp-")} if os.path.isdir("/dev/shm") else set()
    )


@pytest.mark.long
@pytest.mark.parametrize("name", kinds(False))
def test_everything_resumes_to_the_same_bytes(name, tmp_path):
    before = semaphores()
    found = storm(name, kinds(False)[name], 6, random.Random(name), tmp_path)
    assert len(found) == 6
    assert semaphores() <= before


def table(strokes: Sequence[Stroke]) -> str:
    """Counts by kind and phase."""
    phases = ("start-up", "before the first checkpoint", "under way", "ended")
    lines = [f"{'':22}" + "".join(f"{phase:>29}" for phase in phases)]
    for kind in dict.fromkeys(stroke.kind for stroke in strokes):
        counts = Counter(stroke.phase for stroke in strokes if stroke.kind == kind)
        lines.append(f"{kind:22}" + "".join(f"{counts[phase]:>29}" for phase in phases))
    return "\n".join(lines)


def main(file: Path) -> None:
    """Send sixty signals, print the counts and store them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in the background ignore it
    draw, before, strokes = random.Random(0), semaphores(), list[Stroke]()
    with tempfile.TemporaryDirectory(prefix="drfl-storm-") as root:
        for name, kind in kinds(False).items():
            strokes += storm(name, kind, 10, draw, Path(root))
            print(table(strokes), flush=True)
    from drfl.experiments.artifacts import versions

    content = {
        "command": "python -m tests.cli.test_signal_storm FILE",
        "signals": len(strokes),
        "all_resumed_to_the_same_bytes": True,
        "semaphores_left": len(semaphores() - before),
        "exit_codes": {str(code): n for code, n in sorted(Counter(stroke.code for stroke in strokes).items())},
        "strokes": [{**stroke._asdict(), "after": round(stroke.after, 2)} for stroke in strokes],
        "versions": versions(),
    }
    file.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
