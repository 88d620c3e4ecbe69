"""The scope of a difference over seeds: the rows and models that the seeds redraw.

A paired test over seeds measures how much results vary from seed to seed, so it covers only differences between seeds:

- If every seed has the same test rows, the test says which algorithm is better *on these rows*. Other rows from the
  same clients may reverse the difference.
- If every seed splits the data differently, it says which algorithm is better over such splits of this data set.
- A statement on the population that the rows come from has two errors, that of the test rows and that of the seeds.
  :func:`population_low` adds them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from drfl.assessment.seeds import EQUAL


class Reach(IntEnum):
    """Scope of a significant difference; a larger value includes the smaller ones."""

    NOWHERE = 0
    SEEDS = 1
    POPULATION = 2


class Redrawn(NamedTuple):
    """The parts of a comparison that its seeds redraw.

    Args:
        rows: Whether the test rows are redrawn: every seed has other rows, or the same rows at other clients.
        models: Whether the initial model is redrawn.
    """

    rows: bool
    models: bool

    @classmethod
    def of(cls, runs: Sequence[tuple[str | None, str | None]]) -> Redrawn:
        """Compare the digests of test rows and initial model over seeds; unknown ones (None) count as not redrawn."""
        rows, models = zip(*runs, strict=True) if runs else ((), ())
        return cls(_all_differ(rows), _all_differ(models))

    @property
    def words(self) -> str:
        """The scope of a difference over seeds in words, such as "on these test rows and from this initial model"."""
        if self.rows:
            return "over data splits" if self.models else "over data splits, from this initial model"
        return "on these test rows" if self.models else "on these test rows and from this initial model"


POPULATION = "for the population that the test rows come from"
"""Scope of a difference whose interval includes the error of the test rows."""


def _all_differ(digests: Sequence[str | None]) -> bool:
    return len(digests) > 1 and None not in digests and len(set(digests)) == len(digests)


def population_low(gains: Sequence[float], row_lows: Sequence[float], alpha: float) -> float:
    """Bound the gain for the population from below: the bound from the test rows minus the seeds' half-width.

    Each seed's model has a bound from its own test rows. Seeds share rows, or redraw them from one data set. The mean
    of the bounds is used as if the rows were the same, which is exact in the first case and conservative in the second.
    The half-width of the t-interval over seeds is then subtracted. The two errors are added, not combined as the root
    of their squares, because the measured worst client is biased by the spread of the clients. Bounds from rows allow
    for this bias, and no number of seeds averages it out.

    Args:
        gains: (n,) Measured gains, one per seed.
        row_lows: (n,) Lower bounds of the true gain of each seed's models, each at level α/2.
        alpha: Two-sided level.

    Returns:
        The bound. It is NaN for fewer than two seeds, and if all gains are equal, because their spread is then unknown.
    """
    from scipy.special import stdtrit  # slow to load

    d = np.asarray(gains, dtype=np.float64)
    if len(d) < 2 or np.ptp(d) <= EQUAL * np.abs(d).max():
        return math.nan
    half = float(stdtrit(len(d) - 1, 1 - alpha / 2) * d.std(ddof=1) / math.sqrt(len(d)))
    return float(np.mean(row_lows)) - half
