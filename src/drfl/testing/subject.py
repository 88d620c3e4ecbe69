"""The argument of an algorithm's checks: the algorithm, in the required variants, and clients to run it on."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.core.key import Key
from drfl.engine import Engine, Loop
from drfl.federation.algorithm import Algorithm, Info, State, mixture_of
from drfl.federation.federation import Federation
from drfl.federation.local_method import LocalMethod
from drfl.federation.sampling import Cohort, Sampling, all_clients
from drfl.testing.federations import Call, ConstantFederation
from drfl.testing.report import NotApplicable
from drfl.testing.toy_problem import ToyProblem, exact

SEED = 1
"""Seed of every check, so that the checks give the same result every time."""


class Solves(NamedTuple):
    """The limit of an algorithm's last iterate with exact gradients.

    Args:
        name: Name of the solution, for messages.
        residual: (federation, algorithm, state) → distance of the state from the solution; 0 exactly at the solution.
        sampled: Whether the algorithm reaches it also if only some clients take part in a round.
    """

    name: str
    residual: Callable[[Federation, Algorithm, State], float]
    sampled: bool = False


class Reduction(NamedTuple):
    """Two algorithms that must take the same steps at the same keys.

    Args:
        name: A name such as ``"mu=0 is FedAvg"``.
        ours: The algorithm under test with special hyperparameters.
        theirs: The algorithm that it must equal.
        fields: Fields of the states that must agree.
        tolerance: Tolerance of the comparison.
    """

    name: str
    ours: Algorithm
    theirs: Algorithm
    fields: tuple[str, ...] = ()
    tolerance: float = 1e-10


class ReplayedRound(NamedTuple):
    """One recorded round, for a reference implementation to replay.

    Args:
        cohort: The clients that were asked to train, and their multiplicities.
        info: The algorithm's report on the round.
        calls: Every request of the round.
    """

    cohort: Cohort
    info: Info
    calls: Sequence[Call]


class Oracle:
    """Losses and gradients of single clients on all their data, in NumPy.

    Args:
        fed: The federation, which gets full-batch requests.
    """

    def __init__(self, fed: Federation) -> None:
        self._fed, self.n, self.shares, self.w0 = fed, fed.n, fed.shares.numpy(), fed.w0.numpy()

    def loss(self, i: int, w: np.ndarray) -> float:
        """Return f_i(w)."""
        return float(self._ask(i, w)[1])

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        """Return ∇f_i(w), (d,)."""
        return self._ask(i, w)[0].numpy()

    def _ask(self, i: int, w: np.ndarray) -> tuple[Tensor, Tensor]:
        # A gradient comes with its loss, so one request serves both. Full batches ignore the key.
        reply = self._fed.gradients(torch.tensor([i]), torch.from_numpy(w), Key(SEED))
        return reply.values[0], reply.losses[0]


Reference = Callable[[Algorithm, Oracle, Sequence[ReplayedRound]], Sequence[Mapping[str, np.ndarray]]]
"""(algorithm, oracle, recorded rounds) → fields of the state after each round, such as {"w": …, "lam": …}.

A second implementation, written from the paper and not from the first one. It gets the participating clients, and
computes everything else.
"""


STEP_NAMES = ("gamma", "sigma")
"""Names of the dual step size in algorithms."""
BATCH_NAMES = ("dual_batch", "loss_batch")
"""Names of the number of samples for a reported loss in algorithms."""


@dataclass(frozen=True, eq=False)
class Subject:
    """An algorithm to check, with the claims of its author.

    Args:
        algorithm: A frozen dataclass with ``init``, ``round`` and ``local``.
        trial: The problem on which it runs.
        solves: Its limit, or None.
        reductions: Its special cases.
        reference: A second implementation, or None.
        rounds: Number of rounds within which it converges.
        tolerance: Distance from the solution that counts as converged.
    """

    algorithm: Algorithm
    trial: ToyProblem
    solves: Solves | None = None
    reductions: tuple[Reduction, ...] = ()
    reference: Reference | None = None
    rounds: int = 500
    tolerance: float = 1e-4
    cache: dict[str, Federation] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """N, the number of clients."""
        return self.exact.n

    def constant_losses(self) -> ConstantFederation:
        """Make as many clients with different constant losses; models have 3 parameters."""
        # Shuffle, so that confusing clients with positions shows.
        values = np.random.default_rng(self.n).permutation(np.linspace(0.1, 2, self.n))
        if isinstance(self.algorithm, LocalMethod):
            return ConstantFederation(torch.from_numpy(values), model=self.exact.model)
        # d ≠ N, so that shapes distinguish models from tables of clients.
        return ConstantFederation(torch.from_numpy(values), d=3 if self.n != 3 else 4)

    def skewed(self) -> Tensor:
        """Return an (N,) mixture that is far from uniform, with positive entries."""
        weights = torch.arange(1, self.n + 1, dtype=torch.float64) ** -1.5
        return weights / weights.sum()

    def mixture(self, state: State) -> Tensor:
        """Return (N,) λ of a state, or the fixed weights of the objective."""
        return mixture_of(self.algorithm, state, self.exact)

    @property
    def fields(self) -> frozenset[str]:
        """The names of the algorithm's hyperparameters."""
        return frozenset(f.name for f in dataclasses.fields(self.algorithm) if f.init)  # pyright: ignore

    def has(self, *names: str) -> bool:
        """Return whether the algorithm has a hyperparameter with one of these names."""
        return not self.fields.isdisjoint(names)

    def needs(self, *names: str) -> None:
        """Raise :class:`NotApplicable` unless the algorithm has a hyperparameter with one of these names."""
        if not self.has(*names):
            raise NotApplicable(f"the algorithm has no field {' or '.join(names)}")

    def fresh(self) -> Algorithm:
        """Return a fresh copy of the algorithm, without anything that an earlier run may have hidden in it."""
        return copy.deepcopy(self.algorithm)

    def variant(
        self,
        *,
        m: int | None = None,
        sampling: Sampling | None = None,
        full_participation: bool = False,
        full: bool = False,
        steps: int | None = None,
        lr: float | None = None,
        batch: int | None = None,
        gamma: float | None = None,
        ambiguity: AmbiguitySet | None = None,
    ) -> Algorithm:
        """Return a fresh copy with these hyperparameters, if it has them; None keeps the author's value.

        Args:
            m: Cohort size, at most N.
            sampling: How the cohort is drawn from λ.
            full_participation: All clients take part, weighted by λ if there is a sampling; overrides m and sampling.
            full: Use full batches everywhere.
            steps: Local steps.
            lr: Local step size.
            batch: Samples per local minibatch and per reported loss.
            gamma: Dual step size.
            ambiguity: The set Λ.
        """
        algorithm = self.fresh()
        local: dict[str, object] = _present(steps=steps, lr=lr, batch=batch)
        m = None if m is None else min(m, self.n)
        changes = _present(m=m, sampling=sampling, ambiguity=ambiguity)
        changes |= _present(**dict.fromkeys(STEP_NAMES, gamma)) | _present(**dict.fromkeys(BATCH_NAMES, batch))
        if full_participation:
            changes |= {"m": self.n, "sampling": all_clients}
        if full:
            local["batch"], changes = None, changes | dict.fromkeys(BATCH_NAMES)
        changes["local"] = dataclasses.replace(algorithm.local, **local)  # pyright: ignore[reportArgumentType]
        # Not every algorithm has all of these fields.
        known = {name: value for name, value in changes.items() if name in self.fields}
        return dataclasses.replace(algorithm, **known)  # pyright: ignore

    def simulation(self, engine: Engine | None = None) -> Federation:
        """Make a new federation whose clients draw minibatches; None for the plain engine."""
        return self.trial.federation(Loop() if engine is None else engine)

    @property
    def exact(self) -> Federation:
        """Clients that compute with all their data; made once, because they keep nothing between runs."""
        if "exact" not in self.cache:
            self.cache["exact"] = self.exact_in(torch.float64)
        return self.cache["exact"]

    def exact_in(self, dtype: torch.dtype) -> Federation:
        """Make clients that only get full-batch requests, with models of a type."""
        # Only a simulation runs the local steps of a client-side method.
        if isinstance(self.algorithm, LocalMethod):
            return self.trial.federation(Loop(), dtype)
        return exact(self.trial, dtype)


def _present(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


S = TypeVar("S", bound=State)


def rounds_of(
    algorithm: Algorithm[S], fed: Federation, rounds: int, *, seed: int = SEED, state: S | None = None, done: int = 0
) -> Iterator[tuple[S, Info]]:
    """Yield the state and the ``Info`` after each of a number of rounds; a round runs when it is requested.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        rounds: Number of rounds.
        seed: Seed of the keys, as in :func:`drfl.training.loop.run`.
        state: State to start from; None for the initial state.
        done: Rounds done before this state.
    """
    state = algorithm.init(fed) if state is None else state
    for r in range(done + 1, done + rounds + 1):
        state, info = algorithm.round(state, fed, Key(seed).fold("round", r))
        yield state, info


def last_of(
    algorithm: Algorithm[S], fed: Federation, rounds: int, *, seed: int = SEED, state: S | None = None, done: int = 0
) -> S:
    """Return the state after a number of rounds; see :func:`rounds_of`."""
    *_, (last, _) = rounds_of(algorithm, fed, rounds, seed=seed, state=state, done=done)
    return last
