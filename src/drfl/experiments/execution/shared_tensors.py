"""Objects for worker processes on this machine, which all map the same copy of large tensors into memory."""

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

from drfl.core.mapped_files import is_mapped, scratch_folder

LARGE = 2**20
"""The minimum size in bytes of a tensor that gets a file."""


class SharedTensors:
    """Pickles objects, and writes their large tensors to temporary files.

    Processes that unpickle such an object map the files into memory, so the system reads them once for any number
    of processes. Changes that a process makes to its tensors stay private.
    """

    def __init__(self) -> None:
        self._files: list[IO[bytes]] = []

    def dumps(self, what: object) -> bytes:
        """Pickle an object with cloudpickle. It can be unpickled only while the files exist."""
        buffer = io.BytesIO()
        _Pickler(buffer, self._write).dump(what)
        return buffer.getvalue()

    def close(self) -> None:
        """Remove the files. Tensors that are already mapped stay readable."""
        while self._files:
            self._files.pop().close()

    def _write(self, tensor: Tensor) -> str:
        # On Linux the file has no name, and other processes open it through this process's file descriptor. So nothing
        # remains of it, however this process ends.
        named = not Path("/proc/self/fd").is_dir()
        # A tensor in a mapped file may be larger than the memory, where /tmp often is.
        folder = scratch_folder() if is_mapped(tensor) else None
        make = tempfile.NamedTemporaryFile if named else tempfile.TemporaryFile
        file = make(dir=folder)
        self._files.append(file)
        tensor.contiguous().flatten().view(torch.uint8).numpy().tofile(file)
        return file.name if named else f"/proc/{os.getpid()}/fd/{file.fileno()}"


class _Pickler(cloudpickle.Pickler):
    def __init__(self, buffer: io.BytesIO, write: Callable[[Tensor], str]) -> None:
        super().__init__(buffer)
        self._write = write

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as cloudpickle declares it
        # Parameters and other subclasses hold more than their numbers, so they are pickled as usual.
        if type(obj) is Tensor and obj.device.type == "cpu" and not obj.requires_grad and obj.nbytes >= LARGE:
            return _map_tensor, (self._write(obj), obj.dtype, tuple(obj.shape))
        return super().reducer_override(obj)


def _map_tensor(path: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    # shared=False maps the file privately: processes share a page until one of them writes to it.
    return torch.from_file(path, shared=False, size=torch.Size(shape).numel(), dtype=dtype).view(shape)
