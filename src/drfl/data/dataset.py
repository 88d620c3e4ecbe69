"""A data set before it is divided among clients, and its pictures as inputs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice

TaskName = Literal["classification", "regression", "multi-label"]
"""What targets are: one class of several, numbers, or labels each of which is there or not."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set before it is given to clients.

    Where the test tensors *are* the training tensors, the data set is one pool without a test part of its own: which
    rows are for testing is drawn when it is divided among clients (see :func:`drfl.data.partition.natural`).

    Args:
        name: what it is called in files and tables.
        inputs: (n, ...) float32 training inputs, or int64 ones such as tokens; those to be standardised may be float64
            until then.
        targets: of the training inputs. Classification: (n,) int64 labels in 0..classes-1; regression: (n,) or
            (n, classes) float32; multi-label: (n, classes) float32, each 0 or 1.
        test_inputs: (k, ...) test inputs, of the same shape per sample and type.
        test_targets: (k,) or (k, classes) of the test inputs.
        classes: the number of outputs that a model needs: of classes, of numbers or of labels.
        groups: (n,) who each row belongs to, e.g. a hospital, where the data say so.
        standardise: whether clients get each column of the inputs (n, p) centred and scaled by the mean and the
            standard deviation of all clients' *training* rows (see :meth:`drfl.data.ClientData.standardised`).
        task: what the targets are.
        columns: (p,) what the columns of inputs (n, p) are called, where they have names.
        test_groups: (k,) who each test row belongs to, where there are groups and a test part of its own.
        class_names: what the classes are called, where the data say so.
        notices: What a user should check, as the reader of the files found it.
        schema: Digest of the :class:`drfl.TableSchema` by which a table was encoded; "" if there is none. With it,
            inputs may be NaN where values are missing.

    Raises:
        InputError: when lengths or shapes disagree, a part is empty, an input or a target is not finite, a label is out
            of range, or a type is not the one above.
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
    schema: str = ""

    def __post_init__(self) -> None:
        checks.whole("classes", self.classes)
        self._check_part("training", self.inputs, self.targets)
        self._check_part("test", self.test_inputs, self.test_targets)
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"dataset '{self.name}': training inputs have shape {tuple(self.inputs.shape[1:])} per "
                f"sample and test inputs {tuple(self.test_inputs.shape[1:])}; they must be the same",
                code="wrong-shape",
                field="test_inputs",
            )
        # Either every row has a group or none has.
        rows = {"training": (self.groups, len(self.targets)), "test": (self.test_groups, len(self.test_targets))}
        if self.one_pool:
            del rows["test"]
        for part, (groups, n) in rows.items():
            if (groups is None) != (self.groups is None) or (groups is not None and len(groups) != n):
                count = 0 if groups is None else len(groups)
                raise InputError(
                    f"dataset '{self.name}' has {count} groups for {n} {part} rows: give one a row",
                    code="count-mismatch",
                    field="groups",
                )
        if self.one_pool and self.test_groups is not None:
            raise InputError(
                f"dataset '{self.name}' has test_groups, and no test part of its own: leave them out",
                code="unused-option",
                field="test_groups",
            )
        if self.standardise and self.inputs.ndim != 2:
            raise InputError(
                f"dataset '{self.name}': only inputs (n, features) can be standardised, not images",
                code="unsupported-data",
                field="standardise",
            )
        if self.columns is not None and self.inputs.shape[1:] != (len(self.columns),):
            raise InputError(
                f"dataset '{self.name}': {len(self.columns)} names of columns for inputs of shape "
                f"{tuple(self.inputs.shape)}: give one a column",
                code="count-mismatch",
                field="columns",
            )

    @property
    def labels(self) -> bool:
        """Whether every target is one class, by which rows can be divided."""
        return self.task == "classification"

    @property
    def one_pool(self) -> bool:
        """Whether there is no test part of its own."""
        return self.test_inputs is self.inputs and self.test_targets is self.targets

    def pooled(self) -> Dataset:
        """The same rows as one pool, training rows first, whose test part is drawn when it is divided."""
        if self.one_pool:
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
        name, dtype = ("labels", torch.int64) if self.labels else ("targets", torch.float32)
        if not fits_as_input or targets.dtype != dtype:
            raise InputError(
                f"{what}: {part} inputs must be float32, or int64 tokens, and {name} "
                f"{str(dtype).partition('.')[2]}, not {inputs.dtype} and {targets.dtype}",
                code="wrong-type",
                field="inputs",
            )
        # A row has one label, one or several numbers, or a 0 or 1 for each label.
        shapes = {"classification": [()], "regression": [(), (self.classes,)], "multi-label": [(self.classes,)]}
        fits = targets.ndim > 0 and tuple(targets.shape[1:]) in shapes[self.task]
        if inputs.ndim < 1 or not fits or len(inputs) != len(targets):
            raise InputError(
                f"{what}: {part} inputs of shape {tuple(inputs.shape)} do not go with {name} of shape "
                f"{tuple(targets.shape)}; give one {name[:-1]} a sample"
                + ("" if self.labels else f", or {self.classes} in as many columns"),
                code="wrong-shape",
                field="inputs",
            )
        if not len(targets):
            raise InputError(f"{what} has no {part} samples: give at least one", code="no-rows", field=part)
        checks.finite(f"{what}: {part} inputs", inputs, missing=bool(self.schema))
        if self.labels:
            checks.labels(f"{what}: {part} labels", targets.numpy(force=True), self.classes)
        elif self.task == "regression":
            checks.finite(f"{what}: {part} targets", targets)
        elif not bool(((targets == 0) | (targets == 1)).all()):
            raise InputError(
                f"{what}: {part} targets must be 0 or 1: each says whether a label is there",
                code="not-binary",
                field="targets",
            )


@dataclass(frozen=True, eq=False)
class Pixels:
    """A classification data set of pictures before its pixels are made floating-point numbers.

    It takes a quarter of the memory of the :class:`drfl.data.Dataset` that it becomes.

    Args:
        name: what it is called in files and tables.
        inputs: (n, channels, height, width) uint8 training pictures; 1 channel is grey, 3 are red, green, blue.
        targets: (n,) int64 training labels in 0..classes-1.
        test_inputs: (k, channels, height, width) uint8 test pictures.
        test_targets: (k,) int64 test labels.
        classes: the number of classes.
        white: the value of a fully lit pixel.

    Raises:
        InputError: when a type, a shape, a length or a label is not as said.
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
                f"dataset '{self.name}': training pictures are of shape {tuple(self.inputs.shape[1:])} and test "
                f"pictures of {tuple(self.test_inputs.shape[1:])}; they must be the same",
                code="wrong-shape",
                field="test_inputs",
            )

    def scaled(self, pictures: Tensor) -> Tensor:
        """Pictures of these pixels as float32 in [0, 1]: each value divided by `white`."""
        # The division is in place on the copy, which saves a second array of floats.
        return pictures.to(torch.float32).div_(self.white)

    def dataset(self) -> Dataset:
        """The same pictures as float32 in [0, 1], which takes four times the memory."""
        return Dataset(
            self.name,
            self.scaled(self.inputs),
            self.targets,
            self.scaled(self.test_inputs),
            self.test_targets,
            self.classes,
        )

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor) -> None:
        what = f"dataset '{self.name}': {part}"
        if inputs.dtype != torch.uint8 or inputs.ndim != 4:
            raise InputError(
                f"{what} pictures must be uint8 (n, channels, height, width), not {inputs.dtype} of shape "
                f"{tuple(inputs.shape)}",
                code="wrong-type",
                field="inputs",
            )
        if targets.dtype != torch.int64 or targets.shape != inputs.shape[:1]:
            raise InputError(
                f"{what} labels must be int64, one for each of {len(inputs)} pictures, not {targets.dtype} of shape "
                f"{tuple(targets.shape)}",
                code="wrong-type",
                field="targets",
            )
        checks.labels(f"{what} labels", targets.numpy(), self.classes)
