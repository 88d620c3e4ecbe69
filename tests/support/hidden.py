"""Five small clients with class labels and a model with a hidden layer, and the same model written by hand."""

from __future__ import annotations

import torch
from tests.support.problems import pools
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Engine, Loop, Simulation
from drfl.task.task import Task

SIZES = (6, 9, 5, 12, 7)
INPUTS, HIDDEN, CLASSES = 4, 3, 3


class Hidden:
    """A problem for the conformance suite, see :class:`drfl.testing.ToyProblem`."""

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """See :class:`drfl.testing.ToyProblem`."""
        return Simulation(data(dtype), Task(model().to(dtype)), engine=Loop() if engine is None else engine)


def data(dtype: torch.dtype = torch.float64) -> ClientData:
    """The clients; the third class is missing at some."""
    return pools(SIZES, shape=(INPUTS,), classes=CLASSES, seed=5, dtype=dtype)


def model() -> nn.Module:
    """A linear layer, tanh, and a linear layer."""
    with Key(2).fold("model").torch_scope():
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


HEAD = slice(HIDDEN * (INPUTS + 1), None)
"""The head's entries of the flat parameter vector."""


def rows_of(i: int) -> tuple[Tensor, Tensor]:
    """Inputs and labels of client i's training rows."""
    clients = data()
    return clients.inputs[clients.train[i]], clients.targets[clients.train[i]]


def outputs_of(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Features and outputs for flat parameters, by hand."""
    a, b, c, d = w.split([HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES])
    z = torch.tanh(x @ a.reshape(HIDDEN, INPUTS).T + b)
    return z, z @ c.reshape(CLASSES, HIDDEN).T + d


def cross_entropy(w: Tensor, i: int) -> Tensor:
    """Client i's loss."""
    x, y = rows_of(i)
    return functional.cross_entropy(outputs_of(w, x)[1], y)


def gradient(loss, w: Tensor) -> Tensor:
    """The gradient (d,) of a loss of flat parameters."""
    w = w.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(w), w)[0]
