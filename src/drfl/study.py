"""From Python what the command does: algorithms side by side over seeds, with tables, run folders and a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drfl.algorithm import Algorithm
from drfl.data import ClientData
from drfl.run_state import Returned
from drfl.task import Task

if TYPE_CHECKING:
    from drfl.experiments.comparison_results import Comparison


def compare(
    algorithms: Mapping[str, Algorithm],
    data: ClientData | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    *,
    rounds: int = 100,
    seeds: int | Sequence[int] = 5,
    out: str | Path | None = None,
    jobs: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    evaluate_every: int = 1,
    until: str | None = None,
    returned: Returned = "average",
    averaged: bool = False,
    certificate: Literal["pooled", "gradient"] | None = None,
    guards: Sequence[str] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    precision: Literal["full", "bf16"] = "full",
    threads: int = 1,
    checkpoint_every: int | None = None,
    progress: Callable[[str], None] | None = print,
) -> Comparison:
    """Run every algorithm at every seed on the same clients from the same initial model, as ``drfl compare`` does.

    Args:
        algorithms: by the name that tables and folders give them.
        data: the clients' samples; or those at a seed, where the seed is to divide them too.
        task: model, loss and score; or those at a seed, where the seed is to draw the initial model too.
        rounds: of communication.
        seeds: how many, from 0; or which.
        out: the folder to fill: a run's folder per algorithm and seed, the table, ``report.html``. None = none is kept.
        jobs: runs at a time, each in a process of its own. The files are the same for any number, but for times. In a
            script the call must stand under ``if __name__ == "__main__":`` where there are several.
        resume: go on with what is in ``out``: runs that have ended are not run again, one under way goes on from its
            checkpoint.
        overwrite: replace what is in ``out``.
        evaluate_every: test every so many rounds.
        until: stop early, e.g. ``"worst_accuracy=0.9"``.
        returned: which model a run returns, see :func:`drfl.run`.
        averaged: keep the averaged solution of the theorems as well.
        certificate: bound the distance to the saddle point at every test.
        guards: what looks at loss reports before the algorithm does; None = a wide one.
        engine: "auto", "stacked", "threads" or "loop".
        device: torch's name of it.
        precision: "full" or "bf16".
        threads: of torch, in every run.
        checkpoint_every: write a checkpoint every so many rounds; 0 = never, None = as often as takes 5 % of the time.
        progress: is told of every run that ends; None = nobody.

    Returns:
        The result: ``to_frame()``, ``to_markdown()``, ``to_latex()``, ``summary()``, and ``directory``.

    Raises:
        InputError: something given is impossible, or ``out`` holds something else; an algorithm cannot start.
        DrflError: a worker process died, or an interruption left nothing that had ended.
    """
    from drfl.experiments.compare_objects import Options, compare_objects

    settings = {
        "rounds": rounds, "evaluate_every": evaluate_every, "until": until, "returned": returned, "averaged": averaged,
        "certificate": certificate, "guards": guards, "engine": engine, "device": device, "precision": precision,
        "threads": threads, "checkpoint_every": checkpoint_every,
    }  # fmt: skip
    place = None if out is None else Path(out)
    options = Options(seeds, place, jobs, resume, overwrite, progress or (lambda line: None))
    return compare_objects(algorithms, data, task, settings, options)
