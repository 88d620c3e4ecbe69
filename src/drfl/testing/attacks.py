"""Federations of which some clients lie, and data of a client that is honest but hard.

Who claims a large loss draws the weight λ to himself, and away from the others: colluders that share a claim starve a
victim (:class:`Inflated`, :class:`Claims`). Who claims a small one starves himself, or, as one of many, lets the others
think that all is well (:class:`UnderReporting`). The subclasses of :class:`FalseVectors` lie about models and
gradients; :func:`flipped_labels` makes liars that do not know of it, and :class:`Vanishing` some that leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import Gradients, Losses, R, Request, TrainRequest, answers, reports_of, with_reports

TINY = 1e-12
"""A length that is divided by in place of zero."""


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


class FalseVectors(Dishonest, ABC):
    """Some clients' models and gradients are false; a subclass says what they send.

    They know what the honest ones answer to the same request, and nothing else.
    """

    @abstractmethod
    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """(f, d) what the f liars send as gradients, or as moves w − w_i.

        Args:
            own: (f, d) what they found themselves.
            honest: (k, d) what the honest ones send; k may be 0.
            part: how much of the way from w to the last model this is: 1 for that and for gradients, less for
                snapshots and means.
        """

    def ask(self, request: Request[R]) -> R:
        """Send a request and falsify the vectors in what comes back."""
        reply = super().ask(request)
        lying = self.lying(reply.clients).to(request.w.device)
        if isinstance(reply, Losses) or not bool(lying.any()):
            return reply
        if isinstance(reply, Gradients):
            G = reply.values
            return reply._replace(values=G.index_put((lying,), self.sent(G[lying], G[~lying], 1.0)))
        assert isinstance(request, TrainRequest)
        tau, w = request.local.fewest_steps, request.w
        # After t of τ steps models are t/τ of the way, and the mean of models 1…τ is (τ+1)/(2τ) of it.
        way = 1.0, (request.snapshot or tau) / tau, (tau + 1) / (2 * tau)
        models = (
            None if U is None else U.index_put((lying,), w - self.sent(w - U[lying], w - U[~lying], part))
            for U, part in zip(reply[1:], way, strict=True)
        )
        return reply._make((reply.clients, *models))


class Scaled(FalseVectors):
    """Some clients send w + factor·(w_i − w) in place of their models w_i, and gradients times the factor.

    Args:
        fed: the federation inside.
        clients: who they are.
        factor: what a move is multiplied with.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float) -> None:
        super().__init__(fed, clients)
        self.factor = factor

    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Their own, times the factor."""
        return self.factor * own


class SignFlipped(Scaled):
    """Some clients send w − (w_i − w), which undoes what the others learn.

    Args:
        fed: the federation inside.
        clients: who they are.
    """

    def __init__(self, fed: Federation, clients: Iterable[int]) -> None:
        super().__init__(fed, clients, -1.0)


class Pushing(FalseVectors):
    """Colluders that push the model the same way in every round, by a step as long as the honest ones' median.

    Args:
        fed: the federation inside.
        clients: who they are.
        key: of the direction, uniform on the sphere.
        length: of a step, over the honest median; or, with no honest reply, over their own.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], key: Key, length: float = 1.0) -> None:
        super().__init__(fed, clients)
        # The direction of a vector of normal entries is uniform on the sphere.
        direction = torch.from_numpy(key.generator().normal(size=fed.w0.numel())).to(fed.w0)
        self.direction, self.length = direction / direction.norm(), length

    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """All the same."""
        usual = (honest if len(honest) else own).norm(dim=1).median()
        return (-self.length * usual * self.direction).expand_as(own)


class ALittle(FalseVectors):
    """Colluders that hide in the spread of the honest ones: mean − z·std in each coordinate (Baruch et al. 2019).

    Args:
        fed: the federation inside.
        clients: who they are.
        z: how far; None = the farthest at which, of normal values, enough honest ones lie farther still for the liars
            to seem to be of the majority.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], z: float | None = None) -> None:
        super().__init__(fed, clients)
        self.z = z

    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """All the same; their own where they cannot see two honest ones."""
        f, k = len(own), len(honest)
        if k < 2:
            return own
        # Honest clients that must lie farther out for the attackers to form a majority with them.
        supporters = (f + k) // 2 + 1 - f
        # Clamped: with few clients z would be negative or infinite.
        z = NormalDist().inv_cdf(min(max((k - supporters) / k, 0.5), 0.99)) if self.z is None else self.z
        return (honest.mean(0) - z * honest.std(0)).expand_as(own)


class InnerProduct(FalseVectors):
    """Colluders that send the honest mean backwards, a little of it (Xie et al. 2020).

    So short a vector is no outlier, and the sum of all still goes the wrong way.

    Args:
        fed: the federation inside.
        clients: who they are.
        epsilon: how much of it.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], epsilon: float = 0.5) -> None:
        super().__init__(fed, clients)
        self.epsilon = epsilon

    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """All the same; their own backwards where there is no honest one."""
        return (-self.epsilon * (honest if len(honest) else own).mean(0)).expand_as(own)


class Adaptive(FalseVectors):
    """Attackers that know the rule of :class:`drfl.resilience.ProbeCosine`, and keep just within it.

    Each sends a vector that has a fixed cosine with its own honest one, and goes otherwise against the honest mean. An
    attack made for one defence is the test that Tramèr et al. (2020) ask for.

    Args:
        fed: the federation inside.
        clients: who they are.
        cosine: with their own, in (0, 1].
        length: of what they send, over their own's.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], cosine: float = 0.3, length: float = 1.5) -> None:
        super().__init__(fed, clients)
        self.cosine, self.length = cosine, length

    def sent(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Each another."""
        size = own.norm(dim=1, keepdim=True)
        along = own / size.clamp(min=TINY)
        against = -(honest if len(honest) else own).mean(0).expand_as(own)
        # Orthogonal to their own vectors, so that the cosine is exactly the one allowed.
        across = against - (against * along).sum(1, keepdim=True) * along
        across = across / across.norm(dim=1, keepdim=True).clamp(min=TINY)
        return self.length * size * (self.cosine * along + (1 - self.cosine**2) ** 0.5 * across)


class Vanishing(Dishonest):
    """Some clients answer nothing after a number of requests to train.

    Args:
        fed: the federation inside.
        clients: who they are.
        after: the requests of the federation that they still see.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], after: int) -> None:
        super().__init__(fed, clients)
        self.left = after

    def ask(self, request: Request[R]) -> R:
        """Send a request; those who are gone are not heard."""
        reply = super().ask(request)
        if self.left <= 0:
            return answers(reply, ~self.lying(reply.clients))
        self.left -= isinstance(request, TrainRequest)
        return reply


def flipped_labels(data: ClientData, clients: Iterable[int]) -> ClientData:
    """The data with label y as C − 1 − y on some clients' training rows, for C classes; their test rows stay.

    Negative targets, such as those that a loss ignores, stay too.

    Args:
        data: the clients' samples, with labels as targets.
        clients: whose.

    Raises:
        InputError: there is no such client, or the targets are no labels.
    """
    _check_labels(data, clients := list(clients))
    rows = torch.cat([data.train[client] for client in clients]) if clients else torch.empty(0, dtype=torch.int64)
    labels = data.targets[rows]
    return replace(
        data, targets=data.targets.index_put((rows,), torch.where(labels < 0, labels, data.targets.max() - labels))
    )


def _check_labels(data: ClientData, clients: Iterable[int]) -> None:
    for client in clients:
        if not 0 <= client < data.n:
            raise InputError(
                f"there is no client {client}: they are numbered 0 to {data.n - 1}", code="out-of-range", field="client"
            )
    if data.targets.is_floating_point():
        raise InputError(
            "the targets are numbers, and no labels, which are needed here", code="wrong-task", field="targets"
        )


def label_noise(data: ClientData, client: int, share: float, key: Key) -> ClientData:
    """The data with random labels on a share of one client's training rows: a client that is honest, but hard.

    Its test rows, and everybody else's rows, stay as they are, if no row belongs to two clients.

    Args:
        data: the clients' samples, with labels as targets.
        client: whose.
        share: of its training rows, in [0, 1], rounded to whole rows; their labels are drawn uniformly from all classes
            that occur, the true one included. Negative targets, such as those that a loss ignores, stay.
        key: of the draws.

    Raises:
        InputError: there is no such client, the share is out of range, or the targets are no labels.
    """
    checks.fraction("share", share)
    _check_labels(data, [client])
    generator, mine, classes = key.generator(), data.train[client], data.targets[data.targets >= 0].unique()
    rows = mine[torch.from_numpy(generator.permutation(len(mine)))[: round(share * len(mine))]]
    drawn, labels = torch.from_numpy(generator.integers(len(classes), size=len(rows))), data.targets[rows]
    return replace(data, targets=data.targets.index_put((rows,), torch.where(labels < 0, labels, classes[drawn])))
