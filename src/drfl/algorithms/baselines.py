"""What a federated model is compared with: each client alone, all data in one place, a global model tuned locally."""

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
from drfl.federation.sampling import everybody
from drfl.optim.local import LocalSGD
from drfl.training.averages import DECAY


class LocalOnlyState(NamedTuple):
    """The clients' models, which never meet.

    Args:
        w: (d,) their mean by samples, which nobody uses.
        models: (N, d) a model a client.
        average: (N, d) the polynomial-decay average of each, see :class:`drfl.training.averages.DecayingAverage`.
        rounds: () int64, how many are in it.
    """

    w: Tensor
    models: ClientTable
    average: ClientTable
    rounds: Tensor

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "fewer than no rounds" if self.rounds < 0 else None


@dataclass(frozen=True)
class LocalOnly:
    """Every client trains alone, on its own rows, and is served by its own model: what it has without the others.

    A round is τ local steps at every client. Nothing is sent, so only gradients are in the ledger. A client is tested
    with the decaying average of its own models, as the others are with that of the server's; as "last" with its last.

    Args:
        local: what a client runs.
    """

    local: LocalSGD = field(default_factory=LocalSGD)

    no_average: ClassVar[bool] = True
    separate: ClassVar[bool] = True

    def init(self, fed: Federation) -> LocalOnlyState:
        """The initial model at every client."""
        rows = fed.w0.expand(fed.n, -1)
        # Write every row: rows of a table that were never written read as 0.
        table = fed.client_table().put(torch.arange(fed.n), rows)
        return LocalOnlyState(fed.w0, table, table, torch.zeros((), dtype=torch.int64))

    def round(self, state: LocalOnlyState, fed: Federation, key: Key) -> tuple[LocalOnlyState, Info]:
        """Local steps at every client from its own model."""
        models, average, rounds = state.models, state.average, state.rounds + 1
        # Weight of the latest model in the polynomial-decay average.
        weight, answered = (DECAY + 1) / (int(rounds) + DECAY), list[int]()
        for i in range(fed.n):
            # One client per request: a request carries a single model, and each client starts from its own.
            client = torch.tensor([i])
            with fed.ledger.unsent():
                up = fed.train(client, models[client][0], self.local, key.fold("sgd"))
            if up.clients.numel():
                models = models.put(client, up.w)
                average = average.put(client, average[client] + weight * (up.w - average[client]))
                answered.append(i)
        D = everybody(fed.shares.double(), fed.n, key.fold("D"))
        if not answered:
            return state, Info.nobody(D)
        w = models.mix(fed.shares.double())
        return LocalOnlyState(w, models, average, rounds), Info(D, torch.tensor(answered))

    def personal(self, state: LocalOnlyState, w: Tensor, fed: Federation, key: Key) -> ClientTable:
        """See :class:`drfl.federation.algorithm.Personal`."""
        # The global model tells which personal models go with it: the last ones or the averages.
        return state.models if w is state.w or torch.equal(w, state.w) else state.average


@dataclass(frozen=True)
class Pooled:
    """All clients' training rows in one place, as if there were no reason to federate: minibatch SGD on their union.

    A round is τ steps. It needs the rows themselves, so it is for simulations.

    Args:
        local: the steps.
    """

    local: LocalSGD = field(default_factory=LocalSGD)

    no_average: ClassVar[bool] = True

    def init(self, fed: Federation) -> FedAvgState:
        """The initial model.

        Raises:
            InputError: the rows are not here.
        """
        fed.pooled()
        return FedAvgState(fed.w0)

    def round(self, state: FedAvgState, fed: Federation, key: Key) -> tuple[FedAvgState, Info]:
        """Steps on the union."""
        with fed.ledger.unsent():
            up = fed.pooled().train(torch.tensor([0]), state.w, self.local, key.fold("sgd"))
        D = everybody(fed.shares.double(), fed.n, key.fold("D"))
        return FedAvgState(up.w[0]), Info(D, torch.arange(fed.n))


@dataclass(frozen=True)
class FineTuned(FedAvg):
    """FedAvg, then local steps at every client, which is tested with its own result (Yu et al. 2020).

    The global model is FedAvg's, bit for bit. The steps of fine-tuning are not in the ledger: they are made anew for
    every test.

    Args:
        m: cohort size.
        local: what a client runs, in the rounds and to fine-tune.
        by_samples: weight clients by their samples (the default) or all alike.
        fine_steps: local steps of fine-tuning, ≥ 1.

    Raises:
        InputError: fine_steps is no number of steps, or m > N (when first used).
    """

    fine_steps: int = 10

    def __post_init__(self) -> None:
        checks.whole("fine_steps", self.fine_steps)

    def personal(self, state: FedAvgState, w: Tensor, fed: Federation, key: Key) -> ClientTable:
        """See :class:`drfl.federation.algorithm.Personal`."""
        up = fed.train(torch.arange(fed.n), w, replace(self.local, steps=self.fine_steps, epochs=None), key.fold("sgd"))
        # Clients that do not answer keep the global model.
        table = fed.client_table().put(torch.arange(fed.n), w.expand(fed.n, -1))
        return table.put(up.clients, up.w)
