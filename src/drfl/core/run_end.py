"""Reasons why a run stops, and the marks and warnings that tables show for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from drfl.core.errors import Notice, listing

StopReason = Literal["rounds", "target", "patience", "callback", "interrupted"]
"""Why a run stopped: it did all rounds, met its target, ran out of patience, or a callback or a signal stopped it."""

ENDS: tuple[StopReason, ...] = ("rounds", "target", "patience")
"""The reasons that complete a run. A run that stopped for any other reason can be resumed."""

FAILURES = ("diverged", "refused")
"""The reasons for which a run of a comparison ends without a model."""

ON_TEST = "test results decided when to stop, so the test rows no longer give an unbiased estimate"
"""Reason why a run that was stopped by test results has no confidence intervals."""

DAGGER = "†"
"""Mark in tables for runs that were stopped by test results."""

DOUBLE_DAGGER = "‡"
"""Mark in tables for runs whose model was reset to an earlier one."""

RESET = "reset to an earlier model"
"""Explanation of :data:`DOUBLE_DAGGER`."""

INITIAL = "returned the initial model unchanged"
"""Explanation of :data:`DOUBLE_DAGGER` for runs of which no round counts."""

FEW_ROUNDS = "If there are few rounds, use more; otherwise set a smaller lr"
"""Remedy for a run that returns an earlier model."""

SECTION = "§"
"""Mark in tables for runs in which each client has its own model."""

OWN_MODELS = "each client is tested with its own model"
"""Explanation of :data:`SECTION`."""


class Marks(NamedTuple):
    """Facts about a run that tables mark.

    Args:
        on_test: Whether test results decided when to stop.
        rollbacks: Number of times the model was reset to an earlier one.
        rounds: Number of rounds done.
        effective_rounds: Number of rounds that count; see :attr:`drfl.training.run_log.Result.effective_rounds`.
        last_rollback: Number of rounds done before the last reset.
        is_personal: Whether each client is tested with its own model.
    """

    on_test: bool
    rollbacks: int
    rounds: int
    effective_rounds: int
    last_rollback: int = 0
    is_personal: bool = False

    @property
    def is_late(self) -> bool:
        """Whether the model was reset in the second half of the run."""
        return self.rollbacks > 0 and 2 * self.last_rollback > self.rounds

    @property
    def is_reset(self) -> bool:
        """Whether the model was reset, or an earlier one was returned."""
        return self.rollbacks > 0 or self.effective_rounds < self.rounds

    @property
    def is_untrained(self) -> bool:
        """Whether no round counts, so that the returned model is the initial one."""
        return self.rounds > 0 and self.effective_rounds == 0

    @property
    def rounds_text(self) -> str:
        """Number of rounds that count, as text: "2 of 15 rounds count"."""
        return f"{self.effective_rounds} of {self.rounds} rounds count{'s' * (self.effective_rounds == 1)}"


def add_marks(name: str, runs: Iterable[Marks]) -> str:
    """Append the marks of its runs to the name of an algorithm in a table."""
    all_runs = list(runs)
    marks = {
        DAGGER: any(run.on_test for run in all_runs),
        DOUBLE_DAGGER: any(run.is_reset for run in all_runs),
        SECTION: any(run.is_personal for run in all_runs),
    }
    return " ".join((name, *(mark for mark, is_present in marks.items() if is_present)))


def legends(runs: Iterable[tuple[str, str, Marks]]) -> list[str]:
    """Return a line that explains each mark in a table.

    Args:
        runs: All runs of the table, each with its algorithm and its seed.
    """
    all_runs = list(runs)
    on_test = [f"{DAGGER} {ON_TEST}"] if any(run.on_test for *_, run in all_runs) else []
    untrained = [f"{name} ({which})" for name, which in untrained_runs(all_runs).items()]
    initial = [f"{DOUBLE_DAGGER} {INITIAL}, so it is not ranked: {', '.join(untrained)}"] if untrained else []
    reset = [f"{n} seed {s} ({run.rounds_text})" for n, s, run in all_runs if run.is_reset and not run.is_untrained]
    resets = [f"{DOUBLE_DAGGER} {RESET}: {', '.join(reset)}"] if reset else []
    own = [f"{SECTION} {OWN_MODELS}"] if any(run.is_personal for *_, run in all_runs) else []
    return [*on_test, *initial, *resets, *own]


def untrained_runs(runs: Iterable[tuple[str, str, Marks]]) -> dict[str, str]:
    """Return algorithm → which of its runs returned the initial model: "2 of 5 runs, seeds 0, 3".

    The initial model is not a result of the algorithm, and the other runs are a selected subset. So the algorithm is
    not ranked.

    Args:
        runs: All runs, each with its algorithm and its seed.
    """
    by_algorithm: dict[str, list[tuple[str, Marks]]] = {}
    for name, seed, run in runs:
        by_algorithm.setdefault(name, []).append((seed, run))
    texts: dict[str, str] = {}
    for name, members in by_algorithm.items():
        seeds = [seed for seed, run in members if run.is_untrained]
        if seeds:
            share = f"{len(seeds)} of {len(members)} runs, " if len(members) > 1 else ""
            texts[name] = f"{share}seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}"
    return texts


def untrained_notices(which: Mapping[str, str]) -> list[Notice]:
    """Warn if runs of a comparison returned the initial model; ``which`` is from :func:`untrained_runs`."""
    if not which:
        return []
    named = listing([f"{name} ({runs})" for name, runs in which.items()], "algorithm")
    text = (
        f"runs {INITIAL}, because the training loss was higher at the end: {named}. These algorithms are not ranked. "
        f"{FEW_ROUNDS}, or check the data of the worst client"
    )
    return [Notice(text, "earlier-model", "lr")]


def late_rollbacks(which: Sequence[str]) -> list[Notice]:
    """Warn if models were reset in the second half of their runs.

    Args:
        which: One text per affected run that states how many of its rounds count.
    """
    if not which:
        return []
    text = (
        f"the model was reset to an earlier one in the second half of the run, because the local step size that drfl "
        f"chose was too large: {listing(which, 'run')}. Set a smaller lr, or use more rounds."
    )
    return [Notice(text, "late-rollback", "lr")]


def failures_text(stops: Sequence[str]) -> str:
    """Describe how the failed runs of an algorithm ended: "2 of 14 diverged", "diverged" if all did, "" if none failed.

    With a failed run, the other runs do not describe the algorithm: a mean over the seeds at which it happens to work
    would flatter it.

    Args:
        stops: Why each run of the algorithm stopped.
    """
    ends = Counter(stop for stop in stops if stop in FAILURES)
    return ", ".join(how if n == len(stops) else f"{n} of {len(stops)} {how}" for how, n in sorted(ends.items()))


def has_ended(summary: Mapping[str, object]) -> bool:
    """Return whether a run is complete according to its ``summary.json``."""
    return summary.get("stopped") in ENDS
