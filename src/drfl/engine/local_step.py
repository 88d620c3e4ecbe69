"""In-place steps of the local optimisers, on the parameters of one model or of a stack of models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.engine.sgd import SGDStep, pulled
from drfl.engine.weight_products import Gradient, write_out
from drfl.federation.requests import TrainRequest
from drfl.optim.local_optimizers import SAM, Adam


class LocalStep(Protocol):
    """A step of a local optimiser, for one parameter at a time."""

    def start(self, u: Tensor) -> Sequence[Tensor]:
        """Return the state of a parameter (…) before the first step."""
        ...

    def step(self, u: Tensor, g: Gradient, fixed: Tensor | None, state: Sequence[Tensor], t: int) -> None:
        """Move a parameter u against its gradient g in step t = 1, 2, …; g and ``fixed`` are not modified."""
        ...


class AdamStep(NamedTuple):
    """u ← u − lr·m̂/(√v̂ + ε) along (fixed + pull·u) + g, see :class:`drfl.optim.local_optimizers.Adam`."""

    lr: float | Tensor
    pull: float | Tensor
    adam: Adam

    def start(self, u: Tensor) -> Sequence[Tensor]:
        """Return m = v = 0."""
        return torch.zeros_like(u), torch.zeros_like(u)

    def step(self, u: Tensor, g: Gradient, fixed: Tensor | None, state: Sequence[Tensor], t: int) -> None:
        """Take a step, see :class:`LocalStep`."""
        (m, v), (beta1, beta2) = state, (self.adam.beta1, self.adam.beta2)
        # Adam squares the entries of the gradient, so a gradient in factors must be multiplied out.
        direction, rest = write_out(g), pulled(u, fixed, self.pull)
        if rest is not None:
            direction = direction + rest
        m.mul_(beta1).add_(direction, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(direction, direction, value=1 - beta2)
        # The bias corrections are folded into two scalars, so no tensors are needed for m̂ and v̂.
        deviation = v.sqrt().div_(math.sqrt(1 - beta2**t)).add_(self.adam.epsilon)
        if isinstance(self.lr, Tensor):
            u.addcdiv_(m * self.lr, deviation, value=-1 / (1 - beta1**t))
        else:
            u.addcdiv_(m, deviation, value=-self.lr / (1 - beta1**t))


def local_step(request: TrainRequest, numbers: Sequence[Tensor] = ()) -> LocalStep:
    """Return the step of a request's optimiser.

    For :class:`drfl.optim.local_optimizers.SAM` it is the descent step at the point where the ascent started.

    Args:
        request: The request.
        numbers: η and prox + weight_decay, each (), on the device of the models; empty = those in the request.
    """
    plain = SGDStep.of(request)
    lr, pull = numbers or (plain.lr, plain.pull)
    if not plain.pull:
        pull = 0.0  # saves an operation per step
    if isinstance(request.local.optimizer, Adam):
        return AdamStep(lr, pull, request.local.optimizer)
    return plain._replace(lr=lr, pull=pull)


def ascent(sam: SAM, gradients: Sequence[Tensor], clients: int | None = None) -> list[Tensor]:
    """Return rho·g/‖g‖ parameter by parameter, with the norm over all parameters; 0 if g is 0.

    Args:
        sam: The optimiser, with rho.
        gradients: Gradients of each parameter: (…), or (k, …) for a stack of k models.
        clients: k; None = a single model.
    """
    if clients is None:
        scale = sam.rho / _above_0(torch.stack([g.norm() for g in gradients]).norm())
        return [scale * g for g in gradients]
    norms = torch.stack([g.reshape(clients, -1).norm(dim=1) for g in gradients]).norm(dim=0)
    # Each model of the stack has its own scale.
    scale = sam.rho / _above_0(norms)
    return [scale.view(clients, *[1] * (g.dim() - 1)) * g for g in gradients]


def _above_0(norm: Tensor) -> Tensor:
    # Callers divide the gradient by this norm. For a gradient of 0 the quotient 0/0 would be NaN.
    return norm.clamp(min=torch.finfo(norm.dtype).tiny ** 0.5)
