"""Means of a value over the rows of clients, with the sums from which the errors of these means follow."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from drfl.assessment.scores import Floats


class RowMoments(NamedTuple):
    """Moments of a value over the rows of each of k clients, or groups of clients.

    Rows of one patient may agree, so errors count patients, if there are some. A unit is a patient, or else a row. No
    unit belongs to two clients.

    Args:
        rows: (k,) Number of rows.
        units: (k,) Number of units.
        mean: (k,) Mean over the rows.
        squares: (k,) Sum over units of S², where S is the sum of the unit's differences from the mean.
        cross: (k,) Sum over units of S times the unit's number of rows.
        sizes: (k,) Sum over units of the squared number of rows.
    """

    rows: Floats
    units: Floats
    mean: Floats
    squares: Floats
    cross: Floats
    sizes: Floats

    @classmethod
    def of(cls, x: Floats, groups: NDArray[np.intp], patients: NDArray[np.intp] | None = None) -> Self:
        """Compute the moments of values (n,).

        Args:
            x: (n,) Values of rows.
            groups: (n,) Client or group of each row, numbered from 0; each has a row.
            patients: (n,) Patient of each row, each in one group; None if rows are independent.
        """
        units = np.arange(len(x)) if patients is None else patients
        _, first, unit, counts = np.unique(units, return_index=True, return_inverse=True, return_counts=True)
        rows = np.bincount(groups).astype(np.float64)
        mean = np.bincount(groups, x) / rows
        with np.errstate(invalid="ignore"):  # ∞ − ∞ is NaN, which shows no gain
            sums, of_unit = np.bincount(unit, x - mean[groups]), groups[first]
        totals = (
            np.bincount(of_unit, weights, minlength=len(rows)).astype(np.float64)
            for weights in (np.ones(len(first)), sums**2, sums * counts, counts**2)
        )
        count, squares, cross, sizes = totals
        return cls(rows, count, mean, squares, cross, sizes)

    def merged(self, groups: NDArray[np.intp]) -> Self:
        """Return the moments of groups of clients.

        Args:
            groups: (k,) Group of each client, numbered from 0; each has a client.
        """

        def total(values: Floats) -> Floats:
            return np.bincount(groups, values).astype(np.float64)

        rows = total(self.rows)
        mean = total(self.rows * self.mean) / rows
        # A unit's sum of differences from the mean of its group is S + (number of its rows)·shift.
        shift = self.mean - mean[groups]
        squares = total(self.squares + 2 * shift * self.cross + shift**2 * self.sizes)
        cross = total(self.cross + shift * self.sizes)
        return type(self)(rows, total(self.units), mean, squares, cross, total(self.sizes))

    def select(self, clients: NDArray[np.intp]) -> Self:
        """Return the moments of some of the clients."""
        return type(self)(*(values[clients] for values in self))

    @property
    def error(self) -> Floats:
        """(k,) Squared standard errors of the means; infinite for a single unit, from which none can be estimated."""
        inflation = self.units / np.maximum(1, self.units - 1)
        return np.where(self.units > 1, inflation * self.squares / self.rows**2, np.inf)
