"""Pictures as they are published: whole numbers, a byte a pixel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.data.dataset import Dataset
from drfl.errors import InputError


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
