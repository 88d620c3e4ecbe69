"""Submit, follow and stop runs on a SuperLink, and print their results."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from drfl.core.errors import DrflError, InputError
from drfl.core.json_toml import read_json
from drfl.core.screen import Screen, ScreenTable
from drfl.experiments.compare.comparison_results import UNDEFINED, columns_beside, score_columns
from drfl.experiments.run.manifest import is_finished, read_manifest
from drfl.experiments.run.measures import column
from drfl.flower.deploy.flower_cli import find_program, make_environment, run_flwr
from drfl.flower.deploy.paths import DeploymentFolder
from drfl.report import read_run as parts
from drfl.task.measure import undefined_share

UNKNOWN_RUN = "[code: 16]"
"""The code in Flower's message about a run that the SuperLink does not know."""

FIT = "fit"
"""The request for a fit, in the place of the folder of another request."""


def print_result(path: Path) -> None:
    """Print the final results of a run as ``drfl run`` does; print nothing if its folder is on another machine.

    ``path`` is that of its ``summary.json``.
    """
    try:
        summary = read_json(path)
    except InputError:
        return
    if not isinstance(summary, dict) or not isinstance(final := summary.get("final"), dict):
        return
    rounds = summary.get("rounds")
    title = f"{summary.get('algorithm')}, {summary.get('clients')} sites, {rounds} round{'s' * (rounds != 1)}"
    table = ScreenTable(title=title)
    # A deployment writes the same summary as a simulation.
    measures = parts.measures_of(summary)
    headings = {
        **score_columns(measures[0], fifth=True),
        **columns_beside(measures[1:]),
        "avg_loss": "avg loss",
        "worst_loss": "worst loss",
    }
    cells: list[str] = []
    undefined, clients = parts.nested_table(summary, "undefined"), parts.number(summary, "clients")
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


def is_resumable(run: Path) -> bool:
    """Return whether this machine has this folder of an unfinished run, so that the run can be resumed."""
    try:
        return read_manifest(run) is not None and not is_finished(run)
    except (OSError, InputError):
        return False


COMPLETED = "finished:completed"
"""Flower's status of a run that succeeded."""

PAUSES = (2.0, 4.0, 8.0)
"""Seconds between the polls of the status; the last value repeats. Each poll takes about a second of CPU time."""

PATIENCE = 60.0
"""Seconds for which the SuperLink may be unreachable."""


class Status(NamedTuple):
    """The status of a run.

    Args:
        name: Flower's name of it: ``pending``, ``starting``, ``running``, or ``finished:`` and the outcome.
        details: Why it failed, in one line; empty if Flower gives no reason.
    """

    name: str
    details: str

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended."""
        return self.name.startswith("finished")

    @property
    def is_completed(self) -> bool:
        """Whether the run has succeeded."""
        return self.name == COMPLETED

    def __str__(self) -> str:
        outcomes = {"finished:failed": "failed", "finished:stopped": "was stopped", COMPLETED: "completed"}
        text = outcomes.get(self.name, f"is {self.name}")
        return f"{text}: {self.details}" if self.details and not self.is_completed else text


def submit(folder: DeploymentFolder, wait: float | None = None, request: Path | str | None = None) -> str:
    """Submit the deployment's app and return the run's number.

    ``request`` is the folder of a request, see :mod:`drfl.flower.deploy.requests`, or :data:`FIT`; None for training.
    """
    # The folder may have been moved since it was written, so override the path in its app.
    override = f'deployment="{folder.settings}"' + ("" if wait is None else f" wait={wait}")
    if request is not None:
        override += f' request="{request}"'
    answer = run_flwr(folder.home, ["run", str(folder.app), "--run-config", override])
    number = answer.get("run-id")
    if not number:
        raise DrflError("the SuperLink accepted the run but returned no number", code="superlink-failed")
    return str(number)


def status(folder: DeploymentFolder, number: str) -> Status:
    """Return the status of a run."""
    runs = _runs_in(_ask_about(folder, number, ["list", "--run-id"]))
    if not runs:
        raise _unknown_run(number)
    return _status_of(runs[0])


def _runs_in(answer: Mapping[str, object]) -> list[dict[str, object]]:
    runs = answer.get("runs")
    return [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []


def _status_of(run: Mapping[str, object]) -> Status:
    # Flower's reason may be a whole traceback, so join its lines.
    details = " ".join(str(run.get("status-details", "")).split())
    return Status(str(run.get("status", "unknown")), "" if details == "N/A" else details)


class ListedRun(NamedTuple):
    """A run that the SuperLink knows."""

    number: str
    status: Status


def list_runs(folder: DeploymentFolder) -> list[ListedRun]:
    """List the runs that the SuperLink knows."""
    return [ListedRun(str(run.get("run-id")), _status_of(run)) for run in _runs_in(run_flwr(folder.home, ["list"]))]


def run_in_progress(folder: DeploymentFolder) -> str | None:
    """Return the number of a run that has not ended; None if there is none."""
    return next((run.number for run in list_runs(folder) if not run.status.is_finished), None)


def check_no_run(folder: DeploymentFolder) -> None:
    """Check that no run is in progress: two server programs cannot work in one folder."""
    number = run_in_progress(folder)
    if number is not None:
        raise InputError(
            f"run {number} is in progress. Wait for its end, or stop it with 'drfl deploy stop {folder.root} {number}'",
            code="run-in-progress",
            field="run",
        )


def stop(folder: DeploymentFolder, number: str) -> None:
    """Stop a run."""
    _ask_about(folder, number, ["stop"])


def follow(folder: DeploymentFolder, number: str, show: Callable[[str], None]) -> Status:
    """Show a run's log until the run ends, and return its final status.

    Raises:
        InputError: If ``number`` is not the number of a run.
        DrflError: If the SuperLink was unreachable for too long.
        KeyboardInterrupt: If the user stops following. The run continues.
    """
    command = [str(find_program("flwr")), "log", _checked_number(number), "--stream"]
    with subprocess.Popen(
        command, env={**make_environment(folder.home), "PYTHONUNBUFFERED": "1"}, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8", errors="replace",
        start_new_session=True,  # this process handles Ctrl-C; the child must not receive it
    ) as process:  # fmt: skip
        try:
            for line in process.stdout or ():
                # Skip the lines that flwr adds to the log.
                if not (line.startswith("Using SuperLink:") or "logstream for run_id" in line):
                    show(line.rstrip("\n"))
        finally:
            # The child has its own session, so Ctrl-C does not end it.
            process.kill()
    # The log may stop before the run ends, for example if the connection breaks.
    limit = time.monotonic() + PATIENCE
    pauses = chain(PAUSES, repeat(PAUSES[-1]))
    while True:
        try:
            current = status(folder, number)
            if current.is_finished:
                return current
            limit = time.monotonic() + PATIENCE
        except InputError:
            raise
        except DrflError:
            # A SuperLink may restart during a run, so only a long absence is an error.
            if time.monotonic() > limit:
                raise
        time.sleep(next(pauses))


def _checked_number(number: str) -> str:
    if not number.isdecimal():
        raise InputError(
            f"expected the number of a run, got '{number}'. 'drfl deploy run' prints the number",
            code="not-a-number",
            field="run",
        )
    return number


def _ask_about(folder: DeploymentFolder, number: str, command: Sequence[str]) -> Mapping[str, object]:
    """Run a ``flwr`` command with the number of a run, and return its answer."""
    try:
        return run_flwr(folder.home, [*command, _checked_number(number)])
    except DrflError as error:
        if UNKNOWN_RUN in str(error):
            raise _unknown_run(number) from None
        raise


def _unknown_run(number: str) -> InputError:
    return InputError(
        f"the SuperLink does not know run {number}. 'drfl deploy run' prints the number of a run, and 'drfl deploy "
        "status' shows those in progress",
        code="unknown-name",
        field="run",
    )
