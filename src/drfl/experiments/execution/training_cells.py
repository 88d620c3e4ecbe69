"""The cell of most tables and figures: a training run."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from drfl.core.errors import DivergedError, InputError
from drfl.core.files import sha256_of
from drfl.core.run_end import Marks
from drfl.data import Dataset
from drfl.data.tables.table_files import files_of
from drfl.experiments.config.build import Job, build, load_data
from drfl.experiments.config.config import Config, load_config
from drfl.experiments.execution.cells import Cell, Record
from drfl.experiments.run.artifacts import rounded, versions
from drfl.experiments.run.runner import execute
from drfl.training.callbacks import Participation
from drfl.training.history import DIGITS, LEDGER_COLUMNS

NOT_IN_JOB = ("data_dir", "table_dir", "threads")
"""What a configuration has and a result does not depend on; cells always run on one thread."""

OF_DATA = (
    *("dataset", "data_dir", "data", "target", "group", "drop"),
    *("features", "backbone", "feature_count", "resize", "dtype", "test_fraction"),
)
"""What the loaded data depend on."""

DataKey = tuple[object, ...]
"""The values of these."""


def job_of(config: Config) -> dict[str, object]:
    """The configuration as a cell's job: plain values, without the other algorithms' tables.

    Its ``files`` are the digests of the user's Python files and tables: with others it is another cell.
    """
    # Drop the tables of other algorithms: they would give equal runs different digests.
    own = {config.algorithm: config.algorithms.get(config.algorithm, {})}
    files = config.user_files([config.algorithm])
    for path in files_of(config.data) if config.data is not None else []:
        state = path.stat()
        files[path.as_posix()] = _sha256(path, state.st_mtime_ns, state.st_size)
    plain = config.model_copy(update={"algorithms": own, "files": files}).model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in plain.items() if name not in NOT_IN_JOB}


@functools.lru_cache(maxsize=1024)
def _sha256(path: Path, modified: int, size: int) -> str:
    """Of a file, which is read again only where its time or size is another."""
    return sha256_of(path)


TEST = 20
"""What a round costs besides its local steps, for tests and the like, in local steps of one client."""


def cost_of(config: Config, clients: int = 30) -> float:
    """Local steps of all clients, and a little for every test."""
    parameters = config.parameters(config.algorithm)
    m, steps = (parameters.get(name) for name in ("m", "steps"))
    # A rough estimate: only progress displays use it.
    everybody = config.clients or clients
    asked = m if isinstance(m, int) and m else everybody
    return config.rounds * (asked * (steps if isinstance(steps, int) else 1) + TEST)


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
    return record_of(build(config, data(_data_key(config))))


def _config(job: Mapping[str, object], data_dir: Path | None) -> Config:
    return load_config(None, {**job, "threads": 1, **({"data_dir": data_dir} if data_dir else {})})


def record_of(ready: Job) -> Record:
    """Run a job; what it gave is what :func:`train` returns."""
    config = ready.config
    head: Record = {"parameters": config.parameters(config.algorithm, ready.data.n), "versions": versions()}
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


def data_key(cell: Cell, data_dir: Path | None) -> DataKey | None:
    """What the data of a cell are known by; None where it has none.

    Args:
        cell: which.
        data_dir: where the data sets' files lie.
    """
    return _data_key(_config(cell.job, data_dir)) if cell.kind == "training" else None


def _data_key(config: Config) -> DataKey:
    return tuple(getattr(config, name) for name in OF_DATA)


class _LastData:
    """The data of the last job, kept for the next: cells that follow each other mostly share them."""

    def __init__(self) -> None:
        self._last: tuple[DataKey, Dataset] | None = None

    def __call__(self, key: DataKey) -> Dataset:
        """The data, loaded unless they are the last."""
        named = {name: value for name, value in zip(OF_DATA, key, strict=True) if value is not None}
        return self.given(key, lambda: load_data(load_config(None, named)))

    def given(self, key: DataKey, load: Callable[[], Dataset]) -> Dataset:
        if self._last is None or self._last[0] != key:
            self._last = key, load()
        return self._last[1]


data = _LastData()
