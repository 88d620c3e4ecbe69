"""Draw thousands of federations with known true scores, as counts of rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from drfl.assessment.differences import BinaryGains, Gains, MeanGains
from drfl.assessment.scores import (
    BinaryScores,
    BoundedScores,
    DeLongScores,
    Floats,
    RankScores,
    RealScores,
    Scores,
    select,
)

BLOCK = 2_000_000
"""Number of counts drawn at once."""


class Drawn(NamedTuple):
    """F federations of N clients as arrays (F, N): test results of both models, and B's gains if there is a model B."""

    a: Scores
    b: Scores | None = None
    gains: Gains | None = None

    def each(self):
        """Yield the federations one by one."""
        for f in range(len(self.a.n)):
            gains = self.gains
            if isinstance(gains, MeanGains):
                gains = MeanGains(select(gains.scores, f), gains.bounded)
            elif gains is not None:
                gains = select(gains, f)
            yield Drawn(select(self.a, f), None if self.b is None else select(self.b, f), gains)


@dataclass(frozen=True, eq=False)
class Setting:
    """Clients with rows of K kinds and known scores of both models.

    Args:
        name: name in the results.
        sizes: (N,) test rows.
        laws: (N, K) probabilities of the kinds.
        kinds: (K, 2) scores of model A and model B on rows of a kind.
        scores: kind of scores.
        shared: whether client i also tests on the rows of client i − 1.
    """

    name: str
    sizes: Floats
    laws: Floats
    kinds: Floats
    scores: type[BinaryScores | BoundedScores | RealScores] = BinaryScores
    shared: bool = field(default=False, kw_only=True)

    @property
    def truth(self):
        """(2, N) true scores of both models."""
        rows = self.sizes[:, None] * self.laws
        return (self._with_shared(rows, 0) @ self.kinds / self._with_shared(self.sizes, 0)[:, None]).T

    @property
    def block(self):
        """Federations that fit into a block."""
        return max(1, BLOCK // self.laws.size)

    def draw(self, rng, federations):
        """Return some federations."""
        drawn = rng.multinomial(self.sizes.astype(np.int64), self.laws, (federations, len(self.sizes)))
        counts = self._with_shared(drawn, 1).astype(np.float64)
        n = np.broadcast_to(self._with_shared(self.sizes, 0), counts.shape[:2])
        a, b = self.kinds.T
        if self.scores is BinaryScores:
            gains = BinaryGains(n, counts @ (b > a).astype(float), counts @ (a > b).astype(float))
            return Drawn(BinaryScores(n, counts @ a), BinaryScores(n, counts @ b), gains)
        bounded = self.scores is BoundedScores
        gains = MeanGains.of(n, counts @ (b - a), counts @ (b - a) ** 2, bounded=bounded)
        return Drawn(*(self.scores(n, counts @ own, counts @ own**2) for own in (a, b)), gains)

    def _with_shared(self, rows, axis):
        return rows + np.roll(rows, 1, axis) if self.shared else rows


def binary(name, sizes, right, right_b=None, *, agree=0.5, shared=False):
    """Make a setting of rows that are right or wrong.

    Args:
        name: name in the results.
        sizes: (N,) test rows.
        right: (N,) true accuracies of model A.
        right_b: (N,) those of model B; None = the same.
        agree: from 0, if the models are right together as rarely as possible, to 1, as often as possible.
        shared: whether neighbours share rows.
    """
    sizes = np.asarray(sizes, float)
    a = np.broadcast_to(np.asarray(right, float), sizes.shape)
    b = a if right_b is None else np.broadcast_to(np.asarray(right_b, float), sizes.shape)
    least, most = np.maximum(0.0, a + b - 1), np.minimum(a, b)
    both = least + agree * (most - least)
    laws = np.maximum(0.0, np.stack([both, b - both, a - both, 1 - a - b + both], 1))
    return Setting(
        name, sizes, laws / laws.sum(1, keepdims=True), np.array([[1, 1], [0, 1], [1, 0], [0, 0.0]]), shared=shared
    )


def numbers(name, sizes, values, laws, *, agree=0.5, roll=0, scores=BoundedScores):
    """Make a setting of rows with a number for each model.

    Args:
        name: name in the results.
        sizes: (N,) test rows.
        values: (K,) possible values of a row.
        laws: (N, K) or (K,) their probabilities with model A.
        agree: share of the rows on which the models have the same value; on the others they are independent.
        roll: model B's law at client i is A's at client i − roll; 0 if they agree on some rows.
        scores: kind of scores.
    """
    sizes, values = np.asarray(sizes, float), np.asarray(values, float)
    a = np.broadcast_to(np.asarray(laws, float), (len(sizes), len(values)))
    a = a / a.sum(1, keepdims=True)
    joint = (1 - agree) * a[:, :, None] * np.roll(a, roll, 0)[:, None] + agree * a[:, :, None] * np.eye(len(values))
    kinds = np.stack(np.meshgrid(values, values, indexing="ij"), -1).reshape(-1, 2)
    return Setting(name, sizes, joint.reshape(len(sizes), -1), kinds, scores)


@dataclass(frozen=True, eq=False)
class RankSetting:
    """Clients whose models give K ordered outputs to the rows of two classes.

    Args:
        name: name in the results.
        positive: (N,) rows of the positive class.
        negative: (N,) rows of the other class.
        laws: (N, 2, K) of model A's outputs, the positive class first.
        other: (N, 2, K) of model B's outputs; None = A's.
        agree: share of the rows to which model B gives A's output; on the others they are independent.
        scores: kind of scores.
    """

    name: str
    positive: Floats
    negative: Floats
    laws: Floats
    other: Floats | None = None
    agree: float = 1.0
    scores: type[RankScores] = DeLongScores
    shared = False

    @property
    def joint(self):
        """Return the laws (N, 2, K, K) of both models' outputs."""
        other = self.laws if self.other is None else self.other
        same = self.laws[..., None] * np.eye(self.laws.shape[-1])
        return self.agree * same + (1 - self.agree) * self.laws[..., None] * other[..., None, :]

    @property
    def truth(self):
        """(2, N) true areas of both models."""
        joint = self.joint
        return np.stack([_pairs(*np.moveaxis(joint.sum(axis), 1, 0))[0] for axis in (-1, -2)])

    @property
    def block(self):
        """Federations that fit into a block."""
        return max(1, BLOCK // self.joint.size)

    def draw(self, rng, federations):
        """Return some federations."""
        shape, k = (federations, len(self.positive)), self.laws.shape[-1]
        rows = [np.asarray(own, np.int64) for own in (self.positive, self.negative)]
        joint = np.moveaxis(self.joint.reshape(*self.laws.shape[:2], -1), 1, 0)
        counts = [rng.multinomial(own, law, shape).reshape(*shape, k, k) for own, law in zip(rows, joint, strict=True)]
        sums, placed = [], []
        for axis in (-1, -2):
            margins = [own.sum(axis).astype(float) for own in counts]
            pairs, *levels = _pairs(*margins)
            sums.append([pairs, *((own * level**2).sum(-1) for own, level in zip(margins, levels, strict=True))])
            placed.append(levels)
        products = [np.einsum("...kl,...k,...l", own, a, b) for own, a, b in zip(counts, *placed, strict=True)]
        n = [np.broadcast_to(own.astype(float), shape) for own in rows]
        parts = 1 if self.scores is RankScores else 3
        a, b = (self.scores(*n, *own[:parts]) for own in sums)
        return Drawn(a, b, MeanGains(a.gain(b, np.stack(products, -1)), True))


def _pairs(positive, negative):
    """Return the correctly ordered pairs of rows of K levels, and the number of pairs of a row of each level and
    class.
    """
    above = positive.sum(-1, keepdims=True) - np.cumsum(positive, -1) + positive / 2
    below = np.cumsum(negative, -1) - negative / 2
    return (positive * below).sum(-1), below, above


@dataclass(frozen=True, eq=False)
class RateSetting:
    """Clients with test rows of which some count, such as those of the positive class for the sensitivity.

    Args:
        name: name in the results.
        sizes: (N,) test rows.
        counting: (N,) probability that a row counts.
        right: (N,) probability that a counted row is right.
    """

    name: str
    sizes: Floats
    counting: Floats
    right: Floats
    shared = False

    @property
    def truth(self):
        """(1, N) true rates."""
        return np.asarray(self.right, float)[None]

    @property
    def block(self):
        """Federations that fit into a block."""
        return BLOCK // len(self.sizes)

    def draw(self, rng, federations):
        """Return some federations."""
        n = rng.binomial(np.asarray(self.sizes, np.int64), self.counting, (federations, len(self.sizes)))
        return Drawn(BinaryScores(n.astype(float), rng.binomial(n, self.right).astype(float)))
