"""What the checks of an algorithm are given: the algorithm in the variants they need, and clients to run it on."""

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
from drfl.federation.sampling import Cohort, Sampling
from drfl.federation.sampling import everybody as all_clients
from drfl.testing.federations import Call, ConstantFederation
from drfl.testing.report import NotApplicable
from drfl.testing.toy_problem import ToyProblem, exact

SEED = 1
"""Root of the randomness of every check, so that a battery says the same thing every time."""


class Solves(NamedTuple):
    """What an algorithm's last iterate converges to, given exact gradients.

    Args:
        name: of the solution, for messages.
        residual: (federation, algorithm, state) → how far the state is from it, 0 there and positive elsewhere.
        sampled: whether it gets there also when only some of the clients take part in a round.
    """

    name: str
    residual: Callable[[Federation, Algorithm, State], float]
    sampled: bool = False


class Reduction(NamedTuple):
    """Two algorithms that must take the same steps at the same keys.

    Args:
        name: such as ``"mu=0 is FedAvg"``.
        ours: the algorithm under test with special hyperparameters.
        theirs: the algorithm that it must become.
        fields: of the states that must agree.
        tolerance: of the comparison.
    """

    name: str
    ours: Algorithm
    theirs: Algorithm
    fields: tuple[str, ...] = ()
    tolerance: float = 1e-10


class ReplayedRound(NamedTuple):
    """One round as it was played, for a reference implementation to replay.

    Args:
        cohort: who was asked to train and how much each counts.
        info: the algorithm's own account.
        calls: every request of the round.
    """

    cohort: Cohort
    info: Info
    calls: Sequence[Call]


class Oracle:
    """Losses and gradients of single clients on all their data, in NumPy.

    Args:
        fed: asked for full batches.
    """

    def __init__(self, fed: Federation) -> None:
        self._fed, self.n, self.shares, self.w0 = fed, fed.n, fed.shares.numpy(), fed.w0.numpy()

    def loss(self, i: int, w: np.ndarray) -> float:
        """f_i(w)."""
        return float(self._ask(i, w)[1])

    def gradient(self, i: int, w: np.ndarray) -> np.ndarray:
        """∇f_i(w), (d,)."""
        return self._ask(i, w)[0].numpy()

    def _ask(self, i: int, w: np.ndarray) -> tuple[Tensor, Tensor]:
        reply = self._fed.gradients(torch.tensor([i]), torch.from_numpy(w), Key(SEED))
        return reply.values[0], reply.losses[0]


Reference = Callable[[Algorithm, Oracle, Sequence[ReplayedRound]], Sequence[Mapping[str, np.ndarray]]]
"""(algorithm, oracle, rounds as they were played) → fields of the state after each round, such as {"w": …, "lam": …}.

A second implementation, written from the paper and not from the first: who took part is given, all else it computes.
"""


STEP_NAMES = ("gamma", "sigma")
"""What algorithms call their dual step size."""
BATCH_NAMES = ("dual_batch", "loss_batch")
"""What they call the samples behind a loss report."""


@dataclass(frozen=True, eq=False)
class Subject:
    """An algorithm under examination, with what its author claims.

    Args:
        algorithm: a frozen dataclass with ``init``, ``round`` and ``local``.
        trial: whom it runs on.
        solves: what it converges to, or None.
        reductions: what it becomes in special cases.
        reference: a second implementation, or None.
        rounds: within which it converges.
        tolerance: how close it then is.
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

    def still(self) -> ConstantFederation:
        """As many clients, whose losses differ and never change; models have 3 parameters."""
        # Shuffled, so that confusing clients with positions shows.
        values = np.random.default_rng(self.n).permutation(np.linspace(0.1, 2, self.n))
        # d ≠ N: shapes distinguish models from tables of clients.
        return ConstantFederation(torch.from_numpy(values), d=3 if self.n != 3 else 4)

    def skewed(self) -> Tensor:
        """(N,) a mixture far from uniform, all positive."""
        weights = torch.arange(1, self.n + 1, dtype=torch.float64) ** -1.5
        return weights / weights.sum()

    def mixture(self, state: State) -> Tensor:
        """(N,) λ of a state, or the fixed weights of the objective."""
        return mixture_of(self.algorithm, state, self.exact)

    @property
    def fields(self) -> frozenset[str]:
        """Names of the algorithm's hyperparameters."""
        return frozenset(f.name for f in dataclasses.fields(self.algorithm) if f.init)  # pyright: ignore

    def has(self, *names: str) -> bool:
        """Whether it has a hyperparameter of one of these names."""
        return not self.fields.isdisjoint(names)

    def needs(self, *names: str) -> None:
        """Raise :class:`NotApplicable` unless it has a hyperparameter of one of these names."""
        if not self.has(*names):
            raise NotApplicable(f"the algorithm has no field {' or '.join(names)}")

    def fresh(self) -> Algorithm:
        """The algorithm as the author gave it: nothing that an earlier run hid in it is left."""
        return copy.deepcopy(self.algorithm)

    def variant(
        self,
        *,
        m: int | None = None,
        sampling: Sampling | None = None,
        everybody: bool = False,
        full: bool = False,
        steps: int | None = None,
        lr: float | None = None,
        batch: int | None = None,
        gamma: float | None = None,
        ambiguity: AmbiguitySet | None = None,
    ) -> Algorithm:
        """A fresh copy with these hyperparameters, as far as it has them; None leaves a value as the author gave it.

        Args:
            m: cohort size, or N where that is smaller.
            sampling: how the cohort is drawn from λ.
            everybody: all clients take part, weighted by λ where there is a sampling; overrules the two.
            full: full batches everywhere.
            steps: local steps.
            lr: local step size.
            batch: samples per local minibatch and per loss report.
            gamma: dual step size.
            ambiguity: the set Λ.
        """
        algorithm = self.fresh()
        local: dict[str, object] = _given(steps=steps, lr=lr, batch=batch)
        m = None if m is None else min(m, self.n)
        changes = _given(m=m, sampling=sampling, ambiguity=ambiguity)
        changes |= _given(**dict.fromkeys(STEP_NAMES, gamma)) | _given(**dict.fromkeys(BATCH_NAMES, batch))
        if everybody:
            changes |= {"m": self.n, "sampling": all_clients}
        if full:
            local["batch"], changes = None, changes | dict.fromkeys(BATCH_NAMES)
        changes["local"] = dataclasses.replace(algorithm.local, **local)  # pyright: ignore[reportArgumentType]
        # Not every algorithm has all of these fields.
        mine = {name: value for name, value in changes.items() if name in self.fields}
        return dataclasses.replace(algorithm, **mine)  # pyright: ignore

    def simulation(self, engine: Engine | None = None) -> Federation:
        """A new federation whose clients draw minibatches; None = the plain engine."""
        return self.trial.federation(Loop() if engine is None else engine)

    @property
    def exact(self) -> Federation:
        """Clients that compute with all their data; made once, as it keeps nothing from one run to the next."""
        if "exact" not in self.cache:
            self.cache["exact"] = exact(self.trial)
        return self.cache["exact"]


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


S = TypeVar("S", bound=State)


def rounds_of(
    algorithm: Algorithm[S], fed: Federation, rounds: int, *, seed: int = SEED, state: S | None = None, done: int = 0
) -> Iterator[tuple[S, Info]]:
    """The states after each of so many rounds, with what happened; each round is run when it is asked for.

    Args:
        algorithm: what to run.
        fed: the clients.
        rounds: how many rounds.
        seed: of the keys, as in :func:`drfl.training.loop.run`.
        state: where to start; None = the initial state.
        done: rounds done before it.
    """
    state = algorithm.init(fed) if state is None else state
    for r in range(done + 1, done + rounds + 1):
        state, info = algorithm.round(state, fed, Key(seed).fold("round", r))
        yield state, info


def last_of(
    algorithm: Algorithm[S], fed: Federation, rounds: int, *, seed: int = SEED, state: S | None = None, done: int = 0
) -> S:
    """The state after so many rounds; see :func:`rounds_of`."""
    *_, (last, _) = rounds_of(algorithm, fed, rounds, seed=seed, state=state, done=done)
    return last
