"""How a run ends, and what counts as its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Stopped = Literal["rounds", "target", "patience", "interrupted"]
"""Why a run stopped: it did all rounds, met its target, model selection lost patience, or a signal came."""

ENDS: tuple[Stopped, ...] = ("rounds", "target", "patience")
"""The reasons that are an end. A run that stopped for any other reason resumes."""


def has_ended(summary: Mapping[str, object]) -> bool:
    """Whether the record of a run, its ``summary.json``, says that it reached its end."""
    return summary.get("stopped") in ENDS
