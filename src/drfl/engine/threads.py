"""The threads engine: worker threads with one model each, one client at a time."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import first_line
from drfl.core.intraop import allowed
from drfl.engine.base import Models, PooledData, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.evaluation import evaluate_models
from drfl.engine.image_layers import lay_gradients_channels_last, use_onednn_layout
from drfl.engine.local_step import ascent, local_step
from drfl.engine.sgd import channels_last, fixed_part, has_images, mean_losses, take_rows
from drfl.engine.tracing import model_of
from drfl.engine.weight_products import Gradient, LinearWeights, total, write_out
from drfl.federation.requests import TrainRequest
from drfl.optim.local_optimizers import SAM
from drfl.task.model_checks import model_error
from drfl.task.training_noise import dropout_layers


class Replica:
    """A copy of the task's model whose parameters are written in place.

    Args:
        problem: Task and samples.
    """

    def __init__(self, problem: PooledData) -> None:
        self._problem, self._images, layout = problem, has_images(problem), problem.task.layout
        # Threads write parameters in place, so each needs its own model.
        self._model = copy.deepcopy(problem.task.model)
        if self._images:
            use_onednn_layout(self._model)
            lay_gradients_channels_last(self._model)
        self._weights = LinearWeights(self._model)
        self._dropouts = list(dropout_layers(self._model).values())
        self._no_seeds = torch.zeros((), dtype=torch.int64)
        named = dict(self._model.named_parameters())
        self._parameters = [named[name] for name in layout.names]

    def load(self, w: Tensor) -> Replica:
        """Load the parameters w (d,)."""
        with torch.no_grad():
            for p, value in zip(self._parameters, self._views(w), strict=True):
                p.copy_(value)
        return self

    def __call__(self, x: Tensor) -> Tensor:
        """Compute outputs for inputs (B, …); threads may share a replica that none of them trains."""
        return self._model(x)

    def gradient(self, rows: Tensor, into: Tensor) -> Tensor:
        """Write the mean gradient on these rows of the pool into a vector (d,), and return the mean loss ()."""
        gradients, losses = self._gradients(rows)
        for g, value in zip(gradients, self._views(into), strict=True):
            value.copy_(write_out(g))
        return self._problem.mean(losses, rows)

    def local_steps(
        self,
        batches: Sequence[tuple[Tensor, Tensor | None]],
        request: TrainRequest,
        j: int,
        into: Models,
    ) -> None:
        """Run the steps of the cohort's client j, one per batch of rows; write the requested vectors ``into``."""
        local, fixed = request.local, fixed_part(request, j)
        # A replica serves one client after another, so its parameters still hold the previous client's model.
        self.load(request.w)
        # Momentum starts from zero for every client and in every round.
        descent = local_step(request)
        states = [descent.start(p.detach()) for p in self._parameters]
        constants = [None] * len(states) if fixed is None else self._views(fixed)
        for step, (rows, seeds) in enumerate(batches, start=1):
            gradients, _ = self._gradients(rows, seeds)
            # SAM steps from the model itself, but along the gradient at the displaced model.
            if isinstance(local.optimizer, SAM):
                moves = ascent(local.optimizer, [write_out(g) for g in gradients])
                original = [p.detach().clone() for p in self._parameters]
                with torch.no_grad():
                    for p, move in zip(self._parameters, moves, strict=True):
                        p.add_(move)
                gradients, _ = self._gradients(rows, seeds)
                with torch.no_grad():
                    # Restore from a copy, because subtracting the displacement again would round.
                    for p, value in zip(self._parameters, original, strict=True):
                        p.copy_(value)
            with torch.no_grad():
                for p, g, constant, state in zip(self._parameters, gradients, constants, states, strict=True):
                    descent.step(p, g, constant, state, step)
                # The ball constrains the whole model, not each parameter. The norm of the norms is the model's norm.
                if local.radius is not None:
                    norm = torch.stack([p.norm() for p in self._parameters]).norm()
                    if not norm <= local.radius:  # also true for NaN, as in the other engines
                        for p in self._parameters:
                            p.mul_(local.radius / norm)
                if into.average is not None:
                    for p, value in zip(self._parameters, self._views(into.average), strict=True):
                        value.add_(p, alpha=1 / len(batches))
                if into.snapshot is not None and step == request.snapshot:
                    self._store(into.snapshot)
        with torch.no_grad():
            self._store(into.w)

    def _gradients(self, rows: Tensor, seeds: Tensor | None = None) -> tuple[list[Gradient], Tensor]:
        problem, x = self._problem, take_rows(self._problem.x, rows)
        if seeds is not None:
            seeds = seeds.to(x.device)
            x = problem.task.augmented(x, seeds)
        for layer in self._dropouts:
            layer.calls, layer.seeds = 0, self._no_seeds if seeds is None else seeds
        outputs = problem.forward(self._model, channels_last(x) if self._images else x)
        losses = problem.task.sample_losses(outputs, take_rows(problem.y, rows))
        # Passing the weights of the mean here avoids three small functions in the backward pass.
        weights = losses.new_full(losses.shape, 1 / problem.divisor(rows))
        with self._weights.collected() as products:
            # A parameter on which the loss does not depend has gradient 0, as in the other engines; it is not an error.
            rest = torch.autograd.grad(losses, self._parameters, weights, allow_unused=True)
        gradients = [total(p, g, products.get(p, ())) for p, g in zip(self._parameters, rest, strict=True)]
        return gradients, losses.detach()

    def _store(self, into: Tensor) -> None:
        for p, value in zip(self._parameters, self._views(into), strict=True):
            value.copy_(p)

    def _views(self, w: Tensor) -> list[Tensor]:
        return list(self._problem.task.layout.views(w).values())


@dataclass(frozen=True)
class Threads:
    """Runs clients on parallel threads with models updated in place: for convolutions and large models on a CPU.

    Neither the number of workers nor the assignment of clients to workers affects the results: each client is computed
    with one intra-op thread, unless ``intra_op`` says otherwise.

    Args:
        workers: Number of workers; None = torch's number of intra-op threads at the time of the call.
        intra_op: Intra-op threads per worker; None = torch's number, for a client that has the machine to itself.

    Raises:
        InputError: If a number is out of range.
    """

    workers: int | None = None
    intra_op: int | None = 1

    def __post_init__(self) -> None:
        for name in ("workers", "intra_op"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name))

    def check(self, problem: PooledData) -> None:
        """See :class:`drfl.engine.base.Selective`."""
        try:
            copy.deepcopy(problem.task.model)
        except Exception as error:  # raised by the user's modules
            raise model_error(
                f"{model_of(problem.task)} cannot be copied for each thread ({first_line(error)}). Use "
                "`engine = 'loop'`, in Python drfl.Loop()."
            ) from error

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        models = Models.empty(request)

        def client(replica: Replica, j: int) -> None:
            rows = list(batches.of_client(j, request.local.fewest_steps))
            # Rows of different clients do not overlap in memory, so threads need no lock to write them.
            replica.local_steps(rows, request, j, models.of(j))

        self._each(problem, batches, client)
        return models

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        with self._pool() as pool:
            return mean_losses(problem, batches, Replica(problem).load(w), pool.map)

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        G, F = w.new_empty(len(batches.counts), w.numel()), w.new_empty(len(batches.counts))

        def client(replica: Replica, j: int) -> None:
            replica.load(w)
            F[j] = replica.gradient(batches.step_rows(0)[j, : batches.counts[j]], G[j])

        self._each(problem, batches, client)
        return G, F.double().cpu()

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        with self._pool() as pool:
            return [evaluate_models(problem, rows, [Replica(problem).load(w)], pool.map)[0] for w in models]

    def _each(self, problem: PooledData, batches: Batches, client: Callable[[Replica, int], None]) -> None:
        """Call ``client`` for each client, the largest batches first, with one thread per worker."""
        count = self._count()
        # Largest first: a large client at the end would keep one thread busy while the others are idle.
        waiting = deque(batches.total(1).argsort(descending=True, stable=True).tolist())

        def take() -> int | None:
            try:
                # This is atomic, so two threads never get the same client.
                return waiting.popleft()
            except IndexError:
                return None

        def work() -> None:
            replica = Replica(problem)
            try:
                while (j := take()) is not None:
                    client(replica, j)
            finally:
                # The queue is already empty unless this thread failed. In that case the other threads stop as well.
                waiting.clear()

        with self._pool() as pool:
            for future in [pool.submit(work) for _ in range(min(count, len(waiting)))]:
                # Raises the exception of the thread, if any.
                future.result()

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor]:
        before, count = torch.get_num_threads(), self._count()
        # A process-wide setting, which threads copy when they start: it is set before the pool and restored after it.
        torch.set_num_threads(self.intra_op or allowed())
        try:
            with ThreadPoolExecutor(count) as pool:
                yield pool
        finally:
            torch.set_num_threads(before)

    def _count(self) -> int:
        return self.workers or allowed()
