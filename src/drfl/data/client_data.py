"""What a federation needs of its clients' data: two pools of samples and who holds which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice
from drfl.core.html_table import html_table
from drfl.core.key import Key
from drfl.data.dataset import Dataset
from drfl.data.partition.natural import Natural, make_partition, split_groups
from drfl.data.partition.partition import Partition, PartitionMethod
from drfl.data.partition.row_lists import as_tensors, blocks, held_out, joined, lengths, pieces, split_blocks
from drfl.data.pools import ConstantAnswer, check_indices, check_pool, constant_answer, majority_shares
from drfl.data.standardisation import Standardisation, is_table, of_all
from drfl.data.tables import convert
from drfl.data.tables.conform import conform, target_tensor
from drfl.data.tables.convert import encode_targets, feature_columns, feature_matrix, require_present
from drfl.data.tables.schema import TableSchema

if TYPE_CHECKING:
    import pandas as pd


_KEY = Key(0)

SHOWN = 12
"""Clients that a notebook lists."""


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
        standardisation: by what the inputs of both pools were standardised already; None = they are in raw units.
        validation: per client, indices into the training pool of rows that are kept out of training to select a model
            by, at least one; None = there are none.
        columns: (p,) what the columns of inputs (n, p) are called, where they have names.
        notices: What a user should check, as the reader of the files found it; see :func:`drfl.data.data_warnings`.
        schema: Digest of the :class:`drfl.TableSchema` by which a table was encoded; "" if there is none. With it,
            inputs may be NaN where values are missing, until they are standardised.

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
    standardisation: Standardisation | None = None
    validation: tuple[Tensor, ...] | None = None
    columns: tuple[str, ...] | None = None
    notices: tuple[Notice, ...] = ()
    schema: str = ""

    def __post_init__(self) -> None:
        if not len(self.train) == len(self.test) == len(self.names) or not self.names:
            raise InputError(
                f"{len(self.names)} names, {len(self.train)} training parts and {len(self.test)} test parts: "
                "there must be equally many, at least one",
                code="count-mismatch",
                field="names",
            )
        if len(set(self.names)) < len(self.names):
            raise InputError("the names of clients must differ from each other", code="duplicate-name", field="names")
        missing = bool(self.schema) and self.standardisation is None
        check_pool("training", self.inputs, self.targets, missing)
        # If both parts share one pool, it is checked once.
        if self.test_inputs is not self.inputs or self.test_targets is not self.targets:
            check_pool("test", self.test_inputs, self.test_targets, missing)
            for what, a, b in (
                ("inputs", self.inputs, self.test_inputs),
                ("targets", self.targets, self.test_targets),
            ):
                if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                    raise InputError(
                        f"training and test {what} differ: {a.dtype} of shape {tuple(a.shape[1:])} per "
                        f"sample, and {b.dtype} of {tuple(b.shape[1:])}",
                        code="wrong-shape",
                        field=what,
                    )
        if self.columns is not None and self.inputs.shape[1:] != (len(self.columns),):
            raise InputError(
                f"{len(self.columns)} names of columns for inputs {tuple(self.inputs.shape)}: give one a column",
                code="count-mismatch",
                field="columns",
            )
        check_indices("training", self.train, len(self.inputs), self.names)
        check_indices("test", self.test, len(self.test_inputs), self.names)
        if self.validation is not None:
            if len(self.validation) != len(self.names):
                raise InputError(
                    f"{len(self.validation)} validation parts for {len(self.names)} clients",
                    code="count-mismatch",
                    field="validation",
                )
            check_indices("validation", self.validation, len(self.inputs), self.names)

    def __repr__(self) -> str:
        sizes, first = self.sizes, ", ".join(self.names[:3])
        shown = first + (", …" if self.n > 3 else "")
        rows = f"{int(sizes.min()):,} to {int(sizes.max()):,} training rows each"
        return f"<ClientData of {self.n} clients ({shown}), {rows}, inputs {tuple(self.inputs.shape[1:])}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        parts = {"training rows": self.sizes, "test rows": lengths(self.test)}
        if self.validation is not None:
            parts["validation rows"] = lengths(self.validation)
        shown = {name: sizes[:SHOWN].tolist() for name, sizes in parts.items()}
        return html_table(repr(self), pd.DataFrame({"client": self.names[:SHOWN], **shown}), more=self.n - SHOWN)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return len(self.train)

    @property
    def sizes(self) -> Tensor:
        """Training samples per client, (N,) int64."""
        return self._sizes

    # A protocol requires `sizes` as a property, and type checkers do not accept a cached property for it.
    @cached_property
    def _sizes(self) -> Tensor:
        return lengths(self.train)

    @cached_property
    def majority(self) -> Tensor | None:
        """Share of the most frequent class among each client's test rows, (N,) float64; None without class labels."""
        return majority_shares(self.test_targets, self.test)

    @cached_property
    def constant(self) -> ConstantAnswer | None:
        """What always giving the most frequent class scores on the test rows, where that looks good."""
        return constant_answer(self.test_targets, self.test, self.classes)

    @property
    def shares_test_rows(self) -> bool:
        """Whether some test row is that of two clients, or counts twice at one."""
        rows = torch.cat(self.test)
        # Partitions lend a test row to a client that has none.
        return len(rows.unique()) < len(rows)

    @cached_property
    def has_missing(self) -> bool:
        """Whether inputs are NaN where values are missing, which standardising replaces by the mean."""
        pools = (self.inputs,) if self.test_inputs is self.inputs else (self.inputs, self.test_inputs)
        return bool(self.schema) and self.standardisation is None and any(bool(x.isnan().any()) for x in pools)

    def tensors(self) -> list[Tensor]:
        """Everything that it is made of, for a digest."""
        held = self.validation or ()
        return [self.inputs, self.targets, self.test_inputs, self.test_targets, *self.train, *self.test, *held]

    @property
    def shares(self) -> Tensor:
        """Each client's share of the training samples, (N,) float64 of sum 1."""
        sizes = self.sizes.to(torch.float64)
        return sizes / sizes.sum()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ClientData:
        """The same data with all tensors on `device` and floating ones cast to `dtype`; None changes nothing."""
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(
                f"dtype must be a floating type such as torch.float64, not {dtype}", code="wrong-type", field="dtype"
            )

        def move(values: Tensor) -> Tensor:
            # Labels and row numbers stay integers.
            return values.to(device=device, dtype=dtype if values.is_floating_point() else None)

        inputs, targets = move(self.inputs), move(self.targets)
        return replace(
            self,
            inputs=inputs,
            targets=targets,
            # All indices are copied at once: on a GPU each copy takes microseconds.
            train=pieces(move(torch.cat(self.train)), self.sizes),
            # One pool for both parts stays one pool: a second copy would double the memory.
            test_inputs=inputs if self.test_inputs is self.inputs else move(self.test_inputs),
            test_targets=targets if self.test_targets is self.targets else move(self.test_targets),
            test=pieces(move(torch.cat(self.test)), lengths(self.test)),
            validation=self.validation and pieces(move(torch.cat(self.validation)), lengths(self.validation)),
        )

    def with_validation(self, fraction: float = 0.2, key: Key = _KEY) -> ClientData:
        """The same clients, with a share of each one's training rows kept out of training, to select a model by.

        A client's split is by class where targets are labels, and depends on its name and rows alone. A client with a
        single row trains and is validated on it. Inputs stay as they are: where they are standardised they stay so, and
        validation rows had a say in the scale.

        Args:
            fraction: the share, strictly between 0 and 1; at least one row goes to each part.
            key: names the draws.

        Raises:
            InputError: the fraction is out of range, or the data have validation rows already.
        """
        if self.validation is not None:
            raise InputError(
                "the data have validation rows already: leave one of the two out",
                code="conflicting-options",
                field="validation",
            )
        checks.inner_fraction("validation", fraction)
        parts = [
            # The key depends on the client's name, so its rows are the same whichever other clients take part.
            held_out(self.targets, rows, fraction, key.fold("validation", name))
            for name, rows in zip(self.names, self.train, strict=True)
        ]
        train, validation = (joined(own) for own in zip(*parts, strict=True))
        return replace(self, train=train, validation=validation)

    def standardised(self, by: Standardisation | None = None) -> ClientData:
        """The same data with columns of mean 0 and standard deviation 1, over all clients' training rows together.

        No test row has a say; test rows are scaled like the others. Clients could find these numbers by telling
        nothing but their counts, means and variances, which is how they are computed here. A column that is constant
        becomes 0, and so does a missing value (NaN).

        Args:
            by: mean and scale to take instead.

        Raises:
            InputError: when inputs are not floating-point vectors, are too large, or were standardised before.
        """
        if self.standardisation is not None:
            raise InputError(
                "the data are standardised already: leave one of the two out",
                code="conflicting-options",
                field="standardise",
            )
        if not is_table(self.inputs):
            raise InputError(
                f"only floating-point inputs (n, p) can be standardised, not {self.inputs.dtype} of shape "
                f"{tuple(self.inputs.shape)}: set standardise=False",
                code="unsupported-data",
                field="standardise",
            )
        if by is None:
            # Only training rows determine the scale: test rows must not influence training.
            by = Standardisation.of(of_all(self.inputs, self.train, self.names))
        inputs = by.apply(self.inputs)
        tests = inputs if self.test_inputs is self.inputs else by.apply(self.test_inputs)
        return replace(self, inputs=inputs, test_inputs=tests, standardisation=by)

    @classmethod
    def from_dataset(
        cls, dataset: Dataset, partition: Partition | PartitionMethod | Natural, key: Key = _KEY
    ) -> ClientData:
        """A data set, divided among clients.

        Where the data set asks for it, inputs are standardised (:meth:`standardised`).

        Args:
            dataset: such as ``drfl.load("digits")``.
            partition: who holds what; or a way to divide, such as ``drfl.DirichletDrop(clients=10, alpha=0.3)``.
            key: names the draws of such a way.

        Raises:
            InputError: when the partition's indices go beyond the data set, it cannot be divided so, or what is given
                is no data set or no partition.
        """
        if not isinstance(dataset, Dataset):
            raise InputError(
                f"dataset is {dataset!r:.60}: give a data set such as drfl.load('digits')",
                code="wrong-type",
                field="dataset",
            )
        if isinstance(partition, type) or not isinstance(partition, Partition | PartitionMethod | Natural):
            raise InputError(
                f"partition is {partition!r:.60}: give one such as drfl.DirichletDrop(clients=10, alpha=0.3)",
                code="wrong-type",
                field="partition",
            )
        if not isinstance(partition, Partition):
            partition = make_partition(dataset, partition, key)
        data = cls(
            dataset.inputs,
            dataset.targets,
            as_tensors(partition.train),
            dataset.test_inputs,
            dataset.test_targets,
            as_tensors(partition.test),
            partition.names,
            classes=dataset.class_names,
            columns=dataset.columns,
            notices=dataset.notices,
            schema=dataset.schema,
        )
        # Rounded to float32 once it is scaled, see from_arrays.
        return data.standardised().to(dtype=torch.float32) if dataset.standardise else data

    @classmethod
    def from_arrays(
        cls,
        train: convert.Pairs,
        test: convert.Pairs | None = None,
        *,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype | None = torch.float32,
        standardise: bool = False,
    ) -> ClientData:
        """Arrays or tensors that a user has, one pair (inputs, targets) a client.

        Args:
            train: by client name, or in order; inputs (n_i, ...), targets (n_i, ...).
            test: the same for testing; None splits each client's rows, by class where targets are labels.
            test_fraction: share of the rows for testing where `test` is None.
            key: names the draws of that split. A client's split depends on its name and rows alone.
            dtype: of the inputs and of floating targets; None keeps both as they are, which float64 data need. Whole
                numbers stay whole (int64), as they may be tokens; what cannot take them gets them as floats.
            standardise: whether inputs (n_i, p) are standardised, see :meth:`standardised`.

        Raises:
            InputError: when a client is empty or too small to split, shapes differ, values are not finite, or inputs
                cannot be standardised.
        """
        by_name = convert.named(train)
        names = tuple(by_name)
        # A float32 has seven digits, of which a column with a large mean would keep none: rounded once it is scaled.
        read = torch.float64 if standardise and dtype is not None else dtype
        inputs, targets = convert.pool(names, list(by_name.values()), "training", read, tokens=not standardise)
        sizes = [len(pair[0]) for pair in by_name.values()]
        if test is None:
            kept, held = split_blocks(names, sizes, targets, key, test_fraction)
            data = cls(inputs, targets, kept, inputs, targets, held, names)
        else:
            pairs = convert.like(test, names)
            test_inputs, test_targets = convert.pool(names, pairs, "test", read, tokens=not standardise)
            held = as_tensors(blocks([len(pair[0]) for pair in pairs]))
            data = cls(inputs, targets, as_tensors(blocks(sizes)), test_inputs, test_targets, held, names)
        return data.standardised().to(dtype=dtype) if standardise else data

    @classmethod
    def from_datasets(
        cls,
        train: convert.TorchDatasets,
        test: convert.TorchDatasets | None = None,
        *,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype | None = torch.float32,
        standardise: bool = False,
    ) -> ClientData:
        """Map-style torch datasets of items (x, y), one a client, read once into memory.

        Args:
            train: by client name, or in order.
            test: the same for testing; None splits each client's items.
            test_fraction: as in `from_arrays`.
            key: as in `from_arrays`.
            dtype: as in `from_arrays`.
            standardise: as in `from_arrays`.

        Raises:
            InputError: when a dataset is empty, not map-style or its items cannot be stacked; see
                `from_arrays`.
        """
        trained = {name: convert.stack(name, dataset) for name, dataset in convert.named(train).items()}
        tested = None
        if test is not None:
            pairs = zip(trained, convert.like(test, list(trained)), strict=True)
            tested = {name: convert.stack(name, dataset) for name, dataset in pairs}
        options = {"test_fraction": test_fraction, "key": key, "dtype": dtype, "standardise": standardise}
        return cls.from_arrays(trained, tested, **options)

    @classmethod
    def from_frame(
        cls,
        frame: pd.DataFrame,
        *,
        group: str | None = None,
        target: str | Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        schema: TableSchema | str | Path | None = None,
        test_fraction: float = 0.2,
        key: Key = _KEY,
        dtype: torch.dtype = torch.float32,
        standardise: bool = True,
    ) -> ClientData:
        """A table with a row a sample and a column that names each row's client.

        Args:
            frame: the table.
            group: the column that names the client; one client a distinct value, in sorted order.
            target: the column to predict. Floats stay floats (regression); all else becomes classes 0..C-1 in
                sorted order, with the labels in `classes`. Several columns are numbers (n, k), as labels 0 and 1
                of a multi-label task are.
            features: numeric columns to learn from; all others if None.
            schema: What each column holds, or the path of its file. It names the client, the target and the features,
                and encodes categories, dates and missing values.
            test_fraction: share of each client's rows for testing.
            key: names the draws of that split.
            dtype: of the features and of a floating target.
            standardise: whether the features are standardised, see :meth:`standardised`. A model that was trained on
                them takes raw rows behind ``data.standardisation.before(model)``.

        Raises:
            InputError: when a column is missing, not numeric, or has missing or infinite values, or a group
                has a single row; names the column or group. With a schema: when the table does not conform to it.
        """
        # Columns may be numbered, but names in files and messages are strings.
        frame = frame.rename(columns=str)
        targets = (target,) if isinstance(target, str) else None if target is None else tuple(target)
        if not len(frame):
            raise InputError("the table has no rows: give at least two a client", code="no-rows")
        if schema is not None:
            schema = schema if isinstance(schema, TableSchema) else TableSchema.read(schema)
            schema.check_options(targets, group)
            group = group_of(schema, features)
            rows = conform(schema, frame, lambda row: f"row {row}")
            columns, inputs, classes, digest = schema.features, rows.inputs, schema.classes, schema.digest
            Y, _ = target_tensor(schema, rows.targets)
        else:
            if group is None:
                raise InputError("group or schema must name each row's client", code="missing-option", field="group")
            columns = tuple(feature_columns(frame, group, targets or (), features))
            inputs, digest = feature_matrix(frame, columns), ""
            y, classes = encode_targets(frame, targets or ())
            Y = torch.from_numpy(y)
        require_present(frame[group], group)
        X = torch.from_numpy(inputs)
        groups = frame[group].to_numpy(dtype=object)
        split = split_groups(groups, None if classes is None else Y.numpy(), key, test_fraction)
        data = cls(
            X, Y, as_tensors(split.train), X, Y, as_tensors(split.test), split.names, classes, columns=columns,
            schema=digest,
        )  # fmt: skip
        # Rounded to dtype once it is scaled, see from_arrays.
        return (data.standardised() if standardise else data).to(dtype=dtype)


def group_of(schema: TableSchema, features: Sequence[str] | None) -> str:
    """The column of a schema that names the client.

    Raises:
        InputError: If there is none, or features are given too.
    """
    if features is not None:
        raise InputError(
            "features and schema are both given: remove features", code="conflicting-options", field="features"
        )
    if schema.client is None:
        raise InputError(
            'the schema has no column with role = "client", which names each row\'s client',
            code="missing-option",
            field="group",
        )
    return schema.client
