"""Save a run's progress and go on from it, bit for bit."""

from __future__ import annotations

from drfl.checkpoint.damage import DamagedError
from drfl.checkpoint.store import Checkpoints, Found, newest

__all__ = ["Checkpoints", "DamagedError", "Found", "newest"]
