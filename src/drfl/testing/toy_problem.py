"""The clients on which an algorithm is checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Engine, Loop, Simulation
from drfl.federation.federation import Federation
from drfl.task.task import Task
from drfl.testing.problems import LeastSquares, Problem, Quadratic
from drfl.testing.quadratic_federation import QuadraticFederation


class ToyProblem(Protocol):
    """Makes federations of the same clients, such as a :class:`drfl.testing.problems.Problem`."""

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Federation:
        """Make the clients, with this engine (None for any) and type of model. Keep them few and small."""
        ...


def exact(trial: ToyProblem, dtype: torch.dtype = torch.float64) -> Federation:
    """Make clients that only get full-batch requests: in closed form if the problem is quadratic."""
    if not isinstance(trial, Problem) or not isinstance(trial.functions, LeastSquares):
        return trial.federation(None, dtype)
    functions, simulation = trial.functions, trial.federation()
    constants = functions.losses(torch.zeros(functions.d, dtype=torch.float64))
    parts = functions.hessians, functions.linear, constants
    return QuadraticFederation(*parts, shares=simulation.shares, w0=simulation.w0, dtype=dtype)


SIZES = (6, 9, 5, 12, 7)
"""Training samples of each client."""


def least_squares(sizes: Sequence[int] = SIZES, d: int = 3, seed: int = 0) -> Quadratic:
    """f_i(w) = (1/2n_i) Σ_j (⟨x_ij, w⟩ − y_ij)²: clients of unequal size, each with its own true model and noise.

    At the saddle point some clients have λ_i = 0. The initial model is not at any optimum.

    Args:
        sizes: n_i, training samples per client.
        d: Number of parameters.
        seed: Seed of the data.
    """
    rng = np.random.default_rng(seed)
    x = [rng.normal(size=(n, d)) * rng.uniform(0.7, 1.3, size=d) for n in sizes]
    laws = rng.normal(size=(len(sizes), d))
    y = [xi @ law + 0.3 * (i + 1) * rng.normal(size=len(xi)) for i, (xi, law) in enumerate(zip(x, laws, strict=True))]
    pairs = list(zip(x, y, strict=True))
    data = ClientData.from_arrays(pairs, pairs, dtype=torch.float64)
    A, b = torch.zeros(len(sizes), max(sizes), d, dtype=torch.float64), torch.zeros(len(sizes), max(sizes)).double()
    for i, (xi, yi) in enumerate(pairs):  # the remaining rows stay zero
        A[i, : len(yi)], b[i, : len(yi)] = (torch.from_numpy(part) / len(yi) ** 0.5 for part in (xi, yi))
    functions = LeastSquares(A, b)
    eigenvalues = torch.linalg.eigvalsh(functions.hessians)
    return Quadratic(
        "least_squares", functions, data, partial(linear_model, d, 1, -1, 1), half_squared_error, closeness,
        float(eigenvalues.max()), float(eigenvalues.min()),
    )  # fmt: skip


class Classification:
    """Clients with class labels and a model with a hidden layer that ends in ``nn.Linear``, for client-side methods.

    Inputs have 4 columns, and there are 3 classes, of which some clients have only two. The loss is the cross-entropy.

    Example:
        >>> from drfl.testing import Classification
        >>> model = Classification().federation().model
        >>> model.width, model.classes
        (5, 3)
    """

    def federation(self, engine: Engine | None = None, dtype: torch.dtype = torch.float64) -> Simulation:
        """See :class:`ToyProblem`."""
        rng = np.random.default_rng(0)
        pairs = []
        for i, n in enumerate(SIZES):
            labels = np.arange(n) % (2 if i % 2 else 3)
            pairs.append((rng.normal(size=(n, 4)) + labels[:, None], labels))
        with Key(0).fold("model").torch_scope():
            model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)
        data = ClientData.from_arrays(pairs, pairs, dtype=dtype)
        return Simulation(data, Task(model), engine=Loop() if engine is None else engine)


def linear_model(
    inputs: int, outputs: int, low: float, high: float, *, bias: bool = False, dtype: torch.dtype = torch.float64
) -> nn.Linear:
    """Make a linear model whose parameters are evenly spaced from ``low`` to ``high``."""
    with torch.random.fork_rng(devices=[]):  # the layer draws its weights from the global generator
        model = nn.Linear(inputs, outputs, bias=bias, dtype=dtype)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.linspace(low, high, p.numel(), dtype=dtype).view_as(p))
    return model


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ½(output − target)² per sample, (B,)."""
    return 0.5 * (outputs.flatten() - targets) ** 2


def closeness(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return exp(−½(output − target)²) per sample, (B,): 1 if the output is right."""
    return torch.exp(-half_squared_error(outputs, targets))
