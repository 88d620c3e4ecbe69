"""Test the conformance suite for algorithms as an author would use it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pytest
import torch
from tests.support.refusals import refused
from torch import Tensor

from drfl.algorithms import DRFA, SCAFFOLD, ClientSide, Ditto, FedAvg, FedProx, FedRep, PersonalClientSide
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD
from drfl.testing import (
    ALGORITHM_CHECKS,
    AVERAGE,
    SADDLE,
    WEIGHTED,
    Classification,
    ConformanceError,
    Reduction,
    Solves,
    also_sampled,
    check_algorithm,
    least_squares,
    subject_of,
)
from drfl.testing.problems import curved_quadratics
from drfl.testing.subject import last_of, rounds_of

ONE = LocalSGD(steps=1, lr=0.1)


class MineState(NamedTuple):
    w: Tensor


class MixedState(NamedTuple):
    w: Tensor
    lam: Tensor


@dataclass(frozen=True)
class Mine:
    """The smallest custom algorithm, with only ``local``."""

    local: LocalSGD = field(default_factory=lambda: ONE)

    def init(self, fed):
        return MineState(fed.w0)

    def round(self, state, fed, key):
        D = Cohort(torch.arange(fed.n), torch.ones(fed.n, dtype=torch.float64))
        up = fed.train(D.clients, state.w, self.local, key.fold("sgd"))
        if not up.clients.numel():
            return state, Info.without_replies(D)
        return state._replace(w=up.w.mean(0)), Info(D, up.clients)


def test_minimal_algorithm_is_checked():
    report = check_algorithm(Mine(), solves=AVERAGE)
    assert report.failed == ()
    assert {"converges", "round_is_pure", "round_without_replies", "identical_clients_are_interchangeable"} <= set(
        report.passed
    )
    reasons = {note.check: note.sentence for note in report.not_applicable}
    assert reasons["dropout_equals_absence"] == "the algorithm has no field m"
    assert reasons["reduces"] == "reductions is not set"
    assert len(report.passed) + len(reasons) == len(ALGORITHM_CHECKS)


def test_error_lists_every_failure():
    class Hasty(Mine):
        def init(self, fed):
            return MixedState(fed.w0, fed.shares)

        def round(self, state, fed, key):
            new, info = super().round(state, fed, key)
            return new._replace(w=new.w + torch.get_num_threads(), lam=new.lam.float()), info

    with pytest.raises(ConformanceError) as raised:
        check_algorithm(Hasty(), solves=AVERAGE)
    failed = {note.check for note in raised.value.report.failed}
    assert {"dtypes_are_preserved", "threads_agree", "converges", "round_without_replies"} <= failed
    assert all(f"  {note.check}: " in str(raised.value) for note in raised.value.report.failed)


def test_crashing_algorithm_is_a_failure():
    class Broken(Mine):
        def round(self, state, fed, key):
            raise IndexError("out of range")

    with pytest.raises(ConformanceError, match="IndexError: out of range"):
        check_algorithm(Broken())


def test_other_objects_are_refused():
    with refused("wrong-type", "algorithm"):
        check_algorithm(object())
    with refused("wrong-type", "algorithm", "Mine"):
        check_algorithm(Mine)
    for name, bad in (("rounds", 0), ("tolerance", -1.0)):
        with refused("out-of-range", name):
            check_algorithm(Mine(), **{name: bad})


@pytest.mark.long
def test_waived_checks_are_not_run():
    report = check_algorithm(FedAvg(local=ONE), solves=AVERAGE, waive={"converges": "weighted by samples"})
    assert report.failed == ()
    assert "converges" not in report.passed
    with pytest.raises(ConformanceError, match="converges: "):
        check_algorithm(FedAvg(local=ONE), solves=AVERAGE)


@pytest.mark.long
def test_custom_problem():
    """Size and curvature differ, and clients have one sample each, so there are no minibatches to draw."""
    reason = {"another_seed_differs": "each client has one sample"}
    report = check_algorithm(
        DRFA(m=2, gamma=0.02, local=LocalSGD(steps=1, lr=0.05)),
        solves=SADDLE,
        problem=curved_quadratics(n=3, d=2, ratio=4.0),
        rounds=3000,
        waive=reason,
    )
    assert "converges" in report.passed


def test_problem_with_too_few_clients_is_refused():
    with refused("few-clients", "problem", "2", "3"):
        check_algorithm(Mine(), problem=curved_quadratics(n=2, d=2))


def test_custom_claim():
    target = least_squares().weighted_optimum(torch.tensor([1.0, 1, 1, 1, 1]) / 5)
    claim = Solves("a known point", lambda fed, algorithm, state: float((state.w - target).norm()))
    assert "converges" in check_algorithm(Mine(), solves=claim).passed


@pytest.mark.long
def test_claim_about_sampled_cohorts_is_tested():
    drift_free = SCAFFOLD(local=LocalSGD(steps=4, lr=0.1))
    assert "converges" in check_algorithm(drift_free, solves=also_sampled(AVERAGE)).passed
    with pytest.raises(ConformanceError, match="3 of 5"):
        check_algorithm(FedAvg(local=ONE), solves=also_sampled(WEIGHTED))


@pytest.mark.long
def test_false_special_case_is_detected():
    wrong = Reduction("mu=1 is FedAvg", FedProx(mu=1.0), FedAvg())
    with pytest.raises(ConformanceError, match=r"'mu=1 is FedAvg' .*\bw by "):
        check_algorithm(FedProx(local=ONE), reductions=[wrong])


def test_variants_change_existing_fields_of_a_copy():
    given = DRFA(m=4, gamma=0.3, local=LocalSGD(steps=7, lr=0.2, batch=3, momentum=0.5))
    subject = subject_of(given)
    assert subject.variant() == given
    local = LocalSGD(steps=2, lr=0.2, batch=None, momentum=0.5)
    assert subject.variant(m=2, steps=2, full=True) == replace(given, m=2, local=local, dual_batch=None)
    assert subject.variant(full_participation=True).m == 5
    assert subject_of(Mine()).variant(m=2, full_participation=True, gamma=1.0) == Mine()
    object.__setattr__(given, "hidden", 1)
    assert not hasattr(subject.variant(), "hidden")


@pytest.mark.long
def test_missing_local_step_size_is_determined():
    """It is determined for the algorithm and its special cases; a given one is kept."""
    automatic = LocalSGD(steps=1)
    cases = [Reduction("one", FedProx(mu=0.0, local=automatic), FedAvg(local=ONE))]
    subject = subject_of(FedAvg(local=automatic), reductions=cases)
    lr = subject.algorithm.local.lr
    assert lr == pytest.approx(1 / least_squares().smoothness, rel=0.3)
    assert subject.algorithm == FedAvg(local=replace(automatic, lr=lr))
    ((_, ours, theirs, _, _),) = subject.reductions
    assert (ours.local.lr, theirs.local.lr) == (lr, 0.1)
    assert "converges" in check_algorithm(FedAvg(local=automatic), solves=WEIGHTED).passed


def test_rounds_use_the_keys_of_run():
    keys = []

    class Keyed(Mine):
        def round(self, state, fed, key):
            keys.append(key)
            return super().round(state, fed, key)

    fed = subject_of(Mine()).exact
    half = last_of(Keyed(), fed, 2, seed=4)
    last_of(Keyed(), fed, 1, seed=4, state=half, done=2)
    assert keys == [Key(4).fold("round", r) for r in (1, 2, 3)]
    assert len(list(rounds_of(Mine(), fed, 3))) == 3


@dataclass(frozen=True)
class Private(PersonalClientSide):
    """A method of docs/client-side.md, which needs class labels and a last linear layer, and shares no parameter."""

    def private(self, model):
        return model.names

    def shared(self, model):
        return {"sums": model.vector.new_zeros(model.classes, model.width)}

    def loss(self, model, batch, context):
        features, outputs = model.features(batch.inputs)
        away = (features - context["sums"][batch.targets]).square().mean(1)
        return batch.mean(model.losses(outputs, batch.targets) + 0.1 * away)

    def message_shapes(self, model):
        return {"sums": (model.classes, model.width)}

    def message(self, model, data, context):
        features = data.features(model)
        return {"sums": torch.nn.functional.one_hot(data.targets, model.classes).to(features).T @ features / 10}

    def merge(self, shared, messages, weights):
        return {"sums": (weights[:, None, None].to(messages["sums"]) * messages["sums"]).sum(0)}


class Steep(Private):
    """With the step size of the task's loss, the clients diverge."""

    def loss(self, model, batch, context):
        features, _ = model.features(batch.inputs)
        return batch.loss(model) + 5 * batch.mean((features - context["sums"][batch.targets]).square().sum(1))


class Unkeyed(Private):
    def round(self, state, fed, key):
        return super().round(state, fed, Key(0))


class Fixed(FedRep):
    def round(self, state, fed, key):
        return super().round(state, fed, Key(0))


class NeedsMore(Private):
    def loss(self, model, batch, context):
        return batch.loss(model) + context["more"].sum()


@pytest.mark.long
def test_client_side_method_is_checked_on_classes_by_default():
    for algorithm in (Private(m=3), Steep(m=3), FedRep(m=3, local=ONE)):
        report = check_algorithm(algorithm)
        assert "another_seed_differs" in report.passed
        assert "identical_clients_are_interchangeable" in {note.check for note in report.not_applicable}
    assert isinstance(subject_of(Private()).trial, Classification)
    # The optimum of a claim is that of a convex problem.
    assert not isinstance(subject_of(Ditto(local=ONE), solves=WEIGHTED).trial, Classification)
    with refused("unsuitable-problem", "problem", "NeedsMore", "more", "sums"):
        check_algorithm(NeedsMore())


@pytest.mark.long
@pytest.mark.parametrize("algorithm", [Unkeyed(m=3, local=ONE), Fixed(m=3, local=ONE)])
def test_unused_key_is_detected_with_private_parameters(algorithm):
    with pytest.raises(ConformanceError) as caught:
        check_algorithm(algorithm)
    assert "another_seed_differs" in {note.check for note in caught.value.report.failed}


def test_class_with_a_mistake_is_refused_before_the_checks():
    with refused("unknown-name", "los", "loss"):
        check_algorithm(type("Mine", (ClientSide,), {"los": lambda self, model, batch, context: batch.loss(model)})())
