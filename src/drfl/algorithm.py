"""The contract of an algorithm, and the loop that runs one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor

from drfl import checks
from drfl.ambiguity import AmbiguitySet
from drfl.certificate import Certificate, Certifier
from drfl.cohort import Cohort
from drfl.errors import DivergedError, DrflError, NonFiniteError
from drfl.federation import Evaluation, Federation, Losses
from drfl.history import History, Metrics, Row
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.request import Foreseen, Foresight, Request


class Average(NamedTuple):
    """The averaged solution (ŵ, λ̂) that the theorems speak of, as a running mean over rounds.

    Args:
        w: (d,) mean of the (virtual) global models at every local step so far.
        lam: (N,) mean of the mixtures that the rounds started from.
        rounds: () int64, how many rounds are in the means.
    """

    w: Tensor
    lam: Tensor
    rounds: Tensor

    @classmethod
    def start(cls, w: Tensor, lam: Tensor) -> Average:
        """No round yet; (w, lam) stands in until there is one."""
        return cls(w, lam, torch.zeros((), dtype=torch.int64))

    def add(self, w: Tensor, lam: Tensor) -> Average:
        """With one more round, whose local steps average to w and which started from lam."""
        rounds = self.rounds + 1
        return Average(self.w + (w - self.w) / rounds, self.lam + (lam - self.lam) / rounds, rounds)

    def wrong(self) -> str | None:
        """See :class:`Consistent`."""
        return "a mean of fewer than no rounds" if self.rounds < 0 else None


@runtime_checkable
class Consistent(Protocol):
    """A part of a state, a NamedTuple, that knows what its fields cannot be: a checkpoint that holds it is damaged."""

    def wrong(self) -> str | None:
        """What is impossible in a few words; None where nothing is."""
        ...


class State(Protocol):
    """What every algorithm's state has: a NamedTuple of tensors with at least these fields.

    A checkpoint is held to the first state: every tensor keeps its type and shape (a :class:`drfl.table.Table` its
    N and d) for the whole run, and a number that is finite at first stays so. A NamedTuple in it may be
    :class:`Consistent`.
    """

    @property
    def w(self) -> Tensor:
        """(d,) the global model."""
        ...

    @property
    def lam(self) -> Tensor:
        """(N,) float64, the mixture; constant for algorithms without a dual variable."""
        ...

    @property
    def average(self) -> Average | None:
        """The averaged solution, where the algorithm was asked to keep it."""
        ...


class Info(NamedTuple):
    """What happened in a round.

    Args:
        cohort: who was asked to train.
        answered: (k',) who did.
        losses: the reports behind the dual step, where there was one.
    """

    cohort: Cohort
    answered: Tensor
    losses: Losses | None = None

    @property
    def empty(self) -> bool:
        """Whether nobody answered, so that the round left the state as it was."""
        return self.answered.numel() == 0

    @classmethod
    def nobody(cls, cohort: Cohort) -> Info:
        """A round in which nobody answered."""
        return cls(cohort, torch.empty(0, dtype=torch.int64))


S = TypeVar("S", bound=State)

STEP_SIZES = ("server_lr", "gamma", "sigma")
"""Step sizes that an algorithm may have besides the local solver's; one that diverges is told to lower its own."""


class Algorithm(Protocol[S]):
    """A server program: a frozen dataclass of hyperparameters whose rounds read like the paper's pseudocode.

    ``round`` must be right when fewer clients answer than were asked. When nobody answers it returns the state as it
    was, with ``Info.nobody``.
    """

    @property
    def local(self) -> LocalSGD:
        """What the clients run."""
        ...

    def init(self, fed: Federation) -> S:
        """The state before the first round."""
        ...

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of communication."""
        ...


class Step(NamedTuple):
    """What a callback sees after each round.

    Args:
        round: rounds done; 0 before the first.
        rounds: how many there will be.
        state: the algorithm's state.
        info: what happened; None at round 0.
        row: the new row of the history, where this round was evaluated.
    """

    round: int
    rounds: int
    state: State
    info: Info | None
    row: Row | None


Callback = Callable[[Step], bool | None]
"""Called after each round (and once before the first); a true answer ends the run there, with a last evaluation."""


class Result(NamedTuple):
    """What a run gives.

    Args:
        state: the last state; ``state.w`` and ``state.lam`` are the last iterate, ``state.average`` the averaged one.
        history: a row per evaluated round.
        evaluation: the last round's, per client.
        rounds: rounds done.
        skipped: how many of them nobody answered.
        averaged: per client, of the averaged iterate; None where the algorithm was not asked to keep it.
        averaged_certificate: the averaged iterate's; None where either was not asked for, or is not to be had.
    """

    state: State
    history: History
    evaluation: Evaluation
    rounds: int
    skipped: int
    averaged: Evaluation | None
    averaged_certificate: Certificate | None = None

    def write_into(self: Self, module: torch.nn.Module) -> None:
        """Write the last global model into a module of the architecture that was trained."""
        from drfl.layout import Layout

        Layout.of(module).load(module, self.state.w)


class Progress(NamedTuple):
    """All that a run needs to go on from the end of a round as if it had never stopped.

    Args:
        round: rounds done.
        skipped: how many of them nobody answered.
        state: the algorithm's state.
        rows: the history so far, oldest first.
        ledger: what the run has cost so far.
        seconds: wall time so far.
        point: (d,) where the search of the next certificate starts; None where there is none.
    """

    round: int
    skipped: int
    state: State
    rows: tuple[Row, ...]
    ledger: dict[str, int]
    seconds: float
    point: Tensor | None = None


@runtime_checkable
class Announced(Protocol):
    """A federation that can send a test and the request after it in one message."""

    def announce(self, request: Request) -> None:
        """The request that will follow the next test, if the run goes on."""
        ...


class Keeper(Protocol):
    """Somebody who keeps a run's progress, such as :class:`drfl.checkpoint.Checkpoints`."""

    def __call__(self, progress: Progress, stopping: bool) -> None:
        """Called after every round but the last; ``stopping`` where a callback ends the run here."""
        ...


def run(
    algorithm: Algorithm[S],
    fed: Federation,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    callbacks: Sequence[Callback] = (),
    certify: Certifier | None = None,
    start: Progress | None = None,
    keep: Keeper | None = None,
) -> Result:
    """Run an algorithm on a federation.

    Args:
        algorithm: what to run.
        fed: the clients.
        rounds: how many rounds of communication, ≥ 0.
        seed: root of all randomness; round r draws from ``Key(seed).fold("round", r)``.
        evaluate_every: test every so many rounds; the initial and the last model always are.
        callbacks: called after every round.
        certify: makes a certificate with every test; it takes no part in the training and is not booked.
        start: where an earlier run of the same call was; None = from the beginning. With the same algorithm,
            federation and seed the result is that of a run that never stopped, bit for bit.
        keep: is given the progress after every round, to start from later.

    Raises:
        InputError: a number is out of range, the hyperparameters do not fit the federation, or the certifier not them.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    _check_numbers(rounds, evaluate_every)
    log, key = _Log(algorithm, fed, certify, start), Key(seed)
    r, skipped, state, evaluation = 0, 0, algorithm.init(fed), None
    if start is not None:
        r, skipped, state = start.round, start.skipped, cast("S", start.state)
    else:
        _announce(algorithm, state, fed, key.fold("round", 1), last=rounds == 0)
        evaluation = log.test(r, state)
    stop = _call(callbacks, Step(r, rounds, state, None, log.history.last if log.history.last.round == r else None))
    while r < rounds and not stop:
        r += 1
        state, info = _guarded_round(algorithm, state, fed, key.fold("round", r), r)
        skipped += info.empty
        due = r % evaluate_every == 0 or r == rounds
        if due:
            _announce(algorithm, state, fed, key.fold("round", r + 1), last=r == rounds)
            evaluation = log.test(r, state)
        stop = _call(callbacks, Step(r, rounds, state, info, log.history.last if due else None))
        if keep is not None and r < rounds:
            keep(log.progress(r, skipped, state), stop)
    if evaluation is None or log.history.last.round != r:
        evaluation = log.test(r, state)
    return Result(state, log.history, evaluation, r, skipped, *log.averaged(state.average))


def _announce(algorithm: Algorithm[S], state: S, fed: Federation, key: Key, *, last: bool) -> None:
    """Tell a federation that can send both in one message what will be asked right after the coming test."""
    if last or not isinstance(fed, Announced):
        return
    try:
        algorithm.round(state, Foresight(fed), key)
    except Foreseen as first:
        fed.announce(first.request)
    except DrflError:
        return  # the round itself will say so


def _check_numbers(rounds: int, evaluate_every: int) -> None:
    checks.whole("rounds", rounds, low=0)
    checks.whole("evaluate_every", evaluate_every)


class _Log:
    """Writes the history of one run, counting time and cost from its start: the federation may have served another."""

    def __init__(
        self, algorithm: Algorithm[S], fed: Federation, certify: Certifier | None, start: Progress | None
    ) -> None:
        self.algorithm, self.fed, self.certify = algorithm, fed, certify
        self.history, self.point = History(certified=certify is not None), None
        self.start, self.before = time.perf_counter(), fed.ledger.totals()
        if start is not None:
            self.history.rows.extend(start.rows)
            self.point, self.start = start.point, self.start - start.seconds
            self.before = {name: value - start.ledger[name] for name, value in self.before.items()}

    def progress(self, r: int, skipped: int, state: State) -> Progress:
        """Where the run is after round r."""
        return Progress(r, skipped, state, tuple(self.history.rows), self._cost(), self._seconds(), self.point)

    def test(self, r: int, state: State) -> Evaluation:
        """Test the model after round r and add the row, unless an earlier run did that."""
        evaluation = self.fed.evaluate(state.w)
        if not self.history.rows or self.history.last.round != r:
            certificate, mistrusted = self._certificate(state.w, state.lam), flagged(state)
            row = Row(r, Metrics.of(evaluation), self._cost(), state.lam, self._seconds(), certificate, mistrusted)
            self.history.rows.append(row)
        return evaluation

    def averaged(self, average: Average | None) -> tuple[Evaluation | None, Certificate | None]:
        """Test the averaged iterate, where there is one."""
        if average is None:
            return None, None
        return self.fed.evaluate(average.w), self._certificate(average.w, average.lam)

    def _cost(self) -> dict[str, int]:
        return {name: value - self.before[name] for name, value in self.fed.ledger.totals().items()}

    def _seconds(self) -> float:
        return time.perf_counter() - self.start

    def _certificate(self, w: Tensor, lam: Tensor) -> Certificate | None:
        if self.certify is None:
            return None
        ambiguity: AmbiguitySet | None = getattr(self.algorithm, "ambiguity", None)
        found = self.certify(self.fed, w, lam, local=self.algorithm.local, ambiguity=ambiguity, start=self.point)
        if found is None:
            return None
        certificate, self.point = found  # the next search starts where this one ended
        return certificate


def flagged(state: State) -> Tensor | None:
    """(N,) bool, the clients that a guard mistrusts at present; None where nobody looks."""
    return getattr(state, "flagged", None)


def _call(callbacks: Sequence[Callback], step: Step) -> bool:
    """Every callback sees every step, also after one has asked to stop."""
    answers = [callback(step) for callback in callbacks]
    return any(answers)


def _guarded_round(algorithm: Algorithm[S], state: S, fed: Federation, key: Key, r: int) -> tuple[S, Info]:
    try:
        state, info = algorithm.round(state, fed, key)
        if not bool(torch.isfinite(state.w).all()):
            raise NonFiniteError("the global model holds NaN or infinity")
    except NonFiniteError as error:
        core: object = algorithm
        while (inner := getattr(core, "algorithm", None)) is not None:  # a wrapper: see drfl.wrapped
            core = inner
        sizes = ["lr", *(name for name in STEP_SIZES if hasattr(core, name))]
        raise DivergedError(
            f"{type(core).__name__} diverged in round {r} ({error}): lower {' or '.join(sizes)}"
        ) from error
    return state, info
