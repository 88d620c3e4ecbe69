"""Test SCAFF-PD: its rounds, its schedules, its limit, and values that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from tests.conformance import references
from tests.support.marks import crossed
from tests.support.quadratics import Quadratics
from tests.support.reference import bisection
from tests.support.refusals import refused
from tests.support.rounds import last, near, same_as, states

from drfl.algorithms import ScaffPD
from drfl.ambiguity import ChiSquare, Simplex
from drfl.optim.local import LocalSGD

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
LOCAL = LocalSGD(steps=3, lr=0.1)


@pytest.mark.parametrize(
    ("options", "ambiguity"),
    crossed(
        [{}, {"theta": 0.8}, {"server_lr": 0.6}, {"mu": 0.4}, {"mu": 0.4, "server_lr": 0.6}, {"m": 3, "mu": 0.4}],
        [Simplex(), ChiSquare(0.05), ChiSquare(2.0)],
    ),
)
def test_rounds_match_the_paper(options, ambiguity):
    same_as(references.scaffpd, ScaffPD(sigma=0.05, ambiguity=ambiguity, local=LOCAL, **options))


def test_one_exact_step_equals_the_extrapolated_primal_dual_step():
    """With J = 1 and exact gradients the correction cancels: x moves along Σ λ_i ∇f_i(x)."""
    problem, lr, sigma, theta = Quadratics.random(), 0.1, 0.02, 0.8
    algorithm = ScaffPD(sigma=sigma, theta=theta, local=LocalSGD(steps=1, lr=lr, batch=None))
    first, *rest = states(algorithm, problem.federation(), 6)
    w, lam, before = first.w.numpy(), np.full(5, 1 / 5), None
    for state in rest:
        losses = problem.losses(w)
        lam = bisection(lam + sigma * (losses + theta * (losses - (losses if before is None else before))))
        w, before = w - lr * lam @ problem.gradients(w), losses
        near(state.w.numpy(), w)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.long
def test_limit_with_weight_decay_is_the_regularised_optimum(momentum):
    """With σ = 0, λ is fixed, and the λ-weighted gradient and the decay cancel for any participation."""
    problem = Quadratics.random()
    local = LocalSGD(steps=4, lr=0.1, batch=None, momentum=momentum, weight_decay=0.5)
    near(last(ScaffPD(m=4, sigma=0.0, local=local), problem.federation(), 300), problem.optimum([1 / 5] * 5, 0.5), 1e-8)


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"theta": 0.5, "mu": 0.1}, ("conflicting-options", "theta")),
        ({"local": LocalSGD(radius=1.0)}, ("unsupported-combination", "radius")),
        ({"sigma": -1.0}, ("out-of-range", "sigma")),
        ({"theta": 1.5}, ("out-of-range", "theta")),
        ({"mu": -0.1}, ("out-of-range", "mu")),
        ({"server_lr": 0.0}, ("out-of-range", "server_lr")),
        ({"dual_batch": 0}, ("out-of-range", "dual_batch")),
    ],
    ids=str,
)
def test_impossible_values_are_refused(bad, error):
    with refused(*error):
        ScaffPD(**bad)
