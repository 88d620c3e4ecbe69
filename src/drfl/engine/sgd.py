"""A local SGD step on stacked models, and forward passes over a pool of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drfl.core.vmap import values_and_gradients, vmap
from drfl.engine.base import PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.stacked_convolutions import convolutions_as_products
from drfl.engine.step_cost import multiplications_per_row, step_cost
from drfl.engine.tracing import Function
from drfl.engine.weight_products import Gradient, OuterProduct, write_out
from drfl.federation.requests import TrainRequest
from drfl.task.losses import SampleFn


def has_images(problem: PooledData) -> bool:
    """Return whether the model applies convolutions to images on a CPU."""
    if problem.x.dim() != 4 or problem.x.is_cuda:
        return False
    return any(isinstance(layer, nn.modules.conv._ConvNd) for layer in problem.task.model.modules())


def channels_last(images: Tensor) -> Tensor:
    """Copy images (B, C, H, W) with the channels contiguous in memory, for which pooling is several times faster.

    ``Tensor.contiguous`` does not change images with one channel, and pooling would then use the slow path.
    """
    return torch.empty_like(images, memory_format=torch.channels_last).copy_(images)


Apply = Callable[[Callable[[slice | Tensor], list[Tensor]], Iterable[slice | Tensor]], Iterable[list[Tensor]]]
"""``map``, or a parallel version of it."""

BYTES = 4 * 2**20
"""Bytes of inputs per pass on a CPU: few enough to stay in its caches."""

BYTES_CUDA = 256 * 2**20

GATHERED = 6
"""Multiplications of a forward pass that take as long as gathering one number of an input."""

IMAGES = 128
"""Maximum number of samples per pass through convolutions on a CPU."""

STORED, FEWEST = 16 * 2**20, 16
"""Bytes of activations per pass on a CPU, in the count of a training step; but passes have at least ``FEWEST`` samples.
Larger passes leave the caches, and there are too few of them for all threads."""


Model = Callable[[Tensor], Tensor]
"""A function from inputs (B, …) to outputs."""


def mean_losses(problem: PooledData, batches: Batches, model: Model, apply: Apply = map) -> Tensor:
    """Return (k,) float64: mean losses of a model on the first step's samples."""
    # The mask removes fillers and orders the samples client by client, as ClientRows requires.
    rows = ClientRows(batches.step_rows(0)[batches.real], batches.counts.cumsum(0) - batches.counts, batches.counts)
    (losses,) = per_sample(problem, rows.index, model, [problem.task.sample_losses], apply)
    return problem.means(losses, rows)


def functional(problem: PooledData, w: Tensor) -> Model:
    """Return the task's model at w (d,), for one thread at a time: during a call the module holds other parameters."""
    parameters = problem.task.layout.views(w)
    if has_images(problem):
        # Store the weights in the layout of the images, because every pass would otherwise convert them.
        parameters = {name: channels_last(p) if p.dim() == 4 else p for name, p in parameters.items()}
    return lambda x: problem.task.outputs(parameters, x)


def per_sample(problem: PooledData, index: Tensor, model: Model, of: Sequence[SampleFn], apply: Apply) -> list[Tensor]:
    """Return functions of the outputs for these rows of the pool, each (n,) float64 on the CPU."""
    most = is_slicing_faster(problem, index)
    parts = slices(problem) if most else index.split(pass_size(problem))
    relaid = has_images(problem)

    def evaluate_part(part: slice | Tensor) -> list[Tensor]:
        # Disable gradients inside the function, because grad mode belongs to a thread, and `apply` may use other
        # threads.
        with torch.no_grad():
            x, y = take_rows(problem.x, part), take_rows(problem.y, part)
            outputs = problem.forward(model, channels_last(x) if relaid else x)
            # From here on, values are float64 on the CPU, like reported losses and λ.
            return [function(outputs, y).double().cpu() for function in of]

    columns = [torch.cat(values) for values in zip(*apply(evaluate_part, parts), strict=True)]
    return [column[index] for column in columns] if most else columns


def pass_size(problem: PooledData) -> int:
    """Return the number of samples per pass."""
    size = max(1, problem.x[:1].nbytes)
    if problem.x.is_cuda:
        return max(1, BYTES_CUDA // size)
    most = IMAGES if has_images(problem) else max(1, BYTES // size)
    return min(most, max(FEWEST, STORED // max(1, step_cost(problem).stored)))


def slices(problem: PooledData) -> list[slice]:
    """Return the pool split into passes."""
    size = pass_size(problem)
    return [slice(start, start + size) for start in range(0, len(problem.x), size)]


def is_slicing_faster(problem: PooledData, index: Tensor) -> bool:
    """Return whether passing the whole pool in slices is faster than gathering these rows."""
    row, gathered = multiplications_per_row(problem), GATHERED * problem.x[:1].numel()
    return len(index) * (row + gathered) >= len(problem.x) * row


def take_rows(pool: Tensor, part: slice | Tensor) -> Tensor:
    """Return rows (n, …) of a pool, as a view for a slice; index_select is three times as fast as indexing."""
    return pool[part] if isinstance(part, slice) else pool.index_select(0, part.to(pool.device))


def multiplications(problem: PooledData, rows: int) -> float:
    """Return the multiplications in a pass over these rows."""
    return min(rows, pass_size(problem)) * multiplications_per_row(problem)


def step_numbers(request: TrainRequest) -> list[float]:
    """Return η and prox + weight_decay, rounded to the type of the models."""
    numbers = [request.local.eta, request.prox + request.local.weight_decay]
    # Overflow gives infinity, so the run diverges, while torch would raise an error later.
    return torch.tensor(numbers, dtype=request.w.dtype).tolist()


class SGDStep(NamedTuple):
    """The step u ← u − lr·((fixed + pull·u) + g), where fixed = shift − prox·w is computed once.

    fixed and pull·u are added first, because they cancel if u = w and the model then does not move. With the form
    (1 − lr·pull)·u, the rounding of that factor would move it a little further in every step.

    Args:
        lr: η, or a tensor () that holds it.
        pull: prox + weight_decay, or a tensor () that holds it.
        momentum: β in v ← β·v + direction, u ← u − lr·v.
    """

    lr: float | Tensor
    pull: float | Tensor
    momentum: float

    @classmethod
    def of(cls, request: TrainRequest) -> SGDStep:
        """Build the step from a request's solver, with numbers in the type of the models."""
        lr, pull = step_numbers(request)
        return cls(lr, pull, request.local.momentum)

    def start(self, u: Tensor) -> Sequence[Tensor]:
        """Return the velocity of a parameter before the first step; nothing without momentum."""
        return (torch.zeros_like(u),) if self.momentum else ()

    def step(self, u: Tensor, g: Gradient, fixed: Tensor | None, state: Sequence[Tensor], t: int) -> None:
        """Move a parameter u against its gradient g; neither g nor ``fixed`` (None = 0) is modified."""
        rest = pulled(u, fixed, self.pull)
        # Two updates in place need no memory for the sum of both. Their order affects the last bits of the result.
        if not state:
            if rest is not None:
                self._descend(u, rest)
            self._descend(u, g)
            return
        (velocity,) = state
        velocity.mul_(self.momentum)
        if isinstance(g, OuterProduct):
            g.add_to(velocity)
        else:
            velocity.add_(g)
        if rest is not None:
            velocity.add_(rest)
        self._descend(u, velocity)

    def _descend(self, u: Tensor, direction: Gradient) -> None:
        if isinstance(self.lr, Tensor):
            # On a GPU: reading its value would wait for the device.
            u.addcmul_(write_out(direction), self.lr, value=-1)
        elif isinstance(direction, OuterProduct):
            direction.add_to(u, -self.lr)
        else:
            u.sub_(direction, alpha=self.lr)


def pulled(u: Tensor, fixed: Tensor | None, pull: float | Tensor) -> Tensor | None:
    """Return fixed + pull·u; None if it is 0. All steps share ``fixed``, so the sum is a new tensor."""
    if isinstance(pull, Tensor):
        # On a GPU: reading its value would wait for the device.
        return pull * u if fixed is None else torch.addcmul(fixed, u, pull)
    if not pull:
        return fixed
    return pull * u if fixed is None else torch.add(fixed, u, alpha=pull)


def fixed_part(request: TrainRequest, row: int | None = None) -> Tensor | None:
    """Return the part of the direction that is the same in all steps: shift − prox·w, (d,) or (k, d); None if it is 0.

    Args:
        request: A request to k clients.
        row: The position of a single client; None = all clients.
    """
    w, prox, shift = request.w, request.prox, request.shift
    # Each client has its own shift, while all clients share w and prox.
    if row is not None and shift is not None:
        shift = shift[row]
    if shift is None:
        return -prox * w if prox else None
    return shift - prox * w if prox else shift


def gradient_of(problem: PooledData, *, shared: bool = False) -> Function:
    """Return (x, y, weights, seeds, *parameters) → each client's gradients of its weighted loss, and that loss.

    Gradients are in the layout's order. The first dimension of every argument is that of the clients, except for shared
    parameters.

    Args:
        problem: Task and pool.
        shared: Whether the clients share the parameters.
    """
    task = problem.task

    def client_gradient(
        x: Tensor, y: Tensor, weights: Tensor, seeds: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        def losses(*parameters: Tensor) -> tuple[Tensor, tuple[()]]:
            named = dict(zip(task.layout.names, parameters, strict=True))
            return task.sample_losses(problem.forward(lambda x: task.outputs(named, x, noise), x), y), ()

        noise = seeds if len(seeds) else None
        # The gradient of Σ_b weights_b·ℓ_b, see PooledData.weights; fillers contribute 0. Fillers repeat a sample of
        # the same client, so their loss is finite if the client's is: 0·∞ would be NaN.
        values, gradients, _ = values_and_gradients(losses, parameters, weights)
        return *gradients, (values * weights).sum()

    stacked = vmap(client_gradient, in_dims=(0, 0, 0, 0, *[None if shared else 0] * len(task.layout.names)))

    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        with convolutions_as_products(active=problem.x.is_cuda):
            return stacked(*tensors)

    return gradient


def gradient_of_one(problem: PooledData) -> Function:
    """Return :func:`gradient_of` for a stack of one client, by torch's own autograd, which accepts any model."""
    task = problem.task

    def gradient(x: Tensor, y: Tensor, weights: Tensor, seeds: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        leaves = [p[0].detach().requires_grad_() for p in parameters]
        named, noise = dict(zip(task.layout.names, leaves, strict=True)), seeds[0] if seeds.shape[1] else None
        losses = task.sample_losses(problem.forward(lambda x: task.outputs(named, x, noise), x[0]), y[0])
        # A parameter on which the loss does not depend has gradient 0, as in the other engines.
        gradients = torch.autograd.grad(losses, leaves, weights[0], allow_unused=True, materialize_grads=True)
        return *(g[None] for g in gradients), (losses.detach() * weights[0]).sum()[None]

    return gradient
