"""Clients from map-style torch datasets, whose items are inputs, a target and perhaps metadata."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import Subset

from drfl.core.errors import DataWarning, InputError, Notice, unknown
from drfl.data.partition.partition import client_error
from drfl.data.tables.convert import Pair, check_not_ragged, with_text_names
from drfl.task.input_fields import has_fields, tensor_of

Item = tuple[object, ...]

REMEDY = (
    "Convert Hugging Face data with to_pandas() for from_frame, or pass with_format('torch') columns to from_arrays"
)
"""Remedy if the items are dictionaries."""

TorchDatasets = Mapping[str, TorchDataset[Item]] | Sequence[TorchDataset[Item]]


def by_client(datasets: TorchDatasets | TorchDataset[Item], group: int | str | None) -> TorchDatasets:
    """Return one dataset per client: the given ones, or the parts of a single one that :func:`divide` returns."""
    is_single = not isinstance(datasets, Mapping | Sequence)
    if is_single and group is not None:
        return divide(datasets, group)
    if is_single or group is not None:
        problem = "a single dataset needs" if is_single else "several datasets must not have"
        raise InputError(
            f"{problem} group, the entry of the items' metadata that names the client. Pass one dataset "
            "per client, or one with group",
            code="missing-option" if is_single else "conflicting-options",
            field="group",
        )
    return datasets


def divide(dataset: TorchDataset[Item], group: int | str) -> dict[str, Subset[Item]]:
    """Divide a dataset of items (x, y, metadata) among clients that an entry of the metadata names.

    Metadata are dictionaries, vectors, or single values. If the dataset has the attribute ``metadata_array``
    (n, fields), as data sets of WILDS have, the items are not read. Entries of vectors have names if it has the
    attribute ``metadata_fields``. Clients are in sorted order of the values.
    """
    length, known = _length("the dataset", dataset, "train"), getattr(dataset, "metadata_fields", None)
    entry = group
    if isinstance(group, str) and known is not None:
        if group not in known:
            raise unknown("metadata field", group, list(known), field="group")
        entry = list(known).index(group)
    array: Any = getattr(dataset, "metadata_array", None)
    rows: dict[object, list[int]] = {}
    for k in range(length):
        item = dataset[k] if array is None else (None, None, array[k])
        if isinstance(item, Mapping):
            raise InputError(
                f"the dataset must have items (x, y, metadata), got a dict with keys {', '.join(map(str, item))}. "
                f"{REMEDY}",
                code="wrong-type",
                field="train",
            )
        try:
            data: Any = item[2]
            if not isinstance(data, Mapping):  # one value, or a vector of them
                data, entry = np.atleast_1d(np.asarray(data)), operator.index(cast(int, entry))
            value = np.asarray(data[entry]).reshape(()).item()
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"item {k} of the dataset has no metadata {group!r}: pass items (x, y, metadata) with this entry",
                code="missing-option",
                field="group",
            ) from error
        # NaN is not equal to itself, so each one would be a client.
        if value is None or value != value:
            raise InputError(
                f"item {k} of the dataset: metadata {group!r} is blank: remove such items",
                code="missing-values",
                field="group",
            )
        # Metadata in one tensor with real numbers are floats.
        rows.setdefault(int(value) if isinstance(value, float) and value.is_integer() else value, []).append(k)
    ordered = sorted(rows, key=lambda value: (isinstance(value, str), value))
    return with_text_names({value: Subset(dataset, rows[value]) for value in ordered})


def _length(what: str, dataset: object, field: str) -> int:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(
            f"{what} must have __len__ and __getitem__ (a map-style torch dataset)", code="wrong-type", field=field
        )
    return len(cast(Sequence[object], dataset))


def stack(name: str, dataset: TorchDataset[Item]) -> Pair:
    """Stack the inputs and targets of all items of a map-style torch dataset."""
    length = _length(f"client '{name}': its dataset", dataset, name)
    if not length:
        raise client_error(name, "has an empty dataset. Add samples or remove the client", "no-rows", at="")
    try:
        inputs, targets = zip(*(_item(dataset[k]) for k in range(length)), strict=True)
        if any(x.keys() != inputs[0].keys() for x in inputs):
            raise ValueError("their inputs have different fields")
        fields = {field: [x[field] for x in inputs] for field in inputs[0]}
        for field, values in fields.items():
            check_not_ragged(name, "inputs" if field is None else f"inputs '{field}'", values)
        # Read eight items, because a randomly flipped image is unchanged in every other reading.
        again = [_item(dataset[k])[0] for k in range(min(length, 8))]
        if not all(torch.equal(x[field], inputs[k][field]) for k, x in enumerate(again) for field in fields):
            notice = Notice(
                f"client '{name}': its dataset returns different items each time it is read. drfl reads "
                "it once, so all epochs use the same samples. To augment, use drfl.Task(…, augment=…)",
                "random-dataset",
                name,
            )
            warnings.warn(notice, DataWarning, stacklevel=4)
        stacked = {field: torch.stack(values) for field, values in fields.items()}
        if None in stacked:
            return stacked[None], torch.stack(targets)
        named = {field: values for field, values in stacked.items() if isinstance(field, str)}
        return named or tuple(stacked.values()), torch.stack(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise client_error(name, f"cannot stack the items of its dataset: {error}", "wrong-type") from error


def _item(item: Item) -> tuple[dict[str | int | None, Tensor], Tensor]:
    """Return the inputs of an item by name, by number for a tuple, or by None for one tensor; and its target."""
    if isinstance(item, Mapping):
        raise ValueError(f"items must be (x, y), got a dict with keys {', '.join(map(str, item))}. {REMEDY}")
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise ValueError(f"items must be (x, y) or (x, y, metadata), got an object of type {type(item).__name__}{size}")
    # Metadata name the client and are not inputs.
    x, y = item[:2] if len(item) == 3 else item
    named = {None: x}
    if has_fields(x):
        named = {str(name): value for name, value in x.items()} if isinstance(x, Mapping) else dict(enumerate(x))
    return {name: tensor_of(value) for name, value in named.items()}, tensor_of(y)
