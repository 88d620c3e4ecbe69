"""The Python functions for many runs: sweeps, and runs that are in folders of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from drfl.core.errors import Notice, RunWarning, StoppedError
from drfl.training.callbacks import line_printer

if TYPE_CHECKING:
    import pandas as pd

    from drfl.experiments.compare.comparison_results import Comparison
    from drfl.experiments.compare.outcomes import Outcome
    from drfl.experiments.sweep.results import Sweep
    from drfl.experiments.sweep.study import SweepRun


def sweep(
    study: str | Path | Mapping[str, object],
    *,
    out: str | Path,
    jobs: int | Literal["ray"] = 1,
    resume: bool = False,
    overwrite: bool = False,
    track: str | None = None,
    progress: Callable[[str], None] | None = print,
) -> Sweep:
    """Run every combination of some settings in one pool of processes, as ``drfl sweep`` does.

    Args:
        study: The path of a TOML file, or its content: keys of ``drfl run``; a table ``grid`` that gives a list of
            values per setting, of which every combination runs; and a list of tables ``list``, each of which runs with
            every point of the grid. Parameters of one algorithm are named as in "DRFA.gamma".
        out: The folder to fill: a run per combination, ``sweep.csv``, the tables and ``report.html``.
        jobs: See :func:`compare`.
        resume: Continue the sweep in ``out``, or add the runs that ``study`` now has. Finished runs are not repeated.
        overwrite: Replace the sweep in ``out``.
        track: See :func:`compare`.
        progress: Called with a line for every run that ends; None shows nothing.

    Returns:
        The result: ``to_frame()``, ``comparisons``, ``to_markdown()``, ``to_latex()``, ``summary()`` and ``directory``.
        After Ctrl-C it has the runs that have ended.

    Warns:
        RunWarning: If runs are missing because the sweep was interrupted; and if ``progress`` is None, and the result
            has ``notices``, such as runs that returned the initial model.

    Raises:
        InputError: If a setting is invalid, or ``out`` contains something else.
        DrflError: If a worker process died, or no run had ended when the sweep was interrupted.

    Example:
        >>> import drfl, tempfile
        >>> study = {"clients": 3, "rounds": 2, "grid": {"algorithm": ["FedAvg", "DRFA"], "alpha": [0.1, 1.0]}}
        >>> result = drfl.sweep(study, out=tempfile.mkdtemp(), progress=None)
        >>> list(result.comparisons)
        ['alpha = 0.1', 'alpha = 1.0']
    """
    from drfl.experiments.execution.executor import workers_of
    from drfl.experiments.run.resume import check_folder
    from drfl.experiments.run.runner import stop_on_interrupt
    from drfl.experiments.sweep.run_sweep import describe_end, run_sweep
    from drfl.experiments.sweep.study import read_study

    place, show, workers = Path(out), line_printer(progress), workers_of(jobs)
    chosen = Path(study) if isinstance(study, str | Path) else study
    key = None if isinstance(chosen, Path) else chosen.get("checkpoint_key")
    check_folder(place, "sweep", resume=resume, overwrite=overwrite, key=key)
    plan = read_study(chosen, {})
    total = len(plan.runs)

    def ended(run: SweepRun, outcome: Outcome, count: int) -> None:
        show(f"[{count}/{total}] {describe_end(run, outcome)}")

    with stop_on_interrupt() as watch:
        result = run_sweep(
            plan, place, watch, workers, ended=ended, warn=show, resume=resume, overwrite=overwrite, track=track
        )  # fmt: skip
    if not result.runs:
        raise StoppedError("interrupted before a run was finished")
    for notice in result.notices:
        show(notice)
        if progress is None:
            warnings.warn(RunWarning(notice), stacklevel=2)
    if missing := total - len(result.runs):
        text = f"interrupted: {missing} of {total} runs are missing; the same call with resume=True continues"
        warnings.warn(RunWarning(Notice(text, "interrupted")), stacklevel=2)
    return result


def load_runs(*patterns: str | Path) -> pd.DataFrame:
    """Return the runs in folders of results in one data frame, with all their settings and metrics.

    Args:
        patterns: Folders of runs, comparisons and sweeps, folders above them, or patterns such as ``"runs/**"``.

    Returns:
        A row per run: folder, algorithm, seed, how it ended, the metrics and the 95 % interval of the worst client,
        costs, and the settings and hyperparameters. ``eta`` is the local step size η that the run used, and
        ``own_models`` whether each client is tested with its own model. Runs that failed have no metrics. Columns
        without any value are omitted.

    Raises:
        InputError: If a pattern matches no finished run, or a file is damaged.
    """
    from drfl.experiments.compare.stored_runs import find_runs, frame_of

    return frame_of(find_runs(*patterns))


def load_comparison(*patterns: str | Path, **settings: object) -> Comparison:
    """Return a comparison of runs that are in folders of results.

    Runs of one algorithm with different settings are different algorithms, named as in "DRFA (gamma=0.1)".

    Args:
        patterns: See :func:`load_runs`.
        settings: Only runs with these settings or hyperparameters, such as ``alpha=0.1``; also ``algorithm`` and
            ``seed``.

    Raises:
        InputError: See :func:`load_runs`; or if no run has these settings, all failed, one occurs twice, or runs at one
            seed have different test rows.
    """
    from drfl.experiments.compare.stored_runs import comparison_of, find_runs, where

    return comparison_of(where(find_runs(*patterns), settings))
