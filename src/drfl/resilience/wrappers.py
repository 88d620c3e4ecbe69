"""Base classes of algorithm wrappers, which pass on everything that they do not change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.federation.algorithm import Algorithm, References, State, ambiguity_of, flagged, lam_of, references_of
from drfl.federation.federation import Federation
from drfl.federation.user_algorithm import begin
from drfl.optim.local import LocalSGD

S = TypeVar("S", bound=State)
M = TypeVar("M")


class WrapperState(NamedTuple, Generic[S, M]):
    """The state of a wrapper that has a memory.

    Args:
        inner: State of the wrapped algorithm.
        memory: The wrapper's memory, a NamedTuple of tensors.
    """

    inner: S
    memory: M

    @property
    def w(self) -> Tensor:
        """(d,) The global model."""
        return self.inner.w

    @property
    def lam(self) -> Tensor:
        """(N,) The client weights λ, if the wrapped algorithm has them."""
        lam = lam_of(self.inner)
        if lam is None:
            raise AttributeError("the wrapped algorithm has no dual variable")
        return lam

    @property
    def reference(self) -> References | None:
        """The constants in the objective of the wrapped algorithm, if there are any."""
        return references_of(self.inner)

    @property
    def flagged(self) -> Tensor | None:
        """(N,) bool, the clients that a wrapper currently distrusts; None if no wrapper flags clients."""
        flags = flagged(self.memory)
        return flagged(self.inner) if flags is None else flags


@dataclass(frozen=True)
class Wrapper(Generic[S]):
    """Base of a wrapper, which passes on an algorithm's attributes other than its state and rounds.

    Args:
        algorithm: The wrapped algorithm.
    """

    algorithm: Algorithm[S]

    @property
    def local(self) -> LocalSGD:
        """The local solver."""
        return self.algorithm.local

    @property
    def ambiguity(self) -> AmbiguitySet | None:
        """The ambiguity set of the wrapped algorithm; None if it has none."""
        return ambiguity_of(self.algorithm)


@dataclass(frozen=True)
class WrappedAlgorithm(Wrapper[S]):
    """A wrapper without memory: its state is that of the wrapped algorithm."""

    def init(self, fed: Federation) -> S:
        """Return the state before the first round."""
        return begin(self.algorithm, fed)
