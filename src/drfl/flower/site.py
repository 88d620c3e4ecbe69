"""What a site does with a message: it tests, trains or reports on its own data."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from flwr.app import ArrayRecord, RecordDict
from torch import Tensor

from drfl.data import ClientData
from drfl.digest import digest_of
from drfl.engine import ENGINES, Engine, Loop, Simulation, Threads
from drfl.errors import InputError
from drfl.federation import Gradients, Losses, Replies
from drfl.flower.wire import Answer, Ask, Model, array_of, vector_of, version
from drfl.losses import LOSSES
from drfl.models import MODELS
from drfl.request import TrainRequest
from drfl.task import Task

MOST_PARAMETERS = 2**30
"""Of a model that is made from a name, a shape and a number of classes."""

KEPT = "drfl.shift"
"""Where the shift is kept in the memory that Flower gives a client for a run."""


@dataclass(frozen=True)
class Site:
    """One client's data, and how it works on them.

    Args:
        name: what it is called.
        data: its samples: a :class:`drfl.data.ClientData` of one client.
        task: its own model and loss; None = those that the server names.
        timeout: seconds that a request may take.
        device: torch device.
        threads: torch's threads; None = its default.

    Raises:
        InputError: the data are those of several clients.
    """

    name: str
    data: ClientData
    task: Task | None = None
    timeout: float = 3600.0
    device: str = "cpu"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.data.n != 1:
            raise InputError(f"a site holds one client's data, not those of {self.data.n}")

    @cached_property
    def digest(self) -> str:
        """Names the data, so that the server notices when they change in a run."""
        return digest_of(self.data.tensors())


def task_of(model: Model, shape: tuple[int, ...]) -> Task:
    """The task that a server names, for inputs of this shape.

    Raises:
        InputError: there is no such model or loss here, the model does not take such inputs, or it would be too large.
    """
    if model.model not in MODELS or model.loss not in LOSSES:
        raise InputError(f"this drfl has no model '{model.model}' with loss '{model.loss}': install the server's")
    with torch.device("meta"):  # counted before it is made: shape and classes are what sites claim
        size = sum(part.numel() for part in MODELS[model.model](shape, model.classes).parameters())
    if size > MOST_PARAMETERS:
        raise InputError(
            f"model '{model.model}' for inputs of shape {shape} and {model.classes} classes has {size} parameters, "
            f"more than {MOST_PARAMETERS}: see what the sites claim, and set 'classes' for each in server.toml"
        )
    module = MODELS[model.model](shape, model.classes)
    return Task(module.to(getattr(torch, model.dtype)), LOSSES[model.loss])


def engine_of(name: str, device: str) -> Engine:
    """The engine of a name; "auto" is what suits one client in a process that lives for one message.

    Nothing is traced, as that takes longer than thousands of steps of a small model, and all intra-op threads are the
    client's.
    """
    if name == "auto":
        return Threads(workers=1, intra_op=None) if torch.device(device).type == "cpu" else Loop()
    return ENGINES[name]()


def work(site: Site, ask: Ask, shift: Tensor | None, memory: RecordDict) -> Answer:
    """Do what a message asks.

    Args:
        site: whose data.
        ask: the message.
        shift: the shift in it; None where it has none.
        memory: what the site remembers of this run; it may be empty at any time.

    Raises:
        InputError: the model sent, the data and the task do not fit each other.
    """
    start = time.perf_counter()
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    task = task_of(ask.model, tuple(site.data.inputs.shape[1:])) if site.task is None else site.task
    if ask.w.shape != task.w0.shape or ask.w.dtype != task.w0.dtype:
        raise InputError(
            f"the server sent a model of {ask.w.numel()} parameters in {ask.w.dtype}, this site's has "
            f"{task.w0.numel()} in {task.w0.dtype}: see that both have the same model, shape of inputs and classes"
        )
    request = ask.request
    if isinstance(request, TrainRequest) and ask.version:
        row = _shift(ask, shift, memory)
        if row is None:
            return Answer(lacking=True, digest=site.digest)
        request = replace(request, shift=row.unsqueeze(0))
    engine = engine_of(ask.model.engine, site.device)
    fed = Simulation(site.data, task, engine=engine, device=site.device, first=ask.client)
    answer = Answer(digest=site.digest)
    if ask.test:
        found = fed.evaluate(ask.w)
        answer = answer._replace(test=(float(found.accuracy[0]), float(found.loss[0]), int(found.samples[0])))
    if request is not None:
        reply = replace(request, cohort=torch.tensor([0])).put(fed)
        answer = answer._replace(parts=_parts(reply))
        if isinstance(request, TrainRequest) and request.shift is not None:
            kept = _next_shift(request, answer.parts[0])
            memory[KEPT] = ArrayRecord({"shift": array_of(kept)})
            answer = answer._replace(version=version(kept))
    counts = fed.ledger.gradient_evaluations, fed.ledger.loss_evaluations
    return answer._replace(gradients=counts[0], losses=counts[1], seconds=time.perf_counter() - start)


def _shift(ask: Ask, sent: Tensor | None, memory: RecordDict) -> Tensor | None:
    """(d,) the shift that a message means; None where it was not sent and is not remembered."""
    if sent is not None:
        return sent
    if ask.version == "zero":
        return torch.zeros_like(ask.w)
    if KEPT not in memory.array_records:
        return None
    kept = vector_of(memory.array_records[KEPT]["shift"])
    return kept if version(kept) == ask.version else None


def _next_shift(request: TrainRequest, trained: Tensor) -> Tensor:
    """(d,) what the shift of the next request will be with DRDM and FedDyn, whose −h_i moves by μ(w_i − w).

    Where it is another the server sees from its version that it must send it.
    """
    shift = request.shift
    assert shift is not None
    return shift[0].add(trained - request.w, alpha=request.prox)


def _parts(reply: Replies | Losses | Gradients) -> tuple[Tensor, ...]:
    """The one row of each part that was asked for."""
    return tuple(part[0] for part in reply[1:] if len(part))
