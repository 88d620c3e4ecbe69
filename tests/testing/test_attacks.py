"""Test malicious clients, and an honest client with noisy labels."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from tests.support.problems import pools
from tests.support.refusals import refused

from drfl import ClientData, Key, LocalSGD
from drfl.testing import least_squares
from drfl.testing.attacks import (
    AdaptiveAttack,
    ALittleIsEnough,
    ConstantLosses,
    ConstantPush,
    DeflatedLosses,
    InflatedLosses,
    InnerProductManipulation,
    PermanentDropout,
    ScaledUpdates,
    SignFlip,
    flip_labels,
    label_noise,
)
from drfl.testing.toy_problem import exact

KEY, EVERYBODY, LIARS, HONEST = Key(3), torch.arange(5), [1, 4], [0, 2, 3]
LOCAL = LocalSGD(steps=3, lr=0.1, batch=None)
CLEAN = exact(least_squares())


def replies(fed, cohort=EVERYBODY):
    return (
        fed.train(cohort, fed.w0, LOCAL, KEY, snapshot=2, average=True),
        fed.losses(cohort, fed.w0, KEY),
        fed.gradients(cohort, fed.w0, KEY),
    )


UP, F, G = replies(CLEAN)


@pytest.mark.parametrize(
    ("attack", "claim"),
    [
        (InflatedLosses(CLEAN, LIARS), lambda f: 100 * f),
        (InflatedLosses(CLEAN, LIARS, 7.0), lambda f: 7 * f),
        (DeflatedLosses(CLEAN, LIARS), lambda f: 0.01 * f),
        (ConstantLosses(CLEAN, LIARS, 12.0), lambda f: torch.full_like(f, 12.0)),
        (ConstantLosses(CLEAN, LIARS, math.nan), lambda f: torch.full_like(f, math.nan)),
        (ConstantLosses(CLEAN, LIARS, -math.inf), lambda f: torch.full_like(f, -math.inf)),
    ],
)
def test_only_losses_are_false(attack, claim):
    up, f, g = replies(attack)
    assert torch.equal(up.clients, UP.clients)
    assert all(torch.equal(a, b) for a, b in zip(up.models, UP.models, strict=True))
    assert torch.equal(g.values, G.values)
    for mine, clean in ((f.values, F.values), (g.losses, G.losses)):
        assert torch.equal(mine[HONEST], clean[HONEST])
        torch.testing.assert_close(mine[LIARS], claim(clean[LIARS]), equal_nan=True)


@pytest.mark.parametrize(
    ("attack", "factor"), [(ScaledUpdates(CLEAN, LIARS, 5.0), 5.0), (SignFlip(CLEAN, LIARS), -1.0)]
)
def test_models_and_gradients_are_false_and_losses_true(attack, factor):
    up, f, g = replies(attack)
    assert torch.equal(f.values, F.values)
    assert torch.equal(g.losses, G.losses)
    for mine, clean, sent in zip((*up.models, g.values), (*UP.models, G.values), (*[CLEAN.w0] * 3, 0.0), strict=True):
        assert torch.equal(mine[HONEST], clean[HONEST])
        torch.testing.assert_close(mine[LIARS], sent + factor * (clean[LIARS] - sent))
    plain = attack.train(EVERYBODY, CLEAN.w0, LOCAL, KEY)
    assert plain.snapshot is None
    assert plain.average is None


def vectors(up, g):
    """Return updates w − w_i of the models, snapshots and means, and gradients."""
    return [*(CLEAN.w0 - U for U in up.models), g.values]


@pytest.mark.parametrize(
    ("attack", "law"),
    [
        (ALittleIsEnough(CLEAN, LIARS, 1.5), lambda H: H.mean(0) - 1.5 * H.std(0)),
        (InnerProductManipulation(CLEAN, LIARS, 0.25), lambda H: -0.25 * H.mean(0)),
    ],
)
def test_colluders_send_a_function_of_honest_replies(attack, law):
    up, f, g = replies(attack)
    assert torch.equal(f.values, F.values)
    assert torch.equal(g.losses, G.losses)
    for mine, clean in zip(vectors(up, g), vectors(UP, G), strict=True):
        torch.testing.assert_close(mine[LIARS], law(clean[HONEST]).expand(2, -1))
    for mine, clean in zip((*up.models, g.values), (*UP.models, G.values), strict=True):
        assert torch.equal(mine[HONEST], clean[HONEST])


def test_attacker_that_knows_the_probe_keeps_its_cosine():
    up, _, g = replies(AdaptiveAttack(CLEAN, LIARS, cosine=0.4, length=2.0))
    for mine, clean in zip(vectors(up, g), vectors(UP, G), strict=True):
        a, b, others = mine[LIARS], clean[LIARS], clean[HONEST].mean(0)
        torch.testing.assert_close(a.norm(dim=1), 2 * b.norm(dim=1))
        torch.testing.assert_close(torch.cosine_similarity(a, b), a.new_full((2,), 0.4))
        across = a - (a * b).sum(1, keepdim=True) / (b * b).sum(1, keepdim=True) * b
        assert (across @ others < 0).all()
        assert torch.equal(mine[HONEST], clean[HONEST])


def test_pushers_push_in_one_direction_at_the_length_of_others():
    attack, other = ConstantPush(CLEAN, LIARS, KEY, 2.0), ConstantPush(CLEAN, LIARS, Key(4))
    up, _, g = replies(attack)
    for mine, clean in zip(vectors(up, g), vectors(UP, G), strict=True):
        lengths = mine[LIARS].norm(dim=1)
        assert lengths.tolist() == pytest.approx([2 * float(clean[HONEST].norm(dim=1).median())] * 2)
        assert torch.allclose(-mine[LIARS] / lengths[:, None], attack.direction.expand(2, -1))
    assert abs(float(attack.direction @ other.direction)) < 0.99


def test_size_of_the_small_perturbation():
    """With three attackers of ten, two honest clients must be farther away, so that the attackers are in a majority
    of six.
    """
    fed = exact(least_squares((5,) * 10))
    clean = fed.gradients(torch.arange(10), fed.w0, KEY).values[3:]
    found = ALittleIsEnough(fed, range(3)).gradients(torch.arange(10), fed.w0, KEY).values[0]
    z = ((clean.mean(0) - found) / clean.std(0)).mean()
    assert float(z) == pytest.approx(NormalDist().inv_cdf((7 - 3) / 7))
    alone = ALittleIsEnough(CLEAN, LIARS).gradients(torch.tensor([1, 4, 0]), CLEAN.w0, KEY)
    assert torch.equal(alone.values, G.values[[1, 4, 0]])


@pytest.mark.parametrize("attack", [ConstantPush(CLEAN, LIARS, KEY), InnerProductManipulation(CLEAN, LIARS, 1.0)])
def test_colluders_without_honest_replies_use_their_own(attack):
    g = attack.gradients(torch.tensor(LIARS), CLEAN.w0, KEY).values
    assert torch.equal(g[0], g[1])
    assert float(g[0].norm()) > 0


def test_vanishing_clients_stop_answering():
    fed = PermanentDropout(CLEAN, LIARS, after=1)
    assert fed.losses(EVERYBODY, CLEAN.w0, KEY).clients.tolist() == [0, 1, 2, 3, 4]
    assert fed.train(EVERYBODY, CLEAN.w0, LOCAL, KEY).clients.tolist() == [0, 1, 2, 3, 4]
    for reply in replies(fed):
        assert reply.clients.tolist() == HONEST


def test_flipped_labels_belong_to_malicious_clients_only():
    data = pools((40, 60, 30), classes=4)
    flipped = flip_labels(data, [0, 2])
    mine = torch.cat([data.train[0], data.train[2]])
    assert torch.equal(flipped.targets[mine], 3 - data.targets[mine])
    assert torch.equal(flipped.targets[data.train[1]], data.targets[data.train[1]])
    assert flipped.test_targets is data.test_targets
    assert torch.equal(flip_labels(data, []).targets, data.targets)
    for wrong in ([3], [-1]):
        with refused("out-of-range", "client", str(wrong[0])):
            flip_labels(data, wrong)
    with refused("wrong-task", "targets"):
        flip_labels(least_squares().data, [0])


def test_labels_are_flipped_among_all_classes_even_if_the_last_one_does_not_occur():
    rows = (torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    data = ClientData.from_arrays([rows, rows], classes=("a", "b", "c"))
    assert data.targets[data.train[0]].unique().tolist() == [0, 1]
    assert flip_labels(data, [0]).targets[data.train[0]].unique().tolist() == [1, 2]


def test_attacks_do_not_depend_on_cohort_and_order():
    cohort = torch.tensor([4, 3])
    f = ConstantLosses(CLEAN, LIARS, 9.0).losses(cohort, CLEAN.w0, KEY)
    assert f.clients.tolist() == [4, 3]
    assert f.values.tolist() == [9.0, float(F.values[3])]


def test_label_noise_affects_one_client():
    data = pools((40, 60, 30), classes=4)
    noisy = label_noise(data, 1, 0.5, KEY)
    changed = noisy.targets != data.targets
    assert not changed[torch.cat([data.train[0], data.train[2]])].any()
    assert 12 <= int(changed[data.train[1]].sum()) <= 30  # a quarter of the 30 draws hit the true label
    assert set(noisy.targets.tolist()) <= set(data.targets.tolist())
    assert noisy.test_targets is data.test_targets
    assert torch.equal(noisy.targets, label_noise(data, 1, 0.5, KEY).targets)
    assert not torch.equal(noisy.targets, label_noise(data, 1, 0.5, Key(4)).targets)
    assert torch.equal(label_noise(data, 1, 0.0, KEY).targets, data.targets)


def test_label_noise_refuses_impossible_arguments():
    data = pools((4, 6))
    for wrong, error in (
        ((2, 0.5), ("out-of-range", "client", "2")),
        ((-1, 0.5), ("out-of-range", "client", "-1")),
        ((0, 1.5), ("out-of-range", "share")),
    ):
        with refused(*error):
            label_noise(data, *wrong, KEY)
    with refused("wrong-task", "targets"):
        label_noise(least_squares().data, 0, 0.5, KEY)
