"""What a federation needs of its clients' data: two pools of samples and who holds which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from drfl import checks
from drfl.data import convert
from drfl.data.convert import encode_target, feature_columns, feature_matrix, require_present
from drfl.data.dataset import Dataset
from drfl.data.natural import split_groups
from drfl.data.partition import Partition
from drfl.data.splitting import split_rows
from drfl.errors import InputError
from drfl.key import Key

if TYPE_CHECKING:
    import pandas as pd


_KEY = Key(0)


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of N clients, as indices into a training pool and a test pool.

    Both pools may be the same tensors. A pool may be a file mapped into memory (``docs/scale.md``): it is read through
    once, to find values that are not finite, and never copied.

    Args:
        inputs: (n, ...) training pool; floating and finite, or integers such as tokens.
        targets: (n, ...) class labels (integers of at least 0) or finite floating values.
        train: per client, (n_i,) int64 indices into the training pool, at least one.
        test_inputs: (k, ...) test pool, of the same shape per sample.
        test_targets: (k, ...) its targets.
        test: per client, (k_i,) int64 indices into the test pool, at least one.
        names: per client, a unique name.
        classes: the labels' names where they were encoded from a table, else None.

    Raises:
        InputError: when any of this does not hold; names the client.
    """

    inputs: Tensor
    targets: Tensor
    train: tuple[Tensor, ...]
    test_inputs: Tensor
    test_targets: Tensor
    test: tuple[Tensor, ...]
    names: tuple[str, ...]
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not len(self.train) == len(self.test) == len(self.names) or not self.names:
            raise InputError(
                f"{len(self.names)} names, {len(self.train)} training parts and {len(self.test)} test parts: "
                "there must be equally many, at least one"
            )
        if len(set(self.names)) < len(self.names):
            raise InputError("the names of clients must differ from each other")
        _check_pool("training", self.inputs, self.targets)
        if self.test_inputs is not self.inputs or self.test_targets is not self.targets:
            _check_pool("test", self.test_inputs, self.test_targets)
            for what, a, b in (
                ("inputs", self.inputs, self.test_inputs),
                ("targets", self.targets, self.test_targets),
            ):
                if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                    raise InputError(
                        f"training and test {what} differ: {a.dtype} of shape {tuple(a.shape[1:])} per "
                        f"sample, and {b.dtype} of {tuple(b.shape[1:])}"
                    )
        _check_indices("training", self.train, len(self.inputs), self.names)
        _check_indices("test", self.test, len(self.test_inputs), self.names)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, (N,) int64."""
        return self._sizes

    @cached_property
    def _sizes(self) -> Tensor:
        return _lengths(self.train)

    def tensors(self) -> list[Tensor]:
        """Everything that it is made of, for a digest."""
        return [self.inputs, self.targets, self.test_inputs, self.test_targets, *self.train, *self.test]

    @property
    def shares(self) -> Tensor:
        """Each client's share of the training samples, (N,) float64 of sum 1."""
        sizes = self.sizes.to(torch.float64)
        return sizes / sizes.sum()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ClientData:
        """The same data with all tensors on `device` and floating ones cast to `dtype`; None changes nothing."""
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"dtype must be a floating type such as torch.float64, not {dtype}")

        def move(values: Tensor) -> Tensor:
            return values.to(device=device, dtype=dtype if values.is_floating_point() else None)

        inputs, targets = move(self.inputs), move(self.targets)
        return replace(
            self,
            inputs=inputs,
            targets=targets,
            train=_split(move(torch.cat(self.train)), self.sizes),
            # One pool for both parts stays one pool: a second copy would double the memory.
            test_inputs=inputs if self.test_inputs is self.inputs else move(self.test_inputs),
            test_targets=targets if self.test_targets is self.targets else move(self.test_targets),
            test=_split(move(torch.cat(self.test)), _lengths(self.test)),
        )

    @classmethod
    def from_dataset(cls, dataset: Dataset, partition: Partition) -> ClientData:
        """A data set, divided by a partition of it.

        Where the data set asks for it, inputs are standardised by the rows that the clients train on, all clients
        together: no test row has a say, and clients could find these means by one exchange of sums.

        Raises:
            InputError: when the partition's indices go beyond the data set.
        """
        inputs, test_inputs = dataset.inputs, dataset.test_inputs
        if dataset.standardise:
            inputs, test_inputs = _standardised(dataset, partition)
        return cls(
            inputs,
            dataset.targets,
            _tensors(partition.train),
            test_inputs,
            dataset.test_targets,
            _tensors(partition.test),
            partition.names,
        )

    @classmethod
    def from_arrays(
        cls,
        train: convert.Pairs,
        test: convert.Pairs | None = None,
        *,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype | None = torch.float32,
    ) -> ClientData:
        """Arrays or tensors that a user has, one pair (inputs, targets) a client.

        Args:
            train: by client name, or in order; inputs (n_i, ...), targets (n_i, ...).
            test: the same for testing; None splits each client's rows, by class where targets are labels.
            test_fraction: share of the rows for testing where `test` is None.
            key: names the draws of that split. A client's split depends on its name and rows alone.
            dtype: of the inputs (integer ones too) and of floating targets; None keeps both as they are,
                which float64 data and integer tokens need.

        Raises:
            InputError: when a client is empty or too small to split, shapes differ, or values are not finite.
        """
        by_name = convert.named(train)
        names = tuple(by_name)
        inputs, targets = convert.pool(names, list(by_name.values()), "training", dtype)
        sizes = [len(pair[0]) for pair in by_name.values()]
        if test is None:
            kept, held = _split_blocks(names, sizes, targets, key, test_fraction)
            return cls(inputs, targets, kept, inputs, targets, held, names)
        pairs = convert.like(test, names)
        test_inputs, test_targets = convert.pool(names, pairs, "test", dtype)
        held = _tensors(_blocks([len(pair[0]) for pair in pairs]))
        return cls(inputs, targets, _tensors(_blocks(sizes)), test_inputs, test_targets, held, names)

    @classmethod
    def from_datasets(
        cls,
        train: convert.TorchDatasets,
        test: convert.TorchDatasets | None = None,
        *,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype | None = torch.float32,
    ) -> ClientData:
        """Map-style torch datasets of items (x, y), one a client, read once into memory.

        Args:
            train: by client name, or in order.
            test: the same for testing; None splits each client's items.
            test_fraction: as in `from_arrays`.
            key: as in `from_arrays`.
            dtype: as in `from_arrays`.

        Raises:
            InputError: when a dataset is empty, not map-style or its items cannot be stacked; see
                `from_arrays`.
        """
        trained = {name: convert.stack(name, dataset) for name, dataset in convert.named(train).items()}
        tested = None
        if test is not None:
            pairs = zip(trained, convert.like(test, list(trained)), strict=True)
            tested = {name: convert.stack(name, dataset) for name, dataset in pairs}
        return cls.from_arrays(trained, tested, test_fraction=test_fraction, key=key, dtype=dtype)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        group: str,
        target: str,
        features: Sequence[str] | None = None,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype = torch.float32,
    ) -> ClientData:
        """A table with a row a sample and a column that names each row's client.

        Args:
            frame: the table.
            group: the column that names the client; one client a distinct value, in sorted order.
            target: the column to predict. Floats stay floats (regression); all else becomes classes 0..C-1 in
                sorted order, with the labels in `classes`.
            features: numeric columns to learn from; all others if None.
            test_fraction: share of each client's rows for testing.
            key: names the draws of that split.
            dtype: of the features and of a floating target.

        Raises:
            InputError: when a column is missing, not numeric, or has missing or infinite values, or a group
                has a single row; names the column or group.
        """
        frame = frame.rename(columns=str)
        columns = feature_columns(frame, group, target, features)
        if not len(frame):
            raise InputError("the table has no rows: give at least two a client")
        require_present(frame[group], group)
        X = torch.from_numpy(feature_matrix(frame, columns)).to(dtype)
        y, classes = encode_target(frame[target], target)
        Y = torch.from_numpy(y)
        groups = frame[group].to_numpy(dtype=object)
        split = split_groups(groups, None if classes is None else y, key, test_fraction)
        Y = Y.to(dtype) if classes is None else Y
        return cls(X, Y, _tensors(split.train), X, Y, _tensors(split.test), split.names, classes)


def _tensors(lists: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
    """Row numbers as tensors, all in one piece of memory: a hundred thousand small ones would take more."""
    lengths = torch.tensor([len(indices) for indices in lists], dtype=torch.int64)
    whole = np.concatenate(lists) if len(lists) else np.empty(0)
    return _split(torch.from_numpy(whole.astype(np.int64)), lengths)


def _split(index: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """Consecutive pieces of one tensor, as views."""
    return index.split(lengths.tolist())


def _lengths(lists: Sequence[Tensor]) -> Tensor:
    return torch.tensor([len(indices) for indices in lists], dtype=torch.int64)


def _standardised(dataset: Dataset, partition: Partition) -> tuple[Tensor, Tensor]:
    """Training and test pool with columns of mean 0 and standard deviation 1 over the training rows in use."""
    rows = np.unique(np.concatenate(partition.train))
    if rows[-1] >= len(dataset.inputs):
        raise InputError(f"the partition is of another data set: '{dataset.name}' has {len(dataset.inputs)} rows")
    used = dataset.inputs[torch.from_numpy(rows)].double()
    std, mean = torch.std_mean(used, dim=0, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))  # a column that is constant becomes 0

    def scaled(pool: Tensor) -> Tensor:
        return ((pool.double() - mean) / std).to(pool.dtype)

    inputs = scaled(dataset.inputs)
    return inputs, inputs if dataset.test_inputs is dataset.inputs else scaled(dataset.test_inputs)


def _blocks(sizes: Sequence[int]) -> list[np.ndarray]:
    """Row numbers of clients whose rows lie one after the other."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _split_blocks(
    names: Sequence[str], sizes: Sequence[int], targets: Tensor, key: Key, test_fraction: float
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Training and test rows of clients whose rows lie one after the other, by class where targets are labels."""
    labels = None if targets.is_floating_point() or targets.ndim > 1 else targets.numpy(force=True)
    parts = []
    for name, rows in zip(names, _blocks(sizes), strict=True):
        mine = None if labels is None else labels[rows]
        parts.append(split_rows(rows, mine, key.fold("group", name), test_fraction, f"client '{name}'"))
    return _tensors([kept for kept, _ in parts]), _tensors([held for _, held in parts])


def _check_pool(part: str, inputs: Tensor, targets: Tensor) -> None:
    if inputs.ndim < 1 or targets.ndim < 1 or len(inputs) != len(targets):
        raise InputError(
            f"{part} inputs of shape {tuple(inputs.shape)} do not go with targets of shape "
            f"{tuple(targets.shape)}; give one target a sample"
        )
    checks.finite(f"{part} inputs", inputs)
    checks.finite(f"{part} targets", targets)
    if targets.is_floating_point():
        return
    if targets.dtype != torch.int64:
        raise InputError(f"{part} targets must be int64 labels or floating values, not {targets.dtype}")
    if targets.numel() and int(targets.min()) < 0:
        raise InputError(f"{part} targets must be labels of at least 0, but hold {int(targets.min())}: encode them")


def _check_indices(part: str, lists: tuple[Tensor, ...], pool: int, names: tuple[str, ...]) -> None:
    """One look at all indices together; only where something is wrong, at each client, to name it."""
    for name, indices in zip(names, lists, strict=True):
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise InputError(f"client '{name}': {part} indices must be a 1-D int64 tensor")
        if not len(indices):
            raise InputError(f"client '{name}' has no {part} samples: leave it out or give it some")
    together = torch.cat(lists)
    if int(together.min()) >= 0 and int(together.max()) < pool:
        return
    for name, indices in zip(names, lists, strict=True):
        if int(indices.min()) < 0 or int(indices.max()) >= pool:
            raise InputError(
                f"client '{name}': {part} indices must lie in 0..{pool - 1}, but range over "
                f"{int(indices.min())}..{int(indices.max())}"
            )
