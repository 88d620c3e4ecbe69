"""Clients that lie, and one that is honest but hard."""

from __future__ import annotations

import math

import pytest
import torch
from tests.support.problems import pools

from drfl import InputError, Key, LocalSGD
from drfl.testing import least_squares
from drfl.testing.attacks import Claims, Inflated, Scaled, SignFlipped, UnderReporting, label_noise
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
        (Inflated(CLEAN, LIARS), lambda f: 100 * f),
        (Inflated(CLEAN, LIARS, 7.0), lambda f: 7 * f),
        (UnderReporting(CLEAN, LIARS), lambda f: 0.01 * f),
        (Claims(CLEAN, LIARS, 12.0), lambda f: torch.full_like(f, 12.0)),
        (Claims(CLEAN, LIARS, math.nan), lambda f: torch.full_like(f, math.nan)),
        (Claims(CLEAN, LIARS, -math.inf), lambda f: torch.full_like(f, -math.inf)),
    ],
)
def test_false_losses_and_nothing_else_false(attack, claim):
    up, f, g = replies(attack)
    assert all(torch.equal(a, b) for a, b in zip(up, UP, strict=True))
    assert torch.equal(g.values, G.values)
    for mine, clean in ((f.values, F.values), (g.losses, G.losses)):
        assert torch.equal(mine[HONEST], clean[HONEST])
        torch.testing.assert_close(mine[LIARS], claim(clean[LIARS]), equal_nan=True)


@pytest.mark.parametrize(("attack", "factor"), [(Scaled(CLEAN, LIARS, 5.0), 5.0), (SignFlipped(CLEAN, LIARS), -1.0)])
def test_false_models_and_gradients_and_true_losses(attack, factor):
    up, f, g = replies(attack)
    assert torch.equal(f.values, F.values)
    assert torch.equal(g.losses, G.losses)
    for mine, clean, sent in zip((*up[1:], g.values), (*UP[1:], G.values), (*[CLEAN.w0] * 3, 0.0), strict=True):
        assert torch.equal(mine[HONEST], clean[HONEST])
        torch.testing.assert_close(mine[LIARS], sent + factor * (clean[LIARS] - sent))
    plain = attack.train(EVERYBODY, CLEAN.w0, LOCAL, KEY)
    assert plain.snapshot is None
    assert plain.average is None


def test_liars_lie_in_any_cohort_and_order():
    cohort = torch.tensor([4, 3])
    f = Claims(CLEAN, LIARS, 9.0).losses(cohort, CLEAN.w0, KEY)
    assert f.clients.tolist() == [4, 3]
    assert f.values.tolist() == [9.0, float(F.values[3])]


def test_label_noise_is_one_clients_alone():
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


def test_label_noise_refuses_what_it_cannot_do():
    data = pools((4, 6))
    for wrong, message in (((2, 0.5), "there is no client 2"), ((-1, 0.5), "no client"), ((0, 1.5), "share must")):
        with pytest.raises(InputError, match=message):
            label_noise(data, *wrong, KEY)
    with pytest.raises(InputError, match="labels"):
        label_noise(least_squares().data, 0, 0.5, KEY)
