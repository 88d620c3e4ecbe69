"""The clients' data that a federation trains on: pools of samples, and the rows that each client holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from drfl.core import checks
from drfl.core.errors import InputError, Notice
from drfl.core.hashing import digest_of
from drfl.core.html_table import html_table
from drfl.core.key import Key, key_of
from drfl.data.dataset import TEST_FRACTION, Dataset
from drfl.data.partition.natural import Natural, make_partition, split_groups
from drfl.data.partition.partition import Partition, PartitionMethod, check_names
from drfl.data.partition.splitting import (
    as_tensors,
    blocks,
    join,
    labels_of,
    lengths,
    pieces,
    split_clients,
    split_validation,
)
from drfl.data.pools import (
    ConstantAnswer,
    check_classes,
    check_fields,
    check_indices,
    check_pool,
    constant_answer,
    majority_shares,
)
from drfl.data.standardisation import Standardisation, client_moments, is_table
from drfl.data.tables import convert
from drfl.data.tables.columns import Columns, check_alike, frame_row
from drfl.data.tables.condition_columns import condition_notices
from drfl.data.tables.conditions import used_columns
from drfl.data.tables.conform import conform, stripped, target_tensor
from drfl.data.tables.convert import encode_frame, require_present
from drfl.data.tables.levels import word_notices
from drfl.data.tables.patients import check_spelling, names_in, numbered, repeated_ids, shared_ids
from drfl.data.tables.propose import propose
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table import Table, plain_columns
from drfl.data.tables.text_form import DETECT, ReadOptions
from drfl.data.tables.torch_datasets import Item, TorchDatasets, by_client, stack
from drfl.task.input_fields import InputFields

if TYPE_CHECKING:
    import pandas as pd

COPIED = 2**24
"""Number of input values that a digest of test rows copies at a time."""


_KEY = Key(0)

SHOWN = 12
"""Number of clients that a notebook lists."""


@dataclass(frozen=True, eq=False)
class ClientData:
    """The samples of N clients, as indices into a training pool and a test pool.

    Both pools may be the same tensors. A pool may also be a file mapped into memory (``docs/scale.md``): drfl reads it
    once to find values that are not finite, and never copies it.

    Args:
        inputs: (n, ...) Training pool; finite floating-point values, or integers such as tokens.
        targets: (n, ...) Targets of the training pool: class labels (integers of at least 0) or finite floating-point
            values. Several targets per row, such as labels 0 and 1, may be NaN if they are unknown.
        train: For each client, (n_i,) int64 indices into the training pool, at least one.
        test_inputs: (k, ...) Test pool, with the same shape per sample.
        test_targets: (k, ...) Targets of the test pool.
        test: For each client, (k_i,) int64 indices into the test pool, at least one.
        names: For each client, a unique name.
        classes: Distinct names of the classes 0 to C - 1, if the labels were encoded from a table; otherwise None.
        standardisation: The standardisation already applied to the inputs of both pools; None if they are in raw units.
        validation: For each client, indices of its validation rows in the training pool, at least one. These rows are
            used to select a model, not to train it. None if there are none.
        columns: (p,) Names of the columns of inputs (n, p); None if they have none.
        notices: Findings of the reader of the files that the user should check; see :func:`drfl.data.data_warnings`.
        schema: The schema that encoded the table, or that drfl inferred from it; None if there is none. If it allows
            missing values, inputs may be NaN until they are standardised.
        patients: (n,) int64 Number of the patient of each row, if training and test rows share one pool; None if rows
            are independent. The same number at two clients denotes two patients.
        fields: The tensors that each row of the inputs (n, p) holds, if the model takes a dictionary or tuple; None if
            the inputs are one tensor.

    Raises:
        InputError: If a value does not meet these requirements; the message names the client if there is one.
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
    schema: TableSchema | None = None
    patients: Tensor | None = None
    fields: InputFields | None = None

    def __post_init__(self) -> None:
        check_names(self.names, self.train, self.test)
        missing = self._may_miss
        check_fields(self.fields, self.inputs)
        # If both parts share one pool, it is checked once.
        is_shared = self.test_inputs is self.inputs and self.test_targets is self.targets
        held = [] if self.validation is None else [self.validation]
        lists = [self.train, *held, *([self.test] if is_shared else [])]
        check_pool("training", self.inputs, self.targets, self.names, lists, missing=missing)
        if not is_shared:
            check_pool("test", self.test_inputs, self.test_targets, self.names, [self.test], missing=missing)
            for what, a, b in (
                ("inputs", self.inputs, self.test_inputs),
                ("targets", self.targets, self.test_targets),
            ):
                if a.shape[1:] != b.shape[1:] or a.dtype != b.dtype:
                    raise InputError(
                        f"training and test {what} differ per sample: {a.dtype} of shape "
                        f"{tuple(a.shape[1:])} and {b.dtype} of shape {tuple(b.shape[1:])}",
                        code="wrong-shape",
                        field=what,
                    )
        if self.classes is not None:
            if isinstance(self.classes, list):
                object.__setattr__(self, "classes", tuple(self.classes))
            check_classes(self.classes, (self.targets, self.test_targets))
        if self.columns is not None and self.inputs.shape[1:] != (len(self.columns),):
            raise InputError(
                f"got {len(self.columns)} column names for inputs of shape {tuple(self.inputs.shape)}. "
                "Give one name per column",
                code="count-mismatch",
                field="columns",
            )
        # One list of patients must fit the row numbers of both parts.
        if self.patients is not None and not (
            self.test_inputs is self.inputs and self.patients.shape == (len(self.inputs),)
        ):
            raise InputError(
                "patients need one pool of training and test rows, and one patient per row",
                code="count-mismatch",
                field="patients",
            )
        check_indices("training", self.train, len(self.inputs), self.names)
        check_indices("test", self.test, len(self.test_inputs), self.names)
        if self.validation is not None:
            if len(self.validation) != len(self.names):
                raise InputError(
                    f"got {len(self.validation)} validation parts for {len(self.names)} clients. Give one per client",
                    code="count-mismatch",
                    field="validation",
                )
            check_indices("validation", self.validation, len(self.inputs), self.names)

    def __repr__(self) -> str:
        sizes, first = self.sizes, ", ".join(self.names[:3])
        shown = first + (", …" if self.n > 3 else "")
        rows = f"{int(sizes.min()):,} to {int(sizes.max()):,} training rows each"
        inputs = self.fields or tuple(self.inputs.shape[1:])
        return f"<ClientData of {self.n} clients ({shown}), {rows}, inputs {inputs}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        parts = {"training rows": self.sizes, "test rows": lengths(self.test)}
        if self.patients is not None:
            parts |= {
                "training patients": self.patient_counts(self.train),
                "test patients": self.patient_counts(self.test),
            }
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
        """Number of training samples of each client, (N,) int64."""
        return self._sizes

    def patient_counts(self, rows: Sequence[Tensor]) -> Tensor:
        """Count the patients among each client's rows of a part, (N,) int64; without patients every row counts."""
        if self.patients is None:
            return lengths(rows)
        return torch.tensor([len(self.patients[part].unique()) for part in rows])

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
        """Score of a model that always predicts the most frequent class; None unless this score looks good."""
        return constant_answer(self.test_targets, self.test, self.classes)

    @property
    def shares_test_rows(self) -> bool:
        """Whether a test row belongs to two clients, or is listed twice for one client."""
        rows = torch.cat(self.test)
        # A partition may give another client's test row to a client that would otherwise have none.
        return len(rows.unique()) < len(rows)

    @cached_property
    def has_missing(self) -> bool:
        """Whether inputs are NaN where values are missing, which standardising replaces by the mean."""
        pools = (self.inputs,) if self.test_inputs is self.inputs else (self.inputs, self.test_inputs)
        return self._may_miss and any(bool(x.isnan().any()) for x in pools)

    @property
    def _may_miss(self) -> bool:
        # Standardising has replaced missing values by the mean.
        return self.schema is not None and self.schema.has_missing and self.standardisation is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input."""
        return tuple(self.inputs.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """The type of the inputs."""
        return self.inputs.dtype if self.inputs.dtype in (torch.float64, torch.int64) else torch.float32

    @property
    def schema_digest(self) -> str:
        """The digest of the schema that encoded the table; "" if there is none, or drfl inferred it."""
        return "" if self.schema is None or self.schema.inferred else self.schema.digest

    def tensors(self) -> list[Tensor]:
        """Return all tensors of the data, for a digest."""
        held = self.validation or ()
        return [self.inputs, self.targets, self.test_inputs, self.test_targets, *self.train, *self.test, *held]

    def test_digest(self) -> str:
        """Return a digest of the inputs and targets on which each client is tested."""
        sizes = torch.tensor([len(rows) for rows in self.test])
        # Clients may share test rows, so each row is read once.
        rows, places = torch.cat(self.test).unique(return_inverse=True)
        # The rows may be in a file that is larger than the memory, so few are copied at a time.
        few = max(1, COPIED // max(1, math.prod(self.shape)))
        parts = (values[some] for values in (self.test_inputs, self.test_targets) for some in rows.split(few))
        return digest_of(chain([sizes, places], parts))

    @property
    def shares(self) -> Tensor:
        """Each client's share of the training samples, (N,) float64 with sum 1."""
        sizes = self.sizes.to(torch.float64)
        return sizes / sizes.sum()

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ClientData:
        """Copy the data to a device and cast floating-point tensors to a type.

        Args:
            device: The device; None leaves the tensors where they are.
            dtype: The floating-point type; None leaves all types unchanged.

        Raises:
            InputError: If `dtype` is not a floating-point type.
        """
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(
                f"dtype must be a floating-point type such as torch.float64, got {dtype}",
                code="wrong-type",
                field="dtype",
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
            # Keep a pool shared by both parts shared: a second pool would double the memory.
            test_inputs=inputs if self.test_inputs is self.inputs else move(self.test_inputs),
            test_targets=targets if self.test_targets is self.targets else move(self.test_targets),
            test=pieces(move(torch.cat(self.test)), lengths(self.test)),
            validation=self.validation and pieces(move(torch.cat(self.validation)), lengths(self.validation)),
            patients=None if self.patients is None else move(self.patients),
        )

    def with_validation(self, fraction: float = 0.2, key: Key | int = _KEY) -> ClientData:
        """Hold out a share of each client's training rows as validation rows, to select a model.

        Rows are split by class if the targets are labels, and all rows of a patient go to one part. A client's split
        depends only on its name and its rows. A client with a single row or patient uses it for both training and
        validation. The inputs are not changed: if they are standardised, the validation rows contributed to the scale.

        Args:
            fraction: Share of the rows to hold out, strictly between 0 and 1; each part gets at least one row.
            key: Key of the draws, or a seed.

        Raises:
            InputError: If the fraction is out of range, or the data already have validation rows.
        """
        if self.validation is not None:
            raise InputError(
                "the data already have validation rows. Set validation only once",
                code="conflicting-options",
                field="validation",
            )
        checks.inner_fraction("validation", fraction)
        key = key_of(key)
        parts = [
            # The key depends on the client's name, so its split does not depend on the other clients.
            split_validation(self.targets, rows, fraction, key.fold("validation", name), self.patients)
            for name, rows in zip(self.names, self.train, strict=True)
        ]
        train, validation = (join(own) for own in zip(*parts, strict=True))
        return replace(self, train=train, validation=validation)

    def standardised(self, by: Standardisation | None = None) -> ClientData:
        """Scale each column to mean 0 and standard deviation 1 over the training rows of all clients.

        Test rows do not influence the scale; they are scaled like the training rows. The mean and the scale are
        computed from each client's counts, means and variances alone, so clients could obtain them without sharing
        rows. A constant column and a missing value (NaN) become 0.

        Args:
            by: Mean and scale to use instead of the computed ones.

        Raises:
            InputError: If the inputs are not floating-point vectors, have too large values, or are already
                standardised.
        """
        if self.standardisation is not None:
            raise InputError(
                "the data are already standardised. Set standardise only once",
                code="conflicting-options",
                field="standardise",
            )
        if self.fields is not None or not is_table(self.inputs):
            inputs = self.fields or f"type {self.inputs.dtype} and shape {tuple(self.inputs.shape)}"
            raise InputError(
                f"cannot standardise inputs of {inputs}: expected floating-point inputs (n, p). Set standardise=False",
                code="unsupported-data",
                field="standardise",
            )
        if by is None:
            # Only training rows determine the scale: test rows must not influence training.
            by = Standardisation.of(client_moments(self.inputs, self.train, self.names))
        inputs = by.apply(self.inputs)
        tests = inputs if self.test_inputs is self.inputs else by.apply(self.test_inputs)
        return replace(self, inputs=inputs, test_inputs=tests, standardisation=by)

    @classmethod
    def from_dataset(
        cls, dataset: Dataset, partition: Partition | PartitionMethod | Natural, key: Key | int = _KEY
    ) -> ClientData:
        """Divide a data set among clients.

        If the data set has ``standardise=True``, its inputs are standardised, see :meth:`standardised`.

        Args:
            dataset: A data set such as ``drfl.load("digits")``.
            partition: A partition, or a method that makes one, such as ``drfl.DirichletDrop(clients=10, alpha=0.3)``.
            key: Key of the method's draws, or a seed.

        Raises:
            InputError: If `dataset` is not a data set, `partition` is not a partition, the data set cannot be divided
                in this way, or an index is outside the data set.
        """
        if not isinstance(dataset, Dataset):
            raise InputError(
                f"expected a data set such as drfl.load('digits'), got {dataset!r:.60}",
                code="wrong-type",
                field="dataset",
            )
        if isinstance(partition, type) or not isinstance(partition, Partition | PartitionMethod | Natural):
            raise InputError(
                f"expected a partition such as drfl.DirichletDrop(clients=10, alpha=0.3), got {partition!r:.60}",
                code="wrong-type",
                field="partition",
            )
        if not isinstance(partition, Partition):
            partition = make_partition(dataset, partition, key_of(key))
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
            patients=None if dataset.patients is None else numbered(dataset.patients),
        )
        # Round to float32 only after scaling, see from_arrays.
        return data.standardised().to(dtype=torch.float32) if dataset.standardise else data

    @classmethod
    def from_arrays(
        cls,
        train: convert.Pairs,
        test: convert.Pairs | None = None,
        *,
        test_fraction: float = TEST_FRACTION,
        key: Key | int = _KEY,
        dtype: torch.dtype | None = torch.float32,
        standardise: bool = False,
        columns: tuple[str, ...] | None = None,
        classes: tuple[str, ...] | None = None,
        schema: TableSchema | None = None,
        notices: tuple[Notice, ...] = (),
        patients: Mapping[str, Sequence[object]] | Sequence[Sequence[object]] | None = None,
    ) -> ClientData:
        """Make clients from arrays or tensors, one pair (inputs, targets) per client.

        Args:
            train: Training pairs by client name, or in order: inputs (n_i, ...) and targets (n_i, ...). Inputs may be a
                dictionary or a tuple of arrays, which the model gets as ``model(**x)`` or ``model(*x)``; see
                :class:`drfl.task.input_fields.InputFields`. Masked values of NumPy are NaN.
            test: Test pairs in the same form; None splits each client's rows, by class if the targets are labels.
            test_fraction: Share of the rows for testing if `test` is None.
            key: Key of that split, or a seed. A client's split depends only on its name and its rows.
            dtype: Type of the inputs and of floating-point targets; None keeps their types, which preserves float64.
                Integers other than bytes become int64, because they may be tokens; a model that cannot take integers
                receives floats.
            standardise: Whether to standardise inputs (n_i, p), see :meth:`standardised`.
            columns: Names of the columns of inputs (n_i, p), for messages and reports.
            classes: Distinct names of the classes 0 to C - 1.
            schema: The schema that encoded the table. If it allows missing values, inputs may be NaN.
            notices: Warnings about the data, see :func:`drfl.data.data_warnings`.
            patients: Patient of each row (n_i,) in the same form, if `test` is None. All rows of a patient are on one
                side of the split.

        Raises:
            InputError: If a client is empty or too small to split, shapes differ, values are not finite, or the inputs
                cannot be standardised.
        """
        by_name = convert.clients_by_name(train)
        names = tuple(by_name)
        fields = convert.fields_of_pairs(by_name)
        pairs = convert.packed(names, list(by_name.values()), fields)
        # Round only after scaling: float32 has seven digits, and a column with a large mean would lose all of them.
        read = torch.float64 if standardise and dtype is not None else dtype
        inputs, targets = convert.concatenate(names, pairs, "training", read, tokens=not standardise)
        sizes = [len(pair[0]) for pair in pairs]
        units = None if patients is None else convert.patients_of_rows(patients, names, sizes)
        if units is not None and test is not None:
            raise InputError(
                "patients and test are both set: pass all rows as train, and drfl divides them by patient",
                code="conflicting-options",
                field="patients",
            )
        if test is None:
            parts = split_clients(names, blocks(sizes), labels_of(targets), key_of(key), test_fraction, units)
            kept, held = map(as_tensors, parts)
            tests = inputs, targets
        else:
            pairs = convert.packed(names, convert.match_clients(test, names), fields)
            tests = convert.concatenate(names, pairs, "test", read, tokens=not standardise)
            kept, held = as_tensors(blocks(sizes)), as_tensors(blocks([len(pair[0]) for pair in pairs]))
        data = cls(
            inputs, targets, kept, *tests, held, names, classes, columns=columns, notices=notices, schema=schema,
            patients=None if units is None else numbered(units.tolist()), fields=fields,
        )  # fmt: skip
        return data.standardised().to(dtype=dtype) if standardise else data

    @classmethod
    def from_datasets(
        cls,
        train: TorchDatasets | TorchDataset[Item],
        test: TorchDatasets | TorchDataset[Item] | None = None,
        *,
        group: int | str | None = None,
        test_fraction: float = TEST_FRACTION,
        key: Key | int = _KEY,
        dtype: torch.dtype | None = torch.float32,
        standardise: bool = False,
    ) -> ClientData:
        """Make clients from map-style torch datasets of items (x, y) or (x, y, metadata).

        The datasets are read into memory, without the metadata. The inputs x may be dictionaries or tuples of tensors,
        as in :meth:`from_arrays`.

        Args:
            train: Training datasets by client name, or in order; or a single one if `group` is given.
            test: Test datasets in the same form; None splits each client's items.
            group: Entry of the metadata that names an item's client: its name, or its number. Names of entries come
                from metadata that are dictionaries, or from the dataset's ``metadata_fields``, as in WILDS.
            test_fraction: As in `from_arrays`.
            key: As in `from_arrays`.
            dtype: As in `from_arrays`.
            standardise: As in `from_arrays`.

        Raises:
            InputError: If a dataset is empty, is not map-style, or has items that cannot be stacked; see also
                `from_arrays`.
        """
        parts = by_client(train, group)
        trained = {name: stack(name, dataset) for name, dataset in convert.clients_by_name(parts).items()}
        tested = None
        if test is not None:
            pairs = zip(trained, convert.match_clients(by_client(test, group), list(trained)), strict=True)
            tested = {name: stack(name, dataset) for name, dataset in pairs}
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
        patient: str | None = None,
        reading: ReadOptions = DETECT,
        test_fraction: float = TEST_FRACTION,
        key: Key | int = _KEY,
        dtype: torch.dtype = torch.float32,
        standardise: bool = True,
    ) -> ClientData:
        """Make clients from a table with one row per sample and a column that names each row's client.

        Args:
            frame: The table.
            group: Column that names the client. Each distinct value becomes a client, in the order of numbers
                if all values are numbers, and of texts otherwise.
            target: Column to predict. Floating-point values stay numbers (regression); other values become classes
                0..C-1 in sorted order, with their names in `classes`. Several columns are read as numbers (n, k), such
                as the labels 0 and 1 of a multi-label task. A condition such as "price > 100000" makes the classes "no"
                and "yes", or a label, of a column.
            features: Columns to learn from; None uses all other columns. Numbers are used unchanged. A text or a
                category becomes a column of 0 and 1 for each of its values except the first.
            schema: Meaning of each column, or the path of a schema file. It names the client, the target and the
                features, and encodes categories, dates and missing values.
            patient: Column that names the patient, or another unit with repeated rows. All rows of a patient are on one
                side of every split, and intervals and tests count patients. The column is not a feature. The role
                "patient" of a schema has the same effect.
            reading: Words for missing values, and marks of numbers that are text. If it has words for missing values
                without a schema, drfl uses the schema that ``drfl data describe`` would propose.
            test_fraction: Share of each client's rows, or patients, for testing.
            key: Key of that split, or a seed.
            dtype: Type of the features and of a floating-point target.
            standardise: Whether to standardise the features, see :meth:`standardised`. To use a trained model on raw
                rows, wrap it with ``data.standardisation.before(model)``.

        Raises:
            InputError: If a column does not exist, is neither numeric nor text, or has missing or infinite values, or a
                group has only one row or patient. The message names the column or group. With a schema: if the table
                does not conform to it.
        """
        frame = convert.named_columns(frame)
        targets, features = convert.listed_names(target), convert.listed_names(features)
        roles = Columns(targets or (), group, patient=patient)
        convert.check_reading(reading)
        schema = TableSchema.read(schema) if isinstance(schema, str | Path) else schema
        described = () if schema is None else [column.name for column in schema.columns]
        convert.check_index(frame, [*roles.names, *used_columns(roles.targets), *(features or ()), *described])
        # With a schema, given or proposed, its types decide.
        frame = plain_columns(frame, keep_categories=schema is None and not reading.missing)
        table, proposed = Table("the table", frame, frame_row), tuple[Notice, ...]()
        # Without options, a data frame is used as the user has read it.
        if schema is None and reading != DETECT and group is not None:
            names = roles.texts
            if features is not None:
                frame = frame[[name for name in frame if name in (*features, *used_columns(roles.targets), *names)]]
            table = table._replace(frame=frame).prepared(names, reading)
            if reading.missing:
                schema, proposed = propose([table.frame], roles.targets, group, (), None, patient, reading)
                proposed += tuple(word_notices([table], schema, [*map(str, table.frame[group])]))
                features = None
            frame = table.with_numbers(names).frame
        if schema is not None:
            schema.check_options(targets, group, patient=patient)
            group, patient = group_of(schema, features), schema.patient
            for name in (group, patient):
                if name is not None and name not in frame:
                    raise InputError(
                        f"the table has no column '{name}', which the schema needs", code="missing-column", field=name
                    )
            table = table.prepared(schema.texts, reading.with_defaults(schema.reading))
            rows = conform(schema, table)
            columns, inputs, classes = schema.features, rows.inputs, schema.classes
            Y, _ = target_tensor(schema, rows.targets)
        else:
            if group is None:
                raise InputError(
                    "`group` or `schema` must name each row's client", code="missing-option", field="group"
                )
            table = table._replace(frame=frame)
            frame = table.with_answers(roles.targets, [*roles.names, *(features or ())]).frame
            columns, inputs, y, classes, schema, warned = encode_frame(frame, roles, features)
            Y, proposed = torch.from_numpy(y), (*proposed, *warned)
        require_present(stripped(frame[group]), group)
        X = torch.from_numpy(inputs)
        groups, patients = frame[group].to_numpy(dtype=object), None
        owners = [*map(str, groups)]
        check_alike(sorted(set(owners)))
        if patient is None:
            notices = repeated_ids(frame, tuple(owners), used=(group, *roles.targets))
        else:
            patients = np.array(names_in(frame, patient, frame_row))
            check_spelling(patients.tolist(), owners)
            notices = shared_ids(owners, patients.tolist())
        split = split_groups(groups, None if classes is None else Y.numpy(), key_of(key), test_fraction, patients)
        data = cls(
            X, Y, as_tensors(split.train), X, Y, as_tensors(split.test), split.names, classes, columns=columns,
            schema=schema,
            notices=(
                *proposed, *condition_notices([table], [column.name for column in schema.targets], owners), *notices,
            ),
            patients=None if patients is None else numbered(patients.tolist()),
        )  # fmt: skip
        # Round to dtype only after scaling, see from_arrays.
        return (data.standardised() if standardise else data).to(dtype=dtype)


def group_of(schema: TableSchema, features: Sequence[str] | None) -> str:
    """Return the column of a schema that names the client."""
    if features is not None:
        raise InputError(
            "`features` and `schema` are both set: remove `features`", code="conflicting-options", field="features"
        )
    if schema.client is None:
        raise InputError(
            'the schema has no column with role = "client", which names each row\'s client',
            code="missing-option",
            field="group",
        )
    return schema.client
