"""Save a run's progress and go on from it, bit for bit."""

from __future__ import annotations

from drfl.checkpoint.files import Files, check_signed, read_key, sign, unsigned
from drfl.checkpoint.selection import ResumePoint, newest, resume_point
from drfl.checkpoint.state_tensors import DamagedError
from drfl.checkpoint.store import Checkpoints

__all__ = [
    "Checkpoints",
    "DamagedError",
    "Files",
    "ResumePoint",
    "check_signed",
    "newest",
    "read_key",
    "resume_point",
    "sign",
    "unsigned",
]
