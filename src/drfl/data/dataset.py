"""A data set before it is divided among clients, and its pictures as inputs of a model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drfl import checks
from drfl.errors import InputError


@dataclass(frozen=True, eq=False)
class Dataset:
    """A classification data set before it is given to clients.

    Where the test tensors *are* the training tensors, the data set is one pool without a test part of its own: which
    rows are for testing is drawn when it is divided among clients (see :func:`drfl.data.natural`).

    Args:
        name: what it is called in files and tables.
        inputs: (n, ...) float32 training inputs; those to be standardised may be float64 until then.
        targets: (n,) int64 training labels in 0..classes-1.
        test_inputs: (k, ...) test inputs, of the same shape per sample and type.
        test_targets: (k,) int64 test labels.
        classes: the number of classes.
        groups: (n,) who each row belongs to, e.g. a hospital, where the data say so; only for data of one pool.
        standardise: whether clients get each column of the inputs (n, p) centred and scaled by the mean and the
            standard deviation of all clients' *training* rows (see :meth:`drfl.data.ClientData.standardised`).

    Raises:
        InputError: when lengths or shapes disagree, a part is empty, an input is not finite, a label is out
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

    def __post_init__(self) -> None:
        checks.whole("classes", self.classes)
        self._check_part("training", self.inputs, self.targets)
        self._check_part("test", self.test_inputs, self.test_targets)
        if self.inputs.shape[1:] != self.test_inputs.shape[1:]:
            raise InputError(
                f"dataset '{self.name}': training inputs have shape {tuple(self.inputs.shape[1:])} per "
                f"sample and test inputs {tuple(self.test_inputs.shape[1:])}; they must be the same"
            )
        if self.groups is not None and not (self.one_pool and len(self.groups) == len(self.targets)):
            raise InputError(
                f"dataset '{self.name}' has {len(self.groups)} groups for {len(self.targets)} rows: give one a row, "
                "and no test part apart"
            )
        if self.standardise and self.inputs.ndim != 2:
            raise InputError(f"dataset '{self.name}': only inputs (n, features) can be standardised, not images")

    @property
    def one_pool(self) -> bool:
        """Whether there is no test part of its own."""
        return self.test_inputs is self.inputs and self.test_targets is self.targets

    def pooled(self) -> Dataset:
        """The same rows as one pool, training rows first, whose test part is drawn when it is divided."""
        if self.one_pool:
            return self
        inputs, targets = torch.cat([self.inputs, self.test_inputs]), torch.cat([self.targets, self.test_targets])
        return replace(self, inputs=inputs, targets=targets, test_inputs=inputs, test_targets=targets)

    def _check_part(self, part: str, inputs: Tensor, targets: Tensor) -> None:
        what = f"dataset '{self.name}'"
        wide = self.standardise and inputs.dtype == torch.float64
        if not (inputs.dtype == torch.float32 or wide) or targets.dtype != torch.int64:
            raise InputError(
                f"{what}: {part} inputs must be float32 and labels int64, not {inputs.dtype} and {targets.dtype}"
            )
        if inputs.ndim < 1 or targets.ndim != 1 or len(inputs) != len(targets):
            raise InputError(
                f"{what}: {part} inputs of shape {tuple(inputs.shape)} do not go with labels of shape "
                f"{tuple(targets.shape)}; give one label a sample"
            )
        if not len(targets):
            raise InputError(f"{what} has no {part} samples: give at least one")
        checks.finite(f"{what}: {part} inputs", inputs)
        checks.labels(f"{what}: {part} labels", targets.numpy(force=True), self.classes)


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
                f"pictures of {tuple(self.test_inputs.shape[1:])}; they must be the same"
            )

    def scaled(self, pictures: Tensor) -> Tensor:
        """Pictures of these pixels as float32 in [0, 1]: each value divided by `white`."""
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
                f"{tuple(inputs.shape)}"
            )
        if targets.dtype != torch.int64 or targets.shape != inputs.shape[:1]:
            raise InputError(
                f"{what} labels must be int64, one for each of {len(inputs)} pictures, not {targets.dtype} of shape "
                f"{tuple(targets.shape)}"
            )
        checks.labels(f"{what} labels", targets.numpy(), self.classes)
