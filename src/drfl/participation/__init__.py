"""How many clients a round asks, waits for, and needs, and which of them it had."""

from __future__ import annotations

from drfl.participation.oversampled import First, OverSampled
from drfl.participation.quorum import Quorum
from drfl.participation.replay import Recorded, Replayed, ReplyLog, UsedReplies, read_replies

__all__ = ["First", "OverSampled", "Quorum", "Recorded", "Replayed", "ReplyLog", "UsedReplies", "read_replies"]
