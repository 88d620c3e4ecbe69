"""Counts what runs side by side compute together."""

from __future__ import annotations

import pytest

from drfl.engine import lockstep


def counted_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls were computed together, one entry for each time."""
    found, results_of = [], lockstep.results_of

    def counted(calls, pools):
        found.append(len(calls))
        return results_of(calls, pools)

    monkeypatch.setattr(lockstep, "results_of", counted)
    return found
