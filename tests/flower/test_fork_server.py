"""Test the process that forks for every message, and the program that calls it, with a stand-in for Flower's
program.
"""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from drfl.flower import fork_server
from drfl.flower.fork_client import PROGRAM, SOCKET_NAME

PREFORK = """
import json, os, sys, threading
from drfl.flower import fork_server

def run():
    with open(os.environ["TOLD"], "a") as told:
        told.write(json.dumps([sys.argv, os.getpid(), "forked"]) + "\\n")
    if "hang" in sys.argv:  # wait for another thread, as Flower does for the parts of a message
        done = threading.Event()
        try:
            done.wait()
        except KeyboardInterrupt:
            if "deaf" in sys.argv:
                done.wait()
    sys.exit(3)

fork_server.load_program = lambda: run
fork_server.CHECK_INTERVAL = fork_server.GRACE = 0.05
fork_server.main()
"""
OWN = """#!/bin/sh
echo "[[\\"$1\\"], 0, \\"own\\"]" >> "$TOLD"
"""


def wait(true, seconds=20):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)


class Place:
    """Two folders: one with the process, one with a stand-in for Flower's program."""

    def __init__(self, tmp_path):
        self.folder, self.told, own = tmp_path / "fork me", tmp_path / "told", tmp_path / "own"
        own.mkdir(), (own / PROGRAM).write_text(OWN), (own / PROGRAM).chmod(0o700)
        path = os.pathsep.join([str(self.folder), str(own), os.environ["PATH"]])
        self.env = {**os.environ, "PATH": path, "TOLD": str(self.told)}
        self.process = self.start()

    def start(self):
        (self.folder / PROGRAM).unlink(missing_ok=True)  # left by a killed process
        process = subprocess.Popen([sys.executable, "-c", PREFORK, str(self.folder)], env=self.env)
        wait((self.folder / PROGRAM).exists)
        return process

    def call(self, *arguments):
        subprocess.run([self.folder / PROGRAM, *arguments], env=self.env, check=True)

    def lines(self):
        return [json.loads(line) for line in self.told.read_text().splitlines()] if self.told.exists() else []

    def says(self, socket_text):
        back = os.getcwd()
        os.chdir(self.folder)
        try:
            with socket.socket(socket.AF_UNIX) as way:
                way.connect(SOCKET_NAME)
                way.sendall(socket_text)
                way.shutdown(socket.SHUT_WR)
                return way.recv(10)
        except ConnectionError:
            return b""
        finally:
            os.chdir(back)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    yield found
    found.process.kill()
    found.process.wait()


def test_each_call_runs_in_its_own_process(place):
    given = ["--token", "a b", "é'\"$x", ""]
    place.call(*given)
    place.call("again")
    wait(lambda: len(place.lines()) == 2)
    (first, one, how), (second, two, _) = place.lines()
    assert (first, second, how) == ([PROGRAM, *given], [PROGRAM, "again"], "forked")
    assert len({one, two, place.process.pid}) == 3
    assert place.process.poll() is None  # the process outlives its children
    assert (place.folder / PROGRAM).exists()


def test_ended_children_are_reaped(place):
    for _ in range(3):
        place.call()
    wait(lambda: len(place.lines()) == 3)

    def children():
        with open(f"/proc/{place.process.pid}/task/{place.process.pid}/children") as found:
            return found.read().split()

    wait(lambda: not children())


def test_invalid_requests_are_ignored(place):
    for text in (b"", b"--token", b"\xff\n", b"[" * 20_000, b"--token\0x" * 20_000):
        assert place.says(text) == b""
    place.call("still there")
    wait(place.lines)
    assert [line[0] for line in place.lines()] == [[PROGRAM, "still there"]]


def test_flowers_program_is_used_if_the_server_was_killed(place):
    place.process.kill()
    place.process.wait()
    place.call("alone")
    assert place.lines() == [[["alone"], 0, "own"]]
    place.process = place.start()  # the killed server's files do not prevent a restart
    place.call("together")
    wait(lambda: len(place.lines()) == 2)
    assert place.lines()[1][2] == "forked"


def test_server_ends_with_its_parent_and_removes_its_program(place, tmp_path):
    folder = tmp_path / "other"
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    starter = subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, "-c", PREFORK, str(folder)],
        env=place.env,
    )
    wait((folder / PROGRAM).exists)
    starter.send_signal(signal.SIGKILL)
    starter.wait()
    wait(lambda: not (folder / PROGRAM).exists())
    assert not (folder / SOCKET_NAME).exists()


@pytest.mark.parametrize("arguments", [pytest.param(["hang"], marks=pytest.mark.long), ["hang", "deaf"]])
def test_waiting_children_end_with_the_supernode(place, tmp_path, arguments):
    folder = tmp_path / "other"
    start = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
    supernode = subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, "-c", PREFORK, str(folder)], env=place.env
    )
    wait((folder / PROGRAM).exists)
    subprocess.run([folder / PROGRAM, *arguments], env=place.env, check=True)
    wait(place.lines)
    child = place.lines()[0][1]
    os.kill(child, 0)  # the child is waiting
    supernode.kill()
    supernode.wait()

    def has_ended():
        with suppress(FileNotFoundError), open(f"/proc/{child}/stat") as found:
            return found.read().split(") ")[1][0] == "Z"
        return True

    wait(has_ended)


def test_long_paths_work(tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    place = Place(deep)
    place.call("here")
    wait(lambda: place.lines())
    place.process.kill()
    place.process.wait()
    assert place.lines()[0][2] == "forked"


def test_second_process_leaves_the_socket_to_the_first(place):
    second = subprocess.run(
        [sys.executable, "-c", PREFORK, str(place.folder)], env=place.env, capture_output=True, text=True, timeout=60
    )
    assert second.returncode == 1
    assert len(second.stderr.splitlines()) == 1
    assert str(place.folder) in second.stderr
    place.call("first")
    wait(place.lines)
    assert place.lines()[0][2] == "forked"


def test_only_the_same_user_can_call(place, tmp_path):
    assert place.folder.stat().st_mode & 0o077 == 0
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with fork_server.open_socket(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.long
def test_flowers_program_is_executed():
    from flwr.supernode.cli import flwr_clientapp

    assert fork_server.load_program() is flwr_clientapp
