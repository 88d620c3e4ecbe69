"""Run the cells of several tables and figures in one pool, and write each result as soon as its last cell ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from drfl.core.errors import InputError
from drfl.experiments.execution import training_cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.executor import Workers
from drfl.experiments.execution.records import CELLS, Record
from drfl.experiments.execution.run_cells import CompletedCell, run_all_cells
from drfl.experiments.run.run_directory import check_free, claim_folder, fill_folder
from drfl.experiments.run.runner import StopSignal
from drfl_papers.output import write
from drfl_papers.plan import CollectedRuns, Plan, collect
from drfl_papers.saddle_distance import approach


def reproduce(
    plans: Sequence[Plan],
    out: Path,
    command: str,
    *,
    workers: Workers,
    data_dir: Path | None = None,
    done: Callable[[CompletedCell], None] = lambda done: None,
    written: Callable[[CollectedRuns, Path], None] = lambda collected, folder: None,
    watch: StopSignal | None = None,
) -> None:
    """Run the cells that the plans need and that have not run yet, and write ``out/NAME`` for each plan.

    Args:
        plans: The plans.
        out: Folder of results; the cells' records are written to ``.cells`` in it.
        command: The command that makes these results, for the summaries.
        workers: The workers that run the cells.
        data_dir: Folder of the data sets' files.
        done: Called after each cell.
        written: Called after each result.
        watch: Signal that stops the work.

    Raises:
        InputError: If a job cannot start, or a result cannot be written.
        DrflError: If a worker dies.
        StoppedError: If a signal stops the work; finished cells are stored.
    """
    records: dict[str, Record] = {}
    # Several tables may share a cell, which runs once: each table waits for the keys that it lacks.
    waiting = {plan.spec.name: {planned.cell.key for planned in plan.cells} for plan in plans}
    cells = [planned.cell for plan in plans for planned in plan.cells]
    for end in run_all_cells(cells, out / CELLS, run_cell, workers=workers, data_dir=data_dir, watch=watch):
        records[end.cell.key] = end.record
        done(end)
        for plan in plans:
            left = waiting.get(plan.spec.name)
            if left is None:
                continue
            left.discard(end.cell.key)
            if not left:
                del waiting[plan.spec.name]
                collected = collect(plan, records)
                # Write at once, so that a later interruption loses no complete result.
                with (
                    claim_folder(out / plan.spec.name, "reproduction", overwrite=True) as claim,
                    fill_folder(claim) as stage,
                ):
                    write(collected, stage, command)
                    claim.finished = True
                written(collected, claim.directory)


def run_cell(cell: Cell, data_dir: Path | None) -> Record:
    """Run a cell in this process; a diverged or refused run is a result too."""
    return approach(cell.job) if cell.kind == "distance" else training_cells.run_cell(cell, data_dir)


def check_place(plan: Plan, out: Path, overwrite: bool) -> None:
    """Make sure that a result can be written and does not replace a larger one.

    Raises:
        InputError: If the folder holds something else, or a result of another size or on other data that must not be
            overwritten.
    """
    folder = out / plan.spec.name
    check_free(folder, "reproduction", overwrite=True)
    if overwrite or not (folder / "summary.json").is_file():
        return
    try:
        before = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(before, dict):
        return
    now = size(plan)
    for name, value in now.items():
        if before.get(name) != value:
            raise InputError(
                f"{folder} has a result with {name} = {before.get(name)}, but this one would have "
                f"{value}. Choose another `out`, or use `overwrite`.",
                code="other-run",
                field=name,
            )


def size(plan: Plan) -> dict[str, object]:
    """Return the values that distinguish a short result from a long one; `summary.json` has the same keys."""
    return {
        "repeats": plan.repeats,
        "rounds": plan.rounds,
        "settings": list(plan.settings),
        "stand_in": plan.scale.stand_in,
    }
