"""Problems with known optima for testing algorithms: convex, small, and exact with ``batch=None``.

Example:
    >>> from drfl.ambiguity import Simplex
    >>> from drfl.testing.problems import quadratics
    >>> problem = quadratics(n=3, d=2)
    >>> w, lam, value = problem.saddle(Simplex())  # the centre of the smallest ball around the clients' optima
    >>> bool((problem.losses(w) <= value + 1e-12).all())
    True
"""

from __future__ import annotations

from drfl.testing.problems.objectives import Functions, LeastSquares, Softmax
from drfl.testing.problems.problem import Problem, Saddle
from drfl.testing.problems.zoo import Quadratic, curved_quadratics, logistic, quadratics, robust_regression

__all__ = [
    "Functions",
    "LeastSquares",
    "Problem",
    "Quadratic",
    "Saddle",
    "Softmax",
    "curved_quadratics",
    "logistic",
    "quadratics",
    "robust_regression",
]
