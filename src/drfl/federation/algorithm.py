"""The contract of an algorithm: its state, and a round."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.core.key import Key
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.requests import Losses
from drfl.federation.sampling import Cohort
from drfl.optim.local import LocalSGD


@runtime_checkable
class Consistent(Protocol):
    """A part of a state, a NamedTuple, that knows what its fields cannot be: a checkpoint that holds it is damaged."""

    def wrong(self) -> str | None:
        """What is impossible in a few words; None where nothing is."""
        ...


class State(Protocol):
    """What every algorithm's state has: a NamedTuple of tensors with at least this field.

    A checkpoint is held to the first state: every tensor keeps its type and shape (a
    :class:`drfl.federation.client_table.ClientTable` its N and d) for the whole run, and a number that is finite at
    first stays so. A NamedTuple in it may be :class:`Consistent`.
    """

    @property
    def w(self) -> Tensor:
        """(d,) the global model."""
        ...


class DualState(Protocol):
    """A state with a dual variable; whether a state has one, :func:`lam_of` says."""

    @property
    def lam(self) -> Tensor:
        """(N,) float64, the mixture λ."""
        ...


class Info(NamedTuple):
    """What happened in a round.

    Args:
        cohort: Who was asked to train.
        answered: (k',) who did.
        losses: The reports behind the dual step, where there was one.
        average: (d,) what the round adds to the averaged solution: the mean of the global model over its local steps,
            see :class:`drfl.federation.requests.Merged`, unless the theorem speaks of another model; None where the
            clients were not asked for it, or the algorithm has none.
        mixture: (N,) the mixture that goes with it; None = the one that the round started from.
        weight: The round's weight in the averaged solution, above 0.
        excess: (N,) float64, of the clients whose models or gradients were rejected as far too long, how many times the
            usual length they had (infinity where they were not finite), 0 of the others; None = nobody's were.
    """

    cohort: Cohort
    answered: Tensor
    losses: Losses | None = None
    average: Tensor | None = None
    mixture: Tensor | None = None
    weight: float = 1.0
    excess: Tensor | None = None

    @property
    def empty(self) -> bool:
        """Whether nobody answered, so that the round left the state as it was."""
        return self.answered.numel() == 0

    @classmethod
    def nobody(cls, cohort: Cohort) -> Info:
        """A round in which nobody answered."""
        return cls(cohort, torch.empty(0, dtype=torch.int64))


S = TypeVar("S", bound=State)


class Algorithm(Protocol[S]):
    """A server program: a frozen dataclass of hyperparameters whose rounds read like the paper's pseudocode.

    ``round`` must be right when fewer clients answer than were asked. When nobody answers it returns the state as it
    was, with ``Info.nobody``. An algorithm with a dual variable has an ambiguity set, see :class:`Robust`, and a
    :class:`DualState`; one without may say how its objective weighs the clients, see :class:`Weighted`.
    """

    @property
    def local(self) -> LocalSGD:
        """What the clients run."""
        ...

    def init(self, fed: Federation, /) -> S:
        """The state before the first round."""
        ...

    def round(self, state: S, fed: Federation, key: Key, /) -> tuple[S, Info]:
        """One round of communication."""
        ...


@runtime_checkable
class Robust(Protocol):
    """An algorithm that maximises over mixtures."""

    @property
    def ambiguity(self) -> AmbiguitySet | None:
        """The set Λ with its regulariser ψ; None for a wrapper of an algorithm that has none."""
        ...


@runtime_checkable
class Weighted(Protocol):
    """An algorithm whose objective weighs the clients by fixed numbers other than their shares of the samples."""

    def weights(self, fed: Federation) -> Tensor:
        """(N,) float64, the weights, summing to 1."""
        ...


@runtime_checkable
class Sized(Protocol):
    """An algorithm that asks a cohort of a given size."""

    @property
    def m(self) -> int | None:
        """Cohort size; None = :func:`drfl.federation.sampling.size`."""
        ...


@runtime_checkable
class WithoutAverage(Protocol):
    """An algorithm whose global model is no affine function of local models: it has no averaged solution."""

    no_average: ClassVar[bool]


@runtime_checkable
class Wrapping(Protocol):
    """An algorithm around another one."""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm inside."""
        ...


@runtime_checkable
class Personal(Protocol):
    """An algorithm that serves every client a model of its own."""

    def personal(self, state: Any, w: Tensor, fed: Federation, key: Key) -> ClientTable:  # noqa: ANN401 - its own state
        """(N, d) the clients' models.

        Args:
            state: The algorithm's.
            w: (d,) the global model to go from: the state's, or the run's average.
            fed: The clients.
            key: Names the draws of fine-tuning.
        """
        ...


@runtime_checkable
class Separate(Protocol):
    """An algorithm whose clients' models never meet: its global model serves nobody."""

    separate: ClassVar[bool]


def personal_models(algorithm: Algorithm, state: State, w: Tensor, fed: Federation, key: Key) -> ClientTable | None:
    """(N, d) the model that serves each client; None where it is w for all."""
    core = core_of(algorithm)
    if not isinstance(core, Personal):
        return None
    inner: object = state
    while (inside := getattr(inner, "inner", None)) is not None:  # of wrappers' states
        inner = inside
    # Personal models are only made for tests, so their cost is not part of the algorithm's.
    with fed.ledger.paused():
        return core.personal(inner, w, fed, key)


def core_of(algorithm: Algorithm) -> Algorithm:
    """The algorithm inside all wrappers."""
    # getattr: asked several times a round, and isinstance of a protocol takes as long as a small tensor operation.
    while (inside := getattr(algorithm, "algorithm", None)) is not None:
        algorithm = inside
    return algorithm


def lam_of(state: object) -> Tensor | None:
    """(N,) float64, λ of a :class:`DualState`; None of any other state.

    ``isinstance`` would not do: from Python 3.12 on it does not ask a wrapper's state whether there is one inside.
    """
    return getattr(state, "lam", None)


def mixture_of(algorithm: Algorithm, state: State, fed: Federation) -> Tensor:
    """(N,) float64: λ of the state, else the fixed weights of the algorithm's objective, by default the shares."""
    lam = lam_of(state)
    if lam is not None:
        return lam
    # Without λ the algorithm minimises a mean with fixed weights: its own, or the clients' shares of the rows.
    weights = getattr(core_of(algorithm), "weights", None)
    return fed.shares.double() if weights is None else weights(fed)


def ambiguity_of(algorithm: Algorithm) -> AmbiguitySet | None:
    """The set Λ of an algorithm; None where it has no dual variable."""
    core = core_of(algorithm)
    return core.ambiguity if isinstance(core, Robust) else None


def flagged(state: object) -> Tensor | None:
    """(N,) bool, the clients that a guard mistrusts at present; None where nobody looks.

    Args:
        state: An algorithm's, or what a wrapper remembers; it says so as ``flagged``.
    """
    return getattr(state, "flagged", None)
