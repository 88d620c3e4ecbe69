"""Test that frozen layers in front are computed once, with the results of the whole model."""

from __future__ import annotations

import types

import pytest
import torch
from tests.support.problems import federation
from torch import nn

from drfl.core.key import Key
from drfl.engine import Stacked
from drfl.optim.local import LocalSGD

LOCAL = LocalSGD(steps=3, lr=0.1, batch=8)


class Counting(nn.Linear):
    """A linear layer that counts the samples it has seen."""

    seen = 0

    def forward(self, x):
        type(self).seen += len(x)
        return super().forward(x)


def net(shape, classes, width=5):
    body = Counting(shape[0], width)
    for p in body.parameters():
        p.requires_grad = False
    return nn.Sequential(nn.Flatten(), body, nn.ReLU(), nn.Linear(width, 4), nn.Tanh(), nn.Linear(4, classes))


class Whole(nn.Module):
    """The same model as a module without visible layers."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def clients(make, engine=None):
    return federation((9, 20, 40), engine=engine, model=make, shape=(6,))


def test_results_equal_those_of_the_whole_model(engine):
    split, whole = clients(net, engine), clients(lambda *a: Whole(net(*a)), engine)
    cohort, w = torch.arange(3), split.w0 + 0.1
    assert torch.equal(split.w0, whole.w0)
    for a, b in (
        (split.train(cohort, w, LOCAL, Key(1)).w, whole.train(cohort, w, LOCAL, Key(1)).w),
        (split.losses(cohort, w, Key(2)).values, whole.losses(cohort, w, Key(2)).values),
        (split.gradients(cohort, w, Key(2)).values, whole.gradients(cohort, w, Key(2)).values),
        (split.evaluate(w).loss, whole.evaluate(w).loss),
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_layer_that_is_used_before_and_after_the_split_remains_in_both_parts():
    def shared(shape, classes):
        front, activation = nn.Linear(shape[0], 5).requires_grad_(False), nn.Tanh()
        return nn.Sequential(front, activation, nn.Linear(5, 4), activation, nn.Linear(4, classes))

    split, whole = clients(shared), clients(lambda *a: Whole(shared(*a)))
    torch.testing.assert_close(split.evaluate(split.w0).loss, whole.evaluate(whole.w0).loss, rtol=0, atol=1e-12)


class Residual(nn.Sequential):
    """A sequence with its own forward pass."""

    def forward(self, x):
        first, *others = self
        x = x + first(x)
        for layer in others:
            x = layer(x)
        return x


def doubled(module):
    return module.register_forward_pre_hook(lambda layer, inputs: (2 * inputs[0],))


def scaled(module):
    return module.register_forward_hook(lambda layer, inputs, outputs: 3 * outputs)


def replaced(module):
    module.forward = types.MethodType(lambda self, x: nn.Sequential.forward(self, x.square()), module)


@pytest.mark.parametrize(
    ("kind", "change"),
    [(Residual, None), (nn.Sequential, doubled), (nn.Sequential, scaled), (nn.Sequential, replaced)],
    ids=["subclass", "hook before", "hook after", "own forward"],
)
def test_sequence_that_does_more_than_call_its_layers_is_not_split(kind, change):
    def make(shape, classes):
        model = kind(nn.Linear(shape[0], shape[0]).requires_grad_(False), nn.Tanh(), nn.Linear(shape[0], classes))
        if change is not None:
            change(model)
        return model

    parts, whole = clients(make), clients(lambda *a: Whole(make(*a)))
    w = parts.w0 + 0.1
    torch.testing.assert_close(parts.evaluate(w).loss, whole.evaluate(w).loss, rtol=0, atol=1e-12)


def test_rounds_do_not_call_the_frozen_layers():
    fed = clients(net, Stacked())
    Counting.seen = 0
    fed.train(torch.arange(3), fed.w0, LOCAL, Key(1))
    fed.losses(torch.arange(3), fed.w0, Key(1))
    fed.evaluate(fed.w0)
    assert Counting.seen == 0


@pytest.mark.parametrize(
    "make", [lambda *a: net(*a, width=50), lambda *a: Whole(net(*a))], ids=["wide", "not a sequence"]
)
def test_layers_stay_in_place_if_features_would_be_larger(make):
    """The layers also stay in place if the model is not a sequence."""
    fed = clients(make, Stacked())
    Counting.seen = 0
    fed.evaluate(fed.w0)
    assert Counting.seen > 0


def test_frozen_normalisation_keeps_its_statistics(engine):
    """``.eval()`` on a layer remains in effect although the whole model is in training mode."""
    norm = nn.BatchNorm1d(6).eval().requires_grad_(False)
    norm.running_mean += 3
    kept = norm.running_mean.clone()
    fed = clients(lambda shape, classes: nn.Sequential(norm, nn.Linear(6, classes)), engine)
    whole = clients(lambda shape, classes: Whole(nn.Sequential(norm, nn.Linear(6, classes))), engine)
    cohort = torch.arange(3)
    w = fed.w0
    mine, theirs = (f.losses(cohort, w, Key(0)).values for f in (fed, whole))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert not norm.training
    assert torch.equal(norm.running_mean.to(kept), kept)
