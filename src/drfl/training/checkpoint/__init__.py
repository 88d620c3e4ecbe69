"""Save the progress of a run and resume it with bitwise the same result."""

from __future__ import annotations

from drfl.training.checkpoint.resuming import Checkpoints, ResumePoint, newest, resume_point
from drfl.training.checkpoint.signatures import read_key, read_signed, sign
from drfl.training.checkpoint.state_schema import DamagedError
from drfl.training.checkpoint.store import Files

__all__ = [
    "Checkpoints",
    "DamagedError",
    "Files",
    "ResumePoint",
    "newest",
    "read_key",
    "read_signed",
    "resume_point",
    "sign",
]
