"""How a run ends, and what counts as its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from drfl.core.errors import Notice, listed

Stopped = Literal["rounds", "target", "patience", "interrupted"]
"""Why a run stopped: it did all rounds, met its target, ran out of patience, or a signal or a callback ended it."""

ENDS: tuple[Stopped, ...] = ("rounds", "target", "patience")
"""The reasons that are an end. A run that stopped for any other reason resumes."""

BROKEN = ("diverged", "refused")
"""How a run of a comparison breaks off that leaves no model."""

ON_TEST = "test rows decided when to stop, so they no longer judge the model"
"""Why a run that test rows have stopped has no intervals."""

DAGGER = "†"
"""Behind what test rows have stopped, in tables."""

DOUBLE_DAGGER = "‡"
"""Behind what was set back to the initial model, in tables."""

SET_BACK = "set back to the initial model"


class Marks(NamedTuple):
    """What readers of a table have to know of a run.

    Args:
        on_test: whether test rows decided when to stop.
        rollbacks: how often the model was set back to the initial one.
        rounds: rounds done.
        effective_rounds: those that count, see :attr:`drfl.training.run_log.Result.effective_rounds`.
    """

    on_test: bool
    rollbacks: int
    rounds: int
    effective_rounds: int

    @property
    def is_late(self) -> bool:
        """Whether the model was set back so late that fewer than half of the rounds count."""
        return self.rollbacks > 0 and 2 * self.effective_rounds < self.rounds

    @property
    def counted(self) -> str:
        """How many rounds count: "2 of 15 rounds count"."""
        return f"{self.effective_rounds} of {self.rounds} rounds count{'s' * (self.effective_rounds == 1)}"


def marked(name: str, runs: Iterable[Marks]) -> str:
    """The name of an algorithm in a table, with the signs of its runs behind it."""
    own = list(runs)
    signs = {DAGGER: any(run.on_test for run in own), DOUBLE_DAGGER: any(run.rollbacks for run in own)}
    return " ".join((name, *(sign for sign, is_there in signs.items() if is_there)))


def legends(runs: Iterable[tuple[str, Marks]]) -> list[str]:
    """A line for each sign behind the names in a table.

    Args:
        runs: all of the table, each with its algorithm and seed in words.
    """
    every = list(runs)
    found = [f"{DAGGER} {ON_TEST}"] if any(run.on_test for _, run in every) else []
    back = [f"{name} ({run.counted})" for name, run in every if run.rollbacks]
    return [*found, f"{DOUBLE_DAGGER} {SET_BACK}: {', '.join(back)}"] if back else found


def late_rollbacks(which: Sequence[str]) -> list[Notice]:
    """A warning if models were set back so late that fewer than half of the rounds count.

    Args:
        which: what it begins with: how many rounds count, in which runs.
    """
    if not which:
        return []
    text = (
        f"{listed(which, 'run')}: the local step size that drfl found was too large, and the model was set back to the "
        "initial one; give a smaller lr, or more rounds"
    )
    return [Notice(text, "late-rollback", "lr")]


def has_ended(summary: Mapping[str, object]) -> bool:
    """Whether the record of a run, its ``summary.json``, says that it reached its end."""
    return summary.get("stopped") in ENDS
