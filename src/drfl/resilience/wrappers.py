"""Wrappers of an algorithm, which pass on what they do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.federation.algorithm import Algorithm, State, ambiguity_of, flagged, lam_of
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD

S = TypeVar("S", bound=State)
M = TypeVar("M")


class WrapperState(NamedTuple, Generic[S, M]):
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
        """(N,) the mixture, where the algorithm inside has one."""
        lam = lam_of(self.inner)
        if lam is None:
            raise AttributeError("the algorithm inside has no dual variable")
        return lam

    @property
    def flagged(self) -> Tensor | None:
        """(N,) bool, the clients that a wrapper mistrusts at present; None where there is no such wrapper."""
        own = flagged(self.memory)
        return flagged(self.inner) if own is None else own


@dataclass(frozen=True)
class Wrapper(Generic[S]):
    """Base of a wrapper: passes on what an algorithm has besides its state and its rounds.

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
        return ambiguity_of(self.algorithm)


@dataclass(frozen=True)
class WrappedAlgorithm(Wrapper[S]):
    """A wrapper that remembers nothing: its state is that of the algorithm inside."""

    def init(self, fed: Federation) -> S:
        """The state before the first round."""
        return self.algorithm.init(fed)
