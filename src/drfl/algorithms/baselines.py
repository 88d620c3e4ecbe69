"""Baselines for comparison: local training only, training on the pooled data, and local fine-tuning of FedAvg."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.fedavg import FedAvg, FedAvgState
from drfl.core import checks
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.sampling import all_clients
from drfl.optim.local import LocalSGD
from drfl.training.averages import DECAY


class LocalOnlyState(NamedTuple):
    """The clients' separate models.

    Args:
        w: (d,) Mean of the models, weighted by samples. It is not used for testing.
        models: (N, d) One model per client.
        average: (N, d) Polynomial-decay average of each model, see :class:`drfl.training.averages.DecayingAverage`.
        rounds: (N,) int64, number of rounds in each average: those in which the client answered.
    """

    w: Tensor
    models: ClientTable
    average: ClientTable
    rounds: Tensor

    def describe_fault(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "a number of rounds is negative" if bool((self.rounds < 0).any()) else None


@dataclass(frozen=True)
class LocalOnly:
    """Train every client alone on its local rows and test it with its local model.

    This shows the results of a client without federation. A round is τ local steps at every client. Nothing is sent, so
    the ledger holds only gradients and losses. By default a client is tested with the decaying average of its models,
    just as other algorithms are tested with the average of the server's models; "last" tests its latest model.

    Args:
        local: Local solver.
    """

    local: LocalSGD = field(default_factory=LocalSGD)

    no_average: ClassVar[bool] = True
    separate: ClassVar[bool] = True
    isolated: ClassVar[bool] = True

    def init(self, fed: Federation) -> LocalOnlyState:
        """Return the state in which every client holds the initial model."""
        rows = fed.w0.expand(fed.n, -1)
        # Write every row, because unwritten rows of a table read as 0.
        table = fed.client_table().put(torch.arange(fed.n), rows)
        return LocalOnlyState(fed.w0, table, table, torch.zeros(fed.n, dtype=torch.int64))

    def round(self, state: LocalOnlyState, fed: Federation, key: Key) -> tuple[LocalOnlyState, Info]:
        """Take local steps at every client, starting from its model."""
        models, average, answered = state.models, state.average, list[int]()
        for i in range(fed.n):
            # Send one request per client: a request carries a single model, but each client has its own.
            client = torch.tensor([i])
            with fed.ledger.unsent():
                up = fed.train(client, models[client][0], self.local, key.fold("sgd"))
            if up.clients.numel():
                models = models.put(client, up.w)
                # Weight of the latest model in the polynomial-decay average.
                weight = (DECAY + 1) / (int(state.rounds[i]) + 1 + DECAY)
                average = average.put(client, average[client] + weight * (up.w - average[client]))
                answered.append(i)
        D = all_clients(fed.shares.double(), fed.n, key.fold("D"))
        if not answered:
            return state, Info.without_replies(D)
        clients, w = torch.tensor(answered), models.mix(fed.shares.double())
        rounds = state.rounds.index_add(0, clients, torch.ones_like(clients))
        return LocalOnlyState(w, models, average, rounds), Info(D, clients)

    def personal(self, state: LocalOnlyState, w: Tensor, fed: Federation, key: Key) -> ClientTable:
        """See :class:`drfl.federation.algorithm.Personal`."""
        # The global model shows which personal models belong to it: the latest ones or the averages.
        return state.models if w is state.w or torch.equal(w, state.w) else state.average


@dataclass(frozen=True)
class Pooled:
    """Minibatch SGD on the union of all clients' training rows.

    A round is τ steps. This baseline needs direct access to the rows, so it works only in simulations.

    Args:
        local: Local solver, run on the union.
    """

    local: LocalSGD = field(default_factory=LocalSGD)

    no_average: ClassVar[bool] = True

    def init(self, fed: Federation) -> FedAvgState:
        """Return the state with the initial model.

        Raises:
            InputError: If the federation cannot access the clients' rows.
        """
        fed.pooled()
        return FedAvgState(fed.w0)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Take steps on the union."""
        with fed.ledger.unsent():
            # The union counts as one client, whose models are not sent anywhere.
            up = fed.pooled().train(torch.tensor([0]), state.w, self.local, key.fold("sgd"))
        D = all_clients(fed.shares.double(), fed.n, key.fold("D"))
        return FedAvgState(up.w[0]), Info(D, torch.arange(fed.n))


@dataclass(frozen=True)
class FineTuned(FedAvg):
    """FedAvg, followed by local fine-tuning at every client (Yu et al. 2020).

    The global model is bit-identical to FedAvg's. Each client is tested with its fine-tuned model. Every test repeats
    the fine-tuning, and the ledger does not count it.

    Args:
        m: Cohort size.
        local: Local solver, for the rounds and for fine-tuning.
        by_samples: Whether to weight clients by their samples (the default) or equally.
        fine_steps: Local steps of fine-tuning, at least 1.

    Raises:
        InputError: If fine_steps is not an integer of at least 1, or if m > N (on first use).
    """

    fine_steps: int = 10

    def __post_init__(self) -> None:
        checks.integer("fine_steps", self.fine_steps)

    def personal(self, state: FedAvgState, w: Tensor, fed: Federation, key: Key) -> ClientTable:
        """See :class:`drfl.federation.algorithm.Personal`."""
        up = fed.train(torch.arange(fed.n), w, replace(self.local, steps=self.fine_steps, epochs=None), key.fold("sgd"))
        # Clients that do not answer are tested with the global model.
        table = fed.client_table().put(torch.arange(fed.n), w.expand(fed.n, -1))
        return table.put(up.clients, up.w)
