"""Federations with malicious clients, and data of a client that is honest but hard.

Clients that report a large loss draw the weight λ to themselves and away from the others: colluding clients with the
same claim can starve a victim (:class:`InflatedLosses`, :class:`ConstantLosses`). Clients that report a small loss
starve themselves or, in large numbers, hide the losses of the others (:class:`DeflatedLosses`). The subclasses of
:class:`FalseVectors` falsify models and gradients. :func:`flip_labels` makes clients that are wrong without knowing it,
and :class:`PermanentDropout` makes clients that leave.
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
from drfl.federation.requests import (
    Gradients,
    Losses,
    R,
    Replies,
    Request,
    TrainRequest,
    reports_of,
    select_rows,
    with_reports,
)

TINY = 1e-12
"""A norm that replaces zero as a divisor."""


class MaliciousClients(WrappedFederation):
    """Some clients are malicious. They still compute and send everything, so the ledger is that of honest clients.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
    """

    def __init__(self, fed: Federation, clients: Iterable[int]) -> None:
        super().__init__(fed)
        self.clients = torch.tensor(sorted(clients), dtype=torch.int64)

    def is_malicious(self, clients: Tensor) -> Tensor:
        """Return (k,) bool, which of these clients (k,) are malicious."""
        return torch.isin(clients, self.clients)


class FalseLosses(MaliciousClients, ABC):
    """Some clients falsify their reported losses, alone and with gradients; a subclass defines the false losses."""

    @abstractmethod
    def falsify(self, values: Tensor) -> Tensor:
        """Return the (k,) losses that are claimed instead of the true losses (k,)."""

    def ask(self, request: Request[R]) -> R:
        """Send a request and falsify the reported losses in the reply."""
        reply = super().ask(request)
        reports = reports_of(reply)
        if reports is None:
            return reply
        clients, values = reports
        return with_reports(reply, torch.where(self.is_malicious(clients), self.falsify(values), values))


class InflatedLosses(FalseLosses):
    """Some clients report their loss times a factor above 1, so that λ, and with it the model, turns to them.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        factor: Factor of the loss.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float = 100.0) -> None:
        super().__init__(fed, clients)
        self.factor = factor

    def falsify(self, values: Tensor) -> Tensor:
        """Return the (k,) losses times the factor."""
        return self.factor * values


class DeflatedLosses(InflatedLosses):
    """Some clients report their loss times a factor below 1, so that λ ignores them.

    Only they suffer, unless a bound is made from the reports of all clients: low reports then pull it down. To starve a
    *victim*, let all other clients collude in :class:`InflatedLosses`; they take the victim's weight.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        factor: Factor of the loss.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float = 0.01) -> None:
        super().__init__(fed, clients, factor)


class ConstantLosses(FalseLosses):
    """Some clients claim one constant loss, which may be NaN or infinite; several such clients collude.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        value: The claimed loss.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], value: float) -> None:
        super().__init__(fed, clients)
        self.value = value

    def falsify(self, values: Tensor) -> Tensor:
        """Return the claimed loss (k,)."""
        return torch.full_like(values, self.value)


class FalseVectors(MaliciousClients, ABC):
    """Some clients send false models and gradients; a subclass defines them.

    The malicious clients know the honest replies to the same request, and nothing else.
    """

    @abstractmethod
    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return the (f, d) vectors that the f malicious clients send as gradients, or as differences w − w_i.

        Args:
            own: (f, d) their own honest vectors.
            honest: (k, d) the vectors of the honest clients; k may be 0.
            part: Fraction of the way from w to the last model: 1 for the last model and for gradients, less for
                snapshots and means.
        """

    def ask(self, request: Request[R]) -> R:
        """Send a request and falsify the vectors in the reply."""
        reply = super().ask(request)
        malicious = self.is_malicious(reply.clients).to(request.w.device)
        if isinstance(reply, Losses) or not bool(malicious.any()):
            return reply
        if isinstance(reply, Gradients):
            G = reply.values
            return reply._replace(values=G.index_put((malicious,), self.falsify(G[malicious], G[~malicious], 1.0)))
        assert isinstance(request, TrainRequest)
        tau, sent = request.local.fewest_steps, request.w
        # After t of τ steps models are t/τ of the way, and the mean of models 1…τ is (τ+1)/(2τ) of it.
        way = 1.0, (request.snapshot or tau) / tau, (tau + 1) / (2 * tau)
        assert isinstance(reply, Replies)
        w, snapshot, average = (
            None
            if U is None
            else U.index_put((malicious,), sent - self.falsify(sent - U[malicious], sent - U[~malicious], part))
            for U, part in zip(reply.models, way, strict=True)
        )
        return reply._replace(w=w, snapshot=snapshot, average=average)


class ScaledUpdates(FalseVectors):
    """Some clients send w + factor·(w_i − w) instead of their models w_i, and gradients times the factor.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        factor: Factor of the update.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], factor: float) -> None:
        super().__init__(fed, clients)
        self.factor = factor

    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return their own vectors times the factor."""
        return self.factor * own


class SignFlip(ScaledUpdates):
    """Some clients send w − (w_i − w), which undoes what the other clients learn.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
    """

    def __init__(self, fed: Federation, clients: Iterable[int]) -> None:
        super().__init__(fed, clients, -1.0)


class ConstantPush(FalseVectors):
    """Colluding clients push the model in the same direction in every round, as far as the honest clients' median.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        key: Key of the direction, which is uniform on the sphere.
        length: Length of an update, relative to the honest median or, without honest replies, to their own median.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], key: Key, length: float = 1.0) -> None:
        super().__init__(fed, clients)
        # The direction of a vector of normal entries is uniform on the sphere.
        direction = torch.from_numpy(key.generator().normal(size=fed.w0.numel())).to(fed.w0)
        self.direction, self.length = direction / direction.norm(), length

    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return the same vector for all of them."""
        usual = (honest if len(honest) else own).norm(dim=1).median()
        return (-self.length * usual * self.direction).expand_as(own)


class ALittleIsEnough(FalseVectors):
    """Colluding clients hide in the spread of the honest ones: mean − z·std in each coordinate (Baruch et al. 2019).

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        z: Number of standard deviations. None for the largest z at which, for normal values, enough honest clients lie
            farther out for the malicious ones to seem part of the majority.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], z: float | None = None) -> None:
        super().__init__(fed, clients)
        self.z = z

    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return the same vector for all of them; their own vectors if there are fewer than two honest ones."""
        f, k = len(own), len(honest)
        if k < 2:
            return own
        # Honest clients that must lie farther out for the attackers to form a majority with them.
        supporters = (f + k) // 2 + 1 - f
        # Clamp, because with few clients z would be negative or infinite.
        z = NormalDist().inv_cdf(min(max((k - supporters) / k, 0.5), 0.99)) if self.z is None else self.z
        return (honest.mean(0) - z * honest.std(0)).expand_as(own)


class InnerProductManipulation(FalseVectors):
    """Colluding clients send a small multiple of the negative honest mean (Xie et al. 2020).

    A short vector is not an outlier, but the sum of all vectors still points the wrong way.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        epsilon: Multiple of the honest mean.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], epsilon: float = 0.5) -> None:
        super().__init__(fed, clients)
        self.epsilon = epsilon

    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return the same vector for all of them, made from their own vectors if there are no honest ones."""
        return (-self.epsilon * (honest if len(honest) else own).mean(0)).expand_as(own)


class AdaptiveAttack(FalseVectors):
    """Malicious clients know the rule of :class:`drfl.resilience.ProbeCosine` and stay just within it.

    Each sends a vector that has a fixed cosine with its own honest vector and otherwise opposes the honest mean.
    Tramèr et al. (2020) require testing a defence with an attack made for it.

    Args:
        fed: The wrapped federation.
        clients: The malicious clients.
        cosine: Cosine with their own vector, in (0, 1].
        length: Length of the vector relative to their own.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], cosine: float = 0.3, length: float = 1.5) -> None:
        super().__init__(fed, clients)
        self.cosine, self.length = cosine, length

    def falsify(self, own: Tensor, honest: Tensor, part: float) -> Tensor:
        """Return a different vector for each of them."""
        size = own.norm(dim=1, keepdim=True)
        along = own / size.clamp(min=TINY)
        against = -(honest if len(honest) else own).mean(0).expand_as(own)
        # Make it orthogonal to their own vectors, so that the cosine is exactly the one allowed.
        across = against - (against * along).sum(1, keepdim=True) * along
        across = across / across.norm(dim=1, keepdim=True).clamp(min=TINY)
        return self.length * size * (self.cosine * along + (1 - self.cosine**2) ** 0.5 * across)


class PermanentDropout(MaliciousClients):
    """Some clients stop answering after a number of requests to train.

    Args:
        fed: The wrapped federation.
        clients: The clients that leave.
        after: Number of requests to train that they still answer.
    """

    def __init__(self, fed: Federation, clients: Iterable[int], after: int) -> None:
        super().__init__(fed, clients)
        self.left = after

    def ask(self, request: Request[R]) -> R:
        """Send a request, and remove the replies of clients that have left."""
        reply = super().ask(request)
        if self.left <= 0:
            return select_rows(reply, ~self.is_malicious(reply.clients))
        self.left -= isinstance(request, TrainRequest)
        return reply


def flip_labels(data: ClientData, clients: Iterable[int]) -> ClientData:
    """Replace label y by C − 1 − y in some clients' training rows, for C classes; test rows do not change.

    Negative targets, such as targets that a loss ignores, do not change either.

    Args:
        data: The clients' samples, with labels as targets.
        clients: The clients whose labels are flipped.

    Raises:
        InputError: If a client does not exist, or the targets are not labels.
    """
    _check_labels(data, clients := list(clients))
    rows = torch.cat([data.train[client] for client in clients]) if clients else torch.empty(0, dtype=torch.int64)
    labels = data.targets[rows]
    last = data.targets.max() if data.classes is None else len(data.classes) - 1
    return replace(data, targets=data.targets.index_put((rows,), torch.where(labels < 0, labels, last - labels)))


def _check_labels(data: ClientData, clients: Iterable[int]) -> None:
    for client in clients:
        if not 0 <= client < data.n:
            raise InputError(
                f"client must be between 0 and {data.n - 1}, got {client!r}", code="out-of-range", field="client"
            )
    if data.targets.is_floating_point():
        raise InputError(
            "expected class labels as targets, got floating-point numbers", code="wrong-task", field="targets"
        )


def label_noise(data: ClientData, client: int, share: float, key: Key) -> ClientData:
    """Give random labels to a share of one client's training rows: a client that is honest but hard.

    Its test rows and the rows of other clients do not change, if no row belongs to two clients.

    Args:
        data: The clients' samples, with labels as targets.
        client: The client.
        share: Share of its training rows, in [0, 1], rounded to whole rows. Labels are drawn uniformly from all classes
            that occur, including the true one. Negative targets, such as targets that a loss ignores, do not change.
        key: Key of the draws.

    Raises:
        InputError: If the client does not exist, the share is out of range, or the targets are not labels.
    """
    checks.fraction("share", share)
    _check_labels(data, [client])
    generator, mine, classes = key.generator(), data.train[client], data.targets[data.targets >= 0].unique()
    rows = mine[torch.from_numpy(generator.permutation(len(mine)))[: round(share * len(mine))]]
    drawn, labels = torch.from_numpy(generator.integers(len(classes), size=len(rows))), data.targets[rows]
    return replace(data, targets=data.targets.index_put((rows,), torch.where(labels < 0, labels, classes[drawn])))
