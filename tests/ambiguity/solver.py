"""Compute projections, proxes and worst cases with CVXPY and Clarabel, from the definitions of the KKT conditions."""

from __future__ import annotations

import warnings
from functools import cached_property
from typing import NamedTuple

import cvxpy as cp
import numpy as np
import torch
from tests.ambiguity.kkt import Definition, definition

from drfl.ambiguity import AmbiguitySet

TIGHT = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12, "max_iter": 200}


class Solver:
    """The problems of one set, compiled once each."""

    def __init__(self, what: Definition) -> None:
        self.what, self.u = what, cp.Variable(what.n)
        self.v, self.weight = cp.Parameter(what.n), cp.Parameter(nonneg=True)

    def nearest(self, v: np.ndarray, step: float) -> np.ndarray:
        """Return the prox, or the projection for step 0."""
        if not step * self.what.rho:
            return self._solved(self._plain, v)
        self.weight.value = step * self.what.rho
        return self._solved(self._nearest, v)

    def heaviest(self, losses: np.ndarray) -> np.ndarray:
        """Return λ of the worst case."""
        self.weight.value = self.what.rho
        return self._solved(self._heaviest, losses)

    @cached_property
    def _plain(self) -> cp.Problem:
        return cp.Problem(cp.Minimize(self._distance), self._constraints)

    @cached_property
    def _nearest(self) -> cp.Problem:
        return cp.Problem(cp.Minimize(self._distance + self._penalty), self._constraints)

    @cached_property
    def _heaviest(self) -> cp.Problem:
        return cp.Problem(cp.Maximize(self.v @ self.u - self._penalty), self._constraints)

    @property
    def _distance(self) -> cp.Expression:
        return cp.sum_squares(self.u) / 2 - self.v @ self.u  # up to a constant

    @property
    def _penalty(self) -> cp.Expression | int:
        return self.weight * self._divergence if self.what.rho else 0

    @property
    def _divergence(self) -> cp.Expression:
        if self.what.kind == "square":
            return cp.sum_squares(self.what.n * self.u - 1) / (2 * self.what.n)
        return cp.sum(cp.rel_entr(self.u, self.what.prior))

    @property
    def _constraints(self) -> list[cp.Constraint]:
        n, radius = self.what.n, self.what.radius
        box = [self.u >= self.what.lo, self.u <= self.what.hi, cp.sum(self.u) == 1]
        if radius is None:
            return box
        if radius == 0:  # an interior-point method needs a ball with an interior
            return [*box, self.u == (1 / n if self.what.prior is None else self.what.prior)]
        if self.what.kind == "square":  # a cone represents the norm exactly, but not its square
            return [*box, cp.norm(n * self.u - 1) <= np.sqrt(2 * n * radius)]
        return [*box, self._divergence <= radius]

    def _solved(self, problem: cp.Problem, v: np.ndarray) -> np.ndarray:
        self.v.value = v
        with warnings.catch_warnings():  # it is accurate enough even if it misses 1e-12
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            problem.solve(solver=cp.CLARABEL, **TIGHT)
        return np.maximum(self.u.value, 0)


class Differences(NamedTuple):
    """The largest differences between drfl and the solver: in λ, and in the objective."""

    project: float
    prox: float
    worst_case: float
    objective: float

    @property
    def lam(self) -> float:
        """Return the largest difference in λ. A worst case that is not unique is compared by its objective only."""
        return max(self.project, self.prox, self.worst_case)


def differences(ambiguity: AmbiguitySet, v: np.ndarray, steps: np.ndarray) -> Differences:
    """Return the differences over the rows of v (draws, n), with the steps (draws,)."""
    what = definition(ambiguity, v.shape[1])
    solver, unique = Solver(what), what.rho > 0 or what.radius is not None
    found = []
    for row, step in zip(v, steps.tolist(), strict=True):
        mine, worst = torch.from_numpy(row), ambiguity.worst_case(torch.from_numpy(row))
        pairs = [
            (ambiguity.project(mine).numpy(), solver.nearest(row, 0.0), 1.0, 0.0),
            (ambiguity.prox(mine, step).numpy(), solver.nearest(row, step), 1.0, step),
            (worst.lam.numpy(), solver.heaviest(row), 0.0, 1.0),
        ]
        apart = [float(np.abs(a - b).max()) for a, b, _, _ in pairs]
        if not unique:
            apart[2] = 0.0
        objective = max(abs(_objective(what, row, a, *how) - _objective(what, row, b, *how)) for a, b, *how in pairs)
        found.append([*apart, max(objective, abs(worst.value + _objective(what, row, pairs[2][1], 0.0, 1.0)))])
    return Differences(*np.array(found).max(0).tolist())


def _objective(what: Definition, v: np.ndarray, u: np.ndarray, q: float, c: float) -> float:
    """Return (q/2)‖u‖² − v·u + c·ψ(u)."""
    return float(q * u @ u / 2 - v @ u + (c * what.rho * what.divergence(u[None])[0] if what.rho else 0))
