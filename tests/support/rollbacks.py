"""Make runs roll back to the initial model on request."""

from __future__ import annotations

import pytest

from drfl.training import loop, rounds
from drfl.training.step_size_controller import Continue, StepSizeController


def set_back_once(monkeypatch: pytest.MonkeyPatch, *seeds: int) -> None:
    """Make runs at these seeds with a determined step size roll back in round 4, the first with a check."""
    seed = None
    unchanged = rounds.next_round

    def next_round(algorithm, fed, key, *rest):
        nonlocal seed
        seed = key.seed
        return unchanged(algorithm, fed, key, *rest)

    class SetBack(StepSizeController):
        def accept(self, attempt):
            answer = super().accept(attempt)
            is_first = isinstance(answer, Continue) and answer.progress.round == 4 and not self._first.lowered
            if is_first and seed in seeds:
                return self._roll_back(self._first, "the test wants it", self._safe, None)
            return answer

    monkeypatch.setattr(loop, "next_round", next_round)
    monkeypatch.setattr(rounds, "StepSizeController", SetBack)
