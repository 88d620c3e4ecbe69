"""A local SGD step on stacked models, and forward passes over a pool of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from drfl.engine.base import PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.tracing import Function
from drfl.engine.weight_products import Gradient, OuterProduct
from drfl.federation.requests import TrainRequest
from drfl.task.losses import SampleFn


def convolutional(model: nn.Module) -> bool:
    """Whether the model has a convolution in it."""
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in model.modules())


def images(problem: PooledData) -> bool:
    """Whether the model works by convolutions on images, on a CPU."""
    return problem.x.dim() == 4 and not problem.x.is_cuda and convolutional(problem.task.model)


def channels_last(images: Tensor) -> Tensor:
    """A copy (B, C, H, W) with the channels next to each other in memory, on which pooling is several times faster.

    ``Tensor.contiguous`` leaves images of one channel as they are, and pooling then takes the slow way.
    """
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


Apply = Callable[[Callable[[slice | Tensor], list[Tensor]], Iterable[slice | Tensor]], Iterable[list[Tensor]]]
"""``map``, or what does the same side by side."""

BYTES = 4 * 2**20
"""Inputs of a pass on a CPU: few enough to stay in its caches."""

BYTES_CUDA = 256 * 2**20

GATHERED = 6
"""Multiplications of a forward pass that take as long as gathering one number of an input."""

IMAGES = 128
"""Samples of a pass through convolutions on a CPU, whose activations are larger than their inputs."""


Model = Callable[[Tensor], Tensor]
"""Inputs (B, …) → outputs."""


def mean_losses(problem: PooledData, batches: Batches, model: Model, apply: Apply = map) -> Tensor:
    """(k,) float64 mean losses of a model on the first step's samples."""
    # The mask takes fillers out and lines the samples up client by client, as ClientRows wants them.
    rows = ClientRows(batches.at(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)
    (losses,) = per_sample(problem, rows.index, model, [problem.task.sample_losses], apply)
    return problem.means(losses, rows)


def functional(problem: PooledData, w: Tensor) -> Model:
    """The task's model at w (d,), for one thread at a time: meanwhile the module holds other parameters."""
    parameters = problem.task.layout.views(w)
    if images(problem):
        parameters = {name: channels_last(p) if p.dim() == 4 else p for name, p in parameters.items()}
    return lambda x: problem.task.outputs(parameters, x)


def per_sample(problem: PooledData, index: Tensor, model: Model, of: Sequence[SampleFn], apply: Apply) -> list[Tensor]:
    """Functions of the outputs for these rows of the pool, each (n,) float64 on the CPU."""
    most = mostly(problem, index)
    parts = slices(problem) if most else index.split(pass_size(problem))
    relaid = images(problem)

    def one(part: slice | Tensor) -> list[Tensor]:
        # Inside the function: grad mode belongs to a thread, and `apply` may run this in others.
        with torch.no_grad():
            x, y = taken(problem.x, part), taken(problem.y, part)
            outputs = problem.forward(model, channels_last(x) if relaid else x)
            # From here on float64 on the CPU, as loss reports and λ are.
            return [function(outputs, y).double().cpu() for function in of]

    columns = [torch.cat(values) for values in zip(*apply(one, parts), strict=True)]
    return [column[index] for column in columns] if most else columns


def pass_size(problem: PooledData) -> int:
    """Samples of one pass."""
    if images(problem):
        return IMAGES
    bound = BYTES_CUDA if problem.x.is_cuda else BYTES
    return max(1, bound // max(1, problem.x[:1].numel() * problem.x.element_size()))


def slices(problem: PooledData) -> list[slice]:
    """The pool in passes."""
    size = pass_size(problem)
    return [slice(at, at + size) for at in range(0, len(problem.x), size)]


def mostly(problem: PooledData, index: Tensor) -> bool:
    """Whether passing the pool in slices, rows that nobody asked for included, is faster than gathering these."""
    # The forward pass takes about one multiplication per row and parameter.
    row, gathered = problem.task.layout.d, GATHERED * problem.x[:1].numel()
    return len(index) * (row + gathered) >= len(problem.x) * row


def taken(pool: Tensor, part: slice | Tensor) -> Tensor:
    """Rows (n, …) of a pool, as a view where they are a slice; indexing takes three times as long as index_select."""
    return pool[part] if isinstance(part, slice) else pool.index_select(0, part.to(pool.device))


def multiplications(problem: PooledData, rows: int) -> int:
    """Of the largest product in a forward pass over so many rows of the pool, as far as its parameters say."""
    return min(rows, pass_size(problem)) * problem.task.layout.d


def rounded(values: list[float], like: Tensor) -> list[float]:
    """Numbers in the models' type: one too large for it is infinite, and the run diverges; torch would refuse it."""
    return torch.tensor(values, dtype=like.dtype).tolist()


class SGDStep(NamedTuple):
    """A step as u ← u − lr·((fixed + pull·u) + g), where fixed = shift − prox·w is folded once.

    fixed and pull·u are added first: where u = w they cancel, and the model stays where it is. With (1 − lr·pull)·u
    instead, the rounding of that factor would move it a little further in every step.

    Args:
        lr: η.
        pull: prox + weight_decay.
        momentum: β of v ← β·v + direction, u ← u − lr·v.
    """

    lr: float
    pull: float
    momentum: float

    @classmethod
    def of(cls, request: TrainRequest) -> SGDStep:
        """The numbers of a request's solver, in the type of the models."""
        local = request.local
        lr, pull = rounded([local.eta, request.prox + local.weight_decay], request.w)
        return cls(lr, pull, local.momentum)

    def start(self, u: Tensor) -> Sequence[Tensor]:
        """The velocity of a parameter before the first step; nothing without momentum."""
        return (torch.zeros_like(u),) if self.momentum else ()

    def step(self, u: Tensor, g: Gradient, fixed: Tensor | None, state: Sequence[Tensor], t: int) -> None:
        """Move a parameter u against its gradient g; neither g nor ``fixed`` (None = 0) is written to."""
        rest = fixed
        if self.pull:
            # A new tensor: fixed is shared by all steps.
            rest = self.pull * u if fixed is None else torch.add(fixed, u, alpha=self.pull)
        # Two updates in place need no memory for the sum of both. The order is part of the result's last bits.
        if not state:
            if rest is not None:
                u.sub_(rest, alpha=self.lr)
            if isinstance(g, OuterProduct):
                g.add_to(u, -self.lr)
            else:
                u.sub_(g, alpha=self.lr)
            return
        (velocity,) = state
        velocity.mul_(self.momentum)
        if isinstance(g, OuterProduct):
            g.add_to(velocity)
        else:
            velocity.add_(g)
        if rest is not None:
            velocity.add_(rest)
        u.sub_(velocity, alpha=self.lr)


def fixed_part(request: TrainRequest, row: int | None = None) -> Tensor | None:
    """The part of the direction that no step changes, shift − prox·w, (d,) or (k, d); None where there is none.

    Args:
        request: of k clients.
        row: of one of them only.
    """
    w, prox, shift = request.w, request.prox, request.shift
    # Each client has its own shift, while w and prox are common to all.
    if row is not None and shift is not None:
        shift = shift[row]
    if shift is None:
        return -prox * w if prox else None
    return shift - prox * w if prox else shift


def gradient_of(problem: PooledData, *, shared: bool = False) -> Function:
    """(x, y, weights, seeds, *parameters) → each client's gradients of its weighted loss, and that loss.

    Gradients are in the layout's order. Every argument has a client in front, only parameters that all clients share
    have not.

    Args:
        problem: task and pool.
        shared: whether they share the parameters.
    """
    task = problem.task

    def one(x: Tensor, y: Tensor, weights: Tensor, seeds: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        def losses(*parameters: Tensor) -> Tensor:
            named = dict(zip(task.layout.names, parameters, strict=True))
            return task.sample_losses(problem.forward(lambda x: task.outputs(named, x, own), x), y)

        own = seeds if len(seeds) else None
        # Pulling the weights back gives the gradient of Σ_b weights_b·ℓ_b, see PooledData.weights; 0 for a filler.
        # Fillers repeat a sample of the same client, so that their loss is finite where the client's is: 0·∞ is NaN.
        values, pull_back, *_ = vjp(losses, *parameters)
        return *pull_back(weights), (values * weights).sum()

    return vmap(one, in_dims=(0, 0, 0, 0, *[None if shared else 0] * len(task.layout.names)))
