"""Inputs of several tensors: a dictionary or tuple per row, stored as one vector of numbers per row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from numbers import Number
from operator import index
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from drfl.core.errors import InputError

LARGEST_WHOLE = 2**24
"""Largest integer beside floating-point fields: float32, the type of most models, holds all smaller ones exactly."""

KINDS = ("real", "integer", "bool")


def has_fields(x: object) -> TypeGuard[Mapping[str, object] | tuple[object, ...]]:
    """Return whether an input is a dictionary, or a tuple of arrays or tensors; a tuple of numbers is a vector."""
    if isinstance(x, tuple):
        return len(x) > 0 and all(isinstance(value, Tensor | np.ndarray) for value in x)
    return isinstance(x, Mapping) and len(x) > 0


@dataclass(frozen=True)
class InputFields:
    """The tensors that make up an input, and how a row (p,) of numbers holds them.

    The pools of :class:`drfl.data.ClientData` and the engines hold packed rows (n, p). The model gets the tensors: drfl
    calls ``model(**x)`` if the fields have names, and ``model(*x)`` otherwise. Packing is exact. The rows are int64 if
    no field is real. Otherwise they are floating-point numbers, and the integers among them are at most 2²⁴.

    Args:
        names: Names of the fields; None for a tuple.
        shapes: Shape of each field in a row, such as () for a number.
        kinds: For each field "real" (the type of the model), "integer" (int64) or "bool".

    Example:
        >>> import torch
        >>> x = {"input_ids": torch.tensor([[5, 7], [9, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
        >>> fields = InputFields.of(x)
        >>> fields.pack(x)
        tensor([[5, 7, 1, 1],
                [9, 0, 1, 0]])
        >>> fields.unpack(fields.pack(x))["attention_mask"]
        tensor([[1, 1],
                [1, 0]])
    """

    names: tuple[str, ...] | None
    shapes: tuple[tuple[int, ...], ...]
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        names = range(len(self.kinds)) if self.names is None else self.names
        parts = zip(names, self.shapes, self.kinds, strict=True)
        return ", ".join(f"{name} {shape} {kind}" for name, shape, kind in parts)

    @classmethod
    def of(cls, x: Mapping[str, object] | tuple[object, ...], what: str = "inputs") -> InputFields:
        """Describe the fields of n rows.

        Args:
            x: Arrays or tensors (n, …) by name, or a tuple of them.
            what: Name of the inputs in errors.

        Raises:
            InputError: If a value is not an array of numbers, or the lengths differ.
        """
        values = _tensors(x, what)
        shapes = tuple(tuple(value.shape[1:]) for value in values)
        return cls(tuple(map(str, x)) if isinstance(x, Mapping) else None, shapes, tuple(map(_kind, values)))

    @property
    def width(self) -> int:
        """p, the number of numbers in a row."""
        return sum(map(prod, self.shapes))

    def pack(self, x: object, what: str = "inputs") -> Tensor:
        """Return the rows (n, p) of inputs with these fields. Real ones are float64 if a field is, otherwise float32.

        Args:
            x: Arrays or tensors (n, …) by name, in any order, or a tuple of them.
            what: Name of the inputs in errors.

        Raises:
            InputError: If the inputs have other fields, their lengths differ, or an integer cannot be stored exactly.
        """
        # The order of a dictionary is irrelevant, but the order of the numbers in a row is not.
        if isinstance(x, Mapping) and self.names is not None and set(x) == set(self.names):
            x = {name: x[name] for name in self.names}
        other = InputFields.of(x, what) if isinstance(x, Mapping | tuple) else f"a {type(x).__name__}"
        if other != self:
            raise InputError(f"{what} must be the fields {self}; got {other}", code="wrong-shape", field="inputs")
        values = _tensors(x, what)
        dtype = torch.int64
        if "real" in self.kinds:
            dtype = torch.float64 if any(value.dtype == torch.float64 for value in values) else torch.float32
        for value, kind in zip(values, self.kinds, strict=True):
            is_rounded = kind == "integer" and dtype.is_floating_point
            if is_rounded and bool(((value > LARGEST_WHOLE) | (value < -LARGEST_WHOLE)).any()):
                raise InputError(
                    f"{what} have integers beyond {LARGEST_WHOLE:,} beside real fields, which would be rounded. Number "
                    "the values from 0",
                    code="out-of-range",
                    field="inputs",
                )
        return torch.cat([value.to(dtype).reshape(len(value), prod(value.shape[1:])) for value in values], 1)

    def unpack(self, rows: Tensor) -> dict[str, Tensor] | tuple[Tensor, ...]:
        """Return the fields (…, *shape) of rows (…, p)."""
        ends = list(accumulate(map(prod, self.shapes)))
        values: list[Tensor] = []
        for start, end, shape, kind in zip([0, *ends[:-1]], ends, self.shapes, self.kinds, strict=True):
            value = rows[..., start:end].reshape(*rows.shape[:-1], *shape)
            values.append(value if kind == "real" else value != 0 if kind == "bool" else value.long())
        return tuple(values) if self.names is None else dict(zip(self.names, values, strict=True))

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Replace the rows with which a model is called by their fields, see :meth:`drfl.task.task.Task.reading`."""
        x = self.unpack(*args)
        return ((), {**kwargs, **x}) if isinstance(x, dict) else (x, kwargs)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> InputFields:
        """Read the fields from a dictionary of JSON values.

        Raises:
            Exception: Of any kind, if they are damaged.
        """
        # The values come from a file of unknown origin: index() rejects everything but whole numbers.
        names, kinds = plain["names"], tuple(map(KINDS.index, plain["kinds"]))
        shapes = tuple(tuple(map(index, shape)) for shape in plain["shapes"])
        if len({len(shapes), len(kinds), len(shapes if names is None else set(names))}) > 1:
            raise ValueError("the fields have different numbers of names, shapes and kinds")
        return cls(None if names is None else tuple(map(str, names)), shapes, tuple(KINDS[kind] for kind in kinds))


def fields_of(model: nn.Module) -> InputFields | None:
    """Return the fields into which a model splits its rows, see :meth:`drfl.task.task.Task.reading`."""
    return next((hook for hook in model._forward_pre_hooks.values() if isinstance(hook, InputFields)), None)


def tensor_of(values: object) -> Tensor:
    """Convert an array of numbers to a tensor that does not change with it.

    Raises:
        TypeError: If a value is not a number, such as a text or None. The message names it and the remedy.
        ValueError: If the values do not form an array.
        RuntimeError: If torch cannot read them.
    """
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    if array.dtype.kind not in "biufc":
        # NumPy's texts have another repr.
        others = (str(value) if isinstance(value, str) else value for value in array.flat)
        first = next((f"{value!r:.40}" for value in others if not isinstance(value, Number)), "numbers as objects")
        raise TypeError(
            f"found {first}. Encode labels as integers, convert numbers with .astype(float), or use "
            "drfl.ClientData.from_frame for a table with text"
        )
    return torch.tensor(array)


def _tensors(x: object, what: str) -> list[Tensor]:
    """Return the fields as tensors (n, …)."""
    assert isinstance(x, Mapping | tuple)
    values: list[Tensor] = []
    for name, value in x.items() if isinstance(x, Mapping) else enumerate(x):
        try:
            tensor = tensor_of(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{what}: field '{name}' is not an array of numbers: {error}",
                code="wrong-type",
                field="inputs",
            ) from error
        if not tensor.ndim or tensor.is_complex() or (values and len(tensor) != len(values[0])):
            raise InputError(
                f"{what}: field '{name}' of shape {tuple(tensor.shape)} and {tensor.dtype} must hold real numbers for "
                "each row",
                code="wrong-shape",
                field="inputs",
            )
        values.append(tensor)
    return values


def _kind(value: Tensor) -> str:
    # Bytes are pixels, as in inputs of one tensor.
    if value.is_floating_point() or value.dtype == torch.uint8:
        return "real"
    return "bool" if value.dtype == torch.bool else "integer"
