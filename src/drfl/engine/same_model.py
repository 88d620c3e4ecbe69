"""Whether two tasks compute the same function of their parameters, so that one of them can stand for both."""

from __future__ import annotations

import io
from collections.abc import Hashable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import cloudpickle
import torch
from torch import Tensor

from drfl.core.hashing import digest_of
from drfl.task.task import Task

UNCHANGING = ("torch", "drfl", "builtins", "collections", "functools")
"""Packages whose code is the same as long as the process lives; that of a notebook or of a user's module may not be."""


class Structure(NamedTuple):
    """What a task's losses and metrics are as functions of parameters, inputs, targets and seeds.

    Args:
        known_by: equal for tasks whose functions are the same.
        lasting: whether they still will be at another time: all code behind them is torch's and drfl's own.
    """

    known_by: Hashable
    lasting: bool


_found: WeakKeyDictionary[Task, Structure] = WeakKeyDictionary()


def structure_of(task: Task) -> Structure:
    """Of a task, as pickle makes it of model, loss, augmentation and metrics.

    Trained parameters are known by their places and shapes, every other tensor by its digest. Tasks that cannot be
    pickled are equal to themselves alone.
    """
    if task not in _found:
        _found[task] = _pickled(task)
    return _found[task]


class _Structure(cloudpickle.Pickler):
    """Writes tensors as what they are known by: torch writes the places of their memory along with them."""

    def __init__(self, file: io.BytesIO, trained: dict[int, int]) -> None:
        super().__init__(file)
        self._trained = trained
        self.lasting = True

    def persistent_id(self, obj: object) -> object:
        """What stands for a tensor; None = the object itself is written."""
        if not isinstance(obj, Tensor):
            return None
        shape = (tuple(obj.shape), str(obj.dtype), str(obj.device), obj.requires_grad)
        # Its place, as layers may have a parameter in common: which ones is part of the function.
        place = self._trained.get(id(obj))
        return (*shape, digest_of([obj]) if place is None else place)

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as cloudpickle declares it
        """Look at whose code a class or a function is."""
        if isinstance(obj, type) or callable(obj):
            module = str(getattr(obj, "__module__", None))
            self.lasting &= module.partition(".")[0] in UNCHANGING
        return super().reducer_override(obj)


def _pickled(task: Task) -> Structure:
    file = io.BytesIO()
    trained = {id(p): place for place, p in enumerate(task.model.parameters()) if p.requires_grad}
    pickler = _Structure(file, trained)
    try:
        with torch.no_grad():
            pickler.dump((task.layout.names, task.model, task.loss, task.augment, task.measures))
    except Exception:  # a model may hold anything, and pickling it may raise anything
        return Structure(object(), lasting=False)
    return Structure(file.getvalue(), pickler.lasting)
