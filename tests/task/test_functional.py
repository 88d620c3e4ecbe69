"""Test that a model keeps its own tensors when it is called with others, also if layers share them."""

from __future__ import annotations

import torch
from tests.support.problems import federation
from torch import nn

from drfl.core.key import Key
from drfl.optim.local import LocalSGD
from drfl.task.functional import functional_call


class TwoCalls(nn.Module):
    """A model that calls one of its layers twice."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.front, self.middle, self.end = nn.Linear(inputs, 3), nn.Linear(3, 3), nn.Linear(3, classes)

    def forward(self, x):
        return self.end(self.middle(self.middle(self.front(x)).tanh()))


def test_tensors_are_restored_in_layers_with_several_names():
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = layer.weight
    model = nn.Sequential(layer, layer, other)
    before = {name: value.clone() for name, value in model.named_parameters()}
    ones = {name: torch.ones_like(value) for name, value in before.items()}
    assert functional_call(model, ones, (torch.ones(1, 2),)).tolist() == [[15.0, 15.0]]
    assert layer.weight is other.weight
    assert all(torch.equal(value, before[name]) for name, value in model.named_parameters())


def test_layer_in_two_places_trains_like_a_layer_that_is_called_twice(engine):
    def model(shape, classes):
        made = TwoCalls(shape[0], classes)
        return nn.Sequential(made.front, made.middle, nn.Tanh(), made.middle, made.end)

    fed = federation((9, 20), engine=engine, model=model, shape=(4,))
    whole = federation((9, 20), engine=engine, model=lambda shape, classes: TwoCalls(shape[0], classes), shape=(4,))
    w, cohort, local = fed.w0.clone(), torch.arange(2), LocalSGD(steps=3, lr=0.1, batch=8)
    for _ in range(2):  # the second step may be a traced one
        ends = [each.train(cohort, w, local, Key(1)).w for each in (fed, whole)]
        torch.testing.assert_close(*ends, rtol=0, atol=1e-12)
    assert torch.equal(fed.model.task.w0, w)
