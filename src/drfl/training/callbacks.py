"""Ready-made callbacks for :func:`drfl.training.loop.run`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NoReturn

from drfl.core.errors import printable
from drfl.task.metrics import ACCURACY, Measure
from drfl.training.history import Metrics
from drfl.training.run_state import RunState

if TYPE_CHECKING:
    from tqdm import tqdm


class Participation:
    """Callback that counts the clients that train."""

    def __init__(self) -> None:
        self._rounds = self._clients = 0

    def __call__(self, progress: RunState) -> None:
        """Count this round's; a client that was drawn several times trains once."""
        if progress.info is not None:
            self._rounds += 1
            self._clients += progress.info.answered.numel()

    @property
    def mean(self) -> float:
        """Distinct clients a round, over the rounds so far; 0 before the first."""
        return self._clients / max(1, self._rounds)


class Progress:
    """Callback that prints a plain line on stderr, about ten times in a run, and whenever nobody answered.

    Args:
        label: what each line begins with.
        lines: how many lines at most, apart from those on empty rounds.
    """

    def __init__(self, label: str = "drfl", lines: int = 10) -> None:
        self.label, self.lines = label, lines

    def __call__(self, progress: RunState) -> None:
        """Print this round's line, if it is due."""
        where = f"{printable(self.label)}: round {progress.round}/{progress.rounds}"
        if progress.info is not None and progress.info.empty:
            print(f"{where}: nobody answered, the model is as it was", file=sys.stderr, flush=True)
        every = -(-progress.rounds // self.lines) or 1
        row = progress.row
        if row is not None and (progress.round % every == 0 or progress.round == progress.rounds):
            print(f"{where}, {describe(row.metrics, progress.score, row.note)}", file=sys.stderr, flush=True)


class ProgressBar:
    """Callback that shows a live bar with the rounds, the time left, and the newest worst and average score.

    It is tqdm's, in a terminal or a notebook; where stderr is neither, it writes a line at a time.

    Args:
        label: in front of the bar.
    """

    def __init__(self, label: str = "drfl") -> None:
        self.label = label
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, progress: RunState) -> None:
        """Show where the run is."""
        if self._bar is None:
            self._bar = bar(progress.rounds, self.label, "round")
        self._bar.n = progress.round
        if progress.row is not None:
            self._bar.set_postfix_str(describe(progress.row.metrics, progress.score, progress.row.note), refresh=False)
        self._bar.update(0)
        if progress.round == progress.rounds:
            self._bar.refresh()
            self._bar.close()
            self._bar = None


def bar(total: int, label: str, unit: str) -> tqdm[NoReturn]:
    """tqdm's bar for where we are: a widget where the notebook has widgets, else text."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a notebook without widgets; the bar is text there
        from tqdm.auto import tqdm as any_tqdm
    return any_tqdm(total=total, desc=printable(label), unit=unit, file=sys.stderr)


def describe(metrics: Metrics, score: Measure = ACCURACY, note: str = "") -> str:
    """Worst and average score in a few words, with the note on undefined clients; accuracy goes without saying."""
    name = "" if score.name == ACCURACY.name else f"{score.words} "
    return f"worst {name}{score.shown(metrics.worst_score)}{note}, average {score.shown(metrics.avg_score)}"
