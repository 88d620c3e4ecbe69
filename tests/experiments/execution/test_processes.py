"""Test worker processes over pipes: answers, errors, signals, and cleanup."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.support.refusals import refused

from drfl.core.errors import DrflError, InputError, StoppedError
from drfl.experiments.execution import executor, shared_tensors
from drfl.experiments.execution.executor import iterate_completed
from drfl.experiments.execution.processes import LostWorkerError, Processes
from drfl.experiments.run.runner import StopSignal


def answer(what, watch, n):
    return f"{what} {n}"


def refuse(what, watch, kind):
    raise kind("no", code="none", field="n") if kind is InputError else kind("no")


def signalled(what, watch, number):
    os.kill(os.getpid(), number)
    return "alive"


def until_asked(what, watch):
    while not watch.stop:
        time.sleep(0.01)
    return "stopped"


def lambda_of(what, watch):
    return lambda: None


def size_of(what, watch, n):
    return f"{len(what)} {n}"


def total(what, watch, shared):
    return float(shared.get().sum())


NEWBORN = """
import os, signal, sys, time
from multiprocessing import util
from drfl.experiments.execution.processes import LostWorkerError, Processes
from tests.experiments.execution.test_processes import size_of

spawn = util.spawnv_passfds

def struck(path, args, fds):
    pid = spawn(path, args, fds)
    if b"resource_tracker" not in b"".join(map(os.fsencode, args)):
        os.kill(pid, int(sys.argv[1]))
        time.sleep(0.5)
    return pid

util.spawnv_passfds = struck
if __name__ == "__main__":
    with Processes(1, "x" * 1_000_000) as workers:
        try:
            print(workers.submit(size_of, 1).result())
        except LostWorkerError:
            print("lost")
"""


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGTERM, "1000000 1"), (signal.SIGINT, "1000000 1"), (signal.SIGKILL, "lost")],
)
@pytest.mark.long
def test_signal_to_a_starting_worker(number, outcome, tmp_path):
    (tmp_path / "newborn.py").write_text(NEWBORN)
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "newborn.py", str(int(number))], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == (f"{outcome}\n", 0), done.stderr


UNPROTECTED = """
from drfl.experiments.execution.processes import LostWorkerError, Processes
from tests.experiments.execution.test_processes import answer
with Processes(1, "call") as workers:
    error = workers.submit(answer, 1).exception(timeout=60)
    assert isinstance(error, LostWorkerError), error
    print(error)
"""


@pytest.mark.long
@pytest.mark.parametrize("by", ["file", "stdin"])
def test_script_that_a_worker_cannot_import_is_the_cause(by, tmp_path):
    path = os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")])
    (tmp_path / "study.py").write_text(UNPROTECTED)
    done = subprocess.run(
        [sys.executable, "study.py" if by == "file" else "-"], input=UNPROTECTED, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "__main__" in done.stdout, done.stderr


def test_cause_of_a_lost_worker_survives_pickle():
    assert str(pickle.loads(pickle.dumps(LostWorkerError(False)))) == str(LostWorkerError(False))
    assert "__main__" not in str(pickle.loads(pickle.dumps(LostWorkerError())))


@pytest.mark.long
def test_calls_errors_and_signals():
    with Processes(1, "call") as workers:
        futures = [workers.submit(answer, n) for n in range(3)]
        assert [future.result(timeout=120) for future in futures] == ["call 0", "call 1", "call 2"]
        error = workers.submit(refuse, InputError).exception(timeout=60)
        assert isinstance(error, InputError)
        assert (error.code, error.field) == ("none", "n")
        assert isinstance(workers.submit(refuse, ArithmeticError).exception(timeout=60), ArithmeticError)
        assert isinstance(workers.submit(lambda_of).exception(timeout=60), DrflError), "it cannot be pickled"
        for number in (signal.SIGINT, signal.SIGTERM):
            assert workers.submit(signalled, number).result(timeout=60) == "alive"
        waiting = workers.submit(until_asked)
        workers.ask_to_stop()
        assert waiting.result(timeout=60) == "stopped"
        killed, after = workers.submit(signalled, signal.SIGKILL), workers.submit(answer, 1)
        for lost in (killed, after):
            assert isinstance(lost.exception(timeout=60), LostWorkerError)


@pytest.mark.long
def test_large_tensors_are_shared_and_can_be_an_argument(monkeypatch):
    monkeypatch.setattr(shared_tensors, "LARGE", 100)
    with Processes(1, torch.ones(200)) as workers:
        shared = workers.share(torch.full((300,), 2.0))
        assert shared._tensors._files
        assert workers.submit(total, shared).result(timeout=120) == 600
        shared.close()
        assert workers.submit(size_of, 1).result(timeout=60) == "200 1"
        assert workers._tensors._files
    assert not workers._tensors._files


class CannotArrive:
    """Fail when unpickled."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.long
def test_unpicklable_object_is_refused_by_every_call():
    with Processes(1, CannotArrive()) as workers:
        for n in range(2):
            error = workers.submit(answer, n).exception(timeout=120)
            assert (error.code, error.field) == ("not-picklable", "jobs")


def test_signal_ends_the_wait(monkeypatch):
    monkeypatch.setattr(executor, "POLL_INTERVAL", 0.01)
    watch = StopSignal()
    watch.signal = signal.SIGTERM
    with refused("interrupted", kind=StoppedError) as stopped, Processes(1, "call") as workers:
        list(iterate_completed({workers.submit(until_asked): 0}, watch))
    assert stopped.value.exit_code == 143


GROUP = """
import os, signal
from drfl.experiments.execution.processes import Processes
from tests.experiments.execution.test_processes import answer
if __name__ == "__main__":
    with Processes(2, "call") as workers:
        print(workers.submit(answer, 1).result(), flush=True)
        os.killpg(0, signal.SIGKILL)
"""


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="the system has no such folder")
@pytest.mark.long
def test_killed_process_group_leaves_no_semaphores(tmp_path):
    (tmp_path / "group.py").write_text(GROUP)
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "group.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (-signal.SIGKILL, b"call 1\n")
    left = {name for name in set(os.listdir("/dev/shm")) - before if name.startswith("sem.mp-")}
    assert left == set()


class DiesWhereItArrives:
    """End the process that unpickles it, as a signal during a worker's start does."""

    def __reduce__(self):
        return os._exit, (9,)


@pytest.mark.long
def test_worker_that_dies_while_starting_is_an_error():
    """multiprocessing would wait forever if a process died before it had read data larger than a pipe's buffer."""
    with Processes(2, (DiesWhereItArrives(), b"x" * 2**20)) as workers:
        assert isinstance(workers.submit(answer, 1).exception(timeout=120), LostWorkerError)


MASKS = """
import signal
from multiprocessing import popen_spawn_posix as spawn
from drfl.experiments.execution.processes import Processes

masks, launch = [], spawn.Popen._launch

def launched(self, process):
    launch(self, process)
    masks.append({signal.SIGINT, signal.SIGTERM} <= signal.pthread_sigmask(signal.SIG_BLOCK, []))

spawn.Popen._launch = launched
with Processes(2, None):
    pass
print(masks)
"""


@pytest.mark.long
def test_signals_are_blocked_while_workers_start():
    """The first process starts multiprocessing's tracker, which unblocks signals."""
    ended = subprocess.run([sys.executable, "-c", MASKS], capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout.strip() == "[True, True]"


INTERRUPTED = """
import os
import signal
from multiprocessing import popen_spawn_posix as spawn
from drfl.experiments.execution.processes import Processes

launch, makes = spawn.Popen._launch, Processes.__init__

def launched(self, process):
    launch(self, process)
    os.kill(os.getpid(), signal.SIGINT)

def made(self, *given):
    makes(self, *given)
    os.kill(os.getpid(), signal.SIGINT)

{patch}
with Processes(2, None):
    pass
"""


@pytest.mark.long
@pytest.mark.parametrize("patch", ["spawn.Popen._launch = launched", "Processes.__init__ = made"])
def test_interrupt_between_start_and_with_block_leaves_no_worker(patch):
    script = INTERRUPTED.format(patch=patch)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.returncode == -signal.SIGINT
    assert ended.stderr.rstrip().endswith("KeyboardInterrupt")
