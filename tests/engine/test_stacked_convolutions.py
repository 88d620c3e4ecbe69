"""Test convolutions as products of columns: values and gradients equal torch's, for one model and for a stack."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation
from torch import nn
from torch.func import vjp, vmap

from drfl.engine import stacked_convolutions
from drfl.engine.sgd import gradient_of, gradient_of_one
from drfl.engine.stacked_convolutions import convolutions_as_products
from drfl.task import models

CASES = {
    "3x3": (3, {"padding": 1}),
    "stride": (3, {"padding": 1, "stride": 2}),
    "1x1": (1, {}),
    "1x1 with a stride": (1, {"stride": 2}),
    "not square": ((2, 5), {"padding": (0, 3), "stride": (1, 3)}),
    "without a bias": (5, {"bias": False}),
    "padding beyond the kernel": (1, {"padding": 2}),
    "circular": (3, {"padding": 1, "padding_mode": "circular"}),
    "groups, left to torch": (3, {"groups": 2}),
    "dilation, left to torch": (3, {"dilation": 2}),
    "padding by name, left to torch": (3, {"padding": "same"}),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_equal_those_of_torch(case):
    size, options = CASES[case]
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, size, **options).double()
    x, stack = torch.randn(3, 5, 4, 9, 8).double(), [torch.randn(3, *p.shape).double() for p in layer.parameters()]
    names = [name for name, _ in layer.named_parameters()]

    def outputs(x, *parameters):
        # A product with x on both sides, so that both have gradients.
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,)).tanh()

    def values_and_gradients(*tensors):
        y, pull_back = vjp(outputs, *tensors)
        return y, *pull_back(y.cos())

    for function, arguments in ((values_and_gradients, (x[0], *(p[0] for p in stack))),
                                (vmap(values_and_gradients), (x, *stack))):  # fmt: skip
        expected = function(*arguments)
        with convolutions_as_products(active=True):
            found = function(*arguments)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def test_stacked_convolutions_become_products(monkeypatch):
    """Otherwise the previous test would compare torch with itself."""
    called = []
    real = stacked_convolutions._product
    monkeypatch.setattr(stacked_convolutions, "_product", lambda *a: called.append(1) or real(*a))
    layer, x = nn.Conv2d(1, 2, 3), torch.randn(2, 1, 5, 5)
    layer(x)
    assert not called
    with convolutions_as_products(active=True):
        layer(x)
    assert called == [1]


def test_products_use_the_type_of_autocast():
    layer, x = nn.Conv2d(2, 3, 3), torch.randn(2, 2, 5, 5)
    with torch.autocast("cpu", torch.bfloat16), convolutions_as_products(active=True):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), layer(x), rtol=0, atol=0.05)


@pytest.mark.parametrize("model", [models.linear, models.cnn])
def test_gradient_of_one_client_equals_that_of_a_stack(model):
    fed = federation((9, 20), model=model, shape=(1, 8, 8), dtype=torch.float64)
    problem, w = fed._train, fed.w0
    x, y = problem.x[:9][None], problem.y[:9][None]
    weights, seeds = torch.full((1, 9), 1 / 9).double(), torch.empty(1, 0, dtype=torch.int64)
    arguments = (x, y, weights, seeds, *problem.task.layout.views(w[None]).values())
    stack, one = gradient_of(problem)(*arguments), gradient_of_one(problem)(*arguments)
    for a, b in zip(one, stack, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
    with convolutions_as_products(active=True):
        for a, b in zip(gradient_of(problem)(*arguments), stack, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-14)
