"""How many clients a round asks, waits for, and needs, and which of them it had."""

from __future__ import annotations

from drfl.participation.oversampled import First, OverSampled
from drfl.participation.quorum import Quorum
from drfl.participation.replay import Counted, Record, Recorded, Replayed, read_record

__all__ = ["Counted", "First", "OverSampled", "Quorum", "Record", "Recorded", "Replayed", "read_record"]
