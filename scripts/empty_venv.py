"""Empty environments, without pip, in which a package has only its declared requirements."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 900
"""Maximum duration of a command."""


class CommandFailedError(Exception):
    """A command failed; the message is one line."""


class EmptyVenv:
    """A new environment of this Python, isolated from the checkout and from the current environment.

    Args:
        folder: the folder of the environment; its contents are removed.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, clear=True, symlinks=os.name != "nt", with_pip=False)
        self.folder = folder
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / "python"

    def pip(self, *words: str | Path) -> None:
        """Run the pip of this interpreter for the environment."""
        run([sys.executable, "-m", "pip", "--python", self.python, *words], self.folder)

    def uv(self, command: str, *words: str | Path) -> str:
        """Run ``uv pip COMMAND`` for the environment and return its output."""
        return run([sys.executable, "-m", "uv", "pip", command, "--python", self.python, *words], self.folder)

    def run(self, program: str, *words: str | Path, cwd: Path) -> str:
        """Run one of the environment's programs in a folder and return its output."""
        return run([self.bin / program, *words], cwd)


def outside() -> dict[str, str]:
    """Return this process's environment without variables that point Python to a checkout or another environment."""
    kept = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    }
    if "PIP_FIND_LINKS" in kept:  # a folder with a CPU build of torch; uv uses another variable
        kept.setdefault("UV_FIND_LINKS", kept["PIP_FIND_LINKS"])
    return kept


def run(command: list[str | Path], cwd: Path) -> str:
    """Run a command and return its output; if it fails, raise an error with its last message in one line."""
    shown = " ".join(Path(word).name if os.sep in str(word) else str(word) for word in command)
    try:
        done = subprocess.run(
            list(map(str, command)), cwd=cwd, env=outside(), capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise CommandFailedError(f"{shown}: not done after {SECONDS} s") from None
    if done.returncode:
        raise CommandFailedError(f"{shown}: {last_word(done.stderr or done.stdout)}")
    return done.stdout


NETWORK = ("NewConnectionError", "Failed to establish a new connection", "Max retries exceeded", "Failed to fetch",
           "Temporary failure in name resolution", "dns error", "Network connectivity is disabled",
           "Could not fetch URL", "Connection refused", "(from versions: none)")  # fmt: skip


def last_word(output: str) -> str:
    """Return the line of a program's output that explains its failure."""
    if any(sign in output for sign in NETWORK):
        return "no package index can be reached; is there a network?"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"error\b", line, flags=re.IGNORECASE)]
    return errors[0] if errors else lines[-1] if lines else "no reason given"


def pins(*files: Path) -> str:
    """Return the packages of lock files as constraints without hashes; pip would require hashes for all packages."""
    found = [re.match(r"[\w.-]+==[^\\\n]+", line) for file in files for line in file.read_text().splitlines()]
    return "".join(f"{one[0].strip()}\n" for one in found if one)
