"""Partitions: the training and test rows of each client, as made by a partition method or read from a file."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol, cast, runtime_checkable

import numpy as np

from drfl.core import checks
from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.json_toml import read_json
from drfl.core.key import Key
from drfl.data.partition.splitting import holdings, share_test_set

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


_FORMAT = "drfl-partition-1"


def client_error(name: str, problem: str, code: str, at: str = ":") -> InputError:
    """Return the error for the data of a client."""
    return InputError(f"client '{name}'{at} {problem}", code=code, field=name)


def check_names(names: Sequence[str], train: Sequence[object], test: Sequence[object]) -> None:
    """Raise InputError unless each client has a name of its own, a training part and a test part."""
    if not len(train) == len(test) == len(names) or not names:
        raise InputError(
            f"expected as many names as training and test parts, at least one; got {len(names)} names, {len(train)} "
            f"training parts and {len(test)} test parts",
            code="count-mismatch",
            field="names",
        )
    # Results and draws are filed under the names.
    if len(set(names)) < len(names):
        raise InputError(
            "two clients have the same name. Give each client its own name", code="duplicate-name", field="names"
        )


@dataclass(frozen=True, eq=False)
class Partition:
    """For each client, indices of its samples in a training pool and a test pool.

    Args:
        train: For each client, sorted, distinct int64 indices, at least one.
        test: The same for the test pool. Two clients may share a test sample, see `drfl.data.partition.splitting`.
        names: For each client, a unique name.
        recipe: How the partition was made: the method's name, its parameters and the seed.

    Raises:
        InputError: If lengths differ, a client has no samples, names repeat, or indices do not match this description.
    """

    train: tuple[np.ndarray, ...]
    test: tuple[np.ndarray, ...]
    names: tuple[str, ...]
    recipe: dict[str, str | int | float]

    def __post_init__(self) -> None:
        check_names(self.names, self.train, self.test)
        for part, lists in (("training", self.train), ("test", self.test)):
            for name, indices in zip(self.names, lists, strict=True):
                if not len(indices):
                    raise client_error(name, f"has no {part} samples. Use fewer clients or more data", "no-rows", at="")
                if indices.dtype != np.int64 or indices.ndim != 1:
                    raise client_error(name, f"{part} indices must be a 1-D int64 array", "wrong-type")
                if indices[0] < 0 or (np.diff(indices) <= 0).any():
                    raise client_error(
                        name, f"{part} indices must be sorted, distinct and non-negative", "invalid-value"
                    )

    def __len__(self) -> int:
        return len(self.train)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Partition):
            return NotImplemented
        if (self.names, self.recipe) != (other.names, other.recipe):
            return False
        # The comparison of a dataclass fails for arrays, whose == has many values.
        pairs = zip(self.train + self.test, other.train + other.test, strict=True)
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    @property
    def sizes(self) -> np.ndarray:
        """Number of training samples of each client, (N,) int64."""
        return np.array([len(indices) for indices in self.train], dtype=np.int64)

    def to_json(self) -> str:
        """Return the partition as JSON."""
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
        return json.dumps(content, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write the partition as JSON, atomically.

        Raises:
            OSError: If the file cannot be written.
        """
        with atomic_write(Path(path)) as file:
            file.write(self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> Partition:
        """Read a partition that `save` wrote.

        Raises:
            InputError: If the file does not exist or is not a valid partition.
        """
        content = read_json(Path(path), limit=None)
        try:
            if not isinstance(content, dict) or content.get("format") != _FORMAT:
                raise ValueError(f"its format is not '{_FORMAT}'")
            recipe, clients = content.get("recipe"), content.get("clients")
            if not isinstance(recipe, dict) or not isinstance(clients, list):
                raise ValueError("an object 'recipe' and a list 'clients' are required")
            # `save` writes only these values: α may be ∞, but no value is NaN or −∞.
            if not all(
                isinstance(value, str | int) or (isinstance(value, float) and value > -math.inf)
                for value in recipe.values()
            ):
                raise ValueError("values in 'recipe' must be strings or numbers")
            if not all(isinstance(client, dict) and isinstance(client.get("name"), str) for client in clients):
                raise ValueError("each client must have a 'name', a list 'train' and a list 'test'")
            return cls(
                tuple(_indices_from_json(client, "train") for client in clients),
                tuple(_indices_from_json(client, "test") for client in clients),
                tuple(client["name"] for client in clients),
                {name: math.inf if value == "inf" else value for name, value in recipe.items()},
            )
        except ValueError as error:  # those of the partition itself, too
            raise InputError(
                f"'{path}' is not a valid partition file: {error}", code="damaged-file", field=str(path)
            ) from error


def _indices_from_json(client: dict[str, object], part: str) -> np.ndarray:
    values = client.get(part)
    # Larger numbers would overflow int64, and JSON's true must not count as 1.
    if not isinstance(values, list) or not all(type(value) is int and abs(value) < 2**63 for value in values):
        raise ValueError(f"client '{client['name']}' must have a list '{part}' of integers")
    return np.array(cast(list[int], values), dtype=np.int64)


def client_names(n: int) -> tuple[str, ...]:
    """Return the names ``client-00``, ``client-01``, … numbered from 0 like all client indices in drfl."""
    # With equal widths, names sort like numbers.
    width = len(str(n - 1))
    return tuple(f"client-{i:0{width}d}" for i in range(n))


@runtime_checkable
class PartitionMethod(Protocol):
    """A frozen dataclass of parameters that divides labelled samples among clients.

    The partition depends only on the labels, the parameters and the key.
    """

    name: ClassVar[str]

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        ...

    def split(self, targets: np.ndarray, test_targets: np.ndarray, classes: int, key: Key) -> Partition:
        """Divide a training pool and a test pool.

        Args:
            targets: (n,) Integer labels of the training pool in 0..classes-1.
            test_targets: (k,) Labels of the test pool.
            classes: C, the number of classes.
            key: Key of the draws.

        Raises:
            InputError: If labels are out of range or there are too few samples.
        """
        ...


def check_labels(
    method: PartitionMethod, targets: np.ndarray, test_targets: np.ndarray, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return both label arrays as int64, after checking them and the number of training samples."""
    y = checks.labels("training labels", targets, classes)
    y_test = checks.labels("test labels", test_targets, classes)
    if method.clients > len(y):
        raise InputError(
            f"cannot divide {len(y)} training samples among {method.clients} clients. Use fewer clients or more data",
            code="few-rows",
            field="clients",
        )
    return y, y_test


def finish(
    method: PartitionMethod,
    train: tuple[np.ndarray, ...],
    labels: tuple[np.ndarray, np.ndarray],
    classes: int,
    key: Key,
    counts: np.ndarray | None = None,
) -> Partition:
    """Add test data, names and the recipe to a method's training indices.

    Test data are divided by ``counts`` (N, C), the numbers of training samples; None uses those of ``train``.
    """
    if counts is None:
        counts = holdings(train, labels[0], classes)
    test = share_test_set(counts, labels[1], key.fold("test"))
    # The protocol cannot express that every method is a dataclass of plain values.
    fields = dataclasses.fields(cast("DataclassInstance", method))
    parameters: dict[str, str | int | float] = {field.name: getattr(method, field.name) for field in fields}
    recipe: dict[str, str | int | float] = {"partition": method.name, **parameters, "seed": key.seed}
    return Partition(train, test, client_names(len(train)), recipe)
