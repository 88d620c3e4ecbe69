"""How a run ends, and what counts as its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Stopped = Literal["rounds", "target", "patience", "interrupted"]
"""Why a run stopped: it did all rounds, met its target, ran out of patience, or a signal or a callback ended it."""

ENDS: tuple[Stopped, ...] = ("rounds", "target", "patience")
"""The reasons that are an end. A run that stopped for any other reason resumes."""


ON_TEST = "test rows decided when to stop, so they no longer judge the model"
"""Why a run that test rows have stopped has no intervals."""

DAGGER = "†"
"""Behind what test rows have stopped, in tables."""


def has_ended(summary: Mapping[str, object]) -> bool:
    """Whether the record of a run, its ``summary.json``, says that it reached its end."""
    return summary.get("stopped") in ENDS
