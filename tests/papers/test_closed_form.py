"""Test that many local steps in closed form equal single steps."""

from __future__ import annotations

from typing import cast

import pytest
import torch

from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.testing.problems import LeastSquares, robust_regression
from drfl.testing.quadratic_federation import QuadraticFederation
from drfl_papers.saddle_distance import ClosedForm


def federations(problem) -> tuple[ClosedForm, QuadraticFederation]:
    functions = cast(LeastSquares, problem.functions)
    return ClosedForm(functions), QuadraticFederation(
        functions.hessians, functions.linear, functions.b.square().sum(1) / 2
    )


@pytest.mark.parametrize("prox", [0.0, 0.7])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    "local",
    [
        LocalSGD(1, 0.3, None),
        LocalSGD(100, 0.01, None),
        LocalSGD(7, 0.9, None),  # ηh > 1, so the steps oscillate
        LocalSGD(5, 0.1, None, momentum=0.5),
        LocalSGD(5, 0.1, None, weight_decay=0.2),
        LocalSGD(5, 0.1, None, radius=0.5),
    ],
)
def test_models_equal_those_of_single_steps(local, shifted, prox):
    problem = robust_regression(sigma=0.4, seed=3)
    cohort, w = torch.tensor([0, 2, 3]), torch.linspace(-1, 1, 10, dtype=torch.float64)
    shift = torch.arange(30, dtype=torch.float64).view(3, 10).sin() if shifted else None
    replies = [
        fed.train(cohort, w, local, Key(0), prox=prox, shift=shift, snapshot=(local.steps + 1) // 2)
        for fed in federations(problem)
    ]
    for one, other in zip(*replies, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_flat_directions_and_means_are_exact():
    cohort, w, local = torch.arange(2), torch.ones(4, dtype=torch.float64), LocalSGD(20, 0.1, None)
    for problem, average in (
        (robust_regression(n=2, d=4, samples=2, mu=1e-13), False),
        (robust_regression(n=2, d=4), True),
    ):
        one, other = (fed.train(cohort, w, local, Key(0), average=average) for fed in federations(problem))
        torch.testing.assert_close(one.w, other.w, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(one.average, other.average, rtol=1e-12, atol=1e-12)
        assert (one.w - w).abs().max() > 0.01


def test_losses_and_gradients_equal_the_problems():
    problem = robust_regression(sigma=0.2, seed=1)
    fed, w = federations(problem)[0], torch.ones(10, dtype=torch.float64)
    found = fed.gradients(torch.arange(5), w, Key(0))
    torch.testing.assert_close(found.values, problem.gradients(w))
    torch.testing.assert_close(found.losses, problem.losses(w))
