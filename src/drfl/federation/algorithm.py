"""The interface of an algorithm: its state, its rounds and its optional properties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.ambiguity.ambiguity_set import check_ambiguity
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.local_method import OwnModels
from drfl.federation.requests import Losses
from drfl.federation.sampling import Cohort, size
from drfl.optim.local import LocalSGD, check_local


@runtime_checkable
class Consistent(Protocol):
    """A NamedTuple within a state that can check its fields, to detect damaged checkpoints."""

    def describe_fault(self) -> str | None:
        """Describe an impossible value in a few words; return None if there is none."""
        ...


class State(Protocol):
    """The state of an algorithm: a NamedTuple of tensors with at least this field.

    drfl checks a checkpoint against the initial state. For the whole run, every tensor must keep its type and shape (a
    :class:`drfl.federation.client_table.ClientTable` its N and d), and a number that is finite at first must remain
    finite. A NamedTuple within the state may be :class:`Consistent`.
    """

    @property
    def w(self) -> Tensor:
        """Global model (d,)."""
        ...


def parts_of(state: object, name: str = "state") -> Iterator[tuple[str, Tensor | ClientTable]]:
    """Iterate over the tensors and tables in a state with their paths, such as "state.average.w".

    Raises:
        TypeError: If a part is something else, which cannot be saved.
    """
    fields: tuple[str, ...] | None = getattr(state, "_fields", None)
    if isinstance(state, Tensor | ClientTable):
        yield name, state
    elif isinstance(state, tuple) and fields is not None:
        for field, inner in zip(fields, state, strict=True):
            yield from parts_of(inner, f"{name}.{field}")
    elif state is not None:
        raise TypeError(
            f"{name} is a {type(state).__name__}, but only tensors, client tables and NamedTuples of them can be saved"
        )


class References(NamedTuple):
    """Constants f_i* in the objective Σ_i λ_i (f_i(w) − f_i*) − ψ(λ), such as the losses of the clients' own models.

    Args:
        values: (N,) float64 f_i*, 0 for clients that have none yet.
        known: (N,) bool, True for clients that have one.
    """

    values: Tensor
    known: Tensor


class Info(NamedTuple):
    """The events of a round.

    Args:
        cohort: Clients that were asked to train.
        answered: Clients that answered, (k',).
        losses: Reported losses for the dual update, if there was one; excess losses if it follows those.
        average: The round's contribution (d,) to the averaged solution. Unless the theorem uses another model, it is
            the mean of the global model over the local steps; see :class:`drfl.federation.requests.Merged`. None if the
            clients did not compute it, or the algorithm has no averaged solution.
        mixture: Client weights (N,) that belong to ``average``; None = those at the start of the round.
        weight: Weight of the round in the averaged solution, above 0.
        excess: For clients whose update or gradient was rejected as too long, its length relative to the usual one, and
            0 for the others, float64 (N,). It is infinity for values that are not finite. None = nothing was rejected.
    """

    cohort: Cohort
    answered: Tensor
    losses: Losses | None = None
    average: Tensor | None = None
    mixture: Tensor | None = None
    weight: float = 1.0
    excess: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no client answered, so that the round did not change the state."""
        return self.answered.numel() == 0

    @classmethod
    def without_replies(cls, cohort: Cohort) -> Info:
        """Create the Info of a round in which no client answered."""
        return cls(cohort, torch.empty(0, dtype=torch.int64))


S = TypeVar("S", bound=State)


class Algorithm(Protocol[S]):
    """A server program: a frozen dataclass of hyperparameters whose rounds read like the paper's pseudocode.

    ``round`` must be correct even if only part of the cohort answers. If no client answers, it returns the unchanged
    state with ``Info.without_replies``. An algorithm with a dual variable has an ambiguity set (see :class:`Robust`)
    and a state with the client weights ``lam``, float64 (N,). An algorithm without one may have fixed client weights
    other than the clients' shares of the samples: ``weights(fed)`` returns them, float64 (N,), with the sum 1.
    """

    @property
    def local(self) -> LocalSGD:
        """Local solver of the clients."""
        ...

    def init(self, fed: Federation, /) -> S:
        """Create the state before the first round."""
        ...

    def round(self, state: S, fed: Federation, key: Key, /) -> tuple[S, Info]:
        """Run one communication round."""
        ...


LOCAL_FIELD = "local: LocalSGD = field(default_factory=LocalSGD)"
"""The field of an algorithm's class with the local solver."""


def check_algorithm_type(algorithm: object, name: str = "algorithm") -> None:
    """Raise InputError unless this is an algorithm with a local solver and, if it has one, an ambiguity set.

    Without this check the first error would be about a missing attribute.

    Args:
        algorithm: The value that the user passed.
        name: The name of its argument.
    """
    if isinstance(algorithm, type):
        kind = algorithm.__name__
        text = f"'{name}' is the class {kind}. Pass an object such as {kind}(m=10)"
        raise InputError(text, code="wrong-type", field=name)
    kind = type(algorithm).__name__
    missing = [f"method '{part}'" for part in ("init", "round") if not callable(getattr(algorithm, part, None))]
    if len(missing) == 2:
        text = f"'{name}' must be an algorithm such as drfl.DRFA(m=10), got an object of type {kind}"
        raise InputError(text, code="wrong-type", field=name)
    if missing:
        text = f"the algorithm {kind} has no {missing[0]}: see drfl.Algorithm for the required parts"
        raise InputError(text, code="wrong-type", field=name)
    if not hasattr(algorithm, "local"):
        text = f"the algorithm {kind} has no local solver: add the field {LOCAL_FIELD}"
        raise InputError(text, code="wrong-type", field=name)
    check_local(algorithm.local)  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(algorithm, Robust) and algorithm.ambiguity is not None:
        check_ambiguity(algorithm.ambiguity)


@runtime_checkable
class Robust(Protocol):
    """An algorithm that maximises over client weights."""

    @property
    def ambiguity(self) -> AmbiguitySet | None:
        """Ambiguity set Λ with its regulariser ψ; None for a wrapper of an algorithm without one."""
        ...


@runtime_checkable
class Wrapping(Protocol):
    """An algorithm that wraps another one."""

    @property
    def algorithm(self) -> Algorithm:
        """The wrapped algorithm."""
        ...


@runtime_checkable
class Personal(Protocol):
    """An algorithm that gives every client a personal model."""

    def personal(
        self,
        state: Any,  # noqa: ANN401 - its own state
        w: Tensor,
        fed: Federation,
        key: Key,
    ) -> ClientTable | OwnModels:
        """Return the clients' models (N, d), or the method by which each client assembles its own.

        Args:
            state: State of the algorithm.
            w: Global model (d,) to start from: that of the state, or the run's average.
            fed: The clients.
            key: Key for the random draws of fine-tuning.
        """
        ...


def default_cohort(algorithm: Algorithm | type[Algorithm], n: int) -> int:
    """Return the default size of an algorithm's cohort, see :func:`drfl.federation.sampling.size`.

    An algorithm whose default is all clients states this with a class attribute ``full_participation``.
    """
    return n if getattr(algorithm, "full_participation", False) else size(None, n)


def is_separate(algorithm: Algorithm) -> bool:
    """Return whether only the clients' own models are useful, so that the loss of the global model is irrelevant.

    An algorithm states this with a class attribute ``separate``.
    """
    return bool(getattr(core_of(algorithm), "separate", False))


def proximal_weight(algorithm: Algorithm) -> float:
    """Return μ if the local steps minimise a loss plus (μ/2)·‖u − w‖², else 0.

    An algorithm states this with an attribute ``proximal_weight``. It adds to the curvature of the loss.

    Raises:
        InputError: If it is not a finite number of at least 0.
    """
    value = getattr(core_of(algorithm), "proximal_weight", 0.0)
    checks.non_negative("proximal_weight", value)
    return float(value)


def is_isolated(algorithm: Algorithm) -> bool:
    """Return whether every client trains alone and sends nothing, so that no client affects another one.

    An algorithm states this with a class attribute ``isolated``.
    """
    return bool(getattr(core_of(algorithm), "isolated", False))


def personal_models(
    algorithm: Algorithm, state: State, w: Tensor, fed: Federation, key: Key
) -> ClientTable | OwnModels | None:
    """Return the model of each client (N, d); None if all use w."""
    core = core_of(algorithm)
    if not isinstance(core, Personal):
        return None
    inner: object = state
    while (inside := getattr(inner, "inner", None)) is not None:  # The states of wrappers contain the inner state.
        inner = inside
    # Personal models are only computed for evaluation, so their cost does not count for the algorithm.
    with fed.ledger.paused():
        return core.personal(inner, w, fed, key)


def core_of(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm inside all wrappers."""
    # This runs several times per round. isinstance with a protocol takes as long as a small tensor operation, so use
    # getattr.
    while (inside := getattr(algorithm, "algorithm", None)) is not None:
        algorithm = inside
    return algorithm


def lam_of(state: object) -> Tensor | None:
    """Return the client weights λ of a state with a dual variable, float64 (N,); None for any other state."""
    # isinstance would not work: since Python 3.12, it ignores attributes that a wrapper's state forwards dynamically.
    return getattr(state, "lam", None)


def references_of(state: object) -> References | None:
    """Return the constants in the objective of a state; None if the losses themselves are its objective."""
    references = getattr(state, "reference", None)
    return references if isinstance(references, References) else None


def mixture_of(algorithm: Algorithm, state: State, fed: Federation) -> Tensor:
    """Return λ of the state, or the fixed client weights of the objective (by default the shares), float64 (N,)."""
    lam = lam_of(state)
    if lam is not None:
        return lam
    # Without λ, the algorithm minimises a mean with fixed weights: those it defines, or the clients' shares.
    weights = getattr(core_of(algorithm), "weights", None)
    return fed.shares.double() if weights is None else weights(fed)


def ambiguity_of(algorithm: Algorithm) -> AmbiguitySet | None:
    """Return the ambiguity set Λ of an algorithm; None if it has no dual variable."""
    core = core_of(algorithm)
    return core.ambiguity if isinstance(core, Robust) else None


def flagged(state: object) -> Tensor | None:
    """Return which clients a guard excludes at present, bool (N,); None if there is no guard.

    Args:
        state: State of an algorithm or wrapper; its attribute ``flagged`` is the result.
    """
    return getattr(state, "flagged", None)
