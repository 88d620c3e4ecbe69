"""Federations of which some clients lie, and data of a client that is honest but hard.

Who claims a large loss draws the weight λ to himself, and away from the others: colluders that share a claim starve a
victim (:class:`Inflated`, :class:`Claims`). Who claims a small one starves himself, or, as one of many, lets the others
think that all is well (:class:`UnderReporting`). The last two classes lie about models and gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from drfl import checks
from drfl.data import ClientData
from drfl.errors import InputError
from drfl.federation import Federation, WrappedFederation
from drfl.key import Key
from drfl.requests import Gradients, Losses, R, Request, reports_of, with_reports


class Dishonest(WrappedFederation):
    """Some clients lie. They compute and send all the same, so the ledger is an honest federation's.

    Args:
        fed: the federation inside.
        clients: who they are.
    """

    def __init__(self, fed: Federation, clients: Iterable[int]) -> None:
        super().__init__(fed)
        self.clients = torch.tensor(sorted(clients), dtype=torch.int64)

    def lying(self, clients: Tensor) -> Tensor:
        """(k,) bool, which of these clients (k,) do."""
        return torch.isin(clients, self.clients)


class FalseLosses(Dishonest, ABC):
    """Some clients' loss reports are false, alone and with gradients; a subclass says what they claim."""

    @abstractmethod
    def claims(self, values: Tensor) -> Tensor:
        """(k,) what is claimed in place of the losses (k,)."""

    def ask(self, request: Request[R]) -> R:
        """Send a request and falsify the loss reports in what comes back."""
        reply = super().ask(request)
        reports = reports_of(reply)
        if reports is None:
            return reply
        clients, values = reports
        return with_reports(reply, torch.where(self.lying(clients), self.claims(values), values))


class Inflated(FalseLosses):
    """Some clients report their loss times a factor above 1, so that λ, and with it the model, turns to them.

    Args:
        fed: the federation inside.
        clients: who they are.
        factor: what the loss is multiplied with.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float = 100.0) -> None:
        super().__init__(fed, clients)
        self.factor = factor

    def claims(self, values: Tensor) -> Tensor:
        """(k,) the losses times the factor."""
        return self.factor * values


class UnderReporting(Inflated):
    """Some clients report their loss times a factor below 1, to be left in peace: λ forgets them.

    Only they suffer, unless a bound is made from everybody's reports: then low ones pull it down. A *victim* is starved
    the other way round: all others collude in :class:`Inflated`, and the weight that they draw is his.

    Args:
        fed: the federation inside.
        clients: who they are.
        factor: what the loss is multiplied with.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float = 0.01) -> None:
        super().__init__(fed, clients, factor)


class Claims(FalseLosses):
    """Some clients claim one constant loss, NaN and infinity included; several of them collude.

    Args:
        fed: the federation inside.
        clients: who they are.
        value: what they claim.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], value: float) -> None:
        super().__init__(fed, clients)
        self.value = value

    def claims(self, values: Tensor) -> Tensor:
        """(k,) the value."""
        return torch.full_like(values, self.value)


class Scaled(Dishonest):
    """Some clients send w + factor·(w_i − w) in place of their models w_i, and gradients times the factor.

    Args:
        fed: the federation inside.
        clients: who they are.
        factor: what a move is multiplied with.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float) -> None:
        super().__init__(fed, clients)
        self.factor = factor

    def ask(self, request: Request[R]) -> R:
        """Send a request and stretch the vectors in what comes back."""
        reply = super().ask(request)
        if isinstance(reply, Losses):
            return reply
        lying, origin = self.lying(reply.clients).to(request.w.device)[:, None], request.w
        if isinstance(reply, Gradients):
            return reply._replace(values=torch.where(lying, self.factor * reply.values, reply.values))
        models = (None if U is None else torch.where(lying, origin + self.factor * (U - origin), U) for U in reply[1:])
        return reply._make((reply.clients, *models))


class SignFlipped(Scaled):
    """Some clients send w − (w_i − w), which undoes what the others learn.

    Args:
        fed: the federation inside.
        clients: who they are.
    """

    def __init__(self, fed: Federation, clients: Iterable[int]) -> None:
        super().__init__(fed, clients, -1.0)


def label_noise(data: ClientData, client: int, share: float, key: Key) -> ClientData:
    """The data with random labels on a share of one client's training rows: a client that is honest, but hard.

    Its test rows, and everybody else's rows, stay as they are, if no row belongs to two clients.

    Args:
        data: the clients' samples, with labels as targets.
        client: whose.
        share: of its training rows, in [0, 1], rounded to whole rows; their labels are drawn uniformly from all classes
            that occur, the true one included.
        key: of the draws.

    Raises:
        InputError: there is no such client, the share is out of range, or the targets are no labels.
    """
    checks.fraction("share", share)
    if not 0 <= client < data.n:
        raise InputError(f"there is no client {client}: they are numbered 0 to {data.n - 1}")
    if data.targets.is_floating_point():
        raise InputError("the targets are numbers, not labels: label_noise needs labels")
    generator, mine, classes = key.generator(), data.train[client], data.targets.unique()
    rows = mine[torch.from_numpy(generator.permutation(len(mine)))[: round(share * len(mine))]]
    drawn = torch.from_numpy(generator.integers(len(classes), size=len(rows)))
    return replace(data, targets=data.targets.index_put((rows,), classes[drawn]))
