"""Count how often statements of drfl.assessment on simulated federations are wrong, and test the counts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from drfl.assessment.differences import worst_gain
from drfl.assessment.seeds import holm
from drfl.assessment.worst import could_be_worst, worst_score

ALPHA = 0.05
EQUAL = 1e-12
"""True scores that differ by less count as equal."""


class Tally(NamedTuple):
    """How often a statement was wrong.

    Args:
        setting: name of the setting.
        statement: name of the statement.
        federations: number of simulated federations.
        misses: number of federations in which the statement was wrong.
        nominal: allowed share of misses.
        demanded: whether the statement must hold; an approximate one is only measured.
    """

    setting: str
    statement: str
    federations: int
    misses: int
    nominal: float
    demanded: bool = True

    @property
    def p(self):
        """Return the p-value of this many misses or more at the nominal probability (exact binomial test)."""
        return float(binom.sf(self.misses - 1, self.federations, self.nominal))


def adjusted(tallies):
    """Return Holm's correction over all demanded statements; NaN if there are none."""
    return holm([tally.p if tally.demanded else np.nan for tally in tallies])


def rejected(tallies):
    """Return the statements that are wrong significantly more often than allowed."""
    return [tally for tally, p in zip(tallies, adjusted(tallies), strict=True) if p <= ALPHA]


def tallied(setting, ways, federations, key, *, demanded=True):
    """Count how often statements are wrong.

    Args:
        setting: law of the federations.
        ways: functions of a setting and the federations. They map each statement and its nominal probability of error
            to a mask (F,) of the federations in which it was wrong.
        federations: number of federations.
        key: key of the draws.
        demanded: whether the statements must hold.
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
    """Return whether any of the intervals (F, N) misses."""
    return ((low > truth + EQUAL) | (high < truth - EQUAL)).any(1)


def truly_worst(setting):
    """Return the truly worst clients with the fewest and with the most rows, by name."""
    truth, n = setting.truth[0], setting.draw(np.random.default_rng(0), 1).a.n[0]
    worst = np.flatnonzero(truth <= truth.min() + EQUAL)
    few, many = worst[np.argmin(n[worst])], worst[np.argmax(n[worst])]
    return {"": few} if few == many else {", of fewest rows": few, ", of most rows": many}


def client_intervals(setting, drawn, alpha=None):
    """Return the clients' intervals of all federations at once."""
    alpha = ALPHA if alpha is None else alpha
    each = alpha / (2 * setting.truth.shape[1])
    return {("client intervals", alpha): outside(drawn.a.lower(each), drawn.a.upper(each), setting.truth[0])}


def one_model(setting, drawn, alpha=None):
    """Return the clients' intervals, that of the worst client, and the clients that could be the worst."""
    alpha = ALPHA if alpha is None else alpha
    found, ends, p = client_intervals(setting, drawn, alpha), [], []
    for one in drawn.each():
        ends.append(worst_score(one.a, alpha)[1:])
        p.append(could_be_worst(one.a, alpha, independent=not setting.shared))
    low, high = np.array(ends).T[:, :, None]
    found["worst client's interval", alpha] = outside(low, high, setting.truth[0].min())
    left_out = np.array(p) <= alpha
    return found | {("could be the worst" + name, alpha): left_out[:, i] for name, i in truly_worst(setting).items()}


def gains_of_clients(setting, drawn, alpha=None):
    """Return the clients' gains of all federations at once."""
    alpha = ALPHA if alpha is None else alpha
    gain = setting.truth[1] - setting.truth[0]
    each = alpha / (2 * len(gain))
    found = {("gains' intervals", alpha): outside(drawn.gains.lower(each), drawn.gains.upper(each), gain)}
    measured = drawn.b.values - drawn.a.values
    wrong = np.where(np.abs(gain) <= EQUAL, measured != 0, measured * gain < 0)
    p = np.stack([holm(own) for own in drawn.gains.p()])
    return found | {("gains and losses shown", alpha): ((p <= alpha) & wrong).any(1)}


def two_models(setting, drawn, alpha=None):
    """Return the clients' gains, the gain of the worst client, and the model that is significantly better."""
    alpha = ALPHA if alpha is None else alpha
    truth = float(setting.truth[1].min() - setting.truth[0].min())
    said = np.array([worst_gain(*one, alpha, independent=not setting.shared)[1:] for one in drawn.each()])
    found = gains_of_clients(setting, drawn, alpha)
    found["worst client's gain, interval", alpha] = outside(said[:, :1], said[:, 1:], truth)
    if truth <= EQUAL:
        found["worst client said to be better", alpha / 2] = said[:, 0] > 0
    if truth >= -EQUAL:
        found["worst client said to be worse", alpha / 2] = said[:, 1] < 0
    return found


def one_model_at_99(setting, drawn):
    """Return the statements on one model at level 99 %."""
    return one_model(setting, drawn, 0.01)


def two_models_at_99(setting, drawn):
    """Return the statements on two models at level 99 %."""
    return two_models(setting, drawn, 0.01)
