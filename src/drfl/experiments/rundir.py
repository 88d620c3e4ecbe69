"""What a run leaves behind: one directory, whole or not there at all."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
from safetensors.torch import save
from torch import Tensor

from drfl.algorithm import Result
from drfl.errors import InputError
from drfl.experiments.build import Job
from drfl.experiments.config import Config
from drfl.history import DIGITS, Metrics, csv_text

PACKAGES = ("drfl", "torch", "numpy", "scikit-learn")


def default_directory(root: Path, name: str) -> Path:
    """``root/name``, or ``root/name-2`` and so on where that is taken."""
    path, k = root / name, 1
    while path.exists():
        k += 1
        path = root / f"{name}-{k}"
    return path


def check_free(path: Path, overwrite: bool) -> None:
    """Make sure that a run directory can be written at ``path``, and leave nothing behind.

    Raises:
        InputError: something is there already, what is there and may be overwritten is no run, or the place cannot
            be written to.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is a file: give another --out")
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise InputError(f"{path} is the folder you are in, or around it: give another --out")
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise InputError(f"{path} exists already: give another --out, or --overwrite to replace it")
        if not (path / "summary.json").is_file():
            raise InputError(f"{path} holds something else than a run, so it is not overwritten: give another --out")
    place = path
    while not place.exists():
        place = place.parent
    try:  # asking for permission is not enough: root has it also where nothing can be created
        os.rmdir(tempfile.mkdtemp(prefix=".drfl-", dir=place))
    except OSError as error:
        raise InputError(f"cannot write into {place} ({error.strerror}): give another --out") from None


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """A temporary folder beside ``path`` that takes its place when the block succeeds, and vanishes when it fails.

    Raises:
        InputError: the place cannot be written to.
    """
    made = [place for place in path.parents if not place.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        stage.chmod(0o755)
        yield stage
        if path.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{path.name}-old-", dir=path.parent))
            os.replace(path, old / "run")
            os.replace(stage, path)
            shutil.rmtree(old)
        else:
            os.replace(stage, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        for place in made if not path.exists() else []:
            place.rmdir()


def write_run(directory: Path, job: Job, result: Result, stopped: str) -> None:
    """Fill an existing, empty directory with everything but the report.

    Args:
        directory: where.
        job: what ran.
        result: how it ended.
        stopped: why: "rounds", "target" or "interrupted".
    """
    write = {
        "config.toml": config_toml(job.config, job.data.n),
        "summary.json": json.dumps(summary(job, result, stopped), indent=2) + "\n",
        "history.csv": result.history.to_csv(),
        "timing.csv": result.history.timing_csv(),
        "lambda.csv": result.history.lambda_csv(job.data.names),
        "clients.csv": _clients_csv(job, result),
    }
    for name, text in write.items():
        (directory / name).write_text(text, encoding="utf-8")
    job.partition.save(directory / "partition.json")
    _save_model(job, result.state.w, directory / "model.safetensors")
    if result.state.average is not None:
        _save_model(job, result.state.average.w, directory / "model-averaged.safetensors")


def summary(job: Job, result: Result, stopped: str) -> dict[str, object]:
    """The run in one object: what ran, on what, how it ended, what it cost."""
    config, last = job.config, result.history.last
    return {
        "algorithm": config.algorithm,
        "parameters": config.parameters(config.algorithm, job.data.n),
        "dataset": config.dataset,
        "partition": job.partition.recipe,
        "model": config.model,
        "model_parameters": job.task.layout.d,
        "clients": job.data.n,
        "rounds": result.rounds,
        "skipped_rounds": result.skipped,
        "stopped": stopped,
        "seed": config.seed,
        "engine": config.engine,
        "device": config.device,
        "dtype": config.dtype,
        "final": _rounded(last.metrics),
        "averaged": None if result.averaged is None else _rounded(Metrics.of(result.averaged)),
        "ledger": last.ledger,
        "wall_seconds": round(last.seconds, 3),
        "versions": versions(),
    }


def _rounded(metrics: Metrics) -> dict[str, float | None]:
    """As they stand in the files; null where JSON has no number for it."""
    return {name: round(x, DIGITS) if math.isfinite(x) else None for name, x in metrics._asdict().items()}


def versions() -> dict[str, str]:
    """Python's, the platform's and the packages' versions."""
    found = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {"python": platform.python_version(), "platform": f"{platform.system()} {platform.machine()}", **found}


def config_toml(config: Config, clients: int) -> str:
    """The configuration as TOML, with the algorithm's parameters spelt out; `drfl run FILE` repeats the run."""
    plain = config.model_dump(mode="json", exclude_none=True, exclude={"algorithms", "cohort", "steps", "batch", "lr"})
    plain = dict(sorted({**plain, **config.partition_parameters(defaults=True)}.items()))
    parameters = config.parameters(config.algorithm, clients)
    full = {name: "full" if value is None and "batch" in name else value for name, value in parameters.items()}
    table = {name: value for name, value in full.items() if value is not None}
    return tomli_w.dumps({**plain, "algorithms": {config.algorithm: table}})


def _save_model(job: Job, w: Tensor, path: Path) -> None:
    parameters = job.task.layout.views(w.detach().cpu())
    path.write_bytes(save({name: value.contiguous() for name, value in parameters.items()}))


def _clients_csv(job: Job, result: Result) -> str:
    evaluation = result.evaluation
    columns = zip(
        job.data.names,
        (f"{x:.{DIGITS}f}" for x in evaluation.accuracy.tolist()),
        (f"{x:.{DIGITS}f}" for x in evaluation.loss.tolist()),
        evaluation.samples.tolist(),
        job.data.sizes.tolist(),
        (f"{x:.9f}" for x in result.state.lam.tolist()),
        strict=True,
    )
    return csv_text(("client", "accuracy", "loss", "samples", "train_samples", "lambda"), columns)
