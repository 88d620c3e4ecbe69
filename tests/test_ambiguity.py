"""The simplex: exact projections, whatever the numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.reference import bisection

from drfl.ambiguity import Simplex
from drfl.errors import InputError


def vectors(size=60, bound=1e3):
    return st.lists(st.floats(-bound, bound), min_size=1, max_size=size).map(tensor)


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def kkt_residual(v, lam, floor=0.0):
    """λ = floor + max(v − θ, 0) for one θ, with sum 1: how far from that."""
    inside = lam > floor
    theta = (v - lam)[inside].mean() if inside.any() else (v - lam).max()
    stationary = ((v - lam) - theta)[inside].abs().max() if inside.any() else tensor([0.0]).max()
    below = ((v - floor) - theta)[~inside].clamp(min=0).max() if (~inside).any() else tensor([0.0]).max()
    return max(float(stationary), float(below), abs(float(lam.sum()) - 1))


@given(v=vectors())
def test_projection(v):
    lam = Simplex().project(v)
    assert (lam >= 0).all()
    assert kkt_residual(v, lam) <= 1e-9
    np.testing.assert_allclose(lam.numpy(), bisection(v.numpy()), rtol=0, atol=1e-9)


@given(v=vectors(size=12, bound=2), share=st.floats(0, 1))
def test_projection_with_floor(v, share):
    floor = share / len(v)
    lam = Simplex(floor).project(v)
    assert (lam >= floor).all()
    assert kkt_residual(v, lam, floor) <= 1e-9
    room = max(0.0, 1 - floor * len(v))
    np.testing.assert_allclose(lam.numpy(), floor + bisection(v.numpy() - floor, room), rtol=0, atol=1e-9)


@given(v=vectors(bound=5))
def test_idempotent(v):
    lam = Simplex().project(v)
    assert (Simplex().project(lam) - lam).abs().max() <= 1e-12


@given(v=vectors(bound=5), shift=st.floats(-100, 100))
def test_translation_changes_nothing(v, shift):
    assert (Simplex().project(v + shift) - Simplex().project(v)).abs().max() <= 1e-11


@given(v=vectors(bound=5), seed=st.integers(0, 99))
def test_order_of_clients_does_not_matter(v, seed):
    order = torch.randperm(len(v), generator=torch.Generator().manual_seed(seed))
    assert (Simplex().project(v[order]) - Simplex().project(v)[order]).abs().max() <= 1e-13


@given(data=st.data())
def test_nearest(data):
    """No other point of the simplex is nearer: (v − λ)·(u − λ) ≤ 0 at every u of it."""
    v = data.draw(vectors(size=8, bound=3))
    u = Simplex().project(data.draw(st.lists(st.floats(-2, 2), min_size=len(v), max_size=len(v)).map(tensor)))
    lam = Simplex().project(v)
    assert float((v - lam) @ (u - lam)) <= 1e-9


@given(
    exponents=st.lists(st.integers(-300, 300), min_size=1, max_size=20),
    signs=st.lists(st.booleans(), min_size=20, max_size=20),
)
def test_huge_and_tiny_entries(exponents, signs):
    v = tensor([(1 if s else -1) * 10.0**e for e, s in zip(exponents, signs, strict=False)])
    lam = Simplex().project(v)
    assert abs(float(lam.sum()) - 1) <= 1e-12
    assert (lam >= 0).all()
    np.testing.assert_allclose(lam.numpy(), bisection(v.numpy()), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([7.0], [1.0]),
        ([-1e300], [1.0]),
        ([0.0, 0.0, 0.0, 0.0], [0.25] * 4),
        ([1e300, 1e300, 0.0], [0.5, 0.5, 0.0]),
        ([1e300, -1e300], [1.0, 0.0]),
        ([1.7e308, -1.7e308], [1.0, 0.0]),
        ([1e-300, 0.0], [0.5, 0.5]),
        ([1e300, 1.0, 1e-300], [1.0, 0.0, 0.0]),
        ([0.3, 0.7], [0.3, 0.7]),
        ([2.0, 1.0, 2.0, 0.0], [0.5, 0.0, 0.5, 0.0]),
        ([0.6, 0.5, 0.1], [8 / 15, 13 / 30, 1 / 30]),
        ([1.5, 0.5], [1.0, 0.0]),
    ],
    ids=str,
)
def test_by_hand(v, expected):
    assert Simplex().project(tensor(v)).tolist() == pytest.approx(expected, abs=1e-15)


def test_it_is_no_renormalisation():
    assert Simplex().project(tensor([0.5, 0.5, 1.0])).tolist() == pytest.approx([1 / 6, 1 / 6, 2 / 3])


def test_many_clients():
    v = torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert kkt_residual(v, Simplex().project(v)) <= 1e-9
    assert kkt_residual(v / 1e4, Simplex().project(v / 1e4)) <= 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int64])
def test_answers_in_float64(dtype):
    v = torch.tensor([0, 1, 1], dtype=dtype)
    lam = Simplex().project(v)
    assert lam.dtype == torch.float64
    assert lam.tolist() == pytest.approx([0, 0.5, 0.5])


def test_the_argument_is_left_alone():
    v = tensor([3.0, 1.0])
    Simplex(0.1).project(v)
    Simplex(0.1).worst_case(v)
    assert v.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("method", ["project", "worst_case"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite(method, bad):
    with pytest.raises(ValueError, match="entry 1 "):
        getattr(Simplex(), method)(tensor([0.0, bad, 1.0]))
    with pytest.raises(ValueError, match="entry 0 "):
        Simplex().prox(tensor([bad]), 1.0)


@pytest.mark.parametrize("shape", [(0,), (2, 2), ()])
def test_not_a_vector(shape):
    with pytest.raises(InputError, match="vector"):
        Simplex().project(torch.zeros(shape))


@pytest.mark.parametrize("floor", [-0.1, 1.5, math.nan, math.inf])
def test_impossible_floor(floor):
    with pytest.raises(InputError, match="floor"):
        Simplex(floor)


def test_floor_too_large():
    for method in (Simplex(0.4).project, Simplex(0.4).worst_case):
        with pytest.raises(InputError, match=r"floor=0\.4 is too large for 3 clients: at most 1/3"):
            method(torch.zeros(3))


@pytest.mark.parametrize("n", [1, 3, 7, 10, 49])
def test_floor_that_leaves_no_room(n):
    lam = Simplex(1 / n).project(torch.arange(n).double())
    assert lam.tolist() == pytest.approx([1 / n] * n)


@given(v=vectors(bound=100), step=st.floats(1e-3, 1e3))
def test_prox_is_the_projection(v, step):
    assert torch.equal(Simplex().prox(v, step), Simplex().project(v))


@given(losses=vectors(size=10, bound=100), share=st.floats(0, 1))
def test_worst_case(losses, share):
    ambiguity = Simplex(share / len(losses))
    worst = ambiguity.worst_case(losses)
    assert float(worst.lam.sum()) == pytest.approx(1)
    assert (worst.lam >= ambiguity.floor).all()
    assert worst.value == pytest.approx(float(worst.lam @ losses))
    expected = share * float(losses.mean()) + (1 - share) * float(losses.max())
    assert worst.value == pytest.approx(expected, abs=1e-9)


def test_worst_case_of_a_tie():
    assert Simplex().worst_case(tensor([1.0, 3.0, 3.0])).lam.tolist() == [0, 1, 0]
