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
from drfl.data.tables.table_files import files_of
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.build import build
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.config.data_settings import DataSettings, loaded
from drfl.experiments.config.ready_run import Job
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl.experiments.run.artifacts import rounded, versions
from drfl.experiments.run.runner import execute
from drfl.training.callbacks import Participation
from drfl.training.history import DIGITS, LEDGER_COLUMNS

NOT_IN_JOB = ("data_dir", "table_dir", "threads")
"""What a configuration has and a result does not depend on; cells always run on one thread."""


def job_of(config: Config) -> dict[str, object]:
    """The configuration as a cell's job: plain values, without the other algorithms' tables.

    Its ``files`` are the digests of the user's Python files and tables: with others it is another cell.
    """
    # Drop the tables of other algorithms: they would give equal runs different digests.
    own = {config.algorithm: config.algorithms.get(config.algorithm, {})}
    files = config.user_files(config.algorithm)
    for path in files_of(config.data) if config.data is not None else []:
        state = path.stat()
        files[path.as_posix()] = _sha256(path, state.st_mtime_ns, state.st_size)
    plain = config.model_copy(update={"algorithms": own, "files": files}).plain()
    return {name: value for name, value in plain.items() if name not in NOT_IN_JOB}


def cell_job(about: AboutRun) -> dict[str, object]:
    """The job of a cell that runs objects, by what the files of its run say of it."""
    plain = {name: value for name, value in about.settings.items() if name not in NOT_IN_JOB}
    return {**plain, "algorithm": about.algorithm, "files": dict(about.files)}


@functools.lru_cache(maxsize=1024)
def _sha256(path: Path, modified: int, size: int) -> str:
    """Of a file, which is read again only where its time or size is another."""
    return sha256_of(path)


TEST = 20
"""What a round costs besides its local steps, for tests and the like, in local steps of one client."""


def cost_of(config: Config, clients: int = 30) -> float:
    """The :func:`cost` of a configuration's run."""
    return cost(config.rounds, config.parameters(config.algorithm), config.clients or clients)


def cost(rounds: int, parameters: Mapping[str, object], clients: int) -> float:
    """Local steps of all clients, and a little for every test; a rough estimate for progress displays.

    Args:
        rounds: Of the run.
        parameters: Of its algorithm.
        clients: N.
    """
    m, steps = (parameters.get(name) for name in ("m", "steps"))
    asked = m if isinstance(m, int) and m else clients
    return rounds * (asked * (steps if isinstance(steps, int) else 1) + TEST)


def run_cell(cell: Cell, data_dir: Path | None) -> Record:
    """Run a training cell here; see :func:`train`."""
    return train(cell.job, data_dir)


def train(job: Mapping[str, object], data_dir: Path | None) -> Record:
    """Run a training cell.

    Args:
        job: see :func:`job_of`.
        data_dir: where the data set's files lie.

    Returns:
        ``stopped`` ("rounds", "target", "diverged" or "refused"), ``reason``, ``rounds``, ``rows`` (a row per evaluated
        round: metrics and ledger), ``score`` (its name), ``accuracy`` (the score) and ``samples`` per client,
        ``clients_per_round`` (distinct ones that trained, on average), ``halved`` (how often the step size that the run
        found was), ``rollbacks`` and ``effective_rounds`` (see :class:`drfl.training.run_log.Result`), ``parameters``,
        ``seconds``, ``versions``.

    Raises:
        InputError: the job cannot start.
    """
    config = _config(job, data_dir)
    return record_of(build(config, loaded(config)))


def _config(job: Mapping[str, object], data_dir: Path | None) -> Config:
    return load_config(None, {**job, "threads": 1, **({"data_dir": data_dir} if data_dir else {})})


def record_of(ready: Job) -> Record:
    """Run a job; what it gave is what :func:`train` returns."""
    head: Record = {"parameters": dict(ready.about.parameters), "versions": versions()}
    participation, start = Participation(), time.perf_counter()
    try:
        finished = execute(ready, [participation])
        last = finished.result.history.last
        # An algorithm that requests no losses cannot notice that the loss of its finite model is infinite.
        if math.isinf(last.metrics.avg_loss):
            raise DivergedError(f"the average loss over clients is infinite after round {last.round}")
    except (DivergedError, InputError) as error:
        how = "diverged" if isinstance(error, DivergedError) else "refused"
        return {**head, "stopped": how, "reason": str(error), "rounds": 0, "rows": [], "accuracy": [], "samples": []}
    result, score = finished.result, finished.result.history.score.name
    rows = [
        {
            "round": row.round,
            **rounded(row.metrics.named(score)),
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


def set_back(record: Record) -> str:
    """How many rounds of a run count, such as "2 of 15 rounds count", if its model was set back; "" if it was not.

    Args:
        record: of :func:`train`; one that a run broke off, or that is older than these numbers, has none of them.
    """
    rollbacks, rounds = (int(cast("int", record.get(name, 0))) for name in ("rollbacks", "rounds"))
    effective = int(cast("int", record.get("effective_rounds", rounds)))
    return Marks(False, rollbacks, rounds, effective).counted if rollbacks else ""


def data_of(cell: Cell, data_dir: Path | None) -> DataSettings | None:
    """The data of a cell; None if it has none.

    Args:
        cell: which.
        data_dir: where the data sets' files lie.
    """
    return _config(cell.job, data_dir) if cell.kind == "training" else None
