"""What is wrong with a checkpoint that cannot be used."""

from __future__ import annotations

from drfl.errors import DrflError


class DamagedError(DrflError):
    """A checkpoint is incomplete, was altered, or is none of this algorithm's."""
