"""Runs that are set back to the initial model where a test wants it."""

from __future__ import annotations

import pytest

from drfl.training import rounds


def set_back_once(monkeypatch: pytest.MonkeyPatch, *seeds: int) -> None:
    """Runs at these seeds whose step size drfl finds are set back in round 4, the first in which it is looked at."""
    monkeypatch.setattr(rounds, "rises", lambda size, fed, w, key: key.seed in seeds and int(size.lowered) == 0)
