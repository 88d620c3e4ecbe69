"""Local steps of client-side methods: the user's loss, vectorised over clients or one client after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice
from drfl.core.global_rng import changed_generators, global_states
from drfl.core.intraop import threads_for
from drfl.core.vmap import fault_of, values_and_gradients, vmap
from drfl.engine.base import Models, PooledData
from drfl.engine.batches import Batches, ClientRows
from drfl.engine.local_step import LocalStep, ascent, local_step
from drfl.engine.sgd import fixed_part, take_rows
from drfl.engine.tracing import LOG, model_of
from drfl.federation.local_method import (
    Batch,
    ClientRowsView,
    LocalMethod,
    StepContext,
    flatten,
)
from drfl.federation.method_checks import hook_errors, names_from, tensors_from
from drfl.federation.requests import MethodWork, TrainRequest
from drfl.optim.local_optimizers import SAM, LocalOptimizer
from drfl.task.client_model import ClientModel
from drfl.task.task import Task
from drfl.task.training_noise import WORD, dropout_layers, scramble

OWN = "state."
"""Prefix of entries of the state among the trained tensors, which have the names of parameters otherwise."""

_checked: WeakKeyDictionary[Task, set[type[LocalMethod]]] = WeakKeyDictionary()
"""Methods whose first step has drawn from no global generator, by task."""

_serial: WeakKeyDictionary[Task, set[type[LocalMethod]]] = WeakKeyDictionary()
"""Methods that cannot be vectorised, by task."""


class Trained(NamedTuple):
    """The results of a request with a client-side method.

    Args:
        models: The models that the clients send, with the server's numbers in place of private parameters.
        states: (k, s) rows of the client store; None if the clients store nothing.
        messages: (k, e) messages; None if the clients send none.
    """

    models: Models
    states: Tensor | None
    messages: Tensor | None


def train(
    problem: PooledData, batches: Batches, request: TrainRequest, rows: ClientRows, *, vectorise: bool
) -> Trained:
    """Run the local steps of a request with a client-side method.

    Args:
        problem: Task and pool.
        batches: The samples of the steps.
        request: The request.
        rows: All clients' rows of the pool.
        vectorise: Whether to vectorise over clients that take equally large steps.

    Raises:
        InputError: If the method fails, or returns tensors of other shapes than declared.
    """
    assert request.work is not None
    work, layout = request.work, request.work.layout
    method, w, k = work.method, request.w, len(request.cohort)
    received = ClientModel.of(problem.task, w, problem.autocast)
    clients = [_Client(problem, request, work, received, rows, j) for j in range(k)]
    # The default computes nothing, so skip the models and contexts that it would get.
    if _overrides(method, "prepare"):
        with hook_errors(method, "prepare"):
            for client in clients:
                prepared = method.prepare(client.model(client.start), client.data, client.context())
                client.prepared = tensors_from(method, "prepare", prepared)
    models = Models.empty(request)
    ends: dict[int, dict[str, Tensor]] = {}
    vectorise &= type(method) not in _serial.get(problem.task, ())
    # A group takes equally many samples in each step, so that no minibatch is padded.
    groups: dict[tuple[int, ...], list[int]] = {}
    for j, count in enumerate(batches.counts.tolist()):
        sizes = (count,) if batches.by_step is None else tuple(batches.by_step[j].tolist())
        groups.setdefault(sizes if vectorise else (j,), []).append(j)
    for group in groups.values():
        _train_group(problem, batches, request, clients, group, models, ends)
    states = None if work.states is None else torch.empty_like(work.states)
    messages = w.new_empty(k, layout.message_size) if layout.message_size else None
    for j, client in enumerate(clients):
        client.take(ends[j])
        if messages is None and states is None:
            continue
        model, context = client.model(models.w[j]), client.context()
        if messages is not None:
            with hook_errors(method, "message"):
                message = method.message(model, client.data, context)
                messages[j] = flatten(message, layout.message, w, method, "message")
        if states is not None:
            with hook_errors(method, "remember"):
                new = tensors_from(method, "remember", method.remember(model, client.data, context))
                states[j] = layout.row(models.w[j], client.state | new, method)
    if bool(layout.private.any()):
        # Private parameters stay at a client. With the server's numbers in their place, the models can be averaged.
        mask = layout.private.to(w.device)
        for table in models:
            if table is not None:
                table[:, mask] = w[mask]
    return Trained(models, states, messages)


class _Client:
    """What a client of the cohort has: its rows, its start model and its state."""

    def __init__(
        self,
        problem: PooledData,
        request: TrainRequest,
        work: MethodWork,
        received: ClientModel,
        rows: ClientRows,
        j: int,
    ) -> None:
        index = rows.of_client(int(request.cohort[j]))
        self._problem, self._received = problem, received
        self._tensors = {**work.context, **{name: each[j] for name, each in work.per_client.items()}}
        self.data = ClientRowsView(lambda: take_rows(problem.x, index), lambda: take_rows(problem.y, index))
        start = request.w if request.start is None else request.start[j]
        with hook_errors(work.method, "state"):
            row = None if work.states is None else work.states[j]
            self.start, state = work.layout.load(row, work.method, start, received)
        self.state = dict(state)
        self.prepared: dict[str, Tensor] = {}

    def model(self, w: Tensor) -> ClientModel:
        return ClientModel.of(self._problem.task, w, self._problem.autocast)

    def context(self) -> StepContext:
        return StepContext(self._received, self.state, {**self._tensors, **self.prepared})

    def take(self, ends: Mapping[str, Tensor]) -> None:
        """Take the values after the steps: entries of the state, and tensors of the context."""
        for name, value in ends.items():
            (self.state if name in self.state else self.prepared)[name] = value


def own_model(problem: PooledData, work: MethodWork, w: Tensor, row: Tensor | None) -> Tensor:
    """Return a client's own model (d,), from the global model w (d,) and its row of the client store."""
    received = ClientModel.of(problem.task, w)
    start, state = work.layout.load(row, work.method, w, received)
    with hook_errors(work.method, "own_model"), torch.no_grad():
        own: object = work.method.own_model(received.at(start), StepContext(received, state, dict(work.context)))
        if not (isinstance(own, Tensor) and own.shape == w.shape):
            got = f"shape {tuple(own.shape)}" if isinstance(own, Tensor) else f"an object of type {type(own).__name__}"
            raise InputError(
                f"{type(work.method).__name__}.own_model must return a vector of shape {tuple(w.shape)}, such as "
                f"model.vector, got {got}",
                code="wrong-shape",
                field="own_model",
            )
        return own.detach()


def _overrides(method: LocalMethod, name: str) -> bool:
    return getattr(type(method), name) is not getattr(LocalMethod, name)


def _train_group(
    problem: PooledData,
    batches: Batches,
    request: TrainRequest,
    clients: Sequence[_Client],
    group: list[int],
    models: Models,
    ends: dict[int, dict[str, Tensor]],
) -> None:
    """Train clients together and write their models and what their steps changed; one by one if they cannot be."""
    assert request.work is not None
    method = request.work.method
    try:
        with threads_for(len(group) * request.w.numel() * int(batches.counts[group[0]])):
            stack, changed = _local_steps(problem, batches, request, clients, group)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        if len(group) == 1:
            with hook_errors(method, "loss"):
                raise
        # If the client alone fails too, its error is that of the user's code, and not of torch.func.
        _train_group(problem, batches, request, clients, group[:1], models, ends)
        _serial.setdefault(problem.task, set()).add(type(method))
        text = (
            f"{type(method).__name__} cannot be vectorised for {model_of(problem.task)} ({fault_of(error)}), so "
            "clients are trained one by one"
        )
        LOG.warning(Notice(text, "slow-method", type(method).__name__))
        for j in group[1:]:
            _train_group(problem, batches, request, clients, [j], models, ends)
        return
    index = torch.tensor(group)
    for whole, part in zip(models, stack, strict=True):
        if whole is not None and part is not None:
            whole[index] = part
    for place, j in enumerate(group):
        # Clone, because a view would keep the tensors of the whole group in memory.
        ends[j] = {name: values[place].clone() for name, values in changed.items()}


def _local_steps(
    problem: PooledData, batches: Batches, request: TrainRequest, clients: Sequence[_Client], group: list[int]
) -> tuple[Models, Mapping[str, Tensor]]:
    """Return the models (g, d) of a group, and the tensors of the clients that steps changed, each (g, …)."""
    assert request.work is not None
    work, local, layout, first = request.work, request.local, problem.task.layout, group[0]
    method, members, index = work.method, [clients[j] for j in group], torch.tensor(group)
    U = torch.stack([client.start for client in members]).contiguous()
    states = _stack([client.state for client in members])
    fixed_state = {name: values for name, values in states.items() if name not in method.trained}
    # Trained entries are updated in place, so they must not share memory with the client store.
    own = {name: states[name].clone() for name in method.trained}
    per_client = _stack([client.prepared for client in members]) | {
        name: each[index.to(each.device)] for name, each in work.per_client.items()
    }
    views = dict(layout.views(U)) | {OWN + name: values for name, values in own.items()}
    part = request.only(index)
    fixed = fixed_part(part)
    constants = {} if fixed is None else dict(layout.views(fixed.expand_as(U)))
    # The proximal term pulls towards the server's model, which has no counterpart of a client's state.
    of_model, of_state = local_step(request), local_step(replace(request, prox=0.0))
    optimiser_states, taken = {name: of_model.start(value) for name, value in views.items()}, dict.fromkeys(views, 0)
    gradient = _Gradient(problem, method, request.w, dict(work.context), vectorised=len(group) > 1)
    counts = [int(batches.counts[first])] * local.fewest_steps
    if batches.by_step is not None:
        counts = [count for count in batches.by_step[first].tolist() if count]
    model, is_directed = clients[first].model(request.w), _overrides(method, "direction")
    moved: dict[str, Tensor] = {}
    weights = None if problem.averaged else problem.weights(batches, request.w)
    snapshot, total = None, torch.zeros_like(U) if request.average else None
    for t, count in enumerate(counts, start=1):
        with hook_errors(method, "trains"):
            trains = names_from(method, "trains", method.trains(model, t, len(counts)))
        changes = tuple(OWN + name if name in method.trained else name for name in trains)
        samples = _samples(problem, batches, index, t - 1, count, weights)
        arguments = (changes, *samples, fixed_state, per_client)
        with _no_global_draws(problem.task, method):
            gradients, losses, statistics = gradient(views, *arguments)
        gradients = gradient.ascended(local.optimizer, gradients, views, arguments)
        if is_directed:
            directions, new = gradient.direction(gradients, losses, {**fixed_state, **own}, per_client)
            gradients |= directions
            moved |= new
            fixed_state |= {name: value for name, value in new.items() if name in fixed_state}
            per_client |= {name: value for name, value in new.items() if name not in fixed_state}
        for name, g in gradients.items():
            taken[name] += 1
            step: LocalStep = of_state if name.startswith(OWN) else of_model
            step.step(views[name], g, constants.get(name), optimiser_states[name], taken[name])
        # Running statistics follow no gradient: the pass over the minibatch has computed their new values.
        for name, value in statistics.items():
            if name in changes:
                views[name].copy_(value)
        # All parameters of a client are views of its row of U, so the projection changes them all.
        if local.radius is not None:
            for values in (U, *own.values()):
                rows = values.view(len(values), -1)
                rows.mul_((local.radius / rows.norm(dim=1, keepdim=True)).clamp(max=1))
        if total is not None:
            total.add_(U, alpha=1 / len(counts))
        if t == request.snapshot:
            snapshot = U.clone()
    return Models(U, snapshot, total), {**moved, **own}


@contextmanager
def _no_global_draws(task: Task, method: LocalMethod) -> Iterator[None]:
    """Refuse a loss that draws from a global generator, in the first step of a method."""
    checked = _checked.setdefault(task, set())
    before = None if type(method) in checked else global_states()
    yield
    if before is None:
        return
    if drawn := changed_generators(before):
        raise InputError(
            f"{type(method).__name__}.loss draws from {drawn[0]}'s global generator, so results would depend on the "
            "engine. Use batch.view(1) for another random augmentation, or nn.Dropout.",
            code="unsupported-model",
            field="loss",
        )
    checked.add(type(method))


def _samples(
    problem: PooledData, batches: Batches, index: Tensor, t: int, count: int, weights: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return inputs, targets, weights and seeds of a group's samples in a step t = 0, 1, …, each (g, count, …)."""
    rows = batches.step_rows(t)[index, :count]
    x, y = (take_rows(pool, rows.flatten()).view(*rows.shape, *pool.shape[1:]) for pool in (problem.x, problem.y))
    seeds = None if batches.seeds is None else batches.seeds[index, t, :count].to(x.device)
    if weights is not None:
        weights = (weights if weights.dim() == 2 else weights[:, t])[index.to(weights.device), :count]
    return x, y, weights, seeds


def _stack(each: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([tensors[name] for tensors in each]) for name in each[0]}


class _Gradient:
    """Gradients of a method's loss for a group of clients, with respect to the tensors that a step changes."""

    def __init__(
        self, problem: PooledData, method: LocalMethod, w: Tensor, context: Mapping[str, Tensor], *, vectorised: bool
    ) -> None:
        self._problem, self._method, self._context, self._vectorised = problem, method, dict(context), vectorised
        self._received = ClientModel.of(problem.task, w, problem.autocast)
        self._dropouts = list(dropout_layers(problem.task.model).values())

    def __call__(
        self,
        views: Mapping[str, Tensor],
        changes: tuple[str, ...],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        seeds: Tensor | None,
        state: Mapping[str, Tensor],
        per_client: Mapping[str, Tensor],
    ) -> tuple[dict[str, Tensor], Tensor, dict[str, Tensor]]:
        """Return the gradient (g, …) of each tensor that the step changes, the losses (g,), and new running statistics
        (g, …).
        """
        unknown = [name for name in changes if name not in views]
        if unknown:
            raise InputError(
                f"{type(self._method).__name__}.trains names '{unknown[0]}', which is neither a parameter of the model "
                "nor an entry of 'trained'",
                code="unknown-name",
                field=unknown[0],
            )
        # Running statistics have no gradient, and neither weight decay nor a pull changes them.
        followed = set(changes) - set(self._problem.task.statistics)
        changed = {name: value for name, value in views.items() if name in followed}
        constant = {name: value for name, value in views.items() if name not in followed}
        rest = (constant, x, y, weights, seeds, dict(state), dict(per_client))
        if self._vectorised:
            dims = tuple(None if value is None else 0 for value in rest[1:])
            mapped = vmap(
                lambda changed, *rest: values_and_gradients(
                    lambda *tensors: self._loss(dict(zip(changed, tensors, strict=True)), *rest), [*changed.values()]
                ),
                # An empty dictionary has no tensor that could be mapped, and vmap accepts any dimension for it.
                in_dims=(0, 0, *dims),
            )
            losses, gradients, statistics = mapped(changed, *rest)
            return dict(zip(changed, gradients, strict=True)), losses, statistics
        leaves = {name: value[0].detach().clone().requires_grad_() for name, value in changed.items()}
        single = [_first(value) for value in rest]
        loss, statistics = self._loss(leaves, *single)  # pyright: ignore[reportArgumentType]
        statistics = {name: value.detach()[None] for name, value in statistics.items()}
        value = loss.detach()[None]
        if not leaves:
            return {}, value, statistics
        # A parameter on which the loss does not depend has gradient 0, as in vectorised steps.
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return {name: g[None] for name, g in zip(leaves, gradients, strict=True)}, value, statistics

    def ascended(
        self,
        optimizer: LocalOptimizer,
        gradients: dict[str, Tensor],
        views: Mapping[str, Tensor],
        arguments: Sequence[Any],
    ) -> dict[str, Tensor]:
        """Return the gradients at the point to which SAM moves along them; with other optimisers, the same ones."""
        if not isinstance(optimizer, SAM):
            return gradients
        # The model and each trained entry of the state ascend by rho separately, so that the model moves as in a method
        # that trains nothing else.
        parts = [[name for name in gradients if not name.startswith(OWN)]]
        parts += [[name] for name in gradients if name.startswith(OWN)]
        there = dict[str, Tensor]()
        for names in filter(None, parts):
            moves = ascent(optimizer, [gradients[name] for name in names], len(gradients[names[0]]))
            there |= {name: views[name] + move for name, move in zip(names, moves, strict=True)}
        return self({**views, **there}, *arguments)[0]

    def direction(
        self,
        gradients: Mapping[str, Tensor],
        losses: Tensor,
        state: Mapping[str, Tensor],
        per_client: Mapping[str, Tensor],
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the direction (g, …) of each parameter with a gradient, and new values (g, …) of other tensors."""
        layout = self._problem.task.layout
        flat = self._received.vector.new_zeros(len(losses), layout.d)
        for name, view in layout.views(flat).items():
            if name in gradients:
                view.copy_(gradients[name])

        def one(
            g: Tensor, loss: Tensor, state: Mapping[str, Tensor], per_client: Mapping[str, Tensor]
        ) -> tuple[Tensor, dict[str, Tensor]]:
            context = StepContext(self._received, state, {**self._context, **per_client})
            result: object = self._method.direction(g, loss, context)
            if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Tensor)):
                raise InputError(
                    f"{type(self._method).__name__}.direction must return a vector and a dictionary of new values, "
                    f"such as (gradient, {{}}), got an object of type {type(result).__name__}",
                    code="wrong-type",
                    field="direction",
                )
            direction, new = result[0], tensors_from(self._method, "direction", result[1])
            known = {**self._context, **per_client, **state}
            for name, value in new.items():
                if name not in known or value.shape != known[name].shape:
                    raise InputError(
                        f"{type(self._method).__name__}.direction returned '{name}' of shape {tuple(value.shape)}, but "
                        f"must return new values of tensors of the context: "
                        f"{', '.join(f'{each} {tuple(known[each].shape)}' for each in known) or 'it has none'}",
                        code="wrong-shape" if name in known else "unknown-name",
                        field=name,
                    )
            if direction.shape != g.shape:
                raise InputError(
                    f"{type(self._method).__name__}.direction must return a vector of shape {tuple(g.shape)}, got "
                    f"{tuple(direction.shape)}",
                    code="wrong-shape",
                    field="direction",
                )
            return direction, new

        with torch.no_grad():
            if self._vectorised:
                directions, new = vmap(one)(flat, losses, dict(state), dict(per_client))
            else:
                with hook_errors(self._method, "direction"):
                    single, changed = one(flat[0], losses[0], _first(state), _first(per_client))
                directions, new = single[None], {name: value[None] for name, value in changed.items()}
        views = layout.views(directions)
        return {name: views[name] for name in gradients if name in views}, new

    def _loss(
        self,
        changed: Mapping[str, Tensor],
        constant: Mapping[str, Tensor],
        x: Tensor,
        y: Tensor,
        weights: Tensor | None,
        seeds: Tensor | None,
        state: Mapping[str, Tensor],
        per_client: Mapping[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        task, tensors = self._problem.task, {**constant, **changed}
        for layer in self._dropouts:
            # The counter restarts with each step, so that equal seeds give equal noise.
            layer.calls = 0

        def augmented(number: int) -> Tensor:
            if seeds is None or task.augment is None:
                return x
            return task.augmented(x, scramble((seeds + number) & WORD) if number else seeds)

        parameters = {name: tensors[name] for name in task.layout.names}
        own = {name.removeprefix(OWN): value for name, value in tensors.items() if name.startswith(OWN)}
        model = ClientModel(task, parameters, seeds, self._problem.autocast, is_step=True)
        context = StepContext(self._received, {**state, **own}, {**self._context, **per_client})
        loss = self._method.loss(model, Batch(augmented(0), y, weights, augmented), context)
        if not isinstance(loss, Tensor) or loss.dim():
            shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise InputError(
                f"{type(self._method).__name__}.loss must return a number, a tensor of shape (), got {shape}. Average "
                "losses of samples with batch.mean.",
                code="wrong-shape",
                field="loss",
            )
        if changed and not loss.requires_grad:
            raise InputError(
                f"{type(self._method).__name__}.loss has no gradient: it does not depend on {', '.join(changed)}. "
                "Compute it from model(batch.inputs), without .detach(), .item() and torch.no_grad.",
                code="no-gradient",
                field="loss",
            )
        return loss, model.statistics


@overload
def _first(value: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
@overload
def _first(value: Tensor | Mapping[str, Tensor] | None) -> Tensor | dict[str, Tensor] | None: ...
def _first(value: Tensor | Mapping[str, Tensor] | None) -> Tensor | dict[str, Tensor] | None:
    """Return the entry of the only client of a group."""
    if isinstance(value, Mapping):
        return {name: each[0] for name, each in value.items()}
    return None if value is None else value[0]
