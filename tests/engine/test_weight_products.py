"""Test gradients of linear layers kept as products: training equals that with full gradients, for any model."""

from __future__ import annotations

import pytest
import torch
from tests.support.problems import federation
from torch import nn
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from drfl.core.key import Key
from drfl.engine import Loop, Threads, weight_products
from drfl.engine.weight_products import LinearWeights, OuterProduct, write_out
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import SAM, Adam
from drfl.task import models


class Model(nn.Module):
    """Inputs (B, 4), three classes."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
        self.latent = nn.Parameter(torch.linspace(-1, 1, 4))

    def forward(self, x):
        return self.b(self.a(x).relu() + self.latent)


class Twice(Model):
    def forward(self, x):
        return self.b(self.a(self.a(x)) + self.latent)


class UsedElsewhere(Model):
    def forward(self, x):
        return self.b(functional.linear(self.a(x), self.a.weight) + self.latent)


class Unused(Model):
    def forward(self, x):
        return self.b(x) * self.latent[0]


class Sequences(Model):
    def forward(self, x):
        return self.b(self.a(x[:, None].expand(-1, 3, -1)) * self.latent).mean(1)


class InputIsAParameter(Model):
    def forward(self, x):
        # The step changes the latent vector before or after the weight.
        return self.b(self.a(self.latent).expand_as(x) * x)


class InputIsAWeight(Model):
    def forward(self, x):
        return self.b(x @ self.a(self.a.weight))


class Generated(Model):
    def forward(self, x):
        made = {"weight": torch.outer(self.latent, self.latent), "bias": self.latent}
        return self.b(functional_call(self.a, made, (x,)) + self.a(x))


class Penalised(Model):
    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.a(x).square().sum(), x, create_graph=True)
            (constant,) = torch.autograd.grad(self.a(x).square().sum(), x)
        return self.b(slope + constant * self.a(x)) + self.latent[:3]


class Mapped(Model):
    def forward(self, x):
        return self.b(vmap(self.a)(x) + self.latent)


class Checkpointed(Model):
    def forward(self, x):
        return self.b(checkpoint(self.a, x, use_reentrant=False) + self.latent)


class Normed(Model):
    def __init__(self, *_: object) -> None:
        super().__init__()
        parametrizations.weight_norm(self.a)


class Frozen(Model):
    def __init__(self, *_: object) -> None:
        super().__init__()
        self.a.weight.requires_grad_(False)


MODELS = Model, Twice, UsedElsewhere, Unused, Sequences, InputIsAParameter, InputIsAWeight, Generated, Penalised
MODELS += Checkpointed, Normed, Frozen


@pytest.fixture
def every_size(monkeypatch):
    """Allow weights of any size, and count the added products."""
    added = []
    original = OuterProduct.add_to

    def counting(self, u, scale=1.0):
        added.append(u.shape)
        original(self, u, scale)

    monkeypatch.setattr(OuterProduct, "add_to", counting)
    monkeypatch.setattr(weight_products, "LARGE", 1)
    return added


def ends(model, local, **options):
    """Return the final models of the plain engine and of threads."""
    for engine in (Loop(), Threads(2)):
        fed = federation((3, 9, 20), engine=engine, model=model)
        shift = torch.linspace(-0.3, 0.3, 3 * len(fed.w0), dtype=torch.float64).view(3, -1)
        yield fed.train(torch.arange(3), fed.w0, local, Key(1), shift=shift, **options)


@pytest.mark.parametrize("model", MODELS)
def test_training_with_products_equals_plain_training_for_any_model(model, every_size):
    plain, threads = ends(model, LocalSGD(steps=3, lr=0.1, batch=8, momentum=0.5), prox=0.3)
    torch.testing.assert_close(threads.w, plain.w, rtol=0, atol=1e-12)
    assert every_size


SOLVERS = {
    "plain": {},
    "momentum": {"momentum": 0.5, "weight_decay": 0.1},
    "adam": {"optimizer": Adam()},
    "sam": {"optimizer": SAM(0.2), "radius": 0.9},
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_training_with_products_equals_plain_training_for_any_solver(solver, every_size):
    local = LocalSGD(steps=4, lr=0.1, batch=8, **SOLVERS[solver])
    plain, threads = ends(models.mlp, local, snapshot=2, average=True)
    for a, b in zip(plain, threads, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    assert bool(every_size) == (solver != "adam")


def test_gradients_with_products_equal_plain_gradients(every_size):
    found = [federation(engine=engine, model=models.mlp) for engine in (Loop(), Threads(2))]
    a, b = (fed.gradients(torch.arange(6), fed.w0, Key(1), batch=8)[0] for fed in found)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def products(model, x, parameter):
    """Return the products of a parameter's gradient after a backward pass, and the remainder."""
    weights = LinearWeights(model)
    outputs = model(x)
    with weights.collected() as found:
        (rest,) = torch.autograd.grad(outputs.float().sum(), [parameter], allow_unused=True)
    return found.get(parameter, []), rest


def test_only_large_weights_keep_gradients_as_products(monkeypatch):
    monkeypatch.setattr(weight_products, "LARGE", 13)
    model, x = Model(), torch.randn(5, 4)
    (product,), rest = products(model, x, model.a.weight)
    assert rest is None
    (plain,) = torch.autograd.grad(Model.forward(model, x).sum(), [model.a.weight])
    torch.testing.assert_close(write_out(product), plain)
    none, rest = products(model, x, model.b.weight)
    assert not none
    assert rest is not None


@pytest.mark.parametrize("model", [Mapped, InputIsAWeight, Normed])
def test_plain_gradient_is_used_if_a_product_would_differ(model, every_size):
    model = model()
    parameter = next(p for name, p in model.named_parameters() if name.startswith("a.") and p.dim() == 2)
    none, rest = products(model, torch.randn(5, 4), parameter)
    assert not none
    assert rest is not None


def test_plain_gradient_is_used_under_autocast(every_size):
    model = Model()
    with torch.autocast("cpu", torch.bfloat16):
        none, rest = products(model, torch.randn(5, 4), model.a.weight)
    assert not none
    assert rest is not None
