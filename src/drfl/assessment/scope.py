"""How far a difference over seeds reaches: no farther than what was redrawn.

A paired test over seeds measures how much results vary from seed to seed, and so only what differs between seeds:

- If every seed has the same test rows, the test says which algorithm is better *on these rows*. Other rows from the
  same clients may turn the difference round.
- If every seed divides the data anew, it says which is better over such divisions of this data set.
- What holds for the population that the rows were drawn from has the error of the test rows beside that of the seeds.
  :func:`population_low` adds up both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from drfl.assessment.seeds import EQUAL


class Reach(IntEnum):
    """How far a significant difference reaches; a larger one includes the smaller ones."""

    NOWHERE = 0
    SEEDS = 1
    POPULATION = 2


class Redrawn(NamedTuple):
    """What the seeds of a comparison redraw.

    Args:
        rows: the test rows: every seed has others, or the same ones at other clients.
        models: the initial model.
    """

    rows: bool
    models: bool

    @classmethod
    def of(cls, runs: Sequence[tuple[str | None, str | None]]) -> Redrawn:
        """From the digests of test rows and initial model, a pair a seed; None, which is not known, is not redrawn."""
        rows, models = zip(*runs, strict=True) if runs else ((), ())
        return cls(_all_differ(rows), _all_differ(models))

    @property
    def words(self) -> str:
        """What a difference over seeds holds for: "on these test rows and from this initial model"."""
        if self.rows:
            return "over data splits" if self.models else "over data splits, from this initial model"
        return "on these test rows" if self.models else "on these test rows and from this initial model"


POPULATION = "for the population that the test rows come from"
"""What a difference holds for that has the error of the test rows in it."""


def _all_differ(digests: Sequence[str | None]) -> bool:
    return len(digests) > 1 and None not in digests and len(set(digests)) == len(digests)


def population_low(gains: Sequence[float], row_lows: Sequence[float], alpha: float) -> float:
    """A lower bound of the gain for the population: that of the test rows, less the seeds' half-width.

    The model of every seed has a bound from its own test rows. Seeds share rows, or redraw them from one data set, so
    the mean of these bounds is taken as if the rows were the same, which is exact in the first case and cautious in the
    second. The half-width of the seeds' t-interval is subtracted from that: the sum of both errors, not the root of
    their squares, since the measured worst client is biased by the spread of the clients, and bounds of rows allow for
    that bias, which no number of seeds averages out.

    Args:
        gains: (n,) measured gains, one a seed.
        row_lows: (n,) lower bounds of the true gain of each seed's models, each at level α/2.
        alpha: the two-sided level.

    Returns:
        The bound; NaN for fewer than two seeds, and if all gains are equal, as their spread is then not known.
    """
    from scipy.special import stdtrit  # it takes a while to load

    d = np.asarray(gains, dtype=np.float64)
    if len(d) < 2 or np.ptp(d) <= EQUAL * np.abs(d).max():
        return math.nan
    half = float(stdtrit(len(d) - 1, 1 - alpha / 2) * d.std(ddof=1) / math.sqrt(len(d)))
    return float(np.mean(row_lows)) - half
