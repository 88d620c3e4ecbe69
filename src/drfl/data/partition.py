"""Which samples each client holds, and the file that keeps it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from drfl.data.files import atomic_write
from drfl.errors import InputError

_FORMAT = "drfl-partition-1"


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices of samples per client, into a training and a test pool.

    Args:
        train: per client, sorted int64 indices without repetition, at least one.
        test: the same for the test pool. A test sample may be in two clients, see `drfl.data.held_out`.
        names: per client, a unique name.
        recipe: how it was made: the method's name, its parameters and the seed.

    Raises:
        InputError: when lengths disagree, a client is empty, names repeat, or indices are not as above.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    recipe: dict[str, str | int | float]

    def __post_init__(self) -> None:
        if not len(self.train) == len(self.test) == len(self.names) or not self.names:
            raise InputError(
                f"a partition needs as many training parts ({len(self.train)}) as test parts "
                f"({len(self.test)}) and names ({len(self.names)}), and at least one"
            )
        if len(set(self.names)) < len(self.names):
            raise InputError("the names of clients must differ from each other")
        for part, lists in (("training", self.train), ("test", self.test)):
            _check_indices(part, lists, self.names)

    def __len__(self) -> int:
        return len(self.train)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        if (self.names, self.recipe) != (other.names, other.recipe):
            return False
        pairs = zip(self.train + self.test, other.train + other.test, strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples per client, (N,) int64."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    def save(self, path: str | Path) -> None:
        """Writes the partition as JSON, whole or not at all.

        Raises:
            OSError: when the file cannot be written.
        """
        clients = zip(self.names, self.train, self.test, strict=True)
        # JSON has no infinity, and alpha may be infinite.
        recipe = {
            name: str(value) if isinstance(value, float) and math.isinf(value) else value
            for name, value in self.recipe.items()
        }
        content = {
            "format": _FORMAT,
            "recipe": recipe,
            "clients": [{"name": n, "train": t.tolist(), "test": k.tolist()} for n, t, k in clients],
        }
        with atomic_write(Path(path)) as file:
            file.write(json.dumps(content, allow_nan=False).encode())

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Reads what `save` wrote.

        Raises:
            InputError: when there is no such file or it is not a partition.
        """
        try:
            content: object = json.loads(Path(path).read_bytes())
        except FileNotFoundError:
            raise InputError(f"there is no partition file '{path}'") from None
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(f"cannot read the partition file '{path}': {error}") from error
        try:
            return cls._from_json(content)
        except InputError as error:
            raise InputError(f"'{path}' is not a partition that drfl can use: {error}") from error

    @classmethod
    def _from_json(cls, content: object) -> Partition:
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise InputError(f"it is not marked as '{_FORMAT}'")
        recipe, clients = content.get("recipe"), content.get("clients")
        if not isinstance(recipe, dict) or not isinstance(clients, list):
            raise InputError("it needs a table 'recipe' and a list 'clients'")
        if not all(isinstance(value, str | int) or _number(value) for value in recipe.values()):
            raise InputError("the values in 'recipe' must be strings or numbers")
        if not all(isinstance(client, dict) and isinstance(client.get("name"), str) for client in clients):
            raise InputError("every client needs a 'name', a list 'train' and a list 'test'")
        return cls(
            tuple(_indices_from_json(client, "train") for client in clients),
            tuple(_indices_from_json(client, "test") for client in clients),
            tuple(client["name"] for client in clients),
            {name: math.inf if value == "inf" else value for name, value in recipe.items()},
        )


def _number(value: object) -> bool:
    """Whether it is a float that `save` can write: α may be ∞, no value is NaN or −∞."""
    return isinstance(value, float) and value > -math.inf


def _indices_from_json(client: dict[str, object], part: str) -> np.ndarray:
    values = client.get(part)
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**63 for value in values):
        raise InputError(f"client '{client['name']}' needs a list '{part}' of integers")
    return np.array(cast(list[int], values), dtype=np.int64)


def _check_indices(part: str, lists: tuple[np.ndarray, ...], names: tuple[str, ...]) -> None:
    for name, indices in zip(names, lists, strict=True):
        if not len(indices):
            raise InputError(f"client '{name}' has no {part} samples: use fewer clients or more data")
        if indices.dtype != np.int64 or indices.ndim != 1:
            raise InputError(f"client '{name}': {part} indices must be a 1-D int64 array")
        if indices[0] < 0 or (np.diff(indices) <= 0).any():
            raise InputError(f"client '{name}': {part} indices must be sorted, different and not negative")


def client_names(n: int) -> tuple[str, ...]:
    """Names ``client-00``, ``client-01``, … numbered from 0 like every client index of drfl."""
    width = len(str(n - 1))
    return tuple(f"client-{i:0{width}d}" for i in range(n))
