"""Algorithms with their own local steps at the clients: the server averages the models, as in FedAvg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.fedavg import Averaging, FedAvgState
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.local_method import LocalMethod, Named, OwnModels, flatten, unflatten
from drfl.federation.method_checks import NamedTensors, hook_errors, tensors_from
from drfl.optim.server_optimizers import ServerMoments
from drfl.task.client_model import ClientModel


class ClientSideState(NamedTuple):
    """State of an algorithm with a client-side method.

    Args:
        w: (d,) Global model.
        server: State of the server optimiser; None if there is none.
        store: The clients' private parameters and states, see
            :meth:`drfl.federation.federation.Federation.client_store`; None if there are none.
        shared: (e,) The server's tensors besides the model, one after another; None if there are none.
    """

    w: Tensor
    server: ServerMoments | None = None
    store: ClientTable | None = None
    shared: Tensor | None = None


@dataclass(frozen=True)
class ClientSide(Averaging, LocalMethod):
    """Federated averaging of clients that take your local steps: a base class for client-side methods.

    Inherit from it, and override the functions of :class:`drfl.federation.local_method.LocalMethod` in which your
    method differs from FedAvg. If the server has tensors besides the model, such as class prototypes, override
    :meth:`shared` and :meth:`merge` too. If each client is to be tested with its own model, inherit from
    :class:`PersonalClientSide`.

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.

    Example:
        >>> import torch
        >>> from drfl.algorithms import ClientSide
        >>> class SmallLogits(ClientSide):
        ...     def loss(self, model, batch, context):
        ...         outputs = model(batch.inputs)
        ...         return batch.mean(model.losses(outputs, batch.targets) + 0.01 * (outputs**2).sum(1))
        >>> SmallLogits(m=2).m
        2

    Raises:
        InputError: If m > N, or the model does not suit the method (on first use).
    """

    def shared(self, model: ClientModel) -> dict[str, Tensor]:
        """Return the initial values of the server's tensors, which it sends to the clients as ``context["name"]``."""
        return {}

    def merge(self, shared: Named, messages: Named, weights: Tensor) -> Mapping[str, Tensor]:
        """Return the new values of the server's tensors.

        Args:
            shared: Their values before the round.
            messages: The clients' messages by name, each (k', …).
            weights: (k',) weights of these clients, which sum to 1.
        """
        return shared

    def init(self, fed: Federation) -> ClientSideState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the state with the initial model, an empty client store, and the server's first tensors."""
        w, server = super().init(fed)
        fed.layout_of(self)  # raises if the method does not suit the federation and its model
        tensors = self._first_shared(fed)
        shared = flatten(tensors, {name: tuple(value.shape) for name, value in tensors.items()}, w, self, "shared")
        return ClientSideState(w, server, fed.client_store(self), shared if shared.numel() else None)

    def round(self, state: ClientSideState, fed: Federation, key: Key) -> tuple[ClientSideState, Info]:
        """Train a uniform cohort with the local steps of the method, and average the models."""
        D = sampling.uniform(fed.n, sampling.size(self.m, fed.n), key.fold("D"))
        return self.play(state, fed, D, key.fold("sgd"))

    def play(
        self, state: ClientSideState, fed: Federation, D: sampling.Cohort, key: Key, context: Named | None = None
    ) -> tuple[ClientSideState, Info]:
        """Train a cohort with the local steps of the method, and average the models; used by :meth:`round`.

        Args:
            state: State before the round.
            fed: The federation.
            D: Cohort to train.
            key: Key of the minibatches.
            context: Further tensors for the clients.
        """
        shared: dict[str, Tensor] = {}
        if state.shared is not None:
            shapes = {name: tuple(value.shape) for name, value in self._first_shared(fed).items()}
            shared = unflatten(state.shared, shapes)
        up = fed.train_with(
            self, D.clients, state.w, self.local, key, store=state.store, context={**shared, **(context or {})}
        )
        if not up.clients.numel():
            return state, Info.without_replies(D)
        a = sampling.Cohort(D.clients, self.weights(fed)[D.clients]).weights_of(up.clients).to(state.w)
        model = up.merged(lambda w_i: a @ w_i)
        w, server = self.apply_server(FedAvgState(state.w, state.server), model)
        # The clients return the server's numbers for private parameters, whose mean would round them.
        w = torch.where(fed.layout_of(self).private.to(w.device), state.w, w)
        store = state.store if state.store is None or up.states is None else state.store.put(up.clients, up.states)
        flat = state.shared
        if flat is not None:
            messages = {} if up.messages is None else unflatten(up.messages, fed.layout_of(self).message)
            with hook_errors(self, "merge"):
                merged = self.merge(NamedTensors("shared", shared), NamedTensors("messages", messages), a)
            shapes = {name: tuple(value.shape) for name, value in shared.items()}
            flat = flatten(merged, shapes, flat, self, "merge")
        return ClientSideState(w, server, store, flat), Info(D, up.clients, average=model.average)

    def _first_shared(self, fed: Federation) -> dict[str, Tensor]:
        with hook_errors(self, "shared"):
            return {} if fed.model is None else tensors_from(self, "shared", self.shared(fed.model))


@dataclass(frozen=True)
class PersonalClientSide(ClientSide):
    """A :class:`ClientSide` method that tests each client with its own model.

    The own model is that of :meth:`drfl.federation.local_method.LocalMethod.own_model`: by default the global model
    with the client's private parameters.

    Attributes:
        separate: Whether the global model is useless without the clients' private parameters. Its loss then does not
            control the step size.
    """

    no_average: ClassVar[bool] = True
    separate: ClassVar[bool] = True

    def personal(self, state: ClientSideState, w: Tensor, fed: Federation, key: Key) -> ClientTable | OwnModels:
        """See :class:`drfl.federation.algorithm.Personal`."""
        return fed.own_models(OwnModels(w, self, state.store))
