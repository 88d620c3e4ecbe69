"""Test rows in clusters, such as several rows of one patient, as evidence about each client's true score.

Rows of one patient may agree to any degree, so the evidence counts patients, not rows. The bounds hold for every
correlation within patients and any number of patients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drfl.assessment.scores import Floats, MirroredScores, entropy_lower, entropy_tail


@dataclass(frozen=True, eq=False)
class ClusterScores(MirroredScores):
    """A number in [0, 1] for every row, with rows of independent patients.

    The mean is a sum over patients of w_g·x_g, with x_g the patient's mean and w_g its share of the rows, at most w.
    For every λ, E exp(λ·w_g·(x_g − θ)) is largest if x_g is 0 or 1. Its logarithm is then convex in w_g and 0 at
    w_g = 0, so the product over patients is largest if 1/w of them have the share w. Hence Hoeffding's bound with the
    relative entropy (1963, Theorem 1) holds with 1/w, the rows divided by those of the largest patient, in place of the
    number of rows. The numbers of rows are taken as fixed, and a patient's score as independent of its number.

    Args:
        n: (N,) Test rows, at least 0.
        total: (N,) Sums over rows.
        largest: (N,) Rows of the patient with the most rows, at least 1.
    """

    n: Floats
    total: Floats
    largest: Floats

    @property
    def values(self) -> Floats:
        """(N,) means over rows."""
        return np.divide(self.total, self.n, out=np.full(np.shape(self.n), np.nan), where=self.n > 0)

    def above(self, theta: Floats | float) -> Floats:
        """Return p-values of the hypotheses μ_i ≤ θ."""
        mean, theta = np.nan_to_num(self.values), np.asarray(theta, dtype=np.float64)
        return np.where(mean > theta, entropy_tail(self.n / self.largest, mean, theta), 1.0)

    def lower(self, alpha: Floats | float) -> Floats:
        """Return lower bounds: μ_i is below its bound with probability at most α."""
        return entropy_lower(self.n / self.largest, np.nan_to_num(self.values), np.asarray(alpha, dtype=np.float64))

    def mirrored(self) -> ClusterScores:
        """Return the scores 1 − score."""
        return ClusterScores(self.n, self.n - self.total, self.largest)
