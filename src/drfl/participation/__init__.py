"""How many clients a round asks, waits for, and needs."""

from __future__ import annotations

from drfl.participation.oversampled import First, OverSampled
from drfl.participation.quorum import Quorum

__all__ = ["First", "OverSampled", "Quorum"]
