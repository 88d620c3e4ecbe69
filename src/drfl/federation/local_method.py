"""The interface of a client-side method: the loss of the local steps, and what a client stores between rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import cached_property
from math import prod
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.federation.client_table import ClientTable
from drfl.federation.method_checks import NamedTensors, check_class, hook_errors, is_of_user, names_from, tensors_from
from drfl.task.client_model import PASS, ClientModel

Named = Mapping[str, Tensor]
"""Tensors by name."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of tensors by name."""


class Batch:
    """The minibatch of a local step.

    Args:
        inputs: (B, …) inputs, augmented if the task augments.
        targets: (B, …) targets.
        weights: (B,) weight of each sample in the client's loss; None = 1/B each.
        augmented: Function of the number of a view that returns the inputs with other random numbers.
    """

    def __init__(
        self, inputs: Tensor, targets: Tensor, weights: Tensor | None, augmented: Callable[[int], Tensor]
    ) -> None:
        # Other views are computed on request, because most methods need none.
        self.inputs, self.targets, self._weights, self._augmented = inputs, targets, weights, augmented

    def view(self, number: int) -> Tensor:
        """Return the inputs under another augmentation; view 0 is ``inputs``. Without augmentation all are equal."""
        return self._augmented(number)

    def mean(self, losses: Tensor) -> Tensor:
        """Return the client's loss () from one loss per sample (B,)."""
        return losses.mean() if self._weights is None else (losses * self._weights).sum()

    def loss(self, model: ClientModel) -> Tensor:
        """Return the task's loss () of a model on this minibatch."""
        return self.mean(model.losses(model(self.inputs), self.targets))


class ClientRowsView:
    """All training rows of a client.

    Args:
        inputs: (n_i, …) inputs.
        targets: (n_i, …) targets.
    """

    def __init__(self, inputs: Callable[[], Tensor], targets: Callable[[], Tensor]) -> None:
        # Stored as functions, because most methods never read all rows, and reading copies them from the pool.
        self._inputs, self._targets = inputs, targets

    @cached_property
    def inputs(self) -> Tensor:
        """(n_i, …) inputs."""
        return self._inputs()

    @cached_property
    def targets(self) -> Tensor:
        """(n_i, …) targets."""
        return self._targets()

    def passes(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over all rows in parts that fit into memory."""
        size = max(1, PASS // max(1, self.inputs[:1].numel()))
        return zip(self.inputs.split(size), self.targets.split(size), strict=True)

    def features(self, model: ClientModel) -> Tensor:
        """Compute the features (n_i, …) of all rows, without gradients."""
        with torch.no_grad():
            return torch.cat([model.features(x)[0] for x, _ in self.passes()])


class StepContext:
    """Everything else that a client knows in a local step. ``context["name"]`` is a tensor of the request or of
    :meth:`LocalMethod.prepare`.

    Args:
        received: The model that the server sent.
        state: The client's state, see :meth:`LocalMethod.state`.
        tensors: Tensors by name.
    """

    def __init__(self, received: ClientModel, state: Named, tensors: Named) -> None:
        self.received, self.state = received, NamedTensors("context.state", state)
        self._tensors = NamedTensors("context", tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    @property
    def w(self) -> Tensor:
        """The model that the server sent, as a vector (d,)."""
        return self.received.vector


class LocalMethod:
    """The local steps of a client-side method. Every method of this class has a default, so override only those that
    differ.

    A client starts from the global model, or from its start model if the request has one, with its private parameters.
    It takes the steps of :class:`drfl.optim.local.LocalSGD` along the gradient of :meth:`loss`, and sends its model
    without the private parameters. drfl vectorises the steps over clients if ``torch.func`` supports the loss.
    Otherwise the clients train one after another.

    The server sends the name and the plain fields of the dataclass (numbers, texts and truth values) to the clients of
    a deployment, which must have the same code; see ``docs/client-side.md``.

    Attributes:
        gradients: Number of gradients per sample and step, for the ledger.
        trained: Names of entries of the state that local steps train along with the model, by the same optimiser. A
            radius, and the ascent of SAM, apply to the model and to each entry separately.
    """

    gradients: ClassVar[int] = 1
    trained: ClassVar[tuple[str, ...]] = ()

    def state(self, model: ClientModel) -> dict[str, Tensor]:
        """Return the start value of the state, for a client that trains for the first time or has lost its state.

        All tensors have the type of the model.

        Args:
            model: The model that the server sent in that round.
        """
        return {}

    def private(self, model: ClientModel) -> Collection[str]:
        """Return the names of parameters that stay at the client. They start from the server's first values."""
        return ()

    def prepare(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Compute tensors for the local steps, once per client and round; the context contains them afterwards."""
        return {}

    def loss(self, model: ClientModel, batch: Batch, context: StepContext) -> Tensor:
        """Return the loss () whose gradient a local step follows."""
        return batch.loss(model)

    def direction(self, gradient: Tensor, loss: Tensor, context: StepContext) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return the direction of a local step, u ← u − η·direction, and new values of tensors of the context.

        Later steps and :meth:`message` get the new values. Those of entries of the state are stored.

        Args:
            gradient: (d,) gradient of :meth:`loss`; 0 for parameters that the step does not change.
            loss: () its value.
            context: The client's state and the tensors of the request.
        """
        return gradient, {}

    def trains(self, model: ClientModel, step: int, steps: int) -> Collection[str]:
        """Return the names of the parameters, and of entries of ``trained``, that a step changes.

        Args:
            model: The model, for its names.
            step: Number of the step, from 1.
            steps: Number of steps of the client in this round.
        """
        return (*model.names, *self.trained)

    def remember(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Return new values of entries of the state, after the local steps. The other entries keep their values."""
        return {}

    def message_shapes(self, model: ClientModel) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of :meth:`message`."""
        return {}

    def message(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Return the tensors that the client sends besides its model, after the local steps."""
        return {}

    def own_model(self, model: ClientModel, context: StepContext) -> Tensor:
        """Return the client's own model (d,), with which it is tested.

        Args:
            model: The global model with the client's private parameters.
            context: The client's state, and the global model.
        """
        return model.vector


def has_user_loss(algorithm: object) -> bool:
    """Return whether an algorithm is a client-side method whose loss is a user's and not one of drfl's."""
    if not isinstance(algorithm, LocalMethod):
        return False
    return is_of_user(next(c for c in type(algorithm).__mro__ if "loss" in vars(c)))


class MethodLayout(NamedTuple):
    """The tensors of a method for a model, and their places in flat vectors.

    A row of the client store is [1, private parameters, state]. A row whose first number is 0 was never written.

    Args:
        names: Names of the private parameters.
        private: (d,) bool, the entries of the model that are private.
        state: Shapes of the entries of the state.
        message: Shapes of the tensors of a message.
    """

    names: tuple[str, ...]
    private: Tensor
    state: Shapes
    message: Shapes

    @classmethod
    def of(cls, method: LocalMethod, model: ClientModel) -> MethodLayout:
        """Create the layout.

        Raises:
            InputError: If the class has a mistake, see :func:`drfl.federation.method_checks.check_class`, or if the
                method names parameters or entries that do not exist, or its state is not of floats.
        """
        check_class(type(method))
        with hook_errors(method, "private"):
            private = set(names_from(method, "private", method.private(model)))
        trained = set(names_from(method, "trained", method.trained))
        with hook_errors(method, "state"):
            state = tensors_from(method, "state", method.state(model))
        with hook_errors(method, "message_shapes"):
            message = dict(method.message_shapes(model))
        for name, shape in message.items():
            if not isinstance(shape, tuple):
                raise InputError(
                    f"{type(method).__name__}.message_shapes must return a shape such as (3,) for '{name}', got "
                    f"{shape!r:.60}",
                    code="wrong-type",
                    field="message_shapes",
                )
        wrong = sorted(private - set(model.names)) + sorted(trained - state.keys())
        if wrong:
            raise InputError(
                f"{type(method).__name__} names '{wrong[0]}', which is neither a parameter of the model nor an entry "
                "of its state",
                code="unknown-name",
                field=wrong[0],
            )
        dtype = model.task.layout.dtype
        for name, value in state.items():
            if value.dtype != dtype:
                raise InputError(
                    f"{type(method).__name__}: entry '{name}' of the state is {value.dtype}, but must be {dtype}, like "
                    "the model",
                    code="wrong-type",
                    field=name,
                )
        # Use one mask over the model's vector, because a row of the client store has the private entries in its order.
        mask = torch.cat([torch.full((model.parameters[name].numel(),), name in private) for name in model.names])
        shapes = {name: tuple(value.shape) for name, value in state.items()}
        names = tuple(name for name in model.names if name in private)
        return cls(names, mask, shapes, message)

    @property
    def size(self) -> int:
        """Length of a row of the client store; 0 if the clients have nothing to store."""
        entries = int(self.private.sum()) + sum(map(prod, self.state.values()))
        # One more number marks a row as written, because a state may well consist of zeros.
        return 1 + entries if entries else 0

    @property
    def message_size(self) -> int:
        """Length of a message."""
        return sum(map(prod, self.message.values()))

    def load(self, row: Tensor | None, method: LocalMethod, w: Tensor, received: ClientModel) -> tuple[Tensor, Named]:
        """Return the model w (d,) with the client's private parameters, and its state."""
        if row is None or not bool(row[0]):
            return w, {name: value.detach().clone() for name, value in method.state(received).items()}
        count = 1 + int(self.private.sum())
        if count > 1:
            # Copy, because all clients of the cohort start from the same vector.
            w = w.clone()
            w[self.private.to(w.device)] = row[1:count]
        return w, unflatten(row[count:], self.state)

    def row(self, w: Tensor, state: Named, method: LocalMethod) -> Tensor:
        """Return the row that stores a client's private parameters and its state, after ``remember`` of a method."""
        stored = flatten(state, self.state, w, method, "remember")
        return torch.cat([w.new_ones(1), w[self.private.to(w.device)], stored])


def flatten(tensors: Named, shapes: Shapes, like: Tensor, method: LocalMethod, hook: str) -> Tensor:
    """Return tensors from a function of a method as one vector of the type of ``like``, in the order of ``shapes``.

    Raises:
        InputError: If a tensor is missing or has another shape.
    """
    tensors = tensors_from(method, hook, tensors)
    # A tensor that the method did not declare would be lost, so it is an error like a missing one.
    for name in (*(tensors.keys() - shapes.keys()), *(shapes.keys() - tensors.keys())):
        raise InputError(
            f"{type(method).__name__}.{hook} must return the tensors {', '.join(shapes) or 'none'}, but '{name}' is "
            f"{'missing' if name in shapes else 'not one of them'}",
            code="wrong-shape",
            field=name,
        )
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != tuple(shape):
            raise InputError(
                f"{type(method).__name__}.{hook} must return '{name}' of shape {tuple(shape)}, got "
                f"{tuple(tensors[name].shape)}",
                code="wrong-shape",
                field=name,
            )
    # Begin with the empty vector, because torch.cat needs at least one tensor.
    return torch.cat([like.new_empty(0), *(tensors[name].detach().reshape(-1).to(like) for name in shapes)])


def unflatten(vector: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return the tensors in a vector (…, e), each (…, *shape)."""
    parts = vector.split([prod(shape) for shape in shapes.values()], dim=-1)
    return {
        name: part.reshape((*vector.shape[:-1], *shape))
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


class OwnModels(NamedTuple):
    """Each client's own model, which only the client can assemble.

    Args:
        w: (d,) the global model.
        method: The method whose :meth:`LocalMethod.own_model` assembles it.
        states: The client store; None if the clients store nothing.
        is_last: Whether the run has ended: a client that cannot be tested then has no result, instead of its last one.
    """

    w: Tensor
    method: LocalMethod
    states: ClientTable | None
    is_last: bool = False
