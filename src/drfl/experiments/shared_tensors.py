"""Objects for worker processes of this machine, whose large tensors all workers read from the same memory."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import torch
from torch import Tensor

LARGE = 2**20
"""Bytes from which a tensor has a file."""


class SharedTensors:
    """Pickles objects, and writes their large tensors to files in a temporary folder.

    Whoever unpickles such an object maps the files into memory: the system reads them once, whatever the number of
    processes. What a process writes to its tensors stays its own.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="drfl-")
        self._written = 0

    def dumps(self, what: object) -> bytes:
        """By cloudpickle; the files must be there when it is unpickled."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._write).dump(what)
        return buffer.getvalue()

    def close(self) -> None:
        """Remove the folder; what is mapped already stays readable."""
        self._folder.cleanup()

    def _write(self, tensor: Tensor) -> Path:
        path = Path(self._folder.name, f"{self._written}.bin")
        self._written += 1
        tensor.contiguous().flatten().view(torch.uint8).numpy().tofile(path)
        return path


class _Pickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, write: Callable[[Tensor], Path]) -> None:
        super().__init__(buffer)
        self._write = write

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as cloudpickle declares it
        # Parameters and other subclasses go as they are: they are more than their numbers.
        if type(obj) is Tensor and obj.device.type == "cpu" and not obj.requires_grad and obj.nbytes >= LARGE:
            return _mapped, (str(self._write(obj)), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _mapped(path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # shared=False: a private mapping, whose pages are common to all processes until one writes to them.
    return torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
