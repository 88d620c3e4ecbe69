"""The file of a trained model: the ``state_dict()`` of the user's module, with metadata that describe how to use it."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save
from torch import Tensor

from drfl.core.errors import DrflWarning, InputError, Notice
from drfl.core.files import reading
from drfl.core.json_toml import parse_json
from drfl.core.tensor_files import read_tensors
from drfl.data.standardisation import Standardisation
from drfl.data.tables.schema import TableSchema
from drfl.task.input_fields import InputFields

KEY = "drfl"
"""Key of the document in the metadata."""

FORMAT = 1
"""Version of the document. It increases if older readers would use a newer model incorrectly."""

PREPARATION = ("schema", "inferred", "standardisation", "features", "fields")
"""Steps between a table, or images, and the inputs of the module."""

TYPES = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64, torch.int64)}
"""Types of inputs by name."""

KINDS = ("classification", "regression", "multi-label")

MOST_CLASSES = 1_000_000

LARGEST_ROW = 2**28
"""Maximum number of values of an input."""


class Threshold(NamedTuple):
    """The probability of the positive class above which it is predicted.

    Args:
        log_odds: The threshold on the log-odds.
        chosen_on: "validation" if validation rows chose it; None for ½, which nothing chose.
    """

    log_odds: float = 0.0
    chosen_on: str | None = None

    @property
    def probability(self) -> float:
        """The threshold on the probability."""
        return (1 + math.tanh(self.log_odds / 2)) / 2


class ModelFile(NamedTuple):
    """The content of a model file, checked.

    Args:
        weights: The ``state_dict()`` of the user's module.
        about: The whole document in the metadata.
        dtype: Type to which inputs are rounded before the module gets them; int64 for tokens.
        schema: The schema that encodes raw columns; None if there is none, or the file has only its digest.
        features: Recipe of the features that a backbone computed from images; None if the inputs are the data.
        fields: The tensors that a row of the inputs holds, if the module takes a dictionary or tuple; None otherwise.
    """

    path: Path
    weights: dict[str, Tensor]
    about: Mapping[str, Any]
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    columns: tuple[str, ...] | None
    classes: tuple[str, ...] | None
    threshold: Threshold
    schema: TableSchema | None
    schema_digest: str
    standardisation: Standardisation | None
    features: str | None
    fields: InputFields | None


def model_bytes(
    state: Mapping[str, Tensor],
    about: Mapping[str, object],
    *,
    schema: TableSchema | None = None,
    standardisation: Standardisation | None = None,
    features: str | None = None,
    fields: InputFields | None = None,
) -> bytes:
    """Return the content of a model file. No two tensors may share memory, because safetensors does not accept that."""
    preparation: dict[str, object] = {}
    if schema is not None:
        preparation |= {"schema": schema.to_plain(), "inferred": schema.inferred}
        about = {**about, "schema": schema.digest}
    if standardisation is not None:
        columns = {"mean": standardisation.mean.tolist(), "scale": standardisation.scale.tolist()}
        preparation["standardisation"] = columns
    if features is not None:
        preparation["features"] = features
    if fields is not None:
        preparation["fields"] = asdict(fields)
    # The document is in the file's metadata, because a second file could get lost.
    document = {"format_version": FORMAT, **about, "preparation": preparation}
    # NaN is not JSON, and other readers would reject it.
    metadata = {KEY: json.dumps(document, allow_nan=False)}
    return save({name: value.contiguous() for name, value in state.items()}, metadata)


def read_model_file(path: Path) -> ModelFile:
    """Read and check a model file."""
    tensors, metadata = read_tensors(path, problem="is not a drfl model file")
    if KEY not in metadata and any("/" in name for name in tensors):
        raise InputError(
            f"{path} holds the personal models of several clients: pass their folder, {path.parent}, and name one "
            "with `client`",
            code="unsupported-file",
            field=str(path),
        )
    if KEY not in metadata:
        raise InputError(
            f"{path} is not a drfl model file: its metadata have no '{KEY}'. Read plain weights with "
            "safetensors.torch.load_file",
            code="unsupported-file",
            field=str(path),
        )
    about = parse_document(path, metadata[KEY])
    for name, values in tensors.items():
        if values.is_floating_point() and bool(values.float().isnan().any()):
            raise InputError(
                f"{path} is damaged: '{name}' has values that are not numbers", code="damaged-file", field=str(path)
            )
    with reading(path, "has damaged metadata"):
        return _checked(path, tensors, about)


def parse_document(path: Path, document: str) -> dict[str, Any]:
    """Return the document of a model file."""
    damaged = "has damaged metadata"
    about = parse_json(document.encode(), path, damaged)
    with reading(path, damaged):
        if not isinstance(about, dict):
            raise ValueError(f"expected an object, found a {type(about).__name__}")
        version, preparation = about["format_version"], about["preparation"]
        # Do not ignore an unknown preparation step: the model's outputs would be wrong.
        if type(version) is not int or version > FORMAT or set(preparation) - set(PREPARATION):
            raise InputError(
                f"{path} was written by a newer drfl: format {version!r:.20}, preparation "
                f"{sorted(preparation)!r:.60}. This version reads format {FORMAT}. Update drfl",
                code="unsupported-file",
                field=str(path),
            )
        return about


def _checked(path: Path, weights: dict[str, Tensor], about: Mapping[str, Any]) -> ModelFile:
    """Check the entries of a document that decide how the model is used. Exceptions are those of a damaged file."""
    preparation = about["preparation"]
    shape, dtype = tuple(about["inputs"]["shape"]), TYPES.get(about["inputs"]["dtype"])
    # For isinstance, true is a whole number too.
    _require(all(type(size) is int and size > 0 for size in shape), "the shape of an input is not one of numbers")
    # A crafted file must not make the reader allocate a huge row.
    _require(math.prod(shape) <= LARGEST_ROW, f"an input has more than {LARGEST_ROW:,} values")
    if dtype is None:
        raise ValueError("the type of inputs is unknown")
    kind = about["task"]["kind"]
    _require(kind in KINDS, "the kind of task is unknown")
    names = dict[str, tuple[str, ...] | None]()
    for key in ("columns", "classes"):
        texts = about.get(key)
        _require(
            texts is None or (isinstance(texts, list) and all(isinstance(text, str) for text in texts)),
            f"'{key}' is not a list of texts",
        )
        _require(texts is None or len(set(texts)) == len(texts), f"'{key}' names something twice")
        names[key] = None if texts is None else tuple(texts)
    columns, classes = names["columns"], names["classes"]
    _require(columns is None or shape == (len(columns),), "the names of the columns do not match the inputs")
    _require(classes is None or len(classes) <= MOST_CLASSES, "there are too many classes")
    digest = about.get("schema", "")
    _require(
        isinstance(digest, str) and re.fullmatch("|[0-9a-f]{64}", digest) is not None, "the schema has no valid digest"
    )
    schema, inferred = None, preparation.get("inferred", False)
    _require(isinstance(inferred, bool), "it is unknown whether the schema is inferred")
    if preparation.get("schema") is not None:
        # The plain form of a schema does not record whether drfl inferred it.
        schema = replace(TableSchema.of(preparation["schema"]), inferred=inferred)
        # Sites recognise a schema by its digest.
        _require(schema.digest == digest, "the schema does not have its digest")
        _require(shape == (len(schema.features),), "the schema does not match the inputs")
    standardisation = None
    if preparation.get("standardisation") is not None:
        parts = (torch.tensor(preparation["standardisation"][n], dtype=torch.float64) for n in ("mean", "scale"))
        standardisation = Standardisation(*parts)
        _require(shape == tuple(standardisation.mean.shape), "the standardisation does not match the inputs")
    features = preparation.get("features")
    _require(features is None or isinstance(features, str), "the recipe of the features is not a text")
    fields = None if "fields" not in preparation else InputFields.of_plain(preparation["fields"])
    _require(fields is None or shape == (fields.width,), "the fields do not match the inputs")
    cut = about.get("threshold", {"log_odds": 0.0, "chosen_on": None})
    log_odds, chosen_on = cut["log_odds"], cut["chosen_on"]
    _require(type(log_odds) in (int, float) and math.isfinite(log_odds), "the threshold is not a number")
    _require(chosen_on is None or isinstance(chosen_on, str), "the origin of the threshold is not a text")
    for name in ("module", "metrics", "training"):
        _require(isinstance(about.get(name, {}), dict), f"'{name}' is not an object")
    # The card of the model formats these values.
    for value in (*about.get("metrics", {}).values(), *about.get("training", {}).values()):
        _require(value is None or isinstance(value, str) or abs(value) < 1e300, "a result is not a finite number")
    return ModelFile(
        path, weights, about, kind, shape, dtype, columns, classes, Threshold(float(log_odds), chosen_on), schema,
        digest, standardisation, features, fields,
    )  # fmt: skip


def _require(is_right: bool, problem: str) -> None:
    if not is_right:
        raise ValueError(problem)


def split_weights(tensors: Mapping[str, Tensor]) -> tuple[Standardisation | None, dict[str, Tensor]]:
    """Return tensors that were read without their metadata, with None for the standardisation.

    This gives a warning, because ``safetensors.torch.load_file`` drops the metadata, which hold the input preparation.
    Use :func:`drfl.load_model` to read both.

    Args:
        tensors: Tensors by name.

    Returns:
        None for the standardisation, and the weights.
    """
    text = "these tensors do not contain the input preparation. Pass the file's path to drfl.load_model"
    warnings.warn(DrflWarning(Notice(text, "no-preparation")), stacklevel=2)
    return None, dict(tensors)
