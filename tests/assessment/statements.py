"""How often what drfl.assessment says of simulated federations is wrong, and whether that is too often."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from drfl.assessment.differences import worst_gain
from drfl.assessment.seeds import holm
from drfl.assessment.worst import could_be_worst, worst_score

ALPHA = 0.05
EQUAL = 1e-12
"""True scores that differ by less are the same."""


class Tally(NamedTuple):
    """How often a statement was wrong.

    Args:
        setting: of the federations.
        statement: which.
        federations: simulated.
        misses: of them, where it was wrong.
        nominal: the share that it may be wrong in.
        demanded: whether it is said to hold; an approximate one is measured alone.
    """

    setting: str
    statement: str
    federations: int
    misses: int
    nominal: float
    demanded: bool = True

    @property
    def p(self):
        """That of so many misses or more, were it wrong with its nominal probability (exact binomial test)."""
        return float(binom.sf(self.misses - 1, self.federations, self.nominal))


def adjusted(tallies):
    """Holm's correction of all that is demanded; NaN where nothing is."""
    return holm([tally.p if tally.demanded else np.nan for tally in tallies])


def rejected(tallies):
    """The statements that are wrong more often than they may be."""
    return [tally for tally, p in zip(tallies, adjusted(tallies), strict=True) if p <= ALPHA]


def tallied(setting, ways, federations, key, *, demanded=True):
    """Count how often statements are wrong.

    Args:
        setting: what federations are drawn from.
        ways: functions of a setting and the federations drawn, each of which gives, by statement and the probability
            with which it may be wrong, where it was (F,).
        federations: how many.
        key: of the draws.
        demanded: whether they are said to hold.
    """
    misses = {}
    for start in range(0, federations, setting.block):
        drawn = setting.draw(key.fold(setting.name, start).generator(), min(setting.block, federations - start))
        for way in ways:
            for said, wrong in way(setting, drawn).items():
                misses[said] = misses.get(said, 0) + int(np.count_nonzero(wrong))
    return [
        Tally(setting.name, name, federations, count, nominal, demanded) for (name, nominal), count in misses.items()
    ]


def outside(low, high, truth):
    """Whether any of the intervals (F, N) misses."""
    return ((low > truth + EQUAL) | (high < truth - EQUAL)).any(1)


def truly_worst(setting):
    """The truly worst clients, the one with the fewest rows and the one with the most, under what they are called."""
    truth, n = setting.truth[0], setting.draw(np.random.default_rng(0), 1).a.n[0]
    worst = np.flatnonzero(truth <= truth.min() + EQUAL)
    few, many = worst[np.argmin(n[worst])], worst[np.argmax(n[worst])]
    return {"": few} if few == many else {", of fewest rows": few, ", of most rows": many}


def one_model(setting, drawn):
    """Clients' intervals, the worst one's, and the clients that it could be."""
    truth, each = setting.truth[0], ALPHA / (2 * setting.truth.shape[1])
    found = {("client intervals", ALPHA): outside(drawn.a.lower(each), drawn.a.upper(each), truth)}
    ends, p = [], []
    for one in drawn.each():
        ends.append(worst_score(one.a, ALPHA)[1:])
        p.append(could_be_worst(one.a, ALPHA, independent=not setting.shared))
    low, high = np.array(ends).T[:, :, None]
    found["worst client's interval", ALPHA] = outside(low, high, truth.min())
    left_out = np.array(p) <= ALPHA
    return found | {("could be the worst" + name, ALPHA): left_out[:, i] for name, i in truly_worst(setting).items()}


def two_models(setting, drawn):
    """Clients' gains, the gain of the worst, and which model is said to be better."""
    a, b = setting.truth
    gain, truth, each = b - a, float(b.min() - a.min()), ALPHA / (2 * len(a))
    said = np.array([worst_gain(*one, ALPHA, independent=not setting.shared)[1:] for one in drawn.each()])
    found = {
        ("gains' intervals", ALPHA): outside(drawn.gains.lower(each), drawn.gains.upper(each), gain),
        ("worst client's gain, interval", ALPHA): outside(said[:, :1], said[:, 1:], truth),
    }
    measured = drawn.b.values - drawn.a.values
    wrong = np.where(np.abs(gain) <= EQUAL, measured != 0, measured * gain < 0)
    p = np.stack([holm(own) for own in drawn.gains.p()])
    found["gains and losses shown", ALPHA] = ((p <= ALPHA) & wrong).any(1)
    if truth <= EQUAL:
        found["worst client said to be better", ALPHA / 2] = said[:, 0] > 0
    if truth >= -EQUAL:
        found["worst client said to be worse", ALPHA / 2] = said[:, 1] < 0
    return found
