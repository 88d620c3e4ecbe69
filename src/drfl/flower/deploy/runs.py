"""Runs on a SuperLink: submitted, followed, stopped, and their results."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from drfl.core.errors import DrflError, InputError
from drfl.core.files import read_json
from drfl.core.screen import Screen, Table
from drfl.experiments.compare.comparison_results import UNDEFINED, columns_beside, score_columns
from drfl.experiments.run.manifest import is_finished, read_manifest
from drfl.experiments.run.measures import column
from drfl.flower.deploy.flower_cli import ask, environment, program
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.report import read_run as parts
from drfl.task.measure import undefined_share


def print_result(folder: DeploymentFolder) -> None:
    """Print the run's final figures as ``drfl run`` does; nothing where its folder lies on another machine."""
    try:
        path = folder.summary()
        summary = read_json(path)
    except InputError:
        return
    if not isinstance(summary, dict) or not isinstance(final := summary.get("final"), dict):
        return
    title = f"{summary.get('algorithm')}, {summary.get('clients')} sites, {summary.get('rounds')} rounds"
    # A deployment writes the same summary as a simulation.
    table = Table(title=title, title_justify="left")
    measures = parts.measures_of(summary)
    headings = {
        **score_columns(measures[0], fifth=True),
        **columns_beside(measures[1:]),
        "avg_loss": "avg loss",
        "worst_loss": "worst loss",
    }
    cells: list[str] = []
    undefined, clients = parts.table(summary, "undefined"), parts.number(summary, "clients")
    counts = {f"worst_{name}": parts.number(undefined, name) for name in undefined}
    for name, heading in headings.items():
        table.add_column(heading, justify="right")
        cells.append(column(name, measures).text(parts.number(final, name)))
        if counts.get(name, 0) > 0 and clients > 0:
            table.add_column(UNDEFINED, justify="right", no_wrap=True)
            cells.append(undefined_share([int(counts[name])], [int(clients)]))
    table.add_row(*cells)
    out = Screen()
    out.print(table)
    out.print(f"folder: {path.parent}", markup=False, soft_wrap=True)


def can_go_on(folder: DeploymentFolder) -> bool:
    """Whether a run that did not reach its end has a folder on this machine, which it continues."""
    try:
        run = folder.summary().parent
        return read_manifest(run) is not None and not is_finished(run)
    except (OSError, InputError):
        return False


COMPLETED = "finished:completed"
"""Flower's status of a run that succeeded."""

PAUSE, PATIENCE = 2.0, 60.0
"""Seconds between two polls of the status; seconds that the SuperLink may be unreachable meanwhile."""


class Status(NamedTuple):
    """Where a run stands.

    Args:
        name: Flower's word: pending, starting, running, or finished: and how.
        details: why it failed, in one line; empty where Flower gives no reason.
    """

    name: str
    details: str

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.name.startswith("finished")

    @property
    def completed(self) -> bool:
        """Whether it has succeeded."""
        return self.name == COMPLETED

    def __str__(self) -> str:
        what = {"finished:failed": "failed", "finished:stopped": "was stopped", COMPLETED: "completed"}
        told = what.get(self.name, f"is {self.name}")
        return f"{told}: {self.details}" if self.details and not self.completed else told


def submit(folder: DeploymentFolder) -> str:
    """Submit the deployment's app and give the run's number.

    Raises:
        DrflError: the SuperLink refused it, or does not answer.
    """
    # The folder may have been moved since it was written: the submission names its present path.
    override = f'deployment="{folder.settings}"'
    answer = ask(folder.home, ["run", str(folder.app), "--run-config", override])
    number = answer.get("run-id")
    if not number:
        raise DrflError("the SuperLink took the run but gave no number", code="superlink-failed")
    return str(number)


def status(folder: DeploymentFolder, number: str) -> Status:
    """Where a run stands.

    Raises:
        InputError: the number is none.
        DrflError: the SuperLink does not know the run, or does not answer.
    """
    runs = ask(folder.home, ["list", "--run-id", _number(number)]).get("runs")
    if not isinstance(runs, list) or not runs or not isinstance(runs[0], dict):
        raise DrflError(f"the SuperLink knows no run {number}", code="unknown-name", field="run")
    # Flower's reason may be a whole traceback: join its lines.
    details = " ".join(str(runs[0].get("status-details", "")).split())
    return Status(str(runs[0].get("status", "unknown")), "" if details == "N/A" else details)


def stop(folder: DeploymentFolder, number: str) -> None:
    """Stop a run.

    Raises:
        InputError: the number is none.
        DrflError: the SuperLink refused, or does not answer.
    """
    ask(folder.home, ["stop", _number(number)])


def follow(folder: DeploymentFolder, number: str, show: Callable[[str], None]) -> Status:
    """Show a run's log until it ends, and give how it ended.

    Args:
        folder: the deployment.
        number: the run's.
        show: takes a line of the log.

    Raises:
        InputError: the number is none.
        DrflError: the SuperLink was away for too long.
        KeyboardInterrupt: the user stopped following; the run goes on.
    """
    command = [str(program("flwr")), "log", _number(number), "--stream"]
    with subprocess.Popen(
        command, env={**environment(folder.home), "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        start_new_session=True,  # Ctrl-C is handled by this process and must not reach that one
    ) as process:  # fmt: skip
        try:
            for line in process.stdout or ():
                # Skip the lines that flwr itself adds.
                if not (line.startswith("Using SuperLink:") or "logstream for run_id" in line):
                    show(line.rstrip("\n"))
        finally:
            process.kill()
    # The log may stop before the run ends, as when the connection breaks.
    limit = time.monotonic() + PATIENCE
    while True:
        try:
            found = status(folder, number)
            if found.finished:
                return found
            limit = time.monotonic() + PATIENCE
        except InputError:
            raise
        except DrflError:
            # A SuperLink may restart during a run, so only a long absence counts as an error.
            if time.monotonic() > limit:
                raise
        time.sleep(PAUSE)


def _number(number: str) -> str:
    if not number.isdecimal():
        raise InputError(
            f"a run's number has digits only, not '{number}': 'drfl deploy run' prints it",
            code="not-a-number",
            field="run",
        )
    return number
