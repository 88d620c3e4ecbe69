"""Statements other than intervals of known clients: equal clients, new clients, required test rows, and seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import betabinom
from tests.assessment.statements import ALPHA

from drfl.assessment.differences import BinaryGains
from drfl.assessment.homogeneity import homogeneity
from drfl.assessment.sample_size import POWER, rows_for_models, rows_for_worst
from drfl.assessment.scores import BinaryScores, Floats
from drfl.assessment.seeds import holm_family, seed_difference, verdict
from drfl.assessment.unseen import unseen_client


def equal_clients_differ(setting, drawn):
    """Test equality of clients that are all equally good."""
    found = np.array([homogeneity(one.a)[:2] for one in drawn.each()])
    said = {("clients differ, by the spread", ALPHA): found[:, 0] <= ALPHA}
    if not np.isnan(found[0, 1]):
        said["clients differ, by the worst", ALPHA] = found[:, 1] <= ALPHA
        said["clients differ, either", ALPHA] = 2 * found.min(1) <= ALPHA
    return said


class Seen(NamedTuple):
    """Measured scores of N clients (F, N) and of one more (F,)."""

    clients: Floats
    new: Floats


@dataclass(frozen=True, eq=False)
class Exchangeable:
    """Exchangeable clients, whose sizes and true accuracies (from a beta law) are drawn independently.

    Args:
        name: name in the results.
        clients: N.
        sizes: (S,) possible numbers of test rows.
        beta: parameters of the law of the true accuracy.
    """

    name: str
    clients: int
    sizes: tuple[int, ...]
    beta: tuple[float, float]
    block = 10_000

    def draw(self, rng, federations):
        """Draw the measured scores of some federations."""
        shape = federations, self.clients + 1
        n = rng.choice(self.sizes, shape)
        measured = rng.binomial(n, rng.beta(*self.beta, shape)) / n
        return Seen(measured[:, :-1], measured[:, -1])

    def below(self, values):
        """Return the probability that a client measures less than each of some values (F,)."""
        return np.mean([betabinom.cdf(np.ceil(values * n - 1e-9) - 1, n, *self.beta) for n in self.sizes], 0)


def new_client(setting, drawn):
    """Return the bound of a new client's measured score, and the probability that it is worse than all seen."""
    found = [unseen_client(values) for values in drawn.clients]
    low = np.nan_to_num([one.low for one in found], nan=-np.inf)
    worse, high = found[0].worse, found[0].worse_high
    said = {
        ("new client worse than the worst seen", round(worse, 9)): drawn.new < drawn.clients.min(1),
        ("probability that a new client is worse", ALPHA): setting.below(drawn.clients.min(1)) > high,
    }
    if np.isfinite(low[0]):
        said["new client's bound", round(1 - found[0].coverage, 9)] = drawn.new < low
    return said


@dataclass(frozen=True)
class OneWorse:
    """One client of N is worse by a difference, and has the number of rows that should suffice to detect it."""

    name: str
    accuracy: float
    difference: float
    clients: int
    block = 10_000

    def draw(self, rng, federations):
        """Draw the scores (F,) of that client."""
        n = rows_for_worst(self.accuracy, self.difference, self.clients)
        count = rng.binomial(n, self.accuracy - self.difference, federations).astype(float)
        return BinaryScores(np.full(federations, float(n)), count)


def enough_rows(setting, drawn):
    """Return whether its simultaneous interval includes the others' accuracy, per federation."""
    high = drawn.upper(ALPHA / (2 * setting.clients))
    return {("rows for the worst client, not shown", round(1 - POWER, 9)): high >= setting.accuracy}


@dataclass(frozen=True)
class OneBetter:
    """Model B is better at a client with the stated number of rows, and the expected number of rows changes."""

    name: str
    changed: float
    difference: float
    block = 10_000

    def draw(self, rng, federations):
        """Draw the gains (F,) of that client."""
        n = rows_for_models(self.changed, self.difference)
        m = np.floor(n * self.changed)
        better = rng.binomial(int(m), (1 + self.difference / self.changed) / 2, federations).astype(float)
        return BinaryGains(np.full(federations, float(n)), better, m - better)


def enough_changed(setting, drawn):
    """Return whether McNemar's test is not significant, per federation."""
    shown = (drawn.p() <= ALPHA) & (drawn.better > drawn.worse)
    return {("rows for two models, not shown", round(1 - POWER, 9)): ~shown}


@dataclass(frozen=True)
class Seeds:
    """Differences (F, n) over n seeds, normal with mean 0."""

    name: str
    n: int
    block = 10_000

    def draw(self, rng, federations):
        """Draw the differences of some comparisons."""
        return rng.normal(size=(federations, self.n))


def shown_over_seeds(setting, drawn):
    """Return whether a difference is significant, per comparison."""
    found = map(seed_difference, drawn)
    said = np.array([verdict(one, holm_family([one])[0]) for one in found])
    return {("difference over seeds shown", ALPHA): (said == "better") | (said == "worse")}
