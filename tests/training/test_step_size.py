"""Test the determined local step size: accuracy, requests, robustness to false replies, and halving."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from tests.support.marks import crossed, long_except
from tests.support.problems import SIZES, federation
from tests.support.refusals import refused
from torch import Tensor

from drfl.algorithms import AFL, DRDM, DRFA, SCAFFOLD, Ditto, DualDRDM, FedAvg, FedDyn, FedProx, ScaffPD
from drfl.core.errors import DivergedError, DrflError, RunWarning
from drfl.core.key import Key
from drfl.core.run_end import Marks
from drfl.data import ClientData
from drfl.engine import Loop, Simulation
from drfl.federation.algorithm import Info
from drfl.federation.federation import WrappedFederation
from drfl.federation.requests import Gradients, Losses
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.resilience import Faulty, Protected, Quorum
from drfl.task.task import Task
from drfl.testing import ConstantFederation, DropoutFederation, QuadraticFederation, Recording
from drfl.testing.state import bits_differ
from drfl.testing.toy_problem import closeness, half_squared_error
from drfl.training import step_size, step_size_controller
from drfl.training.checkpoint import Checkpoints, resume_point
from drfl.training.loop import run
from drfl.training.model_selection import Selection
from drfl.training.safeguard import report
from drfl.training.step_size import StepSize, cap_largest, find, with_step_size
from drfl.training.step_size_controller import MOST_LOWERED

KEY = Key(0).fold("step size")


def found(fed, **local):
    return find(FedAvg(local=LocalSGD(**local)), fed, fed.w0, KEY, is_checked=False)


def rises(size, fed, w, key):
    """Return whether the loss at a model is far above that at the start, for the clients that reported then."""
    return step_size_controller.rises(
        size, report(fed, (~size.losses.isnan()).nonzero().flatten(), w, key, step_size.COMPARED)
    )


def quadratics(hessians, slopes, losses=None):
    """Make clients with these Hessians, whose gradients at the start, 0, are the slopes, with losses of 10 there."""
    A = torch.as_tensor(np.asarray(hessians), dtype=torch.float64)
    b = -torch.as_tensor(np.asarray(slopes), dtype=torch.float64)
    s = torch.full((len(A),), 10.0, dtype=torch.float64) if losses is None else torch.tensor(losses).double()
    return QuadraticFederation(A, b, s)


def regressions(n, seed, d=12, samples=40):
    """Make least-squares clients with a common law of inputs and their own laws of outputs, at the start 0."""
    rng, scales = np.random.default_rng(seed), np.linspace(0.3, 1.5, d)
    law, hessians, slopes = rng.normal(size=d), [], []
    for _ in range(n):
        x = rng.normal(size=(samples, d)) * scales
        y = x @ (law + rng.normal(size=d))
        hessians.append(x.T @ x / samples)
        slopes.append(-x.T @ y / samples)
    return quadratics(hessians, slopes)


# ------------------------------------------------------------------------------------------------- the estimate


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.25])
def test_step_size_is_exact_in_one_dimension(momentum, weight_decay):
    """η = (1 − β)/(L̂ + decay), where L̂ is the largest curvature of a client, capped at twice the second largest."""
    fed = quadratics([[[0.5]], [[3.0]], [[2.0]]], [[1.0], [-0.3], [0.1]])
    size = found(fed, momentum=momentum, weight_decay=weight_decay)
    assert float(size.curvature) == pytest.approx(3.0, rel=1e-10)
    assert float(size.eta) == pytest.approx((1 - momentum) / (3.0 + weight_decay), rel=1e-10)
    assert (int(size.client), int(size.lowered)) == (1, 0)
    assert size.losses.tolist() == [10.0] * 3


@pytest.mark.parametrize("kind", [FedProx, FedDyn, DRDM, DualDRDM])
def test_proximal_term_adds_to_the_curvature(kind):
    fed = quadratics([[[0.5]], [[3.0]], [[2.0]]], [[1.0], [-0.3], [0.1]])
    algorithm = kind(mu=9.0, local=LocalSGD(momentum=0.5, weight_decay=0.25))
    assert float(find(algorithm, fed, fed.w0, KEY, is_checked=False).eta) == pytest.approx(0.5 / 12.25)
    # Local steps of 1/L̂ would diverge, and the clients would return to an earlier model.
    algorithm = kind(mu=9.0, m=3, local=LocalSGD(steps=10))
    assert run(algorithm, fed, rounds=9, check_data=False).rollbacks == 0


@pytest.mark.parametrize("weight", [None, -5.0, float("nan"), "1", lambda self: 1.0])
def test_impossible_proximal_weight_of_a_user_is_refused(weight):
    kind = type("Mine", (FedAvg,), {"proximal_weight": weight})
    fed = quadratics([[[0.5]], [[3.0]], [[2.0]]], [[1.0], [-0.3], [0.1]])
    with refused("out-of-range", "proximal_weight"):
        run(kind(m=2), fed, rounds=1, check_data=False)


@pytest.mark.parametrize("lam", [1.0, 100.0])
def test_own_models_of_ditto_do_not_diverge(lam):
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0)) * 0.1
    data = ClientData.from_arrays({name: (x + i, (x[:, 0] > 0).long()) for i, name in enumerate("abc")})
    fed = Simulation(data, Task(torch.nn.Linear(2, 2)), engine=Loop())
    result = run(Ditto(lam=lam), fed, rounds=20)  # a warning would fail
    assert float(result.step_size.eta) < 1 / lam
    assert result.evaluation.loss.max() < result.history.rows[0].metrics.worst_loss
    with pytest.warns(RunWarning) as warned:
        run(Ditto(lam=lam, local=LocalSGD(lr=2.5 / lam)), fed, rounds=20)
    assert [w.message.code for w in warned] == ["loss-rose"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("d", [2, 30])
def test_largest_eigenvalue_of_clients_with_common_axes(d, seed):
    rng = np.random.default_rng(seed)
    axes, _ = np.linalg.qr(rng.normal(size=(d, d)))
    spectra = np.concatenate([rng.uniform(0.05, 1.0, (4, d - 1)), [[2.0], [5.0], [4.0], [3.0]]], axis=1)
    size = found(quadratics([axes * spectrum @ axes.T for spectrum in spectra], rng.normal(size=(4, d))))
    assert float(size.curvature) == pytest.approx(5.0, rel=0.04)
    assert float(size.curvature) <= 5.0 + 1e-9
    assert int(size.client) == 1


def test_negative_curvature_counts_by_absolute_value():
    """For an indefinite Hessian, the step size follows its largest eigenvalue in absolute value."""
    size = found(quadratics([np.diag([-4.0, 1.0])] * 2, [[1.0, 1.0]] * 2))
    assert float(size.curvature) == pytest.approx(4.0, rel=0.04)


def test_cancelling_gradients_use_a_random_direction():
    fed = quadratics([np.diag([4.0, 1.0])] * 2, [[1.0, 0.5], [-1.0, -0.5]])
    assert float(found(fed).curvature) == pytest.approx(4.0, rel=0.04)
    fed = quadratics([np.diag([4.0, 1.0])] * 2, np.zeros((2, 2)))
    assert float(found(fed).curvature) == pytest.approx(4.0, rel=0.04)


def test_saturated_loss_is_bounded_by_its_gradient():
    """Its Hessian is 0, but a non-negative loss is not linear: L̂ = ‖g‖²/(8f)."""
    fed = quadratics(np.zeros((3, 2, 2)), [[3.0, 4.0]] * 3, losses=[2.5, 5.0, 5.0])
    size = found(fed)
    assert float(size.curvature) == pytest.approx(25 / (8 * 2.5), rel=1e-12)
    assert float(size.eta) == pytest.approx(0.8, rel=1e-12)
    assert int(size.client) == 0
    curved = quadratics([np.eye(2)] * 3, [[3.0, 4.0]] * 3, losses=[2.5, 5.0, 5.0])
    assert float(found(curved).curvature) == pytest.approx(1.25, rel=1e-12)  # the larger of both estimates
    one = quadratics(np.zeros((3, 2, 2)), [[3.0, 4.0]] * 3, losses=[1e-6, 5.0, 5.0])
    assert float(found(one).curvature) == pytest.approx(2 * 25 / (8 * 5), rel=1e-12)  # twice the largest of the others


@pytest.mark.parametrize("losses", [[0.0] * 3, [-1.0] * 3])
def test_zero_or_negative_losses_give_no_bound(losses):
    assert float(found(quadratics(np.zeros((3, 2, 2)), [[3.0, 4.0]] * 3, losses)).eta) == step_size.FALLBACK


def test_float32_model_keeps_enough_digits():
    size = found(federation(dtype=torch.float32))
    exact = found(federation())
    assert size.eta.dtype == torch.float64
    assert float(size.curvature) == pytest.approx(float(exact.curvature), rel=1e-3)


@pytest.mark.parametrize("values", [[], [3.0], [0.0, 0.0], [1.0, 2.0, 9.0], [9.0, 9.0, 1.0], [math.inf, 1.0, 2.0]])
def test_cap_is_twice_the_largest_of_the_others(values):
    others = sorted(values)[-2] if len(values) > 1 else math.inf
    assert cap_largest(torch.tensor(values)).tolist() == [min(value, 2 * others) for value in values]


@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_shifted_inputs_are_measured_away_from_saturation(shift):
    """With a shift the loss is saturated at the start, and its curvature there is not informative."""
    torch.manual_seed(0)
    x, y = torch.randn(3, 40, 5) + shift, torch.randint(0, 2, (3, 40))
    data = ClientData.from_arrays({name: (x[i], y[i]) for i, name in enumerate("abc")})
    fed = Simulation(data, Task(torch.nn.Linear(5, 2)))
    without, with_probes = (find(FedAvg(), fed, fed.w0, KEY, is_checked=checked) for checked in (False, True))
    ratio = float(without.eta / with_probes.eta)
    assert ratio == 1 if shift == 0 else ratio > 10


def test_probe_that_does_not_lower_the_loss_is_ignored():
    """Far along the gradient the curvature of w³ is large, but the run does not go there."""
    fed = steep()
    assert float(find(FedAvg(), fed, fed.w0, KEY).eta) == float(found(fed).eta)


# ------------------------------------------------------------------------------------------------- requests


def test_requests_use_the_same_samples():
    fed = Recording(federation())
    size = found(fed)
    asked, (loss,) = fed.of("gradients"), fed.of("losses")
    assert 3 <= len(asked) == len(fed.calls) - 1 <= 1 + step_size.ITERATIONS
    assert {call.batch for call in asked} == {LocalSGD().batch}, "as many as a local step takes"
    assert {call.key for call in fed.calls} == {KEY}
    assert all(call.cohort.tolist() == list(range(6)) for call in fed.calls)
    assert torch.equal(asked[0].w, fed.w0)
    assert all(float((call.w - fed.w0).norm()) == pytest.approx(step_size.DISTANCE) for call in asked[1:])
    assert torch.equal(loss.w, fed.w0)
    assert loss.batch == step_size.COMPARED
    assert torch.equal(size.losses, loss.reply.values)
    assert fed.ledger.gradient_evaluations == len(asked) * sum(min(n, 32) for n in SIZES)


def test_exchanges_are_counted_before_the_first_round():
    fed = federation()
    row = run(FedAvg(), fed, rounds=0).history.last
    asked = federation()
    find(FedAvg(), asked, asked.w0, KEY)
    assert row.ledger == asked.ledger.totals()
    assert row.ledger["messages"] > 0


@pytest.mark.parametrize("n", [32, 33, 100])
def test_at_most_32_clients_are_asked(n):
    rng = np.random.default_rng(0)
    fed = Recording(quadratics(rng.uniform(1, 2, (n, 1, 1)), rng.normal(size=(n, 1)), rng.uniform(5, 6, n).tolist()))
    size = found(fed)
    (asked,) = {tuple(call.cohort.tolist()) for call in fed.calls}
    assert len(set(asked)) == 32
    assert list(asked) == sorted(asked)
    assert (~size.losses.isnan()).nonzero().flatten().tolist() == list(asked)
    curvatures = fed.fed.A[list(asked), 0, 0]
    assert float(size.curvature) == pytest.approx(float(curvatures.max()), rel=1e-9)
    assert int(size.client) == asked[int(curvatures.argmax())]
    fed.take()
    rises(size, fed, fed.w0 + 1, KEY)
    assert [(call.kind, call.key, call.batch) for call in fed.calls] == [("losses", KEY, step_size.COMPARED)]
    assert fed.calls[0].cohort.tolist() == list(asked)
    other = find(FedAvg(), fed, fed.w0, Key(1)).losses.isnan()
    assert bool((other != size.losses.isnan()).any()) == (n > 32)  # the key determines the requested clients


def test_order_of_answers_does_not_matter():
    plain = found(federation())
    for seed in (0, 1):
        assert bits_differ(found(DropoutFederation(federation(), seed=seed)), plain) == []


@pytest.mark.parametrize(
    ("losses", "looks"), [(range(6), 0), pytest.param((), 2, marks=pytest.mark.long)]
)  # after round 4, and at the end
def test_no_answers_give_the_fallback(losses, looks):
    nobody = {"train": (), "losses": losses, "gradients": range(6)}
    size = found(DropoutFederation(federation(), **nobody))
    assert (float(size.eta), int(size.client)) == (step_size.FALLBACK, -1)
    assert size.curvature.isnan()
    assert size.losses.isnan().all() == (looks == 0)
    recording = Recording(DropoutFederation(federation(), seed=None, **nobody))
    result = run(FedAvg(), recording, rounds=5)
    assert torch.equal(result.model, run(FedAvg(local=LocalSGD(lr=0.1)), federation(), rounds=5).model)
    assert len(recording.of("losses")) == 1 + looks  # without losses at the start there is nothing to compare


@pytest.mark.parametrize("claim", [math.nan, math.inf])
def test_non_finite_initial_loss_is_ignored(claim):
    size = found(Lying(federation(), loss=lambda f, k: claim))
    assert size.losses.isnan().tolist() == [True, *[False] * 5]


def test_flat_losses_give_the_fallback():
    size = found(ConstantFederation([1.0, 2.0, 3.0]))
    assert float(size.eta) == step_size.FALLBACK
    assert size.is_known
    assert run(DRFA(m=2), ConstantFederation([1.0, 2.0, 3.0]), rounds=2).rounds == 2


class SilentFrom(WrappedFederation):
    """Some clients send no gradient from their k-th request on."""

    def __init__(self, fed, clients, k):
        super().__init__(fed)
        self.silent, self.left = DropoutFederation(fed, gradients=clients, seed=None), k

    def ask(self, request):
        self.left -= 1
        return (self.fed if self.left >= 0 else self.silent).ask(request)


@pytest.mark.parametrize("clients", [(1,), (0, 1, 2)])
@pytest.mark.parametrize("k", [3, 4])
def test_client_that_falls_silent_still_counts(clients, k):
    """Its earlier reports count."""
    fed = quadratics([np.diag([2.0, 1.0]), np.diag([4.0, 1.0]), np.diag([3.0, 1.0])], [[2.0, 0.1]] * 3)
    assert float(found(SilentFrom(fed, clients, k)).curvature) == pytest.approx(4.0, rel=0.04)


# ------------------------------------------------------------------------------------------------- malicious clients


class Lying(WrappedFederation):
    """Change client 0's gradients (d,), losses and loss reports, depending on the number of the request."""

    def __init__(self, fed, gradient=lambda g, k: g, loss=lambda f, k: f):
        super().__init__(fed)
        self.gradient, self.loss, self.k = gradient, loss, 0

    def ask(self, request):
        reply = self.fed.ask(request)
        k, self.k = self.k, self.k + 1
        if isinstance(reply, Losses):
            return reply._replace(values=self.false(reply.values, reply.clients, self.loss, k))
        if isinstance(reply, Gradients):
            losses = self.false(reply.losses, reply.clients, self.loss, k)
            return reply._replace(values=self.false(reply.values, reply.clients, self.gradient, k), losses=losses)
        return reply

    def false(self, values, clients, lie, k):
        values = values.clone()
        for row in (clients == 0).nonzero().flatten():
            values[row] = lie(values[row], k)
        return values


AWAY = torch.nn.functional.normalize(torch.arange(12.0, 0, -1, dtype=torch.float64) ** 4, dim=0)
"""A direction along which the regressions are flat."""
LIES = {
    "huge": lambda g, k: 1e9 * g,
    "infinite": lambda g, k: math.inf * g,
    "not a number": lambda g, k: math.nan * g,
    "not a number later": lambda g, k: g * (math.nan if k else 1),
    "tiny": lambda g, k: 1e-9 * g,
    "nothing": lambda g, k: 0 * g,
    "reversed": lambda g, k: -g,
    "growing": lambda g, k: 10.0**k * g,
    "steering": lambda g, k: 1e9 * (1 + k) * AWAY,
    "steering to and fro": lambda g, k: 1e9 * (-1) ** k * AWAY,
}


@pytest.mark.parametrize(("n", "lie"), crossed([3, 10], LIES))
def test_false_gradients_of_one_client_have_little_effect(lie, n):
    """The step size changes about twofold at most, and slightly more with three clients, one of which must be
    believed.
    """
    for seed in range(4):
        honest = float(found(fed := regressions(n, seed)).eta)
        eta = float(found(Lying(fed, lie)).eta)
        assert 0.35 < eta / honest < (2.0 if n == 10 else 2.7)


@pytest.mark.parametrize(("n", "claim"), crossed([3, 10], [1e-300, 1e-9, 0.0, -5.0, 1e300, math.inf, math.nan]))
def test_false_losses_of_one_client_have_little_effect(claim, n):
    for seed in range(4):
        honest = float(found(fed := regressions(n, seed)).eta)
        eta = float(found(Lying(fed, loss=lambda f, k: claim)).eta)
        assert 0.45 < eta / honest < 2.2


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("claim", [1e300, math.inf, math.nan])
def test_one_client_cannot_restart_the_run_twice(claim, n):
    """Neither a low initial loss nor a high later loss lets it restart the run again."""
    fed = regressions(n, 0)
    size = found(fed).halve()
    assert not rises(size, Lying(fed, loss=lambda f, k: claim), fed.w0, KEY)
    low = size._replace(losses=size.losses.index_fill(0, torch.tensor([0]), 0.0))
    assert not rises(low, fed, fed.w0, KEY)


@pytest.mark.parametrize("claim", [1e300, pytest.param(1e3, marks=pytest.mark.long)])
def test_run_with_a_malicious_client_continues(claim):
    fed = Lying(federation(), loss=lambda f, k: claim if k > 12 else f)
    result = run(FedAvg(m=4), fed, rounds=16)
    assert int(result.step_size.lowered) <= 1


# ------------------------------------------------------------------------------------------------- rising losses


def size_with(losses, lowered=1):
    return StepSize.unknown(len(losses))._replace(
        eta=torch.tensor(0.1).double(),
        lowered=torch.tensor(lowered),
        losses=torch.tensor(losses, dtype=torch.float64),
    )


@pytest.mark.parametrize(
    ("start", "now", "expected"),
    [
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        ([1.0, 1.0, 1.0], [1.4, 1.4, 1.4], False),  # noise
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], True),
        ([1.0, 1.0, 1.0], [9.0, 0.9, 0.9], False),  # a single rise does not count
        ([1.0, 1.0, 1.0], [9.0, 2.0, 0.5], False),  # without client 0 the mean is 1.25
        ([1.0, 1.0, 5.0], [4.0, 4.0, 5.1], False),  # the largest loss did not rise
        ([1.0, 1.0, 5.0], [4.0, 4.0, 9.0], False),  # nor does it without the client that rose most
        ([2.0, 2.0, 3.0], [6.0, 6.0, 9.0], True),
        ([-1.0, -1.0, -1.0], [-0.6, -0.6, -0.6], False),
        ([-1.0, -1.0, -1.0], [-0.1, -0.1, -0.1], True),
        ([1.0, 1.0, 1.0], [math.nan, math.inf, 0.1], True),  # a diverged model
        ([1.0, 1.0, 1.0], [math.nan, 0.1, 0.1], False),
        ([1.0, math.nan, 1.0], [3.0, 0.0, 3.5], True),  # client 1 does not report
        ([1.0, 1.0], [3.0, 3.0], True),
        ([1.0, 1.0], [3.0, 1.0], False),
        ([1.0], [1.6], True),  # a single client is believed
        ([1.0], [1.4], False),
        ([math.nan, math.nan], [9.0, 9.0], False),
    ],
)
def test_definition_of_a_rise(start, now, expected):
    fed = ConstantFederation(now)
    assert rises(size_with(start), fed, fed.w0, KEY) is expected


def test_first_rise_needs_one_client():
    fed = ConstantFederation([9.0, 0.9, 0.9])
    assert rises(size_with([1.0, 1.0, 1.0], lowered=0), fed, fed.w0, KEY)
    assert not rises(size_with([1.0, 1.0, 1.0], lowered=1), fed, fed.w0, KEY)


def test_silent_clients_are_excluded_from_the_comparison():
    fed, size = ConstantFederation([3.0, 3.0, 9.0, 9.0]), size_with([3.0, 3.0, 1.0, 1.0])
    assert not rises(size, DropoutFederation(fed, losses=(2, 3)), fed.w0, KEY)
    assert rises(size, DropoutFederation(fed, losses=(0, 1)), fed.w0, KEY)
    assert not rises(size, DropoutFederation(fed, losses=range(4)), fed.w0, KEY)


def test_rise_along_a_rare_column_is_detected():
    """One sample in 500 has it, so a minibatch of 8 rarely contains it."""
    x = torch.zeros(500, 2, dtype=torch.float64)
    x[:, 0], x[7, 1] = 1.0, 30.0
    pairs = [(x, torch.full((500,), y).double()) for y in (1.0, 2.0)]
    module = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)).double()
    task = Task(module, half_squared_error, closeness)
    fed = Simulation(ClientData.from_arrays(pairs, pairs, dtype=torch.float64), task, engine=Loop())
    size, w = found(fed, batch=8), fed.w0.clone()
    w[1] += 10.0
    assert float(fed.losses(torch.arange(2), w, KEY, batch=8).values.max()) < 10
    assert rises(size, fed, w, KEY)


# ------------------------------------------------------------------------------------------------- in a run

MORE = [pytest.param(algorithm, marks=pytest.mark.long) for algorithm in (DRFA(m=3), SCAFFOLD(m=3), AFL())]
ALGORITHMS = [
    *long_except(["DualDRDM"], [FedAvg(m=3), DualDRDM(m=3), ScaffPD()], ["FedAvg", "DualDRDM", "ScaffPD"]),
    *MORE,
]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_unneeded_safeguard_does_not_change_the_run(algorithm):
    """The results are bitwise equal."""
    fed = Recording(federation())
    local = LocalSGD(momentum=0.5, weight_decay=0.01)
    ours = run(dataclasses.replace(algorithm, local=local), fed, rounds=17, seed=3)
    size = ours.step_size
    assert int(size.lowered) == 0
    given = dataclasses.replace(algorithm, local=dataclasses.replace(local, lr=float(size.eta)))
    theirs = run(given, federation(), rounds=17, seed=3)
    assert bits_differ(ours.state, theirs.state) == []
    assert torch.equal(ours.model, theirs.model)
    assert theirs.step_size is None
    looks = [call for call in fed.of("losses") if call.key == Key(3).fold("step size")]
    assert len(looks) == 6  # at the start, after the rounds 4, 8, 12 and 16, and at the end


def test_user_step_size_needs_no_requests():
    """The run sends no additional requests, and does not check the loss, however large it is."""
    fed = Recording(federation())
    result = run(FedAvg(m=3, local=LocalSGD(lr=30.0)), fed, rounds=4, check_data=False)
    assert {call.kind for call in fed.calls} == {"train"}
    assert {call.local.lr for call in fed.calls} == {30.0}
    assert result.step_size is None
    assert len(fed.calls) == result.rounds == 4


def test_seed_determines_the_step_size():
    a, b = (run(FedAvg(m=3), federation(), rounds=2, seed=5) for _ in range(2))
    assert bits_differ(a.step_size, b.step_size) == []


def test_every_engine_finds_the_same_step_size(engine):
    expected = found(federation())
    torch.testing.assert_close(found(federation(engine=engine)).eta, expected.eta, rtol=1e-6, atol=0)


def test_step_size_is_found_inside_all_wrappers():
    wrapped = Protected(Faulty(Quorum(DRDM(m=3), 1)))
    inner = with_step_size(wrapped, 0.25)
    assert inner.local.lr == 0.25
    assert inner == Protected(Faulty(Quorum(DRDM(m=3, local=LocalSGD(lr=0.25)), 1)))
    assert run(wrapped, federation(), rounds=1).step_size.is_known


class Steep(torch.nn.Module):
    """A model u·x with u = w³, whose loss is steeper for larger w."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[0.8]], dtype=torch.float64))

    def forward(self, x):
        return x @ self.w.expand(x.shape[1], 1) ** 3


def steep():
    """Return clients whose loss ½(w³ − y)² has a curvature of about 35 at the start and 190 at its minimum."""
    pairs = [(torch.ones(4, 1).double(), torch.full((4,), y).double()) for y in (9.0, 10.0, 11.0)]
    data = ClientData.from_arrays(pairs, pairs, dtype=torch.float64)
    return Simulation(data, Task(Steep(), half_squared_error, closeness), engine=Loop())


METHODS = pytest.mark.parametrize(
    "algorithm", long_except(["DualDRDM"], [FedAvg(), DRFA(m=3), DualDRDM(m=3)], ["FedAvg", "DRFA", "DualDRDM"])
)


def halvings(caplog):
    """Return the log messages about a lower step size."""
    return [record.msg for record in caplog.records if getattr(record.msg, "code", None) == "step-size-lowered"]


@METHODS
def test_growing_curvature_halves_the_step_size(algorithm, caplog):
    """The run restarts each time, and the round number continues."""
    result = run(algorithm, fed := steep(), rounds=40)
    size, first, start = result.step_size, found(fed), result.history.rows[0].metrics
    assert 1 <= int(size.lowered) <= MOST_LOWERED
    assert float(size.eta) <= float(first.eta) * 0.5 ** int(size.lowered)
    assert float(size.curvature) >= float(first.curvature)
    assert len(halvings(caplog)) == int(size.lowered)
    assert "\n" not in "".join(halvings(caplog))
    assert result.rounds == 40
    assert result.history.last.last_metrics.worst_loss < start.avg_loss / 4
    assert result.history.last.metrics.worst_loss < start.avg_loss / 4


class Flatter(WrappedFederation):
    """A federation with flatter losses while the step size is determined."""

    def __init__(self, fed, factor):
        super().__init__(fed)
        self.flat = QuadraticFederation(fed.A / factor, fed.b / factor, fed.s)

    def ask(self, request):
        return (self.flat if request.key.path == KEY.path and request.kind == "gradients" else self.fed).ask(request)


@pytest.mark.long
@pytest.mark.parametrize("factor", [1.0, 3.0, 24.0])
def test_step_size_is_halved_until_the_run_converges(factor, caplog):
    """η·L is 24, 12, 6, 3 and 1.5 in turn; the last one is small enough."""
    hessians = [np.diag([10.0, 0.5]), np.diag([9.0, 1.0]), np.diag([8.0, 1.0])]
    fed = quadratics(hessians, [[1.0, 0.1], [-2.0, 0.2], [-3.0, 0.3]])
    result = run(FedAvg(), Flatter(fed, factor), rounds=100)
    assert int(result.step_size.lowered) == len(halvings(caplog)) == round(math.log2(factor / 1.5)) * (factor > 1)
    after = run(FedAvg(local=LocalSGD(lr=float(result.step_size.eta))), fed, rounds=400).model
    torch.testing.assert_close(result.state.w, after, rtol=0, atol=1e-6)
    losses = fed.evaluate(result.model).loss
    assert losses.mean() < 10 - 1e-2


def test_averages_before_a_reset_are_forgotten():
    """A run with the last step size has seen only the initial state."""
    rounds, kept = 12, []
    result = run(
        FedAvg(), steep(), rounds=rounds, seed=1, averaged=True, safeguard="start", check_data=False,
        keep=lambda progress, stopping: kept.append(progress),
    )  # fmt: skip
    lowered = [int(progress.step_size.lowered) for progress in kept] + [int(result.step_size.lowered)]
    restarts = [r for r, (a, b) in enumerate(itertools.pairwise([0, *lowered]), 1) if a != b]
    assert restarts
    assert int(result.step_size.restarted) == restarts[-1] - 1
    assert result.effective_rounds == rounds - restarts[-1] + 1
    left = rounds - restarts[-1] + 1
    assert int(result.average.rounds) == left
    assert [int(progress.decaying.rounds) for progress in kept[-2:]] == [left - 2, left - 1]


def progress_of(make, algorithm, rounds, **options):
    kept = []
    whole = run(algorithm, make(), rounds=rounds, keep=lambda progress, stopping: kept.append(progress), **options)
    return whole, kept


@pytest.mark.parametrize("make", [federation, steep])
@pytest.mark.long
def test_resumed_run_is_bitwise_equal_at_any_round(make):
    """This includes rounds between two halvings; no request is repeated."""
    algorithm, options = DRFA(m=2), {"seed": 2, "averaged": True, "check_data": False}
    whole, kept = progress_of(make, algorithm, 10, **options)
    assert (int(whole.step_size.lowered) > 0) == (make is steep)
    for progress in kept:
        again = run(algorithm, make(), rounds=10, start=progress, **options)
        for part in ("state", "step_size", "average"):
            assert bits_differ(getattr(again, part), getattr(whole, part)) == []
        assert torch.equal(again.model, whole.model)
        assert again.history.to_csv() == whole.history.to_csv()


@pytest.mark.parametrize("make", [pytest.param(federation, marks=pytest.mark.long), steep])
def test_run_resumed_from_disk_is_bitwise_equal(make, tmp_path):
    algorithm = DualDRDM(m=2)
    whole = run(algorithm, make(), rounds=9, check_data=False)
    stop = [lambda step: step.round == 5]
    run(algorithm, make(), rounds=9, keep=Checkpoints(tmp_path, dict, 100), callbacks=stop, check_data=False)
    start = resume_point(tmp_path, algorithm, make(), rounds=9).progress
    assert start.round == 5
    assert start.step_size.is_known
    again = run(algorithm, make(), rounds=9, start=start, check_data=False)
    assert bits_differ(again.state, whole.state) == []
    assert bits_differ(again.step_size, whole.step_size) == []
    assert torch.equal(again.model, whole.model)
    assert again.history.to_csv() == whole.history.to_csv()


class Moved(NamedTuple):
    w: Tensor


ONE = Cohort(torch.tensor([0]), torch.ones(1, dtype=torch.float64))


@dataclasses.dataclass(frozen=True)
class Exploding:
    """An algorithm that overflows in a given round unless its steps are small enough, and records its steps."""

    at: int
    until: float
    local: LocalSGD = dataclasses.field(default_factory=LocalSGD)
    steps: list = dataclasses.field(default_factory=list, compare=False)

    def init(self, fed):
        return Moved(fed.w0)

    def round(self, state, fed, key):
        self.steps.append((key.round, self.local.lr))
        bad = key.round >= self.at and self.local.lr >= self.until
        return Moved(state.w + (math.nan if bad else 1.0)), Info(ONE, ONE.clients)


def test_divergence_halves_the_step_size_and_restarts():
    algorithm = Exploding(at=3, until=0.04)
    result = run(algorithm, ConstantFederation([1.0, 2.0]), rounds=5)
    assert algorithm.steps == [(1, 0.1), (2, 0.1), (3, 0.1), (3, 0.05), (3, 0.025), (4, 0.025), (5, 0.025)]
    assert result.state.w.tolist() == [3.0, 3.0]  # only rounds 3, 4 and 5 count
    assert (result.rounds, int(result.step_size.lowered)) == (5, 2)
    assert (result.rollbacks, result.effective_rounds) == (2, 3)


def test_rolled_back_run_shows_how_many_rounds_count():
    with pytest.warns(RunWarning) as told:
        result = run(Exploding(at=14, until=0.04), ConstantFederation([1.0, 2.0]), rounds=15)
    assert [(one.message.code, one.filename) for one in told] == [("late-rollback", __file__)]
    assert (result.rounds, result.rollbacks, result.effective_rounds) == (15, 2, 2)
    assert result.state.w.tolist() == [2.0, 2.0]
    assert re.search(r"\b2 .*\b15\b", repr(result))
    assert result.marks == (False, 2, 15, 2, 13, False)
    assert result.marks.is_late
    # a selected model can be of an earlier round
    for at, effective in ((13, 15), (14, 2)):
        chosen = Selection("validation", "worst_accuracy", at, 0.5)
        assert result._replace(returned="selected", selection=chosen).effective_rounds == effective
    plain = run(Exploding(at=14, until=1.0), ConstantFederation([1.0, 2.0]), rounds=15)
    assert (plain.rollbacks, plain.effective_rounds) == (0, 15)
    assert "effective" not in repr(plain)
    given = run(Exploding(at=14, until=1.0, local=LocalSGD(lr=0.1)), ConstantFederation([1.0, 2.0]), rounds=15)
    assert (given.rollbacks, given.effective_rounds) == (0, 15)


@pytest.mark.parametrize(("last", "is_late"), [(8, True), (7, False)])
def test_late_reset_is_in_the_second_half(last, is_late):
    assert Marks(False, 1, 15, 12, last).is_late is is_late
    assert not Marks(False, 0, 15, 12, last).is_late
    assert Marks(False, 1, 2, 1).rounds_text == "1 of 2 rounds counts"


def test_repeated_divergence_ends_the_run():
    algorithm = Exploding(at=2, until=0.0)
    with refused("diverged", None, "Exploding", "2", kind=DivergedError):
        run(algorithm, ConstantFederation([1.0, 2.0]), rounds=5)
    tried = [lr for r, lr in algorithm.steps if r == 2]
    assert tried == [0.1 / 2**k for k in range(MOST_LOWERED + 1)]


@pytest.mark.parametrize("eta", [0.0, -1.0, math.nan, math.inf])
def test_impossible_step_sizes_are_refused(eta):
    size = size_with([1.0])
    assert size.describe_fault() is None
    assert size._replace(eta=torch.tensor(eta)).describe_fault() is not None
    assert size._replace(lowered=torch.tensor(-1)).describe_fault()
    for rollbacks, restarted in ((2, 3), (-1, 0), (0, 3), (1, -3)):
        altered = size._replace(rollbacks=torch.tensor(rollbacks), restarted=torch.tensor(restarted))
        assert altered.describe_fault() is not None
    assert size._replace(rollbacks=torch.tensor(1), restarted=torch.tensor(3)).describe_fault() is None
    assert not StepSize.unknown(3).is_known


@pytest.mark.parametrize(("batch", "expected"), [(None, step_size.BATCH), (8, 8), (10_000, step_size.BATCH)])
def test_answers_use_as_many_samples_as_a_local_step(batch, expected):
    assert step_size.samples(LocalSGD(batch=batch)) == expected


def test_round_that_moves_far_is_checked_early():
    """Rounds 5 to 7 have no scheduled check, but a round that moves the model twice as far as before is checked."""
    fed = Recording(federation())
    jumps = {6: -60.0}

    class Jumping(FedAvg):
        def round(self, state, fed, key):
            state, info = super().round(state, fed, key)
            return state._replace(w=state.w * jumps.pop(key.round, 1.0)), info

    result = run(Jumping(m=4), fed, rounds=7, check_data=False)
    looks = [call for call in fed.calls if call.kind == "losses"]
    assert len(looks) >= 2, "after round 4, and after the jump"
    assert int(result.step_size.lowered) == 1


@pytest.mark.parametrize("size", [1e30, 1e37])
def test_inputs_without_a_step_size_are_named(size):
    torch.manual_seed(0)
    x, y = torch.randn(3, 40, 5), torch.randint(0, 2, (3, 40))
    x[1:, :, 3] *= size
    data = ClientData.from_arrays({name: (x[i], y[i]) for i, name in enumerate("abc")})
    fed = Simulation(data, Task(torch.nn.Linear(5, 2)))
    with refused("inputs-too-large", "inputs") as caught:
        run(DRFA(m=2), fed, rounds=3, check_data=False)
    assert "column 3" in str(caught.value)


class Logarithm(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.log())


@pytest.mark.parametrize(
    ("kind", "lr", "worst", "named"),
    [(FedAvg, None, "b", "b"), (DualDRDM, None, "abc", "a"), (FedAvg, 0.1, "abc", "a")],
)
def test_client_whose_loss_is_undefined_at_the_initial_model_is_named(kind, lr, worst, named):
    """Nothing has been trained yet, so neither a step size nor a divergence is to blame."""
    x = torch.rand(3, 40, 5, generator=torch.Generator().manual_seed(0)) + 0.1
    rows = {name: (-part if name in worst else part, torch.arange(40) % 2) for name, part in zip("abc", x, strict=True)}
    fed, rounds = Simulation(ClientData.from_arrays(rows), Task(Logarithm(5, 2))), []
    with refused("not-finite", "loss", f"'{named}'", "nan") as caught:
        run(kind(m=3, local=LocalSGD(lr=lr)), fed, rounds=3, callbacks=[rounds.append])
    assert "lower" not in str(caught.value)
    assert rounds == []


def test_large_targets_are_named_before_the_step_size():
    """With targets around 10⁶, the loss and its gradients are large for any step size."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 40, 4, generator=generator)
    messages = []
    for size, code in ((1.0, "diverged"), (1e6, "diverged"), (1e25, "not-finite")):
        data = ClientData.from_arrays({name: (rows, rows.sum(1) * size) for name, rows in zip("abc", x, strict=True)})
        torch.manual_seed(0)
        network = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        fed = Simulation(data, Task(network, torch.nn.MSELoss()))
        with refused(code, kind=DrflError) as caught:
            run(FedAvg(m=3, local=LocalSGD(steps=5, lr=3.0, batch=16)), fed, rounds=10, check_data=False)
        messages.append(str(caught.value))
    assert ["targets" in message for message in messages] == [False, True, True]
    with refused("inputs-too-large", "targets"):
        run(FedAvg(m=3), fed, rounds=1, check_data=False)
