"""Objects for worker processes of this machine, whose large tensors all workers read from the same memory."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import cloudpickle
import torch
from torch import Tensor

LARGE = 2**20
"""Bytes from which a tensor has a file."""


class SharedTensors:
    """Pickles objects, and writes their large tensors to temporary files.

    Whoever unpickles such an object maps the files into memory: the system reads them once, whatever the number of
    processes. What a process writes to its tensors stays its own.
    """

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def dumps(self, what: object) -> bytes:
        """By cloudpickle; the files must be there when it is unpickled."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._write).dump(what)
        return buffer.getvalue()

    def close(self) -> None:
        """Give up the files; what is mapped already stays readable."""
        while self._files:
            self._files.pop().close()

    def _write(self, tensor: Tensor) -> str:
        # On Linux a file without a name, which other processes open by way of this one's: none is left of it, however
        # the process ends.
        named = not Path("/proc/self/fd").is_dir()
        file = tempfile.NamedTemporaryFile() if named else tempfile.TemporaryFile()  # noqa: SIM115 - close() does
        self._files.append(file)
        tensor.contiguous().flatten().view(torch.uint8).numpy().tofile(file)
        return file.name if named else f"/proc/{os.getpid()}/fd/{file.fileno()}"


class _Pickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, write: Callable[[Tensor], str]) -> None:
        super().__init__(buffer)
        self._write = write

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as cloudpickle declares it
        # Parameters and other subclasses go as they are: they are more than their numbers.
        if type(obj) is Tensor and obj.device.type == "cpu" and not obj.requires_grad and obj.nbytes >= LARGE:
            return _mapped, (self._write(obj), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _mapped(path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # shared=False: a private mapping, whose pages are common to all processes until one writes to them.
    return torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
