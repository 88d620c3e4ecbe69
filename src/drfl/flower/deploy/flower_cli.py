"""Run Flower's programs in the environment of a deployment."""

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

MISSING = "drfl deploy needs flwr. Run: pip install 'drfl[flower]'"

OLDEST, NEWEST = (1, 40), (1, 43)
"""The supported versions of Flower: at least the first, below the second. The scripts and these calls rely on them."""

QUIET_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
"""Environment variables that keep Flower from sending usage data, checking for updates and installing packages."""

STYLE_VARIABLES = ("FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE")
"""Variables, set by notebooks and CI, that make rich write terminal codes. Flower writes these codes into JSON too."""

CALL_TIMEOUT = 120.0
"""Timeout of a call in seconds."""


def flower_version() -> str | None:
    """Return the installed version of Flower, or None."""
    try:
        return metadata.version("flwr")
    except metadata.PackageNotFoundError:
        return None


def require_flower() -> None:
    """Raise an ``InputError`` unless Flower is installed."""
    if flower_version() is None:
        raise InputError(MISSING, code="package-missing", field="flwr")


def is_supported(version: str) -> bool:
    """Return whether a version of Flower is supported."""
    # Compare only major and minor version, because the third part may contain letters, as in a release candidate.
    numbers = [int(part) if part.isdecimal() else 0 for part in version.split(".")[:2]]
    return OLDEST <= tuple(numbers) < NEWEST


def find_program(name: str) -> Path:
    """Find one of Flower's programs, first beside the running python, then on PATH."""
    # Use the folder of the link, not of its target, because a virtual environment's python is a link.
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if path is None:
        raise InputError(
            f"{name} is neither beside {sys.executable} nor on PATH. Run: pip install 'drfl[flower]'",
            code="package-missing",
            field=name,
        )
    return Path(path)


def make_environment(home: Path) -> dict[str, str]:
    """Make the environment for Flower's programs, with the deployment's settings of Flower instead of the user's."""
    folder = str(Path(sys.executable).parent)
    # drfl parses Flower's messages, and Flower wraps them at the terminal's width: set many columns and no colours.
    return {
        **{name: value for name, value in os.environ.items() if name not in STYLE_VARIABLES},
        **QUIET_ENVIRONMENT,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join((folder, os.environ.get("PATH", os.defpath))),
        "PYTHONIOENCODING": "utf-8",
        "NO_COLOR": "1",
        "COLUMNS": "1000",
    }


def run_flwr(home: Path, arguments: Sequence[str]) -> Mapping[str, object]:
    """Run a ``flwr`` command and return its JSON answer.

    ``home`` is the deployment's ``FLWR_HOME``; ``--format`` is added to the arguments.

    Raises:
        DrflError: If the command fails; the message is Flower's.
    """
    command = [str(find_program("flwr")), *arguments, "--format", "json"]
    try:
        # Start a new session, so that Ctrl-C does not reach flwr in the middle of a change at the SuperLink.
        process = subprocess.run(
            command, env=make_environment(home), stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
            errors="replace", timeout=CALL_TIMEOUT, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DrflError(
            f"'flwr {arguments[0]}' did not answer within {CALL_TIMEOUT:g} seconds. Check that the SuperLink is "
            "running",
            code="superlink-failed",
        ) from None
    answer = parse_last_object(process.stdout)
    # flwr also exits with 0 after a failure, so only its answer shows whether it succeeded.
    if answer is None or answer.get("success") is not True:
        reason = failure_reason(answer, process.stderr or process.stdout)
        if "certificate file" in reason:
            reason = f"{reason.rstrip('.')}. Run {home.parent / 'make-keys.sh'}"
        elif "SuperLink is unavailable" in reason:  # Flower's remedy is about its own configuration
            reason = (
                f"the SuperLink does not answer. Start it with {home.parent / 'start-superlink.sh'}. If it runs, 'drfl "
                f"deploy check {home.parent}' shows the cause, such as an expired certificate"
            )
        raise DrflError(reason, code="superlink-failed")
    return answer


REMOVED_STATUSES = "unregistered", "deleted"
"""The SuperLink's statuses of a node that it no longer accepts."""


def node_states(home: Path) -> dict[str, str]:
    """Return the SuperLink's status of each node, by node ID."""
    nodes = run_flwr(home, ["supernode", "list"]).get("nodes")
    if not isinstance(nodes, list):
        raise DrflError("the SuperLink did not list its nodes. See 'flwr supernode list'", code="superlink-failed")
    return {str(node.get("node-id")): str(node.get("status")) for node in nodes if isinstance(node, dict)}


def parse_last_object(text: str) -> dict[str, object] | None:
    """Return the JSON object at the end of a text, or None; other lines may precede it."""
    # flwr prints notes before its JSON, which begins on a new line.
    for start in (index for index, c in enumerate(text) if c == "{" and (index == 0 or text[index - 1] == "\n")):
        try:
            value = json.loads(text[start:])
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None


def failure_reason(answer: Mapping[str, object] | None, output: str) -> str:
    """Return why a call failed: the first paragraph of its error message, else the last line of its output."""
    message = "" if answer is None else str(answer.get("error-message") or "")
    # The message first repeats flwr's normal output, which begins like this.
    paragraphs = [text for text in message.strip().split("\n\n") if not text.startswith("Using SuperLink:")]
    last = ([line for line in output.splitlines() if line.strip()] or [""])[-1]
    text = " ".join((paragraphs[0] if paragraphs else last).split())
    return text.removeprefix("Error: ") or "flwr failed without an error message"
