"""The cell of most tables and figures: a training run."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from drfl.core.errors import DivergedError, InputError
from drfl.core.files import sha256_of
from drfl.core.run_end import Marks
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.config.data_settings import load_latest
from drfl.experiments.config.own_data import data_files
from drfl.experiments.config.ready_run import Job
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl.experiments.run.artifacts import round_metrics, versions
from drfl.experiments.run.runner import execute
from drfl.training.callbacks import Participation
from drfl.training.history import DIGITS, LEDGER_COLUMNS

NOT_IN_JOB = ("data_dir", "table_dir", "threads")
"""Settings that do not affect the result, so they are not part of a cell's job. Cells always run on one thread."""


def job_from_config(config: Config) -> dict[str, object]:
    """Return a configuration as the job of a cell: plain values, without the tables of other algorithms.

    ``files`` holds the digests of the user's Python files and tables: if one changes, it is a different cell.
    """
    # The tables of other algorithms would give equal runs different digests.
    table = {config.algorithm: config.algorithms.get(config.algorithm, {})}
    files = config.user_files(config.algorithm)
    for path in data_files(config.data) if config.data is not None else []:
        state = path.stat()
        files[path.as_posix()] = _sha256(path, state.st_mtime_ns, state.st_size)
    plain = config.model_copy(update={"algorithms": table, "files": files}).to_plain()
    return {name: value for name, value in plain.items() if name not in NOT_IN_JOB}


def job_from_about(about: AboutRun) -> dict[str, object]:
    """Return the job of a cell that runs objects, from the description that the run's files have."""
    plain = {name: value for name, value in about.settings.items() if name not in NOT_IN_JOB}
    return {**plain, "algorithm": about.algorithm, "files": dict(about.files)}


# Time and size of the file are part of the key: a file that changes is read again.
@functools.lru_cache(maxsize=1024)
def _sha256(path: Path, modified: int, size: int) -> str:
    return sha256_of(path)


TEST = 20
"""The cost of a round besides its local steps, for tests and the like, in local steps of one client."""


def cost_of(config: Config, clients: int = 30) -> float:
    """Return the :func:`cost` of a configuration's run."""
    return cost(config.rounds, config.parameters(config.algorithm), config.clients or clients)


def cost(rounds: int, parameters: Mapping[str, object], clients: int) -> float:
    """Count the local steps of all clients, and a few for every test: a rough estimate for progress displays."""
    m, steps = (parameters.get(name) for name in ("m", "steps"))
    cohort = m if isinstance(m, int) and m else clients
    return rounds * (cohort * (steps if isinstance(steps, int) else 1) + TEST)


def run_cell(cell: Cell, data_dir: Path | None) -> Record:
    """Run a training cell in this process; see :func:`train`."""
    return train(cell.job, data_dir)


def train(job: Mapping[str, object], data_dir: Path | None) -> Record:
    """Run the job of a training cell.

    Returns:
        ``stopped`` ("rounds", "target", "diverged" or "refused"), ``reason``, ``rounds``, ``rows`` (a row per evaluated
        round: metrics and ledger), ``score`` (its name), ``accuracy`` (the score of each client), ``samples`` (of each
        client), ``clients_per_round`` (the mean number of distinct clients that trained), ``halved`` (how often drfl
        halved the step size that it had chosen), ``rollbacks`` and ``effective_rounds`` (see
        :class:`drfl.training.run_log.Result`), ``parameters``, ``seconds``, ``versions``.
    """
    config = config_from_job(job, data_dir)
    return run_job(build(config, load_latest(config)))


def config_from_job(job: Mapping[str, object], data_dir: Path | None) -> Config:
    """Return the configuration of a cell's job, see :func:`train`."""
    return load_config(None, {**job, "threads": 1, **({"data_dir": data_dir} if data_dir else {})})


def run_job(ready: Job) -> Record:
    """Run a job, and return its record; see :func:`train`."""
    head: Record = {"parameters": dict(ready.about.parameters), "versions": versions()}
    participation, start = Participation(), time.perf_counter()
    try:
        finished = execute(ready, [participation])
        last = finished.result.history.last
        # An algorithm that requests no losses does not notice an infinite loss of a finite model.
        if math.isinf(last.metrics.avg_loss):
            raise DivergedError(f"the average loss over clients is infinite after round {last.round}")
    except (DivergedError, InputError) as error:
        how = "diverged" if isinstance(error, DivergedError) else "refused"
        return {**head, "stopped": how, "reason": str(error), "rounds": 0, "rows": [], "accuracy": [], "samples": []}
    result, score = finished.result, finished.result.history.score.name
    rows = [
        {
            "round": row.round,
            **round_metrics(row.metrics.as_dict(score)),
            **{name: row.ledger[name] for name in LEDGER_COLUMNS},
        }
        for row in result.history.rows
    ]
    return {
        **head,
        "stopped": finished.stopped,
        "reason": "",
        "score": score,
        "rounds": result.rounds,
        "rows": rows,
        "accuracy": [round(x, DIGITS) for x in result.evaluation.score.tolist()],
        "samples": result.evaluation.samples.tolist(),
        "halved": 0 if result.step_size is None else int(result.step_size.lowered),
        "rollbacks": result.rollbacks,
        "effective_rounds": result.effective_rounds,
        "clients_per_round": round(participation.mean, DIGITS),
        "seconds": time.perf_counter() - start,
    }


def rollback_text(record: Record) -> str:
    """Describe how many rounds of a run count, as in "2 of 15 rounds count"; return "" if all do and it was not rolled
    back.

    The record of a failed run, or an old one, may lack these numbers.
    """
    rollbacks, rounds = (int(cast("int", record.get(name, 0))) for name in ("rollbacks", "rounds"))
    effective = int(cast("int", record.get("effective_rounds", rounds)))
    marks = Marks(False, rollbacks, rounds, effective)
    return marks.rounds_text if marks.is_reset else ""
