"""Five small clients with class labels, a model with a hidden layer, and the same model by hand."""

from __future__ import annotations

import torch
from tests.support.problems import pools
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Engine, Loop, Simulation
from drfl.task.batch_norm import with_federated_batch_norm
from drfl.task.task import Task

SIZES = (6, 9, 5, 12, 7)
INPUTS, HIDDEN, CLASSES = 4, 3, 3


class Hidden:
    """A problem for the conformance suite, see :class:`drfl.testing.ToyProblem`."""

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """See :class:`drfl.testing.ToyProblem`."""
        return Simulation(data(dtype), Task(model().to(dtype)), engine=Loop() if engine is None else engine)


class HiddenBatchNorm:
    """The same clients, and a model with batch normalisation whose parameters are in the order of its layers."""

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """See :class:`drfl.testing.ToyProblem`."""
        with Key(2).fold("model").torch_scope():
            module = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.Linear(HIDDEN, CLASSES))
        task = Task(with_federated_batch_norm(module.to(dtype)))
        return Simulation(data(dtype), task, engine=Loop() if engine is None else engine)


NORM = slice(HIDDEN * (INPUTS + 1), HIDDEN * (INPUTS + 5))
"""The entries of the BatchNorm layer: weight, bias, running mean and running variance."""


def normalised_loss(w: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Compute client i's loss with the statistics of all its rows, and its new running statistics, by hand."""
    x, y = rows_of(i)
    sizes = [HIDDEN * INPUTS, HIDDEN, *[HIDDEN] * 4, CLASSES * HIDDEN, CLASSES]
    a, b, scale, offset, mean, variance, c, d = w.split(sizes)
    z = x @ a.reshape(HIDDEN, INPUTS).T + b
    centred = z - z.mean(0)
    spread = centred.square().mean(0)
    normal = centred / (spread + 1e-5).sqrt() * scale + offset
    unbiased = centred.square().sum(0) / (len(x) - 1)
    running = torch.cat([0.9 * mean + 0.1 * z.mean(0), 0.9 * variance + 0.1 * unbiased]).detach()
    return functional.cross_entropy(normal @ c.reshape(CLASSES, HIDDEN).T + d, y), running


def data(dtype: torch.dtype = torch.float64) -> ClientData:
    """Return the clients, some of which lack the third class."""
    return pools(SIZES, shape=(INPUTS,), classes=CLASSES, seed=5, dtype=dtype)


def model() -> nn.Module:
    """Return a linear layer, tanh, and a linear layer."""
    with Key(2).fold("model").torch_scope():
        return nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()


HEAD = slice(HIDDEN * (INPUTS + 1), None)
"""The head's entries of the flat parameter vector."""


def rows_of(i: int) -> tuple[Tensor, Tensor]:
    """Return inputs and labels of client i's training rows."""
    clients = data()
    return clients.inputs[clients.train[i]], clients.targets[clients.train[i]]


def outputs_of(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return features and outputs for flat parameters, by hand."""
    a, b, c, d = w.split([HIDDEN * INPUTS, HIDDEN, CLASSES * HIDDEN, CLASSES])
    z = torch.tanh(x @ a.reshape(HIDDEN, INPUTS).T + b)
    return z, z @ c.reshape(CLASSES, HIDDEN).T + d


def cross_entropy(w: Tensor, i: int) -> Tensor:
    """Return client i's loss."""
    x, y = rows_of(i)
    return functional.cross_entropy(outputs_of(w, x)[1], y)


def gradient(loss, w: Tensor) -> Tensor:
    """Return the gradient (d,) of a loss of flat parameters."""
    w = w.detach().clone().requires_grad_()
    return torch.autograd.grad(loss(w), w)[0]
