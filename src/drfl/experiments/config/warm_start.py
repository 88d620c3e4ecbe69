"""Start a run from the model of an earlier one, and from its client weights."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from drfl.core.errors import InputError, listing
from drfl.core.files import read_csv, sha256_of
from drfl.data import Standardisation
from drfl.data.model_file import ModelFile, read_model_file
from drfl.experiments.config.ready_run import Clients
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm
from drfl.task.architecture import load_weights
from drfl.task.task import Task


class WarmStart(NamedTuple):
    """A task whose model starts from a file.

    Args:
        task: The task with a copy of its model.
        origin: Path, SHA-256 and run of the file, for the files of the new run.
    """

    task: Task
    origin: Mapping[str, str]


def warm_start(task: Task, clients: Clients, path: Path) -> WarmStart:
    """Load the weights of a model file into a copy of the task's model.

    If the columns are scaled by other means and scales than those of the file, the first linear layer is changed so
    that the model computes the same from raw columns. Other first layers keep their weights.

    Args:
        task: The task.
        clients: The clients of the new run.
        path: The file.

    Raises:
        InputError: If the file cannot be read, or has another architecture, other columns or classes, or another
            schema.
    """
    file = read_model_file(path)
    _check_compatible(file, clients)
    model = copy.deepcopy(task.model)
    # The file of a run in float64 starts one in float32 too.
    dtype = {name: value.dtype for name, value in model.state_dict().items()}
    weights = {name: value.to(dtype.get(name, value.dtype)) for name, value in file.weights.items()}
    load_weights(model, weights)
    first = _first_layer(model)
    if isinstance(first, nn.Linear):
        _rescale(first, file.standardisation, clients.standardisation)
    origin = {"path": str(path), "sha256": sha256_of(path), "run": str(file.about.get("run", ""))}
    return WarmStart(dataclasses.replace(task, model=model), origin)


def _check_compatible(file: ModelFile, clients: Clients) -> None:
    if file.shape != tuple(clients.shape):
        raise _differs(file, f"it takes inputs of shape {file.shape}, and the clients have {tuple(clients.shape)}")
    own, new = file.schema_digest, clients.schema_digest
    is_declared = file.schema is None or not file.schema.inferred
    if own and new and is_declared and own != new:
        raise _differs(file, f"its schema is {own[:8]}…, and that of the clients is {new[:8]}…", "schema-differs")
    for what, before, now in (("columns", file.columns, clients.columns), ("classes", file.classes, clients.classes)):
        if before is not None and now is not None and before != now:
            odd = [name for name in (*before, *now) if (name in before) != (name in now)] or list(now)
            names = listing([f"'{name}'" for name in odd], "name")
            raise _differs(file, f"its {what} are others, or in another order: {names}")


def _differs(file: ModelFile, problem: str, code: str = "model-differs") -> InputError:
    return InputError(
        f"init_from: {file.path} does not fit the clients: {problem}. Give a model of the same columns and classes",
        code=code,
        field="init_from",
    )


def _first_layer(model: nn.Module) -> nn.Module:
    """Return the layer that gets the columns, through layers that change their shape alone."""
    while isinstance(model, nn.Sequential):
        layers = (layer for layer in model if not isinstance(layer, nn.Flatten | nn.Identity))
        model = next(layers, nn.Identity())
    return model


def _rescale(layer: nn.Linear, before: Standardisation | None, now: Standardisation | None) -> None:
    """Change a layer for columns scaled by ``before`` so that it computes the same from columns scaled by ``now``."""
    if before is None and now is None:
        return
    ones = torch.ones(layer.in_features, dtype=torch.float64)
    old_mean, old_scale = (0 * ones, ones) if before is None else (before.mean, before.scale)
    new_mean, new_scale = (0 * ones, ones) if now is None else (now.mean, now.scale)
    with torch.no_grad():
        weight = layer.weight.double()
        # W((x − m)/s) + b = W(s'/s)·x' + b + W((m' − m)/s), where x' = (x − m')/s'.
        if layer.bias is not None:
            layer.bias.add_((weight @ ((new_mean - old_mean) / old_scale)).to(layer.bias.dtype))
        layer.weight.copy_(weight * (new_scale / old_scale))


def with_kept_weights(algorithm: Algorithm, settings: RunSettings, names: Sequence[str]) -> Algorithm:
    """Return the algorithm with the client weights at the end of the run from which the new one starts.

    Args:
        algorithm: The algorithm, without wrappers.
        settings: The settings of the new run.
        names: Names of its clients.

    Returns:
        The algorithm itself if the settings do not ask for it, or the algorithm has no λ.

    Raises:
        InputError: If the folder of the model file has no weights of these clients.
    """
    if not settings.keep_weights or not hasattr(algorithm, "lam0") or not dataclasses.is_dataclass(algorithm):
        return algorithm
    assert settings.init_from is not None  # the settings were checked
    path = settings.init_from.parent / "clients.csv"
    remedy = "remove keep_weights, or start from a model in the folder of its run"
    frame = read_csv(path, dtype={"client": str}, remedy=remedy)
    if not {"client", "lambda"} <= set(frame.columns) or frame["lambda"].dtype.kind not in "if":
        raise InputError(f"{path} has no client weights: {remedy}", code="damaged-file", field=str(path))
    weights = dict(zip(frame["client"], frame["lambda"].astype(float), strict=True))
    if set(weights) != set(names):
        odd = sorted(set(weights) ^ set(names))
        raise InputError(
            f"keep_weights: '{odd[0]}' is a client of only one of the two runs: remove keep_weights",
            code="clients-differ",
            field="keep_weights",
        )
    return dataclasses.replace(algorithm, lam0=tuple(weights[name] for name in names))
