"""The threads engine: worker threads, each with a model of its own, a client at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from drfl.engine.base import Models, Problem
from drfl.engine.batches import Batches
from drfl.engine.descent import fixed_part
from drfl.engine.forward import mean_losses, mean_scores_and_losses
from drfl.engine.replica import Replica
from drfl.engine.rows import Rows
from drfl.local import LocalSGD


@dataclass(frozen=True)
class Threads:
    """Clients on parallel threads, models updated in place: for convolutions and other large models on a CPU.

    Which worker serves a client does not matter to the result, nor does the number of workers: a client's arithmetic is
    always that of one intra-op thread, unless told otherwise.

    Args:
        workers: how many; None = as many as torch has intra-op threads when it is called.
        intra_op: intra-op threads of each; None = as many as torch has, for a client that has the machine for itself.
    """

    workers: int | None = None
    intra_op: int | None = 1

    def train(
        self,
        problem: Problem,
        batches: Batches,
        w: Tensor,
        local: LocalSGD,
        *,
        prox: float,
        shift: Tensor | None,
        snapshot: int | None,
        average: bool,
    ) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        models = Models.room(len(batches.counts), w, snapshot, average)

        def client(replica: Replica, j: int) -> None:
            fixed = fixed_part(w, prox, None if shift is None else shift[j])
            rows = (batches.at(step)[j, : batches.counts[j]] for step in range(local.steps))
            replica.local_steps(rows, w, fixed, local, prox, snapshot, models.of(j))

        self._each(problem, batches, client)
        return models

    def losses(self, problem: Problem, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        with self._pool() as pool:
            return mean_losses(problem, batches, Replica(problem).load(w), pool.map)

    def gradients(self, problem: Problem, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        G, F = w.new_empty(len(batches.counts), w.numel()), w.new_empty(len(batches.counts))

        def client(replica: Replica, j: int) -> None:
            replica.load(w)
            F[j] = replica.gradient(batches.at(0)[j, : batches.counts[j]], G[j])

        self._each(problem, batches, client)
        return G, F.double().cpu()

    def evaluate(self, problem: Problem, rows: Rows, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        with self._pool() as pool:
            return mean_scores_and_losses(problem, rows, Replica(problem).load(w), pool.map)

    def _each(self, problem: Problem, batches: Batches, client: Callable[[Replica, int], None]) -> None:
        """Call ``client`` for each of them, the largest batches first, on as many threads as there are workers."""
        count = self._count()
        waiting = deque(batches.counts.argsort(descending=True, stable=True).tolist())

        def take() -> int | None:
            try:
                return waiting.popleft()
            except IndexError:
                return None

        def work() -> None:
            replica = Replica(problem)
            try:
                while (j := take()) is not None:
                    client(replica, j)
            finally:
                waiting.clear()  # after a mistake the others stop as well

        with self._pool() as pool:
            for done in [pool.submit(work) for _ in range(min(count, len(waiting)))]:
                done.result()

    @contextmanager
    def _pool(self) -> Iterator[ThreadPoolExecutor]:
        """The workers, with their intra-op threads."""
        before, count = torch.get_num_threads(), self._count()
        torch.set_num_threads(self.intra_op or before)  # threads that start from here on inherit it
        try:
            with ThreadPoolExecutor(count) as pool:
                yield pool
        finally:
            torch.set_num_threads(before)

    def _count(self) -> int:
        return self.workers or torch.get_num_threads()
