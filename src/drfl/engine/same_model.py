"""Whether two tasks compute the same function of their parameters, so that one of them can stand for both."""

from __future__ import annotations

import io
from weakref import WeakKeyDictionary

import cloudpickle
import torch
from torch import Tensor

from drfl.hashing import digest_of
from drfl.task import Task

_found: WeakKeyDictionary[Task, object] = WeakKeyDictionary()


def structure_of(task: Task) -> object:
    """Equal for tasks whose losses are the same function of parameters, inputs, targets and seeds.

    It is what pickle makes of model, loss and augmentation, trained parameters by their shapes alone and every other
    tensor by its digest. Tasks that cannot be pickled are equal to themselves alone.
    """
    if task not in _found:
        _found[task] = _pickled(task)
    return _found[task]


class _Structure(cloudpickle.Pickler):
    """Writes tensors as what they are known by: torch writes the places of their memory along with them."""

    def __init__(self, file: io.BytesIO, trained: set[int]) -> None:
        super().__init__(file)
        self._trained = trained

    def persistent_id(self, obj: object) -> object:
        """What stands for a tensor; None = the object itself is written."""
        if not isinstance(obj, Tensor):
            return None
        shape = (tuple(obj.shape), str(obj.dtype), str(obj.device), obj.requires_grad)
        return shape if id(obj) in self._trained else (*shape, digest_of([obj]))


def _pickled(task: Task) -> object:
    file = io.BytesIO()
    trained = {id(p) for p in task.model.parameters() if p.requires_grad}
    try:
        with torch.no_grad():
            _Structure(file, trained).dump((task.layout.names, task.model, task.loss, task.augment))
    except Exception:  # a model may hold anything, and pickling it may raise anything
        return object()
    return file.getvalue()
