"""A trial deployment on this machine: a SuperLink and SuperNodes as separate processes on loopback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import tomli_w
import torch

import drfl

BIN = Path(sys.executable).parent
START, STOP = 600.0, 15.0
"""Seconds within which a program must start, and end."""


class Trial:
    """A deployment that is created with ``drfl deploy init``, started, and stopped at the end.

    Args:
        folder: a new folder.
        sites: names and files of data.
    """

    def __init__(self, folder: Path, sites: dict[str, Path], **site: object) -> None:
        self.folder, self.sites, self.port = folder, list(sites), free_port()
        self.programs: dict[str, subprocess.Popen] = {}
        self.prefork = True
        self.drfl("init", folder, "--sites", ",".join(sites), "--port", str(self.port), "--keys")
        for name, data in sites.items():
            (folder / "sites" / name / f"data{data.suffix}").write_bytes(data.read_bytes())
            self.site(name, **site)

    def __enter__(self) -> Self:
        self.start_link()
        subprocess.run(["sh", self.folder / "register-sites.sh"], check=True, capture_output=True)
        for name in self.sites:
            self.start_site(name)
        self.wait_online()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name in reversed(list(self.programs)):
            self.kill(name, signal.SIGTERM)

    def drfl(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess:
        """Run ``drfl deploy …``."""
        command = [BIN / "drfl", "deploy", *map(str, arguments)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                out, err = process.communicate()
            except BaseException:  # Flower's commands must not outlive this process
                kill_group(process.pid, signal.SIGKILL)
                raise
        if check and process.returncode:
            raise SystemExit(f"drfl deploy {arguments[0]} ended with {process.returncode}\n{err}")
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def site(self, name: str, **changes: object) -> None:
        """Rewrite a site's file with other values."""
        path = self.folder / "sites" / name / "site.toml"
        path.write_text(tomli_w.dumps({**tomllib.loads(path.read_text()), **changes}))

    def job(self, out: str, timeout: float = 600.0, grace: float | None = None, **job: object) -> None:
        """Rewrite the server's file with another job."""
        path = self.folder / "server.toml"
        settings = {**tomllib.loads(path.read_text()), "out": out, "timeout": timeout, "grace": grace, "job": job}
        sites = settings.pop("sites")
        text = tomli_w.dumps({name: value for name, value in settings.items() if value is not None})
        # tomli_w would write short tables inline, and drfl's commands do not edit inline tables
        path.write_text("\n[[sites]]\n".join([text, *map(tomli_w.dumps, sites)]))

    def start(self, name: str, script: Path, *arguments: str) -> subprocess.Popen:
        """Start a program in a separate process group."""
        log = (self.folder / f"{name}.log").open("ab")
        # Each SuperNode listens on a port of this machine, and another trial may use the default one.
        own = {} if name == "superlink" else {"DRFL_PORT": str(free_port()), "DRFL_PREFORK": str(int(self.prefork))}
        found = subprocess.Popen(
            ["sh", script, *arguments],
            env={**os.environ, **own},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.programs[name] = found
        return found

    def start_link(self) -> None:
        """Start the SuperLink, and wait until it listens."""
        self.start("superlink", self.folder / "start-superlink.sh")
        wait_for(lambda: listens(self.port), "the SuperLink")

    def wait_online(self) -> None:
        """Wait until all sites are online, and restart SuperNodes that have ended, as systemd would.

        For about a minute the SuperLink considers a killed SuperNode alive and rejects its replacement.
        """

        def are_online() -> bool:
            for name, program in list(self.programs.items()):
                if name != "superlink" and program.poll() is not None:
                    self.start_site(name)
            return self.online()

        wait_for(are_online, "the sites", pause=3.0)  # each check is a process that takes seconds of CPU time

    def start_site(self, name: str, *arguments: str) -> subprocess.Popen:
        """Start a site's SuperNode."""
        return self.start(name, self.folder / "sites" / name / "start-supernode.sh", *arguments)

    def restart_sites(self, prefork: bool) -> None:
        """Stop the SuperNodes, and start them again, with or without a process that forks for every message."""
        self.prefork = prefork
        for name in self.sites:
            self.kill(name, signal.SIGTERM)
            self.start_site(name)
        self.wait_online()

    def keep_starting(self, name: str, pause: float = 10.0, longest: float = 300.0) -> None:
        """Restart a killed SuperNode as systemd would: repeatedly, until the SuperLink accepts it.

        For about a minute the SuperLink considers the killed one alive and rejects another one with the same key.
        """
        end = time.monotonic() + longest
        while time.monotonic() < end:
            program = self.start_site(name)
            time.sleep(pause)
            if program.poll() is None:
                return
        raise SystemExit(f"{name} was not let in again within {longest:g} s")

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Kill a program and all its child processes."""
        program = self.programs.pop(name)
        kill_group(program.pid, how)
        with suppress(subprocess.TimeoutExpired):
            program.wait(STOP)
        kill_group(program.pid, signal.SIGKILL)
        program.wait()

    def online(self) -> bool:
        """Return whether ``drfl deploy check`` finds no problem."""
        return self.drfl("check", self.folder, check=False).returncode == 0

    def run(self) -> tuple[int, str]:
        """Run ``drfl deploy run``; return its exit code and output."""
        found = self.drfl("run", self.folder, check=False)
        return found.returncode, found.stdout + found.stderr

    def submit(self) -> subprocess.Popen:
        """Start ``drfl deploy run`` in the background, with its output in run.log."""
        log = (self.folder / "run.log").open("wb")
        return subprocess.Popen([BIN / "drfl", "deploy", "run", str(self.folder)], stdout=log, stderr=log)

    def run_with(self, interfere: Callable[[], None], rounds: int, after: int = 1) -> tuple[int, str]:
        """Call a function after a round of ``drfl deploy run``; return its exit code and output."""
        run = self.submit()
        text = f"round {after} of {rounds}"
        wait_for(lambda: self.log_has(text) or run.poll() is not None, text, 240)
        interfere()
        code = run.wait(900)
        return code, (self.folder / "run.log").read_text(errors="replace")

    def restart_site(self, name: str) -> None:
        """Kill a SuperNode, and start it again."""
        self.kill(name)
        self.keep_starting(name)

    def kill_server_program(self) -> None:
        """Kill the server's program, but not the SuperLink."""
        for pid in named("flwr-serverapp", self.programs["superlink"].pid):
            kill_group(pid, signal.SIGKILL)

    def restart_link(self) -> None:
        """Kill the SuperLink with all its programs, and start it again."""
        self.kill("superlink")
        self.start_link()

    def log_has(self, text: str, name: str = "run") -> bool:
        """Return whether a log contains a text."""
        path = self.folder / f"{name}.log"
        return path.exists() and text in path.read_text(errors="replace")

    def last_run(self) -> dict:
        """Return Flower's status of the last run."""
        environment = {**os.environ, "FLWR_HOME": str(self.folder / "flwr"), "FLWR_TELEMETRY_ENABLED": "0"}
        command = [BIN / "flwr", "list", "--format", "json"]
        told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return max(json.loads(told.stdout)["runs"], key=lambda run: run["pending-at"])


def kept(run: Path, names: Iterable[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the model (d,), with its parameters in this order, and λ (N,) in a run's folder."""
    parts = drfl.load_model(run / "model.safetensors").weights
    last = (run / "lambda.csv").read_text().splitlines()[-1]
    lam = torch.tensor([float(x) for x in last.split(",")[1:]], dtype=torch.float64)
    return torch.cat([parts[name].flatten() for name in names]), lam


def kill_group(pid: int, how: signal.Signals) -> None:
    """Send a signal to a process and to all its descendants, also in other sessions."""
    for one in [*descendants(pid), pid]:
        with suppress(ProcessLookupError):
            os.kill(one, how)


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found, look = [], [pid]
    while look:
        look = [child for one in look for child in parents.get(one, [])]
        found += look
    return found


def named(program: str, below: int) -> list[int]:
    """Return the descendants of a process whose command line contains a text."""
    found = []
    for pid in descendants(below):
        with suppress(OSError):
            if program in Path(f"/proc/{pid}/cmdline").read_text():
                found.append(pid)
    return found


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def listens(port: int) -> bool:
    """Return whether a program listens on a port."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def wait_for(true: Callable[[], bool], what: str, seconds: float = START, pause: float = 0.5) -> float:
    """Wait until a condition is true; return the seconds that it took."""
    start = time.monotonic()
    while not true():
        if time.monotonic() - start > seconds:
            raise SystemExit(f"{what} did not come within {seconds:g} s")
        time.sleep(pause)
    return time.monotonic() - start
