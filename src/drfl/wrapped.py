"""Wrappers of a federation and of an algorithm that hand on what they do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from drfl.algorithm import Algorithm, Average, State
from drfl.ambiguity import AmbiguitySet
from drfl.federation import Evaluation, Federation, Ledger
from drfl.local import LocalSGD
from drfl.request import Exchanges, R, Request

S = TypeVar("S", bound=State)
M = TypeVar("M")


class WrappedFederation(Exchanges):
    """Behaves as the federation inside; a subclass overrides :meth:`exchange`, or one verb, or both.

    Args:
        fed: the federation inside.
    """

    def __init__(self, fed: Federation) -> None:
        self.fed = fed

    @property
    def n(self) -> int:
        """Number of clients N."""
        return self.fed.n

    @property
    def shares(self) -> Tensor:
        """(N,) each client's share of the samples."""
        return self.fed.shares

    @property
    def w0(self) -> Tensor:
        """(d,) the initial model."""
        return self.fed.w0

    @property
    def ledger(self) -> Ledger:
        """The ledger of the federation inside."""
        return self.fed.ledger

    def exchange(self, request: Request[R]) -> R:
        """See :class:`Exchanges`."""
        return request.put(self.fed)

    def evaluate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.Federation`."""
        return self.fed.evaluate(w)


class Carried(NamedTuple, Generic[S, M]):
    """The state of a wrapper that remembers something from round to round.

    Args:
        inner: the state of the algorithm inside.
        memory: what the wrapper remembers: a NamedTuple of tensors.
    """

    inner: S
    memory: M

    @property
    def w(self) -> Tensor:
        """(d,) the global model."""
        return self.inner.w

    @property
    def lam(self) -> Tensor:
        """(N,) the mixture."""
        return self.inner.lam

    @property
    def average(self) -> Average | None:
        """The averaged solution of the algorithm inside."""
        return self.inner.average

    @property
    def flagged(self) -> Tensor | None:
        """(N,) bool, the clients that a wrapper mistrusts at present; None where none of them looks."""
        own: Tensor | None = getattr(self.memory, "flagged", None)
        return getattr(self.inner, "flagged", None) if own is None else own


@dataclass(frozen=True)
class Wrapper(Generic[S]):
    """What an algorithm has beside its state and its rounds, handed on.

    Args:
        algorithm: the algorithm inside.
    """

    algorithm: Algorithm[S]

    @property
    def local(self) -> LocalSGD:
        """What the clients run."""
        return self.algorithm.local

    @property
    def ambiguity(self) -> AmbiguitySet | None:
        """The set Λ of the algorithm inside, where it has one."""
        return getattr(self.algorithm, "ambiguity", None)


@dataclass(frozen=True)
class WrappedAlgorithm(Wrapper[S]):
    """A wrapper that remembers nothing: its state is that of the algorithm inside."""

    def init(self, fed: Federation) -> S:
        """The state before the first round."""
        return self.algorithm.init(fed)
