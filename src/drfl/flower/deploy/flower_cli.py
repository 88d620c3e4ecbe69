"""Call Flower's programs: those beside the running python, in the deployment's own environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from drfl.core.errors import DrflError, InputError

MISSING = "drfl deploy needs flwr: pip install 'drfl[flower]'"

OLDEST, NEWEST = (1, 40), (1, 43)
"""The versions of Flower that the scripts and these calls are written for: from the first, below the second."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Flower sends no usage data, asks for no updates and installs nothing at run time."""

STYLED = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
"""What asks rich for a terminal's codes, in notebooks and continuous integration; Flower puts them into JSON too."""

ATTEMPT = 120.0
"""Seconds after which a call counts as failed."""


def flower_version() -> str | None:
    """The version of Flower that is installed beside drfl, None without it."""
    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return None


def require() -> None:
    """Raises InputError unless Flower is installed."""
    if flower_version() is None:
        raise InputError(MISSING, code="package-missing", field="flwr")


def fits(version: str) -> bool:
    """Whether a version of Flower is one of the supported ones."""
    # Compare only major and minor: the third part may have letters, as in a release candidate.
    numbers = [int(part) if part.isdecimal() else 0 for part in version.split(".")[:2]]
    return OLDEST <= tuple(numbers) < NEWEST


def program(name: str) -> Path:
    """One of Flower's programs: beside the running python, else on PATH.

    Raises:
        InputError: it is in neither place.
    """
    # The folder of the link, not of its target: a virtual environment's python is a link.
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise InputError(
            f"{name} is neither beside {sys.executable} nor on PATH: pip install 'drfl[flower]'",
            code="package-missing",
            field=name,
        )
    return Path(found)


def environment(home: Path) -> dict[str, str]:
    """The environment for Flower's programs: nothing of the user's own settings of Flower, all of the deployment's."""
    folder = str(Path(sys.executable).parent)
    # Flower wraps messages at the terminal's width, and they are parsed here: hence the many columns, and no colours.
    return {
        **{name: value for name, value in os.environ.items() if name not in STYLED},
        **QUIET,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join((folder, os.environ.get("PATH", os.defpath))),
        "PYTHONIOENCODING": "utf-8",
        "NO_COLOR": "1",
        "COLUMNS": "1000",
    }


def ask(home: Path, arguments: Sequence[str]) -> Mapping[str, object]:
    """The JSON answer of a ``flwr`` command.

    Args:
        home: the deployment's FLWR_HOME.
        arguments: of the command, without ``--format``.

    Raises:
        DrflError: it failed; the message is Flower's.
    """
    command = [str(program("flwr")), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, env=environment(home), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=ATTEMPT, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DrflError(
            f"'flwr {arguments[0]}' gave no answer in {ATTEMPT:g} seconds: is the SuperLink up?",
            code="superlink-failed",
        ) from None
    answer = last_object(done.stdout)
    # flwr exits with 0 after a failure, too: only its answer tells.
    if answer is None or answer.get("success") is not True:
        raise DrflError(reason(answer, done.stderr or done.stdout), code="superlink-failed")
    return answer


GONE = "unregistered", "deleted"
"""The SuperLink's statuses of a node that it no longer lets in."""


def node_states(home: Path) -> dict[str, str]:
    """The SuperLink's status of each node, by its number.

    Args:
        home: the deployment's FLWR_HOME.

    Raises:
        DrflError: the SuperLink does not answer.
    """
    nodes = ask(home, ["supernode", "list"]).get("nodes")
    if not isinstance(nodes, list):
        raise DrflError("the SuperLink did not list its nodes: see 'flwr supernode list'", code="superlink-failed")
    return {str(node.get("node-id")): str(node.get("status")) for node in nodes if isinstance(node, dict)}


def last_object(text: str) -> dict[str, object] | None:
    """The JSON object that a text ends with, None if it ends with none; lines may stand before it."""
    # flwr prints notes before its JSON, which begins on a new line.
    for start in (index for index, c in enumerate(text) if c == "{" and (index == 0 or text[index - 1] == "\n")):
        try:
            found = json.loads(text[start:])
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def reason(answer: Mapping[str, object] | None, output: str) -> str:
    """Why a call failed, in one line: the first paragraph of its error message, else the last line of its output."""
    told = "" if answer is None else str(answer.get("error-message") or "")
    # Before the error the message repeats flwr's normal output, which begins like this.
    paragraphs = [text for text in told.strip().split("\n\n") if not text.startswith("Using SuperLink:")]
    last = ([line for line in output.splitlines() if line.strip()] or [""])[-1]
    text = " ".join((paragraphs[0] if paragraphs else last).split())
    return text.removeprefix("Error: ") or "flwr failed without a word"
