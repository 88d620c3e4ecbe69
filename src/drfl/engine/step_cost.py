"""The memory of a forward pass whose gradient follows."""

from __future__ import annotations

from collections.abc import Hashable
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from drfl.engine.base import PooledData
from drfl.task.task import Task

_sizes: WeakKeyDictionary[Task, dict[Hashable, int]] = WeakKeyDictionary()


def activation_bytes(problem: PooledData) -> int:
    """Return the bytes that autograd stores for each sample, beside the parameters and the sample itself."""
    sizes, key = _sizes.setdefault(problem.task, {}), (problem.autocast, problem.x.shape[1:])
    if key not in sizes:
        # The difference excludes what does not depend on the number of samples, such as the parameters.
        sizes[key] = max(0, _stored(problem, 2) - _stored(problem, 1) - problem.x[:1].nbytes)
    return sizes[key]


def _stored(problem: PooledData, samples: int) -> int:
    """Return the bytes of all tensors that a forward pass of the first sample, repeated, stores for its gradient."""
    task, stored = problem.task, dict[int, int]()
    rows = torch.zeros(samples, dtype=torch.int64, device=problem.x.device)
    x, y, seeds = problem.x[rows], problem.y[rows], rows if task.noisy else None

    def store(t: Tensor) -> Tensor:
        # Several operations may store the same memory.
        stored[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.inference_mode(False), torch.enable_grad(), saved_tensors_hooks(store, lambda t: t):
        leaves = {name: p.detach().clone().requires_grad_() for name, p in task.layout.views(task.w0).items()}
        losses = task.sample_losses(problem.forward(lambda x: task.outputs(leaves, x, seeds), x), y)
    # All stored tensors live as long as the losses, so no two of them had the same address.
    del losses
    return sum(stored.values())
