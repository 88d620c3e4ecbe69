"""Federations with one mistake each: a simulation over a plain loop whose parts can be replaced."""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch

from drfl.core.errors import InputError
from drfl.engine import Loop, Simulation, simulation
from drfl.engine.base import Models
from drfl.engine.batches import Batches
from drfl.federation.requests import LossRequest, TrainRequest
from drfl.task.task import Task


@dataclass(frozen=True)
class Plain(Loop):
    """The correct loop, in which every part has its own method."""

    def train(self, problem, batches, request):
        w, local, prox, shift = request.w, request.local, request.prox, request.shift
        last, shots, means = [], [], []
        for j, count in enumerate(batches.counts.tolist()):
            u, path, velocity = self.start(w), [w], self.first_velocity(w)
            for step in range(local.steps):
                gradient = self.gradient(problem, u, batches.step_rows(step)[j, :count])
                direction = gradient + local.weight_decay * u + self.shift_at(step, shift, j) + prox * self.pull(u, w)
                velocity = local.momentum * velocity + direction
                u = self.moved(u, local.lr * velocity)
                if local.radius is not None:
                    u = u * min(1.0, local.radius / float(u.norm()))
                path.append(u)
            self.keep(velocity)
            last.append(u)
            shots.append(self.snapshot_of(path, request.snapshot))
            means.append(self.mean_of(path))
        shots = None if request.snapshot is None else torch.stack(shots)
        return Models(torch.stack(last), shots, torch.stack(means) if request.average else None)

    def start(self, w):
        return w.clone()

    def moved(self, u, by):
        return u - by

    def first_velocity(self, w):
        return torch.zeros_like(w)

    def keep(self, velocity):
        pass

    def shift_at(self, step, shift, j):
        return 0.0 if shift is None else shift[j]

    def pull(self, u, w):
        return u - w

    def snapshot_of(self, path, t):
        return path[t or 0]

    def mean_of(self, path):
        return torch.stack(path[1:]).mean(0)

    def gradient(self, problem, u, rows):
        u, task = u.detach().requires_grad_(), problem.task
        outputs = task.outputs(task.layout.views(u), problem.x[rows])
        return torch.autograd.grad(problem.mean(task.sample_losses(outputs, problem.y[rows]), rows), u)[0]


class MomentumKept(Plain):
    """Each client continues with the velocity of the previous one."""

    def first_velocity(self, w):
        return getattr(self, "velocity", torch.zeros_like(w)).to(w)

    def keep(self, velocity):
        object.__setattr__(self, "velocity", velocity)


class ShiftOnce(Plain):
    def shift_at(self, step, shift, j):
        return super().shift_at(step, shift, j) if step == 0 else 0.0


class ShiftOfAnother(Plain):
    """Rows of the shift are not in the cohort's order."""

    def shift_at(self, step, shift, j):
        return 0.0 if shift is None else shift[len(shift) - 1 - j]


class PullLost(Plain):
    def pull(self, u, w):
        return 0.0


class SnapshotBefore(Plain):
    def snapshot_of(self, path, t):
        return path[max(0, (t or 0) - 1)]


class MeanWithStart(Plain):
    def mean_of(self, path):
        return torch.stack(path).mean(0)


class InPlace(Plain):
    """Local steps modify the server's tensor."""

    def start(self, w):
        return w

    def moved(self, u, by):
        return u.sub_(by)


class SumOfLosses(Plain):
    """Gradients are those of the summed loss, not of the mean loss."""

    def gradient(self, problem, u, rows):
        return super().gradient(problem, u, rows) * len(rows)


class MeanOverAllRows(Plain):
    """The mean includes rows that the loss ignores."""

    def gradient(self, problem, u, rows):
        return super().gradient(problem._replace(masses=None), u, rows)


class PlainSteps(Plain):
    """Weight decay and radius are ignored."""

    def train(self, problem, batches, request):
        local = dataclasses.replace(request.local, weight_decay=0.0, radius=None)
        return super().train(problem, batches, dataclasses.replace(request, local=local))


class Sharing(Simulation):
    """All clients share one generator, so a client's draws depend on earlier clients."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.rng = np.random.default_rng(0)

    def generator(self, key, client):
        return self.rng

    def chosen(self, rng, size, batch):
        return rng.choice(size, size=batch, replace=False)

    def ask(self, request):
        with mock.patch.object(simulation, "draw", self.drawn):
            return super().ask(request)

    def drawn(self, pool, clients, steps, batch, key, first):
        rows, counts = [], []
        for i in clients.tolist():
            own = pool.of_client(i)
            count = len(own) if batch is None else min(batch, len(own))
            rng = self.generator(key, i)
            drawn = [torch.from_numpy(self.chosen(rng, len(own), count)) for _ in range(steps)]
            rows.append(torch.stack([own[part] for part in drawn]))
            counts.append(count)
        width = max(counts)
        padded = [torch.cat([r, r[:, :1].expand(-1, width - r.shape[1])], dim=1) for r in rows]
        return Batches(torch.stack(padded), torch.tensor(counts))


class ByVisit(Sharing):
    """Each request has one generator, from which clients draw in visiting order."""

    def generator(self, key, client):
        if getattr(self, "key", None) is not key:
            self.key, self.rng = key, key.generator()
        return self.rng


class GlobalDraw(Sharing):
    def chosen(self, rng, size, batch):
        return torch.randperm(size)[:batch].numpy()


class WithReplacement(Sharing):
    """A sample can occur twice in a minibatch."""

    def generator(self, key, client):
        return key.fold("client", client).generator()

    def chosen(self, rng, size, batch):
        return rng.choice(size, size=batch, replace=True)


class FirstSamples(Sharing):
    """The first samples are drawn more often: a biased shuffle."""

    def generator(self, key, client):
        return key.fold("client", client).generator()

    def chosen(self, rng, size, batch):
        p = np.linspace(4, 1, size)
        return rng.choice(size, size=batch, replace=False, p=p / p.sum())


class AcceptsAnything(Simulation):
    """A model with running statistics is accepted, and the last client determines its buffers."""

    def __init__(self, data, task, **options) -> None:
        try:
            super().__init__(data, task, **options)
        except InputError:
            super().__init__(data, Task(copy.deepcopy(task.model).eval(), task.loss, task.score), **options)


class FreeUploads(Simulation):
    """Snapshots and averages are not counted."""

    def ask(self, request):
        before, reply = self.ledger.bytes_up, super().ask(request)
        if isinstance(request, TrainRequest):
            self.ledger.bytes_up = before + reply.w.numel() * reply.w.element_size()
        return reply


class SingleLosses(Simulation):
    """Losses are reported in float32."""

    def ask(self, request):
        reply = super().ask(request)
        return reply._replace(values=reply.values.float()) if isinstance(request, LossRequest) else reply


class PooledTest(Simulation):
    """All test data are pooled, so every client gets the mean over all."""

    def evaluate(self, w):
        e = super().evaluate(w)
        pooled = (e.score * e.samples).sum() / e.samples.sum()
        return e._replace(score=torch.full_like(e.score, float(pooled)))


class EqualShares(Simulation):
    def __init__(self, data, task, **options) -> None:
        super().__init__(data, task, **options)
        self.shares = torch.full_like(self.shares, 1 / self.n)


class DoublePrecision(Simulation):
    """Models are returned in float64 for any dtype."""

    def ask(self, request):
        reply = super().ask(request)
        return reply._replace(w=reply.w.double()) if isinstance(request, TrainRequest) else reply


class SplitByThreads(Simulation):
    """Threads share a client's samples, which changes more than rounding."""

    def ask(self, request):
        reply = super().ask(request)
        if not isinstance(request, TrainRequest):
            return reply
        return reply._replace(w=reply.w * (1 + 1e-6 * (torch.get_num_threads() - 1)))
