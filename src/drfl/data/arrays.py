"""Clients' arrays, as users have them, turned into one pool of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from drfl.data.partition import client_names
from drfl.errors import InputError

Array = np.ndarray | Tensor
Pair = tuple[Array, Array]
Pairs = Mapping[str, Pair] | Sequence[Pair]
TorchDatasets = Mapping[str, TorchDataset[tuple[object, object]]] | Sequence[TorchDataset[tuple[object, object]]]

_T = TypeVar("_T")


def named(clients: Mapping[str, _T] | Sequence[_T]) -> dict[str, _T]:
    """Clients by name; those of a sequence are named by `client_names`.

    Raises:
        InputError: when there is none.
    """
    if not len(clients):
        raise InputError("there are no clients: give at least one")
    if isinstance(clients, Mapping):
        return {str(name): value for name, value in clients.items()}
    return dict(zip(client_names(len(clients)), clients, strict=True))


def like(clients: Mapping[str, _T] | Sequence[_T], names: Sequence[str]) -> list[_T]:
    """Test data in the order of the training data's names.

    Raises:
        InputError: when a mapping has other names, or a sequence another length.
    """
    if not isinstance(clients, Mapping):
        if len(clients) != len(names):
            raise InputError(f"there are {len(names)} clients but test data for {len(clients)}: give one each")
        return list(clients)
    by_name = named(clients)
    if set(by_name) != set(names):
        odd = sorted(set(by_name) ^ set(names))
        raise InputError(f"training and test data must name the same clients; only one of them has '{odd[0]}'")
    return [by_name[name] for name in names]


def pool(names: Sequence[str], pairs: Sequence[Pair], part: str, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """All clients' samples, one client after the other.

    Args:
        names: of the clients.
        pairs: per client, inputs (n_i, ...) and targets (n_i, ...).
        part: "training" or "test", for errors.
        dtype: of the inputs and of floating targets; None keeps them as they are.

    Returns:
        Inputs (n, ...) and targets (n, ...), n = Σ n_i; whole targets are int64.

    Raises:
        InputError: when a client has no samples, as many inputs as targets are not there, or shapes or kinds
            differ between clients.
    """
    inputs, targets = [], []
    for name, pair in zip(names, pairs, strict=True):
        x, y = _as_pair(name, pair, part)
        inputs.append(x)
        targets.append(y)
    for what, tensors in (("inputs", inputs), ("targets", targets)):
        _check_alike(names, tensors, f"{part} {what}")
    X, Y = torch.cat(inputs), torch.cat(targets)
    if dtype is not None:
        X = X.to(dtype)
    if not Y.is_floating_point():
        Y = Y.to(torch.int64)
    elif dtype is not None:
        Y = Y.to(dtype)
    return X, Y


def _as_pair(name: str, pair: Pair, part: str) -> tuple[Tensor, Tensor]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise InputError(f"client '{name}': {part} data must be a pair (inputs, targets)")
    try:
        # A copy, because a tensor that shares memory would change when the user's array does.
        x, y = (value.detach() if isinstance(value, Tensor) else torch.tensor(np.asarray(value)) for value in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"client '{name}': {part} data are not numeric arrays: {error}") from error
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise InputError(
            f"client '{name}': {part} inputs of shape {tuple(x.shape)} do not go with targets of shape "
            f"{tuple(y.shape)}; give one target a sample"
        )
    if not len(x):
        raise InputError(f"client '{name}' has no {part} samples: leave it out or give it some")
    return x, y


def _check_alike(names: Sequence[str], tensors: Sequence[Tensor], what: str) -> None:
    first = tensors[0]
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{what} differ in shape per sample: {tuple(first.shape[1:])} in client '{names[0]}', "
                f"{tuple(tensor.shape[1:])} in client '{name}'"
            )
        if tensor.is_floating_point() != first.is_floating_point():
            raise InputError(
                f"{what} differ in kind: {first.dtype} in client '{names[0]}', {tensor.dtype} in client '{name}'"
            )


def stack(name: str, dataset: TorchDataset[tuple[object, object]]) -> Pair:
    """All items (x, y) of a map-style torch dataset, stacked.

    Raises:
        InputError: when it has no length, no items, or items that are not pairs or differ in shape.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InputError(f"client '{name}': its dataset needs __len__ and __getitem__ (a map-style torch dataset)")
    length = len(cast(Sequence[object], dataset))
    if not length:
        raise InputError(f"client '{name}': its dataset is empty; leave it out or give it samples")
    try:
        inputs, targets = zip(*(_item(dataset[k]) for k in range(length)), strict=True)
        return torch.stack(inputs), torch.stack(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"client '{name}': its dataset's items cannot be stacked: {error}") from error


def _item(item: tuple[object, object]) -> tuple[Tensor, Tensor]:
    x, y = (value if isinstance(value, Tensor) else torch.tensor(np.asarray(value)) for value in item)
    return x, y
