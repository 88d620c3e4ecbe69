"""One run over the workers of a Ray cluster: each computes for its part of the cohort, one message a worker."""

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
"""Bytes of an object that a part of the pool becomes: a machine fetches the pieces that its clients' rows are in."""

ROOM = 256 * 2**20
"""Bytes of inputs and models that a worker holds at a time, where it has more clients than fit, and of models that are
sent rather than summed."""

RESTARTS = 20
"""How often a worker is begun anew in a run, which may be a long one."""

Array = np.ndarray


class Placed(NamedTuple):
    """A pool in the object store, as workers get it.

    Args:
        task: the task.
        x: pieces of the inputs, consecutive rows.
        y: those of the targets.
        masses: those of the rows' masses; empty = 1 each.
        size: rows of every piece but the last.
        autocast: see :class:`drfl.engine.base.PooledData`.
    """

    task: ObjectRef
    x: tuple[ObjectRef, ...]
    y: tuple[ObjectRef, ...]
    masses: tuple[ObjectRef, ...]
    size: int
    autocast: torch.dtype | None


class RayWorkers:
    """The workers of a Ray cluster; each has a part of the cohort, on one thread, by an engine of its own.

    The pool of samples is put once into the cluster's object store, in pieces. A machine fetches those that its
    clients' rows are in, and its workers read them from memory that they share. A cohort is divided in the order of
    its clients' rows into parts of equal work, so that clients who lie side by side in the pool stay with one worker.
    Workers hold no state: what a lost one was doing is done again by another, with the same numbers.

    Args:
        workers: how many; None = as many as the cluster has CPUs.
        address: of the cluster, see :class:`drfl.engine.ray_cluster.Cluster`.
        engine: what each worker computes with; None = :class:`Auto`.
        sums: whether workers sum the models of their clients where the algorithm needs no more than the mean of all,
            which is then that of a run without Ray up to float rounding. Without, every model is sent, and is that of
            ``engine`` on one thread: to the bit by Loop and Threads, up to rounding by Stacked. None = where the models
            would take more than :data:`ROOM`.

    Results depend on the number of workers by that rounding, and on nothing else. Modules of the user's own must be
    importable on the cluster's machines.

    Raises:
        InputError: workers is no number of workers; when first used: Ray is missing, or no cluster answers.
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
            checks.whole("workers", workers)
        self._count, self._cluster, self._engine = workers, Cluster(address, workers), engine
        self._sums = sums
        self._workers: list[ActorHandle] = []
        # With what they stand for, so that nothing else can get the same id.
        self._pools: dict[int, tuple[Tensor, tuple[ObjectRef, ...]]] = {}
        self._tasks: dict[int, tuple[Task, ObjectRef]] = {}

    def __repr__(self) -> str:
        return f"RayWorkers(workers={self._count}, address={self._cluster.address!r}, engine={self._engine!r})"

    def check(self, problem: PooledData) -> None:
        """See :class:`drfl.engine.base.Selective`: workers compute with an engine of their own, on a pickled task."""
        engine = self._engine or Auto()
        if isinstance(engine, Selective):
            engine.check(problem)
        try:
            # Pickling is tried here, so that the error can name the model.
            cloudpickle.dumps(problem.task)
        except Exception as error:  # of the user's modules
            raise InputError(
                f"{model_of(problem.task)}, its loss or its metrics cannot be sent to workers ({first_line(error)}): "
                "use engine 'loop'",
                code="not-picklable",
                field="model",
            ) from error

    def train(self, problem: PooledData, batches: Batches, request: TrainRequest) -> Models:
        """See :class:`drfl.engine.base.Engine`."""
        parts, w = self._parts(batches, request.w), self._put(_array(request.w))
        found = self._each("train", problem, [(batches.rows(p), *_sent(request, p), w) for p in parts])
        models = Models.empty(request)
        for part, own in zip(parts, found, strict=True):
            for whole, new in zip(models, own, strict=True):
                if whole is not None:
                    whole[part] = tensor(new)
        return models

    def mean(self, problem: PooledData, batches: Batches, request: TrainRequest, weights: Tensor) -> Merged:
        """See :class:`drfl.engine.base.Summing`: a worker sends vectors (d,), however many clients it has."""
        # If there are few models, workers send them, so that the sum is rounded as in a run without Ray.
        nbytes = len(weights) * request.w.nbytes
        if not (nbytes > ROOM if self._sums is None else self._sums):
            w, *others = (None if own is None else weights @ own for own in self.train(problem, batches, request))
        else:
            parts, sent = self._parts(batches, request.w), self._put(_array(request.w))
            messages = [(batches.rows(p), *_sent(request, p), sent, _array(weights[p])) for p in parts]
            found = zip(*self._each("mean", problem, messages), strict=True)
            w, *others = (None if own[0] is None else torch.stack([*map(tensor, own)]).sum(0) for own in found)
        assert w is not None
        return Merged(w, *others)

    def losses(self, problem: PooledData, batches: Batches, w: Tensor) -> Tensor:
        """See :class:`drfl.engine.base.Engine`."""
        parts, sent = self._parts(batches, w), self._put(_array(w))
        found = self._each("losses", problem, [(batches.rows(p), sent) for p in parts])
        # argsort restores the order of the cohort; parts are in the order of the pool.
        return torch.cat(found)[torch.cat(parts).argsort()]

    def gradients(self, problem: PooledData, batches: Batches, w: Tensor) -> tuple[Tensor, Tensor]:
        """See :class:`drfl.engine.base.Engine`."""
        parts, sent = self._parts(batches, w), self._put(_array(w))
        found = self._each("gradients", problem, [(batches.rows(p), sent) for p in parts])
        back = torch.cat(parts).argsort()
        return torch.cat([tensor(G) for G, _ in found])[back], torch.cat([F for _, F in found])[back]

    def evaluate(self, problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
        """See :class:`drfl.engine.base.Engine`."""
        spans, sent = _spans(rows.sizes, len(self._started(models))), self._put(_array(models))
        found = self._each("evaluate", problem, [(clients(rows, span), sent) for span in spans])
        return [Tests.joined(own) for own in zip(*found, strict=True)]

    def _parts(self, batches: Batches, w: Tensor) -> list[Tensor]:
        """The positions in the cohort of each worker's clients: neighbours in the pool, as much work for all."""
        # Clients are sorted by their first row: neighbours in the pool share pieces, which a machine fetches once.
        order = batches.samples[:, 0, 0].argsort(stable=True)
        spans = _spans(batches.total(1)[order], len(self._started(w)))
        return [order[span].sort().values for span in spans]

    def _started(self, w: Tensor) -> Sequence[ActorHandle]:
        """The workers, begun when they are first needed."""
        if w.device.type != "cpu":
            raise InputError(
                f"RayWorkers compute on CPUs, not on '{w.device}': leave device out",
                code="unsupported-combination",
                field="device",
            )
        if not self._workers:
            ray = self._cluster.connected()
            count = self._count or max(1, int(ray.cluster_resources().get("CPU", 1)))
            # No CPU is held: one that must begin anew, as its machine was lost, would wait for a free one for ever.
            # Restarts are counted, not retries, of which a worker that cannot be reached uses up many in a moment.
            begin = ray.remote(max_restarts=RESTARTS, max_task_retries=-1, scheduling_strategy="SPREAD")(Worker)
            self._workers = [begin.remote(self._engine or Auto()) for _ in range(count)]
        return self._workers

    def _each(self, method: str, problem: PooledData, messages: Sequence[tuple[object, ...]]) -> list:
        """What each worker answers to its message.

        Raises:
            DrflError: one was lost again and again.
        """
        ray = self._cluster.connected()
        task, x, y, autocast, masses = problem
        size = max(1, PIECE // max(1, x[:1].numel() * x.element_size()))
        # Every round uses the same task and tensors, so each is put into the object store once.
        pools = [x, y, *(() if masses is None else (masses,))]
        for values in pools:
            if id(values) not in self._pools:
                self._pools[id(values)] = values, tuple(self._put(_array(piece)) for piece in values.split(size))
        if id(task) not in self._tasks:
            self._tasks[id(task)] = task, self._put(task)
        xs, ys, *rest = (self._pools[id(values)][1] for values in pools)
        pool = Placed(self._tasks[id(task)][1], xs, ys, rest[0] if rest else (), size, autocast)
        asked = [getattr(w, method).remote(pool, *m) for w, m in zip(self._workers, messages, strict=False)]
        try:
            return ray.get(asked)
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise DrflError(
                f"{LOST} ({type(error).__name__}): run it again with fewer workers a machine", code="worker-lost"
            ) from None

    def _put(self, what: object) -> ObjectRef:
        return self._cluster.connected().put(what)


class Worker:
    """What runs on a worker: each method computes a part of what the engine's method of that name does.

    It takes the pool, the clients' batches or rows, a request without w and shift, and these as arrays, which workers
    on one machine share.

    Args:
        engine: that computes.
    """

    def __init__(self, engine: Engine) -> None:
        # With one thread, rounding does not depend on the number of cores.
        torch.set_num_threads(1)
        self._engine = engine
        self._tasks: dict[ObjectRef, Task] = {}

    def train(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array
    ) -> list[Array | None]:
        """The models (k, d), as in :class:`Models`."""
        found = [models for models, _ in self._trained(pool, batches, request, shift, w)]
        return [None if own[0] is None else _array(torch.cat(own)) for own in zip(*found, strict=True)]

    def mean(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array, weights: Array
    ) -> list[Array | None]:
        """Their weighted sums (d,)."""
        a, sums = tensor(weights), list[Tensor]()
        for models, rows in self._trained(pool, batches, request, shift, w):
            new = [a[rows] @ own for own in models if own is not None]
            sums = [s + n for s, n in zip(sums, new, strict=True)] if sums else new
        asked = iter(sums)
        wanted = (True, request.snapshot is not None, request.average)
        return [_array(next(asked)) if one else None for one in wanted]

    def losses(self, pool: Placed, batches: Batches, w: Array) -> Tensor:
        """(k,) losses."""
        return torch.cat([self._engine.losses(*own, tensor(w)) for own, _ in self._blocks(pool, batches, 0)])

    def gradients(self, pool: Placed, batches: Batches, w: Array) -> tuple[Array, Tensor]:
        """(k, d) gradients and (k,) losses."""
        found = [self._engine.gradients(*own, tensor(w)) for own, _ in self._blocks(pool, batches, w.nbytes)]
        G, F = (torch.cat(own) for own in zip(*found, strict=True))
        return _array(G), F

    def evaluate(self, pool: Placed, rows: ClientRows, models: Array) -> list[Tests]:
        """A test of each model on each client's rows."""
        found = list[list[Tests]]()
        x = self._pieces(pool.x[:1])[0]
        bound = max(1, ROOM // max(1, x[:1].nbytes))
        for span in _spans(rows.sizes, math.ceil(len(rows.index) / bound)):
            own = clients(rows, span)
            problem, index = self._problem(pool, own.index)
            found.append(self._engine.evaluate(problem, replace(own, index=index), tensor(models)))
        return [Tests.joined(own) for own in zip(*found, strict=True)]

    def _trained(
        self, pool: Placed, batches: Batches, request: TrainRequest, shift: Array | None, w: Array
    ) -> Iterator[tuple[Models, slice]]:
        """The models of some clients at a time, and where these are among all of the part."""
        # The vectors were sent as arrays, outside the request.
        whole = replace(request, w=tensor(w), shift=None if shift is None else tensor(shift))
        # A client needs about three vectors: its model, its gradient and the optimiser's state.
        for (problem, own), rows in self._blocks(pool, batches, 3 * w.nbytes):
            yield self._engine.train(problem, own, whole.only(torch.arange(rows.start, rows.stop))), rows

    def _blocks(
        self, pool: Placed, batches: Batches, nbytes: int
    ) -> Iterator[tuple[tuple[PooledData, Batches], slice]]:
        """As many clients at a time as fit into ROOM, given what a client takes beside its samples."""
        k, T, B = batches.samples.shape
        x = self._pieces(pool.x[:1])[0]
        size = max(1, ROOM // max(1, T * B * x[:1].nbytes + nbytes))
        for start in range(0, k, size):
            rows = slice(start, min(start + size, k))
            own = batches if size >= k else batches.rows(torch.arange(rows.start, rows.stop))
            problem, samples = self._problem(pool, own.samples)
            yield (problem, own._replace(samples=samples)), rows

    def _problem(self, pool: Placed, index: Tensor) -> tuple[PooledData, Tensor]:
        """A pool in which these rows are, and what they are there."""
        if pool.task not in self._tasks:
            (self._tasks[pool.task],) = self._pieces([pool.task])
        task = self._tasks[pool.task]
        # A pool of one piece is used in shared memory, and rows keep their numbers.
        if len(pool.x) == 1:
            x, y, *masses = map(tensor, self._pieces([*pool.x, *pool.y, *pool.masses]))
            return PooledData(task, x, y, pool.autocast, *masses), index
        # Otherwise only the pieces with these rows are fetched, and the rows are renumbered.
        rows, at = index.unique(return_inverse=True)
        own = rows.split((rows // pool.size).unique_consecutive(return_counts=True)[1].tolist())
        which = [int(part[0]) // pool.size for part in own]
        x, y, *masses = (
            torch.cat([tensor(piece)[part % pool.size] for piece, part in zip(self._pieces(found), own, strict=True)])
            for found in ([pieces[i] for i in which] for pieces in (pool.x, pool.y, pool.masses) if pieces)
        )
        return PooledData(task, x, y, pool.autocast, *masses), at

    def _pieces(self, of: Sequence[ObjectRef]) -> list:
        import ray

        return ray.get(list(of))


def tensor(array: Array) -> Tensor:
    """A tensor in the memory of an array from the object store, which nobody may write to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def clients(rows: ClientRows, span: slice) -> ClientRows:
    """Some consecutive clients."""
    # The parts are cloned, as a view would be pickled with the whole tensor.
    sizes = rows.sizes[span]
    start = int(rows.starts[span.start])
    return ClientRows(rows.index[start : start + int(sizes.sum())].clone(), sizes.cumsum(0) - sizes, sizes.clone())


def _array(values: Tensor) -> Array:
    # Workers on one machine share the memory of arrays, but not of tensors.
    return values.detach().contiguous().numpy()


def _sent(request: TrainRequest, part: Tensor) -> tuple[TrainRequest, Array | None]:
    """A part of a request without its vectors, and the shifts."""
    own = request.only(part)
    return replace(own, w=own.w.new_empty(0), shift=None), None if own.shift is None else _array(own.shift)


def _spans(work: Tensor, count: int) -> list[slice]:
    """At most so many spans of neighbours, none empty, with about as much work in each."""
    # A cut is where the work reaches a worker's share. A large client may reach several at once.
    done = work.double().cumsum(0)
    ends = torch.searchsorted(done, done[-1] * torch.arange(1, count).double() / count).tolist()
    cuts = sorted({0, len(work), *(end + 1 for end in ends)})
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]
