"""Test excess losses: λ follows the difference of a client's loss from that of its own model."""

from __future__ import annotations

import dataclasses
import warnings
from functools import cache

import pytest
import torch
from tests.conformance.rows import ROWS
from tests.support.marks import crossed
from tests.support.refusals import refused

import drfl
from drfl.algorithms.excess_loss import STEPS
from drfl.core.errors import NonFiniteError, RunWarning
from drfl.core.key import Key
from drfl.engine import Loop
from drfl.experiments.config.hyperparameters import make_algorithm
from drfl.federation.algorithm import ambiguity_of, mixture_of, references_of
from drfl.federation.federation import WrappedFederation
from drfl.optim.local import LocalSGD
from drfl.resilience import CoordinateMedian, Protected, Trim
from drfl.testing import ALGORITHM_CHECKS, SADDLE, DropoutFederation, NotApplicable, Recording, Solves, verdict
from drfl.testing.convergence import losses_at, stationary
from drfl.testing.problems import logistic, quadratics
from drfl.training.certificate import Certifier

DUAL = ("AFL", "DRFA", "DRFAProx", "DRFAGA", "ScaffPD", "DRDM", "DualDRDM")
LOCAL = LocalSGD(steps=5, lr=0.3, batch=None)


def residual(fed, algorithm, state):
    """Return the residual, which is 0 at the saddle point of Σ_i λ_i (f_i − f_i*) − ψ(λ)."""
    references = references_of(state)
    assert references.known.all()
    gaps, lam, chosen = losses_at(fed, state.w) - references.values, mixture_of(algorithm, state, fed), ambiguity_of
    gain = chosen(algorithm).worst_case(gaps).value - (float(lam @ gaps) - chosen(algorithm).penalty(lam))
    return max(stationary(fed, state.w, lam), gain)


@cache
def subject(name):
    row = ROWS[name]
    solves = Solves("the saddle point of the excess losses", residual) if row.solves is SADDLE else row.solves
    own = dataclasses.replace(row.algorithm, reference="own")
    # The reference implementation and other algorithms use the losses, not the excess losses.
    return row._replace(solves=solves, rounds=1500, reference=None, reductions=lambda ours: []).subject(own)


@pytest.mark.long
@pytest.mark.parametrize(("name", "check"), crossed(DUAL, ALGORITHM_CHECKS))
def test_dual_algorithms_pass_the_conformance_suite_with_own_reference(name, check):
    said = verdict(check, subject(name))
    assert said is None or isinstance(said, NotApplicable), str(said)


def clients(flipped=0.4, n=300):
    """Make four clients with the same task; a share of the last one's training labels is flipped."""
    noise, found, test = torch.Generator().manual_seed(0), {}, {}
    for i in range(4):
        x = torch.randn(2 * n, 3, generator=noise)
        y = (x[:, 0] + x[:, 1] > 0).long()
        clean = y.clone()
        if i == 3:
            y = torch.where(torch.rand(2 * n, generator=noise) < flipped, 1 - y, y)
        found[f"site{i}"], test[f"site{i}"] = (x[:n], y[:n]), (x[n:], clean[n:])
    return drfl.ClientData.from_arrays(found, test)


def federation():
    torch.manual_seed(0)
    return drfl.Simulation(clients(), drfl.Task(torch.nn.Linear(3, 2)), engine=Loop())


RIVALS = [pytest.param(make, marks=pytest.mark.long) for make in (drfl.AFL, drfl.DRFA, drfl.ScaffPD)]


@pytest.mark.parametrize("make", [drfl.DualDRDM, *RIVALS], ids=lambda make: make.__name__)
@pytest.mark.long
def test_client_with_label_noise_does_not_get_most_of_lambda(make):
    """Its loss is the largest with any model, but no model is much better for this client."""
    options = {} if make is drfl.AFL else {"m": 4}
    shares = {}
    for reference in ("none", "own"):
        algorithm = make(**options, local=LocalSGD(steps=5), dual_batch=None, reference=reference)
        result = drfl.run(algorithm, federation(), rounds=60, evaluate_every=60)
        shares[reference] = float(result.lam[3])
    assert shares["none"] > 0.5
    assert shares["own"] < 0.5


@pytest.mark.long
def test_reference_is_the_training_loss_after_200_local_steps():
    fed, key = federation(), Key(3).fold("round", 1)
    before = fed.ledger.totals()
    state, info = (algorithm := drfl.AFL(local=LOCAL, dual_batch=None, reference="own")).round(
        algorithm.init(fed), fed, key
    )
    spent = {name: count - before[name] for name, count in fed.ledger.totals().items()}
    values = state.reference.values
    for i in range(4):
        own = fed.train(torch.tensor([i]), fed.w0, LocalSGD(steps=STEPS, lr=0.3, batch=None), key).w[0]
        assert values[i] == pytest.approx(float(losses_at(fed, own)[i]), abs=1e-6)
    raw = losses_at(fed, fed.w0)
    assert torch.allclose(info.losses.values, (raw - values)[info.losses.clients])
    assert spent["gradient_evaluations"] == 4 * 300 * (5 + STEPS)
    assert spent["loss_evaluations"] == 4 * 300 * 2
    assert spent["messages"] == 2 * (4 + 4 + 4 + 4)  # training, reports, own models, and their losses
    recording = Recording(fed)
    algorithm.round(state, recording, Key(3).fold("round", 2))
    assert [call.kind for call in recording.calls] == ["train", "losses"], "nobody is asked twice"


@pytest.mark.parametrize("kind", ["train", pytest.param("losses", marks=pytest.mark.long)])
def test_client_without_reference_gets_one_at_its_next_report(kind):
    class Once(DropoutFederation):
        """Drop client 2's replies to requests for its own model."""

        def ask(self, request):
            own = len(request.cohort) == 1 or getattr(request, "local", LOCAL).steps == STEPS
            return super().ask(request) if own else self.fed.ask(request)

    fed, algorithm = federation(), drfl.AFL(local=LOCAL, dual_batch=None, reference="own")
    state, info = algorithm.round(algorithm.init(fed), Once(fed, **{kind: [2]}), Key(0).fold("round", 1))
    assert state.reference.known.tolist() == [True, True, False, True]
    assert sorted(info.losses.clients.tolist()) == [0, 1, 3]
    assert sorted(info.answered.tolist()) == [0, 1, 2, 3], "it trains like the others"
    after, info = algorithm.round(state, fed, Key(0).fold("round", 2))
    assert after.reference.known.all()
    assert sorted(info.losses.clients.tolist()) == [0, 1, 2, 3]
    rows = [0, 1, 3]
    assert after.reference.values[rows].tolist() == state.reference.values[rows].tolist()


@pytest.mark.long
def test_diverging_own_model_is_named():
    class Infinite(WrappedFederation):
        def ask(self, request):
            reply = super().ask(request)
            return reply._replace(values=reply.values * torch.inf) if len(request.cohort) == 1 else reply

    fed, algorithm = federation(), drfl.AFL(local=LOCAL, reference="own")
    with refused("not-finite", None, "'site0'", kind=NonFiniteError):
        algorithm.round(algorithm.init(fed), Infinite(fed), Key(0).fold("round", 1))


@pytest.mark.parametrize(("limit", "warned"), [(0.05, True), pytest.param(100.0, False, marks=pytest.mark.long)])
def test_own_models_beyond_max_norm_are_reported_at_the_end(limit, warned):
    algorithm = Protected(drfl.DualDRDM(m=4, local=LocalSGD(steps=2, lr=0.1), reference="own"), norm=limit)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = drfl.run(algorithm, federation(), rounds=3)
    codes = [each.message.code for each in caught if isinstance(each.message, RunWarning)]
    assert ("no-references" in codes) == warned
    assert bool((result.lam == 0.25).all()) == warned


@pytest.mark.long
def test_resumed_run_equals_an_uninterrupted_run(tmp_path):
    algorithm = drfl.DualDRDM(m=2, local=LocalSGD(steps=2, batch=8), reference="own")

    def killed(step):
        if step.round == 3:
            raise KeyboardInterrupt

    options = {"rounds": 6, "checkpoints": drfl.Checkpoints(tmp_path, every=1)}
    with pytest.raises(KeyboardInterrupt):
        drfl.run(algorithm, federation(), callbacks=[killed], **options)
    again, whole = drfl.run(algorithm, federation(), **options), drfl.run(algorithm, federation(), rounds=6)
    assert torch.equal(again.lam, whole.lam)
    assert torch.equal(again.state.reference.values, whole.state.reference.values)
    assert again.history.to_csv() == whole.history.to_csv()
    with refused("other-run", "algorithm.reference", "own", "none"):
        drfl.run(dataclasses.replace(algorithm, reference="none"), federation(), **options)


@pytest.mark.long
def test_certificate_is_computed_for_excess_losses():
    problem = quadratics()
    certifier = Certifier(problem.task(), mu=problem.strong_convexity, assume_convex=True)
    fed, local = problem.federation(Loop()), LocalSGD(steps=1, lr=0.5, batch=None)
    lam = torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)
    constants = torch.linspace(-1, 2, fed.n, dtype=torch.float64)
    plain, shifted = (certifier(fed, fed.w0, lam, local=local, reference=r)[0] for r in (None, constants))
    losses = losses_at(fed, fed.w0)
    assert shifted.primal == pytest.approx(float((losses - constants).max()))
    assert shifted.lower == pytest.approx(plain.lower - float(lam @ constants))
    algorithm = drfl.ScaffPD(sigma=0.05, mu=0.5, local=local, reference="own")
    rows = drfl.run(algorithm, fed, rounds=200, evaluate_every=100, certify=certifier).history.rows
    assert rows[0].certificate is None, "before the first round no own model is known"
    assert -1e-9 < rows[-1].certificate.gap < 0.2 * rows[1].certificate.gap


@pytest.mark.long
def test_certificate_requires_every_reference():
    problem = logistic()
    certifier = Certifier(problem.task(), assume_convex=True)
    fed = DropoutFederation(problem.federation(Loop()), train=[0])
    result = drfl.run(
        drfl.AFL(local=LocalSGD(steps=1, lr=0.1), reference="own"), fed, rounds=2, evaluate_every=2, certify=certifier
    )
    assert result.history.last.certificate is None


def test_unsupported_combinations_are_refused():
    fed = federation()
    with refused("unknown-name", "reference", "'own'"):
        drfl.DRFA(m=4, reference="owm").init(fed)
    for options in ({"guards": (Trim(1),)}, {"aggregator": CoordinateMedian()}):
        with refused("unsupported-combination", "reference", "CoordinateMedian" if "aggregator" in options else "Trim"):
            Protected(drfl.DRFA(m=4, reference="own"), **options).init(fed)
        Protected(drfl.DRFA(m=4), **options).init(fed)


def test_reference_can_be_set_by_name():
    for name in DUAL:
        assert make_algorithm(name, {"reference": "own"}).reference == "own"
        assert make_algorithm(name, {}).reference == "none"
    with refused("wrong-type", "DRFA.reference", "'owm'"):
        make_algorithm("DRFA", {"reference": "owm"})
