"""The cell of most tables and figures: a training run."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from pathlib import Path

from drfl.data import Dataset
from drfl.errors import DivergedError, InputError
from drfl.experiments.artifacts import rounded, versions
from drfl.experiments.build import build, load_data
from drfl.experiments.cells import Cell, Record
from drfl.experiments.config import Config, load_config
from drfl.experiments.runner import execute
from drfl.history import DIGITS, LEDGER_COLUMNS
from drfl.loop import Result

NOT_IN_JOB = ("data_dir", "table_dir", "threads")
"""What a configuration has and a result does not depend on; cells always run on one thread."""

OF_DATA = ("dataset", "data_dir", "features", "backbone", "feature_count", "resize", "dtype", "test_fraction")
"""What the loaded data depend on."""


def job_of(config: Config) -> dict[str, object]:
    """The configuration as a cell's job: plain values, without the other algorithms' tables."""
    own = {config.algorithm: config.algorithms.get(config.algorithm, {})}
    plain = config.model_copy(update={"algorithms": own}).model_dump(mode="json", exclude_none=True)
    return {name: value for name, value in plain.items() if name not in NOT_IN_JOB}


TEST = 20
"""What a round costs besides its local steps, for tests and the like, in local steps of one client."""


def cost_of(config: Config, clients: int = 30) -> float:
    """Local steps of all clients, and a little for every test."""
    parameters = config.parameters(config.algorithm)
    m, steps = (parameters.get(name) for name in ("m", "steps"))
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
        round: metrics and ledger), ``accuracy`` and ``samples`` per client, ``parameters``, ``seconds``, ``versions``.

    Raises:
        InputError: the job cannot start.
    """
    config = load_config(None, {**job, "threads": 1, **({"data_dir": data_dir} if data_dir else {})})
    ready = build(config, _data(*(getattr(config, name) for name in OF_DATA)))
    head: Record = {"parameters": config.parameters(config.algorithm, ready.data.n), "versions": versions()}
    start = time.perf_counter()
    try:
        finished = execute(ready)
    except (DivergedError, InputError) as error:
        how = "diverged" if isinstance(error, DivergedError) else "refused"
        return {**head, "stopped": how, "reason": str(error), "rounds": 0, "rows": [], "accuracy": [], "samples": []}
    return {**head, "stopped": finished.stopped, **_record(finished.result), "seconds": time.perf_counter() - start}


def _record(result: Result) -> Record:
    rows = [
        {"round": row.round, **rounded(row.metrics), **{name: row.ledger[name] for name in LEDGER_COLUMNS}}
        for row in result.history.rows
    ]
    evaluation = result.evaluation
    return {
        "reason": "",
        "rounds": result.rounds,
        "rows": rows,
        "accuracy": [round(x, DIGITS) for x in evaluation.accuracy.tolist()],
        "samples": evaluation.samples.tolist(),
    }


@functools.lru_cache(maxsize=1)
def _data(*values: object) -> Dataset:
    """The data of the last job, kept for the next: cells that follow each other mostly share them."""
    return load_data(load_config(None, {k: v for k, v in zip(OF_DATA, values, strict=True) if v is not None}))
