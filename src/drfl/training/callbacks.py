"""Ready-made callbacks for :func:`drfl.training.loop.run`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn, cast

from drfl.core.errors import InputError, printable
from drfl.task.measure import Measure
from drfl.task.metrics import ACCURACY
from drfl.training.history import Metrics
from drfl.training.run_state import RunState

if TYPE_CHECKING:
    from tqdm import tqdm


class Participation:
    """Callback that counts the clients that train in each round."""

    def __init__(self) -> None:
        self._rounds = self._clients = 0

    def __call__(self, progress: RunState) -> None:
        """Count this round's clients; a client drawn several times trains once."""
        if progress.info is not None:
            self._rounds += 1
            self._clients += progress.info.answered.numel()

    @property
    def mean(self) -> float:
        """Mean number of distinct clients per round so far; 0 before the first round."""
        return self._clients / max(1, self._rounds)


class Progress:
    """Callback that prints about ten plain lines per run on stderr, and one for each round without replies.

    Args:
        label: Start of each line.
        lines: Maximum number of lines, not counting those for rounds without replies.
    """

    def __init__(self, label: str = "drfl", lines: int = 10) -> None:
        self.label, self.lines = label, lines

    def __call__(self, progress: RunState) -> None:
        """Print this round's line, if it is due."""
        prefix = f"{printable(self.label)}: round {progress.round}/{progress.rounds}"
        if progress.info is not None and progress.info.is_empty:
            print(f"{prefix}: no client replied, the model is unchanged", file=sys.stderr, flush=True)
        every = -(-progress.rounds // self.lines) or 1
        row = progress.row
        if row is not None and (progress.round % every == 0 or progress.round == progress.rounds):
            print(f"{prefix}, {describe(row.metrics, progress.score, row.note)}", file=sys.stderr, flush=True)


class ProgressBar:
    """Callback that shows a live progress bar with the round, the time left, and the latest worst and average score.

    The bar is tqdm's, for terminals and notebooks. If stderr is neither, tqdm writes one line per update.

    Args:
        label: Text in front of the bar.
    """

    def __init__(self, label: str = "drfl") -> None:
        self.label = label
        self._bar: tqdm[NoReturn] | None = None

    def __call__(self, progress: RunState) -> None:
        """Update the bar."""
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


def line_printer(progress: object, other: str = "") -> Callable[[str], None]:
    """Return the function that shows lines of text, from the argument ``progress``; None shows nothing.

    Args:
        progress: The value that the user passed.
        other: Another value that the argument may have, for the message.
    """
    if not progress:
        return lambda line: None
    if not callable(progress):
        values = "a function such as print" + (f", '{other}'" if other else "")
        raise InputError(
            f"`progress` must be {values} or None, got {progress!r:.80}", code="wrong-type", field="progress"
        )
    return cast("Callable[[str], None]", progress)


def bar(total: int, label: str, unit: str) -> tqdm[NoReturn]:
    """Return tqdm's bar for the current environment: a widget in notebooks with widgets, otherwise text."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tqdm warns in notebooks without widgets; the bar is text there
        from tqdm.auto import tqdm as any_tqdm
    return any_tqdm(total=total, desc=printable(label), unit=unit, file=sys.stderr)


def describe(metrics: Metrics, score: Measure = ACCURACY, note: str = "") -> str:
    """Return the worst and average score as a short text, with the note on undefined clients; "accuracy" is omitted."""
    name = "" if score.name == ACCURACY.name else f"{score.words} "
    return f"worst {name}{score.shown(metrics.worst_score)}{note}, average {score.shown(metrics.avg_score)}"


def time_left(seconds: float) -> str:
    """Format an estimate of the time left, as "about 40 s left" or "about 3 min left"."""
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
