"""The results of a part: written after every row, so that an interrupted part leaves its measurements."""

from __future__ import annotations

import functools
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from jobs import store

DRIVER = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


class Report:
    """Rows of one part, and the time that is left for it.

    Args:
        part: Name of the part and of its file, PART.json.
        out: Folder of the file.
        command: The command, for the head of the file.
        device: The torch device that is measured.
        seconds: Time budget of the part.
    """

    def __init__(self, part: str, out: Path, command: str, device: str, seconds: float) -> None:
        self.part, self.device, self._out, self._command = part, device, out, command
        self._start = time.monotonic()
        self._end = self._start + seconds
        self._rows: list[Mapping[str, object]] = []
        self._summary: dict[str, object] = {"finished": False}

    @property
    def left(self) -> float:
        """Seconds left."""
        return self._end - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time is used up: a part then starts nothing more."""
        return self.left <= 0

    @property
    def failures(self) -> int:
        """Number of rows with ``ok=False``."""
        return sum(row.get("ok") is False for row in self._rows)

    def add(self, **row: object) -> None:
        """Print a row and store it."""
        at = round(time.monotonic() - self._start, 1)
        print(f"{self.part} {at:6.1f} s", ", ".join(f"{k} {v}" for k, v in row.items() if k != "profile"), flush=True)
        self._rows.append({"at_s": at, **row})
        self._write()

    def summarise(self, **values: object) -> None:
        """Add values to the summary, and store it."""
        print(f"{self.part} summary:", values, flush=True)
        self._summary |= values
        self._write()

    def finish(self) -> None:
        """Note that the part was not killed."""
        self._summary |= {"finished": True, "cut_off": self.is_over}
        self._write()

    def _write(self) -> None:
        content = {"card": card(self.device), "summary": self._summary, "rows": self._rows}
        store(self._out, self.part, self._command, content)


@functools.cache
def card(device: str) -> dict[str, object]:
    """Return the card, its driver, and torch's versions of the libraries."""
    if device == "cpu":
        return {"name": "cpu"}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "driver": subprocess.run(DRIVER, capture_output=True, text=True, check=False).stdout.strip(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
    }


def synchronise(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()
