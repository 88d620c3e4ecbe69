"""A data set before it is divided among clients, and image data sets with their pixels as bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice

if TYPE_CHECKING:
    from drfl.data.tables.schema import TableSchema

TaskName = Literal["classification", "regression", "multi-label"]
"""Kind of task: one class of several, one or more numbers, or labels that apply or not."""

TEST_FRACTION = 0.2
"""Share of the rows for testing, if the data have no test rows of their own."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set before it is divided among clients.

    If the test tensors *are* the training tensors, the data set is one pool without a separate test part. Its test rows
    are then drawn when it is divided among clients (see :func:`drfl.data.partition.natural`).

    Args:
        name: Name in files and tables.
        inputs: (n, ...) Training inputs: float32, or int64 for tokens. Inputs to be standardised may be float64 until
            then.
        targets: Training targets. Classification: (n,) int64 labels in 0..classes-1; regression: (n,) or (n, classes)
            float32; multi-label: (n, classes) float32, each 0 or 1, or NaN if the label is unknown.
        test_inputs: (k, ...) Test inputs, with the type and the shape per sample of the training inputs.
        test_targets: (k,) or (k, classes) Test targets.
        classes: Number of outputs that a model needs: the number of classes, of numbers or of labels.
        groups: (n,) Group of each training row, for example a hospital; None if the data have no groups.
        standardise: Whether to standardise the columns of inputs (n, p) when the data set is divided among clients.
            Mean and scale come from all clients' *training* rows (see :meth:`drfl.data.ClientData.standardised`).
        task: Kind of task.
        columns: (p,) Names of the columns of inputs (n, p); None if they have none.
        test_groups: (k,) Group of each test row; None if there are no groups or there is no separate test part.
        class_names: Names of the classes; None if the data do not contain them.
        notices: Findings of the reader of the files that the user should check.
        patients: (n,) Patient of each row, of a data set without a separate test part; None if rows are independent.
        schema: The schema that encoded the table, or that drfl inferred from it; None if there is none. If it allows
            missing values, inputs may be NaN.
        test_fraction: Share of the rows for testing if the data have no test part.

    Raises:
        InputError: If lengths, shapes or types do not match this description, a part is empty, an input or target is
            not finite, or a label is out of range.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    groups: tuple[str, ...] | None = None
    standardise: bool = False
    task: TaskName = "classification"
    columns: tuple[str, ...] | None = None
    test_groups: tuple[str, ...] | None = None
    class_names: tuple[str, ...] | None = None
    notices: tuple[Notice, ...] = ()
    schema: TableSchema | None = None
    test_fraction: float = TEST_FRACTION
    patients: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        checks.integer("classes", self.classes)
        checks.inner_fraction("test_fraction", self.test_fraction)
        self._check_part("training", self.inputs, self.targets)
        self._check_part("test", self.test_inputs, self.test_targets)
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"dataset '{self.name}': training inputs have shape {tuple(self.inputs.shape[1:])} per "
                f"sample but test inputs have {tuple(self.test_inputs.shape[1:])}",
                code="wrong-shape",
                field="test_inputs",
            )
        # Either every row has a group, or none has.
        rows = {"training": (self.groups, len(self.targets)), "test": (self.test_groups, len(self.test_targets))}
        if self.is_one_pool:
            del rows["test"]
        for part, (groups, n) in rows.items():
            if (groups is None) != (self.groups is None) or (groups is not None and len(groups) != n):
                count = 0 if groups is None else len(groups)
                raise InputError(
                    f"dataset '{self.name}' has {count} groups for {n} {part} rows. Give one group per row",
                    code="count-mismatch",
                    field="groups",
                )
        if self.is_one_pool and self.test_groups is not None:
            raise InputError(
                f"dataset '{self.name}' has test_groups but no separate test part. Remove test_groups",
                code="unused-option",
                field="test_groups",
            )
        if self.patients is not None and not (self.is_one_pool and len(self.patients) == len(self.targets)):
            raise InputError(
                f"dataset '{self.name}': pass one patient per row, without a separate test part",
                code="count-mismatch",
                field="patients",
            )
        if self.standardise and self.inputs.ndim != 2:
            raise InputError(
                f"dataset '{self.name}': cannot standardise images. Set standardise=False",
                code="unsupported-data",
                field="standardise",
            )
        if self.columns is not None and self.inputs.shape[1:] != (len(self.columns),):
            raise InputError(
                f"dataset '{self.name}' has {len(self.columns)} column names for inputs of shape "
                f"{tuple(self.inputs.shape)}. Give one name per column",
                code="count-mismatch",
                field="columns",
            )

    def __repr__(self) -> str:
        rows = f"{len(self.targets):,} rows"
        if not self.is_one_pool:
            rows = f"{len(self.targets):,} training and {len(self.test_targets):,} test rows"
        outputs = {"classification": "classes", "regression": "targets", "multi-label": "labels"}[self.task]
        groups = "" if self.groups is None else f", {len({*self.groups, *(self.test_groups or ())}):,} groups"
        inputs = tuple(self.inputs.shape[1:])
        return f"<Dataset '{self.name}': {rows}, inputs {inputs}, {self.classes} {outputs}{groups}>"

    @property
    def has_labels(self) -> bool:
        """Whether each target is one class, so that rows can be divided by class."""
        return self.task == "classification"

    @property
    def is_one_pool(self) -> bool:
        """Whether the data set has no separate test part."""
        return self.test_inputs is self.inputs and self.test_targets is self.targets

    def pooled(self) -> Dataset:
        """Join both parts into one pool, training rows first; its test rows are drawn when it is divided."""
        if self.is_one_pool:
            return self
        inputs, targets = torch.cat([self.inputs, self.test_inputs]), torch.cat([self.targets, self.test_targets])
        # If test rows have no groups, the joined pool has none.
        groups = None if self.groups is None or self.test_groups is None else self.groups + self.test_groups
        pool = {"inputs": inputs, "targets": targets, "test_inputs": inputs, "test_targets": targets}
        return replace(self, **pool, groups=groups, test_groups=None)

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor) -> None:
        what = f"dataset '{self.name}'"
        # A table to be standardised keeps float64 until it is scaled; tokens are integers.
        fits_as_input = inputs.dtype in (torch.float32, torch.float64 if self.standardise else torch.int64)
        name, dtype = ("labels", torch.int64) if self.has_labels else ("targets", torch.float32)
        if not fits_as_input or targets.dtype != dtype:
            raise InputError(
                f"{what}: {part} inputs must be float32, or int64 for tokens, and {name} "
                f"{str(dtype).partition('.')[2]}, got {inputs.dtype} and {targets.dtype}",
                code="wrong-type",
                field="inputs",
            )
        # A row has one label, one or several numbers, or a 0 or 1 for each label.
        shapes = {"classification": [()], "regression": [(), (self.classes,)], "multi-label": [(self.classes,)]}
        fits = targets.ndim > 0 and tuple(targets.shape[1:]) in shapes[self.task]
        if inputs.ndim < 1 or not fits or len(inputs) != len(targets):
            raise InputError(
                f"{what}: {part} inputs of shape {tuple(inputs.shape)} do not match {name} of shape "
                f"{tuple(targets.shape)}. Pass one {name[:-1]} per "
                f"sample{'' if self.has_labels else f', or {self.classes} in as many columns'}",
                code="wrong-shape",
                field="inputs",
            )
        if not len(targets):
            raise InputError(f"{what} has no {part} samples. Add at least one", code="no-rows", field=part)
        checks.finite(f"{what}: {part} inputs", inputs, missing=self.schema is not None and self.schema.has_missing)
        if self.has_labels:
            checks.labels(f"{what}: {part} labels", targets.numpy(force=True), self.classes)
        elif self.task == "regression":
            checks.finite(f"{what}: {part} targets", targets)
        elif not bool(((targets == 0) | (targets == 1) | targets.isnan()).all()):
            raise InputError(
                f"{what}: {part} targets must be 0, 1 or NaN (unknown) for each label",
                code="not-binary",
                field="targets",
            )


@dataclass(frozen=True, eq=False)
class Pixels:
    """An image classification data set with its pixels as bytes.

    It takes a quarter of the memory of the corresponding :class:`drfl.data.Dataset`.

    Args:
        name: Name in files and tables.
        inputs: (n, channels, height, width) uint8 training images; one channel is grey, three are red, green and blue.
        targets: (n,) int64 training labels in 0..classes-1.
        test_inputs: (k, channels, height, width) uint8 test images.
        test_targets: (k,) int64 test labels.
        classes: Number of classes.
        white: Value of a white pixel.

    Raises:
        InputError: If a type, a shape, a length or a label does not match this description.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    classes: int
    white: int = 255

    def __post_init__(self) -> None:
        self._check_part("training", self.inputs, self.targets)
        self._check_part("test", self.test_inputs, self.test_targets)
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"dataset '{self.name}': training images have shape {tuple(self.inputs.shape[1:])} but "
                f"test images have {tuple(self.test_inputs.shape[1:])}",
                code="wrong-shape",
                field="test_inputs",
            )

    def scale(self, pictures: Tensor) -> Tensor:
        """Convert images of this data set to float32 in [0, 1], by dividing by `white`."""
        # Divide the copy in place, which saves a second array of floats.
        return pictures.to(torch.float32).div_(self.white)

    def dataset(self) -> Dataset:
        """Convert all images to float32 in [0, 1], which takes four times the memory."""
        return Dataset(
            self.name,
            self.scale(self.inputs),
            self.targets,
            self.scale(self.test_inputs),
            self.test_targets,
            self.classes,
        )

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor) -> None:
        what = f"dataset '{self.name}': {part}"
        if inputs.dtype != torch.uint8 or inputs.ndim != 4:
            raise InputError(
                f"{what} images must be uint8 of shape (n, channels, height, width), got {inputs.dtype} "
                f"of shape {tuple(inputs.shape)}",
                code="wrong-type",
                field="inputs",
            )
        if targets.dtype != torch.int64 or targets.shape != inputs.shape[:1]:
            raise InputError(
                f"{what} labels must be int64, one for each of {len(inputs)} images, got {targets.dtype} "
                f"of shape {tuple(targets.shape)}",
                code="wrong-type",
                field="targets",
            )
        checks.labels(f"{what} labels", targets.numpy(), self.classes)
