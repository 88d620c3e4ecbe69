"""Test ties, a single client, huge and tiny numbers, limits of the parameters, and bad input."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.ambiguity.answers import residuals
from tests.ambiguity.cases import CASES, ONE_OF_EACH, drawn, steps, uneven
from tests.support.marks import crossed, long_except
from tests.support.reference import bisection
from tests.support.refusals import refused

from drfl.ambiguity import KL, Box, ChiSquare, ChiSquareBall, CVaR, KLBall, Simplex, _kl_solver, simplex
from drfl.core.errors import NonFiniteError

N = 6
UNEVEN = tuple(uneven(N).tolist())
HUGE = [1e300, -1e300, 1e17, 1.0, 0.0, 1e-300]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def some(draws=20, n=N, size=2.0):
    return size * torch.randn(draws, n, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def answers(ambiguity, v, step=0.7):
    return ambiguity.project(v), ambiguity.prox(v, step), ambiguity.worst_case(v).lam


def assert_same(one, other, tolerance=1e-9, prox=True):
    """Assert that two sets give the same answers. Worst cases are compared by value, because λ need not be unique."""
    for v in some():
        assert (one.project(v) - other.project(v)).abs().max() <= tolerance
        assert one.worst_case(v).value == pytest.approx(other.worst_case(v).value, abs=max(tolerance, 1e-12))
        if prox:
            assert (one.prox(v, 0.7) - other.prox(v, 0.7)).abs().max() <= tolerance


@pytest.mark.parametrize("name", CASES)
def test_one_client(name):
    for value in (0.0, -2.5, 1e300):
        v = tensor([value])
        assert [lam.tolist() for lam in answers(CASES[name](1), v)] == [[1.0]] * 3
        assert CASES[name](1).worst_case(v).value == value


@pytest.mark.parametrize("name", [name for name in CASES if "Simplex" not in name or "0" not in name])
@pytest.mark.parametrize(
    "value", [0.0, pytest.param(3.0, marks=pytest.mark.long), -1e300, pytest.param(1e17, marks=pytest.mark.long)]
)
def test_equal_entries_give_uniform_weights(name, value):
    """Exceptions are a prior, which affects prox and balls, and linear worst cases, which allow any weights."""
    ambiguity, v = CASES[name](4), torch.full((4,), value, dtype=torch.float64)
    if getattr(ambiguity, "prior", None) is None:
        assert ambiguity.project(v).tolist() == pytest.approx([0.25] * 4, abs=1e-12)
        assert ambiguity.prox(v, 0.7).tolist() == pytest.approx([0.25] * 4, abs=1e-12)
    assert ambiguity.worst_case(v).value == pytest.approx(value, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_equal_entries_get_equal_weights(name):
    ambiguity, v = CASES[name](5), tensor([1.0, 1.0, 0.2, 0.2, -4.0])
    if getattr(ambiguity, "prior", None) is None:
        for lam in answers(ambiguity, v)[:2]:
            assert lam[0] == pytest.approx(float(lam[1]), abs=1e-15)
            assert lam[2] == pytest.approx(float(lam[3]), abs=1e-15)


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, CASES))
def test_order_of_clients_does_not_matter(name):
    ambiguity, order = CASES[name](8), torch.randperm(8, generator=torch.Generator().manual_seed(1))
    if getattr(ambiguity, "prior", None) is None:
        other = ambiguity
    else:
        other = type(ambiguity)(
            *[x for k, x in vars(ambiguity).items() if k in ("rho", "radius")], _prior(ambiguity, order)
        )
    for v in some(n=8):
        for lam, moved in zip(answers(ambiguity, v), answers(other, v[order]), strict=True):
            assert (lam[order] - moved).abs().max() <= 1e-12


def _prior(ambiguity, order):
    return torch.tensor(ambiguity.prior, dtype=torch.float64)[order]


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, CASES))
def test_huge_and_tiny_entries_give_valid_weights(name):
    v = np.array([HUGE, HUGE[::-1], [1e17, 1e17, 1e17 + 64, 0, 0, -1e17], [1e-300, 0, 0, 0, 0, -1e-300]])
    for scale in (1.0, 1.7e8, 1e-8):
        found = residuals(CASES[name](N), v * scale, np.array([1e-3, 1.0, 1e3, 1.0]))
        assert found.worst() <= 1e-9, found


@pytest.mark.parametrize("losses", [[1e300, 1e300, 0.0], [1e17, 1e17 - 16, 0.0], [1e300, -1e300, 1e299], [-1e300] * 3])
@pytest.mark.parametrize("rho", [1e-300, 1e-3, 1.0, 1e17, 1e300])
def test_soft_maximum_does_not_overflow(losses, rho):
    """max f − ρ·log N ≤ ρ·log mean e^{f/ρ} ≤ max f."""
    value, lam = KL(rho).worst_case(tensor(losses))
    assert lam.sum() == pytest.approx(1)
    assert (lam >= 0).all()
    slack = 1e-12 * (rho + max(map(abs, losses)))
    assert max(losses) - rho * math.log(3) - slack <= value <= max(losses) + slack
    assert value >= math.fsum(x / 3 for x in losses) - slack


def test_prox_with_huge_steps_and_penalties():
    for ambiguity in (ChiSquare(1e300), KL(1e300), KL(1e300, UNEVEN)):
        for step in (1e-300, 1.0, 1e300):
            for v in (tensor(HUGE), tensor([1.0, 2, 3, 4, 5, 6])):
                assert float(ambiguity.prox(v, step).sum()) == pytest.approx(1, abs=1e-9)


def test_tiny_differences_far_from_the_origin_count():
    """Near 1e15 numbers are exact to 1/8 only; the remaining differences count."""
    for make in CASES.values():
        near, far = tensor([0.0, 0.125, 0.25, -0.5]), tensor([0.0, 0.125, 0.25, -0.5]) + 2.0**49
        for lam, moved in zip(answers(make(4), near), answers(make(4), far), strict=True):
            assert (lam - moved).abs().max() <= 1e-9


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CVaR(1 / N), Simplex()),
        (CVaR(1e-9), Simplex()),
        (Box(1.0), Simplex()),
        (CVaR(0.4), Box(1 / (0.4 * N))),
        (CVaR(1.0), Box(1 / N)),
        (CVaR(1.0), Simplex(1 / N)),
        (CVaR(1.0), ChiSquareBall(0.0)),
        (CVaR(1.0), KLBall(0.0)),
        (ChiSquare(0.0), Simplex()),
        (KL(0.0), Simplex()),
        (KL(0.0, UNEVEN), Simplex()),
        (ChiSquareBall((N - 1) / 2), Simplex()),
        (ChiSquareBall(1e300), Simplex()),
        (KLBall(math.log(N)), Simplex()),
        (KLBall(1e300), Simplex()),
        (KLBall(-math.log(UNEVEN[0]), UNEVEN), Simplex()),
        (KL(0.3), KL(0.3, [1 / N] * N)),
        (KLBall(0.3), KLBall(0.3, [1 / N] * N)),
    ],
    ids=str,
)
def test_equivalent_sets_give_the_same_answers(one, other):
    assert_same(one, other)


@pytest.mark.parametrize(
    ("family", "limit"),
    [
        (ChiSquare, Simplex()),
        (KL, Simplex()),
        (lambda eps: KL(eps, UNEVEN), Simplex()),
        (Simplex, Simplex()),
        (lambda eps: ChiSquareBall((N - 1) / 2 * (1 - eps)), Simplex()),
        (lambda eps: KLBall(math.log(N) * (1 - eps)), Simplex()),
        (lambda eps: ChiSquare(1 / eps), CVaR(1.0)),
        (lambda eps: KL(1 / eps), CVaR(1.0)),
    ],
)
def test_parameters_approach_their_limits(family, limit):
    """The distance to the limit falls to 1e-6."""
    strong = isinstance(limit, CVaR)  # only the prox converges to the limit's
    for v in some():
        for answer in ("prox", "worst"):
            apart = []
            for eps in (1e-1, 1e-4, 1e-9):
                mine, end = family(eps), limit
                if answer == "prox":
                    apart.append(float((mine.prox(v, 0.7) - end.prox(v, 0.7)).abs().max()))
                else:
                    apart.append(abs(mine.worst_case(v).value - end.worst_case(v).value))
            assert apart[2] <= 1e-6, (answer, apart)
            assert apart[2] <= apart[0] + 1e-12, (strong, answer, apart)


@pytest.mark.parametrize("radius", [1e-30, 1e-22, 1e-15, 1e-8])
def test_tiny_balls_have_the_closed_form_solution(radius):
    """Near uniform weights both balls are ‖λ − 1/N‖² ≤ 2·radius/N, and the answer is the centre plus a step along v."""
    for v in some():
        centred = v - v.mean()
        expected = 1 / N + math.sqrt(2 * radius / N) * centred / centred.norm()
        for ball in (ChiSquareBall(radius), KLBall(radius)):
            for lam in (ball.project(v), ball.worst_case(v).lam):
                assert (lam - expected).abs().max() <= 10 * radius + 1e-11


def test_answers_lean_towards_the_prior():
    """For equal losses, KL's worst case and the ball of radius 0 return the prior."""
    equal, p = torch.ones(N), tensor(UNEVEN)
    assert (KL(0.3, UNEVEN).worst_case(equal).lam - p).abs().max() <= 1e-15
    assert (KLBall(0.0, UNEVEN).project(some()[0]) - p).abs().max() <= 1e-15
    losses = some()[0]
    expected = p * (losses / 0.3).exp()
    assert (KL(0.3, UNEVEN).worst_case(losses).lam - expected / expected.sum()).abs().max() <= 1e-14
    assert KL(0.3, UNEVEN).worst_case(losses).value == pytest.approx(0.3 * math.log(float(expected.sum())))


@pytest.fixture(params=["few", "many"])
def clients(request, monkeypatch):
    """Use few clients, and few clients with the code for very many."""
    if request.param == "many":
        monkeypatch.setattr(simplex, "MANY", 0)


@pytest.mark.parametrize(
    ("entries", "many"),
    crossed(
        {"any": st.floats(-1e3, 1e3), "in [0, 1]": st.floats(0, 1), "equal": st.sampled_from([0.0, 0.0, 0.25, 0.5])},
        {"many": simplex.MANY, "few": 0},
    ),
)
@given(data=st.data(), share=st.floats(0, 1))
def test_simplex_matches_bisection(many, entries, data, share):
    v = tensor(data.draw(st.lists(entries, min_size=1, max_size=40)))
    floor = share / len(v)
    room = max(0.0, 1 - floor * len(v))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simplex, "MANY", many)
        lam = Simplex(floor).project(v).numpy()
    np.testing.assert_allclose(lam, floor + bisection(v.numpy() - floor, room), rtol=0, atol=1e-9)


def test_projection_of_very_many_clients_needs_no_copy_or_sort(monkeypatch):
    """Few clients moved: from uniform weights, from sparse ones, by numbers that sum to 0, and above a floor."""
    n = simplex.MANY + 7
    monkeypatch.setattr(simplex, "ascending", None)
    uniform, sparse, v = torch.full((n,), 1 / n).double(), torch.zeros(n).double(), torch.zeros(n).double()
    sparse[::500] = 1 / len(sparse[::500])
    v[3::4000] = torch.linspace(-0.1, 0.2, len(v[3::4000]), dtype=torch.float64)
    for lam, floor, step in itertools.product((uniform, sparse), (0.0, 0.5 / n), (v, v - v.sum() / n, v * 1e-3)):
        target = lam * (1 - n * floor) + floor + step
        copy = target.clone()
        found = Simplex(floor).project(copy)
        assert torch.equal(copy, target)
        expected = floor + bisection((target - floor).numpy(), 1 - n * floor)
        np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-12)
        assert abs(float(found.sum()) - 1) <= 1e-12
        assert float(found.min()) >= floor


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize(
    ("v", "expected"),
    [
        ([1e300, 1e300, 0.0], [0.5, 0.5, 0.0]),
        ([1.7e308, -1.7e308], [1.0, 0.0]),
        ([1e-300, 0.0], [0.5, 0.5]),
        ([0.3, 0.7], [0.3, 0.7]),
        ([2.0, 1.0, 2.0, 0.0], [0.5, 0.0, 0.5, 0.0]),
        ([0.0, 0.6, 0.0, -0.1, 0.0, 0.5], [0.0, 0.55, 0.0, 0.0, 0.0, 0.45]),
        ([1e300, 0.4, 0.4, 0.3, -1e300, 1e300], [0.5, 0.0, 0.0, 0.0, 0.0, 0.5]),
        ([0.25, 0.25, 0.25, 0.25, -1e-300], [0.25, 0.25, 0.25, 0.25, 0.0]),
        ([0.3, 0.3, 0.3, 0.3, -0.9, 0.0], [0.25, 0.25, 0.25, 0.25, 0.0, 0.0]),
        ([0.6, 0.5, 0.1], [8 / 15, 13 / 30, 1 / 30]),
        ([0.5, 0.5, 1.0], [1 / 6, 1 / 6, 2 / 3]),  # renormalising gives 1/4, 1/4, 1/2
    ],
    ids=str,
)
def test_simplex_projection_by_hand(v, expected):
    assert Simplex().project(tensor(v)).tolist() == pytest.approx(expected, abs=1e-15)


def test_worst_cases_by_hand():
    losses = tensor([1.0, 3.0, 3.0, 0.0, 2.0])
    assert Simplex().worst_case(losses).lam.tolist() == [0, 1, 0, 0, 0]
    assert Simplex(0.1).worst_case(losses) == (pytest.approx(2.4), pytest.approx(tensor([0.1, 0.6, 0.1, 0.1, 0.1])))
    assert CVaR(0.5).worst_case(losses).lam.tolist() == pytest.approx([0, 0.4, 0.4, 0, 0.2])
    assert CVaR(0.5).worst_case(losses).value == pytest.approx(2.8)
    assert Box(0.3).worst_case(losses).lam.tolist() == pytest.approx([0.1, 0.3, 0.3, 0, 0.3])


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, CASES))
def test_many_clients(name):
    if name == "Simplex(0.01)":
        return  # for up to 100
    n = 100_000
    for seed, scale in enumerate((1.0, 1e-4)):
        g = np.random.default_rng(seed)
        found = residuals(CASES[name](n), scale * g.normal(size=(1, n)), np.array([0.01]))
        assert found.worst() <= 1e-9, found


@pytest.mark.parametrize("prior", [None, uneven(20_000)], ids=["even", "uneven"])
def test_prox_with_few_large_weights_needs_few_iterations(prior, monkeypatch):
    """Newton's method can cycle between few large weights, linear in y, and many small ones, exponential in y."""
    iterations, solve = [], _kl_solver.solve_log_ratio

    def counted(a, *others):
        iterations.append(len(a) > 1)
        return solve(a, *others)

    monkeypatch.setattr(_kl_solver, "solve_log_ratio", counted)
    ambiguity, losses = KL(0.1, prior), np.random.default_rng(0).exponential(size=20_000)
    v = ambiguity.worst_case(torch.from_numpy(losses)).lam.numpy() + 0.01 * losses / len(losses)
    for step in 10.0 ** np.arange(-6, 4):
        iterations.clear()
        assert residuals(ambiguity, v[None], np.array([step])).prox.max() <= 1e-9
        assert sum(iterations) <= 8


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "bad", [math.nan, pytest.param(math.inf, marks=pytest.mark.long), pytest.param(-math.inf, marks=pytest.mark.long)]
)
def test_non_finite_input_is_refused(name, bad):
    ambiguity, v = CASES[name](3), tensor([0.5, bad, 0.5])
    calls = (ambiguity.project, ambiguity.worst_case, ambiguity.contains, ambiguity.penalty, ambiguity.penalty_gradient)
    for call in (*calls, lambda v: ambiguity.prox(v, 1.0)):
        with refused("not-finite", None, "1", kind=NonFiniteError):
            call(v)


@pytest.mark.parametrize("name", CASES)
def test_wrong_shapes_and_steps_are_refused(name):
    for shape in ((0,), (2, 2), ()):
        with refused("wrong-shape", None, str(tuple(shape))):
            CASES[name](2).project(torch.zeros(shape))
    for step in (-1.0, math.nan, math.inf):
        with refused("out-of-range", "step"):
            CASES[name](2).prox(torch.zeros(2), step)


BAD = [
    (Simplex, "floor", (-0.1, 1.5, math.nan, math.inf)),
    (CVaR, "alpha", (0.0, -1.0, 1.1, math.nan, math.inf)),
    (Box, "cap", (0.0, -1.0, 1.1, math.nan, math.inf)),
    (ChiSquare, "rho", (-1.0, math.nan, math.inf)),
    (KL, "rho", (-1.0, math.nan, math.inf)),
    (ChiSquareBall, "radius", (-1.0, math.nan, math.inf)),
    (KLBall, "radius", (-1.0, math.nan, math.inf)),
]


@pytest.mark.parametrize(("make", "name", "value"), [(make, name, x) for make, name, values in BAD for x in values])
def test_bad_parameters_are_refused(make, name, value):
    with refused("out-of-range", name, str(value)) as refusal:
        make(value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("prior", "error"),
    [
        ([0.5, 0.5, 0.0], ("out-of-range", "prior", "2", "0.0")),
        ([0.5, 0.6, -0.1], ("out-of-range", "prior", "2", "-0.1")),
        ([0.5, 0.5, math.nan], ("out-of-range", "prior", "2", "nan")),
        ([0.5, 0.4], ("invalid-value", "prior", "1", "0.9")),
        ([], ("wrong-shape", "prior", "(0,)")),
        ([[0.5, 0.5]], ("wrong-shape", "prior", "(1, 2)")),
        ("even", ("wrong-type", "prior")),
    ],
)
@pytest.mark.parametrize("family", [KL, KLBall])
def test_bad_priors_are_refused(family, prior, error):
    with refused(*error) as refusal:
        family(0.1, prior)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("ambiguity", "error"),
    [
        (Simplex(0.4), ("out-of-range", "floor", "floor=0.4", "1/3")),
        (Box(0.3), ("out-of-range", "cap", "cap=0.3", "1/3")),
        (KL(0.1, [0.5, 0.5]), ("count-mismatch", "prior", "2", "3")),
        (KLBall(0.1, [0.5, 0.5]), ("count-mismatch", "prior", "2", "3")),
    ],
    ids=str,
)
def test_parameters_that_do_not_fit_n_are_refused(ambiguity, error):
    v = torch.zeros(3)
    calls = (ambiguity.project, ambiguity.worst_case, ambiguity.contains, lambda v: ambiguity.prox(v, 1.0))
    for call in calls:
        with refused(*error):
            call(v)


def test_kl_has_no_gradient_on_the_boundary():
    with refused("invalid-value", "lam", "1", "0.0"):
        KL(0.1).penalty_gradient(tensor([1.0, 0.0]))
    assert KL(0.0).penalty_gradient(tensor([1.0, 0.0])).tolist() == [0, 0]


@pytest.mark.parametrize("name", CASES)
def test_argument_types_are_accepted_and_arguments_unchanged(name):
    """Any dtype is accepted, the result is float64, and the argument is unchanged."""
    ambiguity = CASES[name](3)
    expected = answers(ambiguity, tensor([0, 1, 1]))
    for dtype in (torch.float16, torch.float32, torch.int64):
        v = torch.tensor([0, 1, 1], dtype=dtype)
        for lam, same in zip(answers(ambiguity, v), expected, strict=True):
            assert lam.dtype == torch.float64
            assert torch.equal(lam, same)
        assert v.tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", long_except(ONE_OF_EACH, CASES))
def test_adding_a_constant_does_not_change_the_weights(name):
    """Vectors are random, and the added constant is exact in binary."""
    g = np.random.default_rng(2)
    for row, step in zip(np.round(drawn(g, 5, N) * 64) / 64, steps(g, 5), strict=True):
        v = torch.from_numpy(np.clip(row, -100, 100))
        for lam, moved in zip(answers(CASES[name](N), v, step), answers(CASES[name](N), v + 256, step), strict=True):
            assert (lam - moved).abs().max() <= 1e-10
