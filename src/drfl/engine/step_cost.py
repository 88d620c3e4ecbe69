"""The work of a training step, counted once per task: products, memory and the number of operations."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from drfl.core.intraop import threads_for
from drfl.engine.base import PooledData
from drfl.engine.stacked_convolutions import convolutions_as_products
from drfl.task.dispatch_mode import DispatchMode
from drfl.task.task import Task

_ATEN = torch.ops.aten
_CONVOLUTIONS = (_ATEN.convolution, _ATEN._convolution, _ATEN.convolution_backward)


class StepCost(NamedTuple):
    """The work of a forward and backward pass.

    Args:
        stored: Bytes that autograd stores for each sample, beside the parameters and the sample itself.
        products: Multiplications per sample, except in convolutions.
        convolutions: Multiplications per sample in convolutions.
        operations: Number of torch's operations, whatever the number of samples.
    """

    stored: int
    products: float
    convolutions: float
    operations: int


POSITION = 2
"""Operations that take as long as one position of an LSTM layer, which is one operation; twice as many backwards."""


class Counter(DispatchMode):
    """Counts the operations that torch runs, and the multiplications in products and in convolutions.

    ``unstacked`` is the time of LSTM layers in operations. ``vmap`` runs these layers for one client after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations, self.unstacked, self.products, self.convolutions = 0, 0, 0.0, 0.0

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operation of torch, which has no public type
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run and count an operation."""
        from torch.utils.flop_counter import flop_registry  # loading its modules takes a tenth of a second

        result, packet = func(*args, **(kwargs or {})), func._overloadpacket
        self.operations += 1
        if packet in (_ATEN.mkldnn_rnn_layer, _ATEN.mkldnn_rnn_layer_backward):
            # torch's counter does not know these. Each position of each sample is multiplied by both weights.
            inputs, *weights = args[:3]
            passes = 1 if packet is _ATEN.mkldnn_rnn_layer else 2
            self.products += passes * sum(w.numel() for w in weights) * inputs.numel() / inputs.shape[-1]
            self.unstacked += passes * POSITION * len(inputs)
        elif packet in flop_registry:
            multiplications = flop_registry[packet](*args, **(kwargs or {}), out_val=result) / 2
            if packet in _CONVOLUTIONS:
                self.convolutions += multiplications
            else:
                self.products += multiplications
        return result


_costs: WeakKeyDictionary[Task, dict[Hashable, StepCost]] = WeakKeyDictionary()


def step_cost(problem: PooledData) -> StepCost:
    """Return the work of a step, from passes of one and of two samples."""
    costs, key = _costs.setdefault(problem.task, {}), (problem.autocast, problem.x.shape[1:])
    if key not in costs:
        (one, few), (two, more) = _counted(problem, 1), _counted(problem, 2)
        # The differences exclude what does not depend on the number of samples, such as the parameters.
        costs[key] = StepCost(
            max(0, two - one - problem.x[:1].nbytes),
            max(0.0, more.products - few.products),
            max(0.0, more.convolutions - few.convolutions),
            few.operations,
        )
    return costs[key]


def multiplications_per_row(problem: PooledData) -> float:
    """Return the multiplications of a forward pass, about a third of those with gradients; at least one per weight."""
    cost = step_cost(problem)
    return max(problem.task.layout.d, (cost.products + cost.convolutions) / 3)


@dataclass(frozen=True)
class Prediction:
    """Nanoseconds of a core for the local steps of a client in each engine, per unit of a step's work.

    The constants are fitted to the times in ``benchmarks/results/auto.json`` so that the smaller prediction belongs to
    the faster engine. The number of threads is not an input. Both engines use all of them, so it hardly affects the
    ratio. Runs in several processes with one thread each must also give the same bits as in one.

    Args:
        operation: Per operation of torch.
        product: Per multiplication, except in convolutions.
        convolution: Per multiplication in a convolution.
        stored: Per byte of activations.
        stored_images: Additionally per byte of activations in a model with convolutions, which become grouped ones.
        gathered: Per byte of the inputs.
        parameter: Per parameter.
    """

    operation: float
    product: float
    convolution: float
    stored: float
    stored_images: float
    gathered: float
    parameter: float

    def of(self, problem: PooledData, batch: int, operations: float) -> float:
        """Return the nanoseconds of a client's step with this number of operations per client."""
        cost = step_cost(problem)
        per_row = self.product * cost.products + self.convolution * cost.convolutions + self.stored * cost.stored
        per_row += bool(cost.convolutions) * self.stored_images * cost.stored + self.gathered * problem.x[:1].nbytes
        return self.operation * operations + batch * per_row + self.parameter * problem.task.layout.d


# Two cores share the work of a step, but Python calls the operations of one client at a time.
THREADS = Prediction(20e3, 15e-3, 15e-3, 0.16, 0.0, 0.53, 0.21)
STACKED = Prediction(11e3, 26e-3, 18e-3, 1.1, 2.7, 0.23, 0.83)


def _counted(problem: PooledData, samples: int) -> tuple[int, Counter]:
    """Return the bytes that a pass of the first sample, repeated, stores for its gradient, and its operations."""
    task, stored = problem.task, dict[int, int]()
    rows = torch.zeros(samples, dtype=torch.int64, device=problem.x.device)
    x, y, seeds = problem.x[rows], problem.y[rows], rows if task.noisy else None

    def store(t: Tensor) -> Tensor:
        # Several operations may store the same memory.
        stored[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        threads_for(samples * task.layout.d),
        convolutions_as_products(active=problem.x.is_cuda),
        Counter() as counter,
    ):
        leaves = {name: p.detach().clone().requires_grad_() for name, p in task.layout.views(task.w0).items()}
        with saved_tensors_hooks(store, lambda t: t):
            losses = task.sample_losses(problem.forward(lambda x: task.outputs(leaves, x, seeds), x), y)
        # All stored tensors live as long as the losses, so no two of them have the same address.
        size = sum(stored.values())
        torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True)
    with torch.no_grad(), threads_for(samples * task.layout.d):
        # A layer may store a tensor of its last pass. With a gradient graph, the model could not be copied.
        task.outputs(leaves, x, seeds)
    return size, counter
