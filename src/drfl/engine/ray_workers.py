"""Distribute one run over the workers of a Ray cluster: each worker computes a part of the cohort, in one message."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import cloudpickle
import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import DrflError, InputError, first_line
from drfl.engine.auto import Auto
from drfl.engine.base import Engine, Models, PooledData, Selective, Tests
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.ray_cluster import LOST, Cluster
from drfl.engine.tracing import model_of
from drfl.federation.requests import Merged, TrainRequest
from drfl.task.task import Task

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

PIECE = 64 * 2**20
"""Bytes per object into which the pool is split; a machine fetches the pieces that contain its clients' rows."""

ROOM = 256 * 2**20
"""Bytes of inputs and models that a worker holds at a time if its clients do not all fit, and largest size of models
that are sent instead of summed."""

RESTARTS = 20
"""Number of times that a worker is restarted in a run, which may take long."""

Array = np.ndarray


class Placed(NamedTuple):
    """A pool in the object store, as workers receive it.

    Args:
        task: The task.
        x: Pieces of the inputs, consecutive rows.
        y: Pieces of the targets.
        masses: Pieces of the rows' weights; empty = 1 each.
        size: Number of rows in every piece but the last.
        autocast: See :class:`drfl.engine.base.PooledData`.
    """

    task: ObjectRef
    x: tuple[ObjectRef, ...]
    y: tuple[ObjectRef, ...]
    masses: tuple[ObjectRef, ...]
    size: int
    autocast: torch.dtype | None


class RayWorkers:
    """The workers of a Ray cluster; each computes part of the cohort on one thread, with its own engine.

    The pool of samples is put into the cluster's object store once, in pieces. A machine fetches the pieces with its
    clients' rows, and its workers read them from shared memory. A cohort is divided into parts of equal work in the
    order of the clients' rows, so that clients that are neighbours in the pool stay on one worker. Workers hold no
    state: the work of a lost worker is repeated by another one, with the same numbers.

    Args:
        workers: Number of workers; None = number of CPUs of the cluster.
        address: Address of the cluster, see :class:`drfl.engine.ray_cluster.Cluster`.
        engine: Engine of each worker; None = :class:`Auto`.
        sums: Whether workers sum the models of their clients if the algorithm needs only the mean of all. The mean then
            equals that of a run without Ray up to float rounding. Otherwise every model is sent, and is the one that
            ``engine`` computes on one thread: bitwise for Loop and Threads, up to rounding for Stacked. None = sum if
            the models would need more than :data:`ROOM`.

    The number of workers affects results only by that rounding. The user's own modules must be importable on the
    cluster's machines.

    Raises:
        InputError: If ``workers`` is out of range; at the first use, if Ray is not installed or no cluster replies.
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        engine: Engine | None = None,
        *,
        sums: bool | None = None,
    ) -> None:
        if workers is not None:
            checks.integer("workers", workers)
        self._count, self._cluster, self._engine = workers, Cluster(address, workers), engine
        self._sums = sums
        self._workers: list[ActorHandle] = []
        # The objects are stored as well, so that no other object can get the same id.
        self._pools: dict[int, tuple[Tensor, tuple[ObjectRef, ...]]] = {}
        self._tasks: dict[int, tuple[Task, ObjectRef]] = {}

    def __repr__(self) -> str:
        return f"RayWorkers(workers={self._count}, address={self._cluster.address!r}, engine={self._engine!r})"

    def check(self, problem: PooledData) -> None:
        """Check the workers' engine and that the task can be pickled, see :class:`drfl.engine.base.Selective`."""
        engine = self._engine or Auto()
        if isinstance(engine, Selective):
            engine.check(problem)
        try:
            # Try pickling here, so that the error can name the model.
            cloudpickle.dumps(problem.task)
        except Exception as error:  # raised by the user's modules
            raise InputError(
                f"{model_of(problem.task)}, its loss or its metrics cannot be sent to workers ({first_line(error)}). "
                "Use `engine = 'loop'`, in Python drfl.Loop().",
                code="not-picklable",
                field="model",
            ) from error

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        parts, w = self._parts(batches, request.w), self._put(_array(request.w))
        results = self._each("train", problem, [(batches.rows(p), *_sent(request, p), w) for p in parts])
        models = Models.empty(request)
        for part, result in zip(parts, results, strict=True):
            for whole, new in zip(models, result, strict=True):
                if whole is not None:
                    whole[part] = tensor(new)
        return models

    def mean(self, problem: PooledData, batches: Batches, request: TrainRequest, weights: Tensor) -> Merged:
        """See :class:`drfl.engine.base.Summing`; a worker sends vectors (d,), however many clients it has."""
        # A few models are sent by the workers, so that the sum is rounded as in a run without Ray.
        nbytes = len(weights) * request.w.nbytes
        if not (nbytes > ROOM if self._sums is None else self._sums):
            w, *others = (None if table is None else weights @ table for table in self.train(problem, batches, request))
        else:
            parts, sent = self._parts(batches, request.w), self._put(_array(request.w))
            messages = [(batches.rows(p), *_sent(request, p), sent, _array(weights[p])) for p in parts]
            results = zip(*self._each("mean", problem, messages), strict=True)
            w, *others = (None if sums[0] is None else torch.stack([*map(tensor, sums)]).sum(0) for sums in results)
        assert w is not None
        return Merged(w, *others)

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        parts, sent = self._parts(batches, w), self._put(_array(w))
        results = self._each("losses", problem, [(batches.rows(p), sent) for p in parts])
        # argsort restores the order of the cohort, because parts are in the order of the pool.
        return torch.cat(results)[torch.cat(parts).argsort()]

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        parts, sent = self._parts(batches, w), self._put(_array(w))
        results = self._each("gradients", problem, [(batches.rows(p), sent) for p in parts])
        order = torch.cat(parts).argsort()
        return torch.cat([tensor(G) for G, _ in results])[order], torch.cat([F for _, F in results])[order]

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        spans, sent = _spans(rows.sizes, len(self._started(models))), self._put(_array(models))
        results = self._each("evaluate", problem, [(clients(rows, span), sent) for span in spans])
        return [Tests.joined(tests) for tests in zip(*results, strict=True)]

    def _parts(self, batches: Batches, w: Tensor) -> list[Tensor]:
        """Return each worker's clients as positions in the cohort: neighbours in the pool, with equal work for all."""
        # Clients are sorted by their first row, because neighbours in the pool share pieces, which are fetched once.
        order = batches.samples[:, 0, 0].argsort(stable=True)
        spans = _spans(batches.total(1)[order], len(self._started(w)))
        return [order[span].sort().values for span in spans]

    def _started(self, w: Tensor) -> Sequence[ActorHandle]:
        """Return the workers, which are started when first needed."""
        if w.device.type != "cpu":
            raise InputError(
                f"RayWorkers run on CPUs only, got device '{w.device}'. Remove 'device'.",
                code="unsupported-combination",
                field="device",
            )
        if not self._workers:
            ray = self._cluster.connected()
            count = self._count or max(1, int(ray.cluster_resources().get("CPU", 1)))
            # No CPU is reserved: a worker that must restart after its machine was lost would wait for a free CPU
            # forever. Restarts are limited, not retries: an unreachable worker would use up many retries in a moment.
            start = ray.remote(max_restarts=RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")(Worker)
            self._workers = [start.remote(self._engine or Auto()) for _ in range(count)]
        return self._workers

    def _each(self, method: str, problem: PooledData, messages: Sequence[tuple[object, ...]]) -> list:
        """Return each worker's reply to its message.

        Raises:
            DrflError: If workers were lost repeatedly.
        """
        ray = self._cluster.connected()
        task, x, y, autocast, masses = problem
        size = max(1, PIECE // max(1, x[:1].numel() * x.element_size()))
        # Every round uses the same task and tensors, so each is put into the object store only once.
        pools = [x, y, *(() if masses is None else (masses,))]
        for values in pools:
            if id(values) not in self._pools:
                self._pools[id(values)] = values, tuple(self._put(_array(piece)) for piece in values.split(size))
        if id(task) not in self._tasks:
            self._tasks[id(task)] = task, self._put(task)
        xs, ys, *rest = (self._pools[id(values)][1] for values in pools)
        pool = Placed(self._tasks[id(task)][1], xs, ys, rest[0] if rest else (), size, autocast)
        replies = [getattr(w, method).remote(pool, *m) for w, m in zip(self._workers, messages, strict=False)]
        try:
            return ray.get(replies)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise DrflError(
                f"{LOST} ({type(error).__name__}): use fewer workers per machine", code="worker-lost"
            ) from None

    def _put(self, what: object) -> ObjectRef:
        return self._cluster.connected().put(what)


class Worker:
    """The code that runs on a worker: each method computes part of the engine's method of the same name.

    The arguments are the pool, the clients' batches or rows, a request without w and shift, and these two as arrays,
    which workers on one machine share.

    Args:
        engine: The engine.
    """

    def __init__(self, engine: Engine) -> None:
        # With one thread, rounding does not depend on the number of cores.
        torch.set_num_threads(1)
        self._engine = engine
        self._tasks: dict[ObjectRef, Task] = {}

    def train(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array
    ) -> list[Array | None]:
        """Train the clients, and return their models (k, d) as in :class:`Models`."""
        blocks = [models for models, _ in self._trained(pool, batches, request, shift, w)]
        return [None if tables[0] is None else _array(torch.cat(tables)) for tables in zip(*blocks, strict=True)]

    def mean(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array, weights: Array
    ) -> list[Array | None]:
        """Train the clients, and return the weighted sums (d,) of their models."""
        a, sums = tensor(weights), list[Tensor]()
        for models, rows in self._trained(pool, batches, request, shift, w):
            new = [a[rows] @ table for table in models if table is not None]
            sums = [s + n for s, n in zip(sums, new, strict=True)] if sums else new
        remaining = iter(sums)
        requested = (True, request.snapshot is not None, request.average)
        return [_array(next(remaining)) if is_requested else None for is_requested in requested]

    def losses(self, pool: Placed, batches: Batches, w: Array) -> Tensor:
        """Return (k,) losses."""
        return torch.cat([self._engine.losses(*block, tensor(w)) for block, _ in self._blocks(pool, batches, 0)])

    def gradients(self, pool: Placed, batches: Batches, w: Array) -> tuple[Array, Tensor]:
        """Return (k, d) gradients and (k,) losses."""
        results = [self._engine.gradients(*block, tensor(w)) for block, _ in self._blocks(pool, batches, w.nbytes)]
        G, F = (torch.cat(parts) for parts in zip(*results, strict=True))
        return _array(G), F

    def evaluate(self, pool: Placed, rows: ClientRows, models: Array) -> list[Tests]:
        """Test each model on each client's rows."""
        blocks = list[list[Tests]]()
        x = self._pieces(pool.x[:1])[0]
        bound = max(1, ROOM // max(1, x[:1].nbytes))
        for span in _spans(rows.sizes, math.ceil(len(rows.index) / bound)):
            part = clients(rows, span)
            problem, index = self._problem(pool, part.index)
            blocks.append(self._engine.evaluate(problem, replace(part, index=index), tensor(models)))
        return [Tests.joined(tests) for tests in zip(*blocks, strict=True)]

    def _trained(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array
    ) -> Iterator[tuple[Models, slice]]:
        """Iterate over the models of some clients at a time, and their positions in the worker's part."""
        # The vectors were sent separately from the request, as arrays.
        whole = replace(request, w=tensor(w), shift=None if shift is None else tensor(shift))
        # A client needs about three vectors: model, gradient and optimiser state.
        for (problem, block), rows in self._blocks(pool, batches, 3 * w.nbytes):
            yield self._engine.train(problem, block, whole.only(torch.arange(rows.start, rows.stop))), rows

    def _blocks(
        self, pool: Placed, batches: Batches, nbytes: int
    ) -> Iterator[tuple[tuple[PooledData, Batches], slice]]:
        """Iterate over blocks of clients that fit into ROOM, if a client needs ``nbytes`` beside its samples."""
        k, T, B = batches.samples.shape
        x = self._pieces(pool.x[:1])[0]
        size = max(1, ROOM // max(1, T * B * x[:1].nbytes + nbytes))
        for start in range(0, k, size):
            rows = slice(start, min(start + size, k))
            block = batches if size >= k else batches.rows(torch.arange(rows.start, rows.stop))
            problem, samples = self._problem(pool, block.samples)
            yield (problem, block._replace(samples=samples)), rows

    def _problem(self, pool: Placed, index: Tensor) -> tuple[PooledData, Tensor]:
        """Return a pool that contains these rows, and the rows' numbers in it."""
        if pool.task not in self._tasks:
            (self._tasks[pool.task],) = self._pieces([pool.task])
        task = self._tasks[pool.task]
        # A pool of one piece is used in shared memory, and its rows keep their numbers.
        if len(pool.x) == 1:
            x, y, *masses = map(tensor, self._pieces([*pool.x, *pool.y, *pool.masses]))
            return PooledData(task, x, y, pool.autocast, *masses), index
        # Otherwise only the pieces with these rows are fetched, and the rows are renumbered.
        rows, places = index.unique(return_inverse=True)
        parts = rows.split((rows // pool.size).unique_consecutive(return_counts=True)[1].tolist())
        which = [int(part[0]) // pool.size for part in parts]
        x, y, *masses = (
            torch.cat([tensor(piece)[part % pool.size] for piece, part in zip(self._pieces(refs), parts, strict=True)])
            for refs in ([pieces[i] for i in which] for pieces in (pool.x, pool.y, pool.masses) if pieces)
        )
        return PooledData(task, x, y, pool.autocast, *masses), places

    def _pieces(self, refs: Sequence[ObjectRef]) -> list:
        import ray

        return ray.get(list(refs))


def tensor(array: Array) -> Tensor:
    """Return a tensor in the memory of an array from the object store, which is read-only."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def clients(rows: ClientRows, span: slice) -> ClientRows:
    """Return a range of consecutive clients."""
    # The parts are cloned, because a view would be pickled with the whole tensor.
    sizes = rows.sizes[span]
    start = int(rows.starts[span.start])
    return ClientRows(rows.index[start : start + int(sizes.sum())].clone(), sizes.cumsum(0) - sizes, sizes.clone())


def _array(values: Tensor) -> Array:
    # Workers on one machine share the memory of arrays, but not of tensors.
    return values.detach().contiguous().numpy()


def _sent(request: TrainRequest, part: Tensor) -> tuple[TrainRequest, Array | None]:
    """Return a part of a request without its vectors, and its shifts."""
    subset = request.only(part)
    return replace(subset, w=subset.w.new_empty(0), shift=None), None if subset.shift is None else _array(subset.shift)


def _spans(work: Tensor, count: int) -> list[slice]:
    """Split into at most ``count`` ranges of neighbours, none empty, with about equal work."""
    # A range ends where the work reaches a worker's share. A large client may reach several ends at once.
    cumulative = work.double().cumsum(0)
    ends = torch.searchsorted(cumulative, cumulative[-1] * torch.arange(1, count).double() / count).tolist()
    cuts = sorted({0, len(work), *(end + 1 for end in ends)})
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]
