"""Start a task from a model file that was trained on the same columns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError, Notice, listing
from drfl.core.files import sha256_of
from drfl.data.model_file import ModelFile, read_model_file
from drfl.data.model_store import find_model
from drfl.data.personal_models import has_own_models
from drfl.data.standardisation import Standardisation
from drfl.data.tables.schema import TableSchema
from drfl.task.architecture import load_weights
from drfl.task.task import Task


class InputDescription(Protocol):
    """What models must have in common with clients: their inputs, classes and scaling."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        ...

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the inputs' columns; None if they have none, or the sites have not agreed on them."""
        ...

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes; None if they have none, or the sites have not agreed on them."""
        ...

    @property
    def schema(self) -> TableSchema | None:
        """The schema that encoded the inputs; None if there is none, or it is unknown here."""
        ...

    @property
    def schema_digest(self) -> str:
        """The digest of the schema that encoded the inputs; "" without one."""
        ...

    @property
    def standardisation(self) -> Standardisation | None:
        """The scaling of their inputs' columns; None if they are not scaled."""
        ...

    def test_digest(self) -> str:
        """Return a digest that is the same only if the clients are tested on the same rows."""
        ...


UNSEEN, UNKNOWN = "unseen", "unknown"
"""Whether an initial model was trained on rows that are test rows now: certainly not, or not known."""

GLOBAL = "global"
"""Marks the global model of a run that trained and tested a model for each client."""


class WarmStart(NamedTuple):
    """A task whose model starts from a file.

    Args:
        task: The task.
        origin: Path, SHA-256 and run of the file, under ``test_rows`` :data:`UNSEEN` or :data:`UNKNOWN`, and under
            ``model`` :data:`GLOBAL` if the run tested other models; None without a file.
    """

    task: Task
    origin: Mapping[str, str] | None


def warm_start(task: Task, clients: InputDescription, path: Path | None) -> WarmStart:
    """Load the weights of a model file into a copy of the task's model. Without a file, the task stays as it is.

    If the columns are scaled by other means and scales than those of the file, the first linear layer is changed so
    that the model computes the same from raw columns. Other first layers keep their weights.

    Raises:
        InputError: If the file does not fit the task or the clients, or the first layer would need a bias.
    """
    if path is None:
        return WarmStart(task, None)
    path = find_model(path).file
    file = read_model_file(path)
    if file.shape != tuple(clients.shape):
        raise _differs(file, f"it takes inputs of shape {file.shape}, and the clients have {tuple(clients.shape)}")
    own, new = file.schema_digest, clients.schema_digest
    # A schema that drfl inferred from rows has their values as levels, so other rows give another one.
    is_declared = file.schema is None or not file.schema.inferred
    if own and new and is_declared and own != new:
        raise _differs(file, f"its schema is {own[:8]}…, and that of the clients is {new[:8]}…", "schema-differs")
    for what, before, now in (("columns", file.columns, clients.columns), ("classes", file.classes, clients.classes)):
        if before is not None and now is not None and before != now:
            odd = [name for name in (*before, *now) if (name in before) != (name in now)] or list(now)
            names = listing([f"'{name}'" for name in odd], "name")
            raise _differs(file, f"its {what} differ, or are in another order: {names}")
    model = copy.deepcopy(task.model)
    # The file of a run in float64 starts one in float32 too.
    dtype = {name: value.dtype for name, value in model.state_dict().items()}
    weights = {name: value.to(dtype.get(name, value.dtype)) for name, value in file.weights.items()}
    try:
        load_weights(model, weights)
    except InputError as error:
        raise InputError(
            f"`init_from`: the model in {file.path} has another architecture than `model` (parameter "
            f"'{error.field}'): use the `model` of its run, or remove `init_from`",
            code="weights-mismatch",
            field="init_from",
        ) from error
    # The first layer gets the columns. Layers before it may change their shape alone.
    first = model
    while isinstance(first, nn.Sequential) and type(first).forward is nn.Sequential.forward:
        layers = (layer for layer in first if not isinstance(layer, nn.Flatten | nn.Identity))
        first = next(layers, nn.Identity())
    before, now = file.standardisation, clients.standardisation
    if isinstance(first, nn.Linear) and not (before is None and now is None):
        ones = torch.ones(first.in_features, dtype=torch.float64)
        old_mean, old_scale = (0 * ones, ones) if before is None else (before.mean, before.scale)
        new_mean, new_scale = (0 * ones, ones) if now is None else (now.mean, now.scale)
        with torch.no_grad():
            weight = first.weight.double()
            # W((x − m)/s) + b = W(s'/s)·x' + b + W((m' − m)/s), where x' = (x − m')/s'.
            shift = weight @ ((new_mean - old_mean) / old_scale)
            if first.bias is not None:
                first.bias.add_(shift.to(first.bias.dtype))
            elif bool(shift.any()):
                raise InputError(
                    f"`init_from`: the columns have other means than those of {file.path}, and the "
                    "model's first layer has no bias to absorb the difference. Use a model with a bias "
                    "there, or standardise the data by the file: "
                    "data.standardised(drfl.load_model(path).standardisation)",
                    code="model-differs",
                    field="init_from",
                )
            first.weight.copy_(weight * (new_scale / old_scale))
    # The file has the digest of its test rows only if neither its model nor those before it were trained on them.
    unseen = file.about.get("training", {}).get("test_rows") == clients.test_digest()
    origin = {
        "path": str(path), "sha256": sha256_of(path), "run": str(file.about.get("run", "")),
        "test_rows": UNSEEN if unseen else UNKNOWN, **({"model": GLOBAL} if has_own_models(file.about) else {}),
    }  # fmt: skip
    return WarmStart(dataclasses.replace(task, model=model), origin)


def has_unseen_tests(origin: Mapping[str, object] | None) -> bool:
    """Return whether the initial model was certainly not trained on rows that are test rows now."""
    return origin is None or origin.get("test_rows") == UNSEEN


def start_notices(origin: Mapping[str, object] | None, seeds: Sequence[int] = ()) -> list[Notice]:
    """Warn if the initial model may have seen rows that are test rows now, or is not the one that its run tested.

    Args:
        origin: See :class:`WarmStart`.
        seeds: The seeds of a comparison whose test rows the model may have seen.
    """
    notices = list[Notice]()
    if origin is not None and origin.get("model") == GLOBAL:
        text = (
            "the run of `init_from` trained a model for each client, and its test results are those of these models: "
            "all clients start from its global model instead"
        )
        notices.append(Notice(text, "global-start", "init_from"))
    if not has_unseen_tests(origin):
        where = f" (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))})" if seeds else ""
        text = (
            "the initial model of `init_from` may have been trained on rows that are test rows now, so the test "
            f"results may be too good{where}: test on rows that are newer than that model, or use the same table and "
            "seed"
        )
        notices.append(Notice(text, "seen-test-rows", "init_from"))
    return notices


def differing_tensor(task: Task, weights: Mapping[str, Tensor], w: Tensor) -> str | None:
    """Return a tensor of a model that is not that of a task with the model's parameters w (d,); None if there is none.

    Only the parameters that clients train are in the vector. Frozen ones and buffers must be those of the task.
    """
    model = copy.deepcopy(task.model)
    task.layout.load(model, w)
    state = model.state_dict()
    return next(
        (name for name, value in weights.items() if name in state and not torch.equal(value, state[name])), None
    )


def _differs(file: ModelFile, problem: str, code: str = "model-differs") -> InputError:
    return InputError(
        f"`init_from`: {file.path} does not fit the clients: {problem}. Pass a model of the same columns and classes",
        code=code,
        field="init_from",
    )
