"""The loop that runs an algorithm: rounds, tests, callbacks, and the state from which a run is resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, Self, cast

import torch
from torch import Tensor

from drfl import checks
from drfl.algorithm import Algorithm, Info, S, State, WithoutAverage, ambiguity_of, core_of, flagged, mixture_of
from drfl.certificate import Certificate, Certifier
from drfl.errors import DivergedError, DrflError, InputError, NonFiniteError
from drfl.federation import Bundling, Evaluation, Federation, WrappedFederation
from drfl.history import History, Metrics, Row
from drfl.key import Key

STEP_SIZES = ("server_lr", "gamma", "sigma")
"""Step sizes that an algorithm may have besides the local solver's; the message of a divergence names those it has."""


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
        # A running mean: a sum would grow with the rounds and lose digits in single precision.
        return Average(self.w + (w - self.w) / rounds, self.lam + (lam - self.lam) / rounds, rounds)

    def wrong(self) -> str | None:
        """See :class:`drfl.algorithm.Consistent`."""
        return "a mean of fewer than no rounds" if self.rounds < 0 else None


class Step(NamedTuple):
    """What a callback sees after each round.

    Args:
        round: rounds done; 0 before the first.
        rounds: how many the run has.
        state: the algorithm's state.
        info: what happened; None at round 0.
        row: the new row of the history, where this round was evaluated.
        average: the averaged solution, where the run keeps it.
    """

    round: int
    rounds: int
    state: State
    info: Info | None
    row: Row | None
    average: Average | None = None


Callback = Callable[[Step], bool | None]
"""Called after each round (and once before the first); a true answer ends the run there, with a last evaluation."""


class Result(NamedTuple):
    """What a run gives.

    Args:
        state: the last state; ``state.w`` is the last iterate.
        lam: (N,) the last mixture, see :func:`drfl.algorithm.mixture_of`.
        history: a row per evaluated round.
        evaluation: the last round's, per client.
        rounds: rounds done.
        skipped: how many of them nobody answered.
        average: the averaged solution; None unless the run keeps it.
        averaged: its evaluation, per client.
        averaged_certificate: the averaged iterate's; None where either was not asked for, or there is none.
    """

    state: State
    lam: Tensor
    history: History
    evaluation: Evaluation
    rounds: int
    skipped: int
    average: Average | None = None
    averaged: Evaluation | None = None
    averaged_certificate: Certificate | None = None

    def write_into(self: Self, module: torch.nn.Module) -> None:
        """Write the last global model into a module of the architecture that was trained."""
        from drfl.layout import Layout

        Layout.of(module).load(module, self.state.w)


class RunState(NamedTuple):
    """All that a run needs to go on from the end of a round as if it had never stopped.

    Args:
        round: rounds done.
        skipped: how many of them nobody answered.
        state: the algorithm's state.
        rows: the history so far, oldest first.
        ledger: what the run has cost so far.
        seconds: wall time so far.
        point: (d,) where the search of the next certificate starts; None where there is none.
        average: the averaged solution, where the run keeps it.
    """

    round: int
    skipped: int
    state: State
    rows: tuple[Row, ...]
    ledger: dict[str, int]
    seconds: float
    point: Tensor | None = None
    average: Average | None = None


class CheckpointWriter(Protocol):
    """Stores a run's progress, such as :class:`drfl.checkpoint.Checkpoints`."""

    def __call__(self, progress: RunState, stopping: bool) -> None:
        """Called after every round but the last; ``stopping`` where a callback ends the run here."""
        ...


class _View(WrappedFederation):
    """A federation with one run's settings: whether averages are asked for, and where tables are stored."""

    def __init__(self, fed: Federation, averaged: bool, table_dir: str | None) -> None:
        super().__init__(fed)
        self.averaged, self.table_dir = averaged, table_dir or fed.table_dir


class _Played(NamedTuple, Generic[S]):
    """Where the run is after a round."""

    round: int
    skipped: int
    state: S
    average: Average | None
    info: Info | None


def run(
    algorithm: Algorithm[S],
    fed: Federation,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    averaged: bool = False,
    table_dir: str | None = None,
    callbacks: Sequence[Callback] = (),
    certify: Certifier | None = None,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
) -> Result:
    """Run an algorithm on a federation.

    Args:
        algorithm: what to run.
        fed: the clients.
        rounds: how many rounds of communication, ≥ 0.
        seed: root of all randomness; round r draws from ``Key(seed).fold("round", r)``.
        evaluate_every: test every so many rounds; the initial and the last model always are.
        averaged: keep the averaged solution (ŵ, λ̂) as well; clients then send one more vector.
        table_dir: folder for the files that hold the server's tables of client vectors; None = they are in memory. On
            the CPU only.
        callbacks: called after every round.
        certify: makes a certificate with every test; it takes no part in the training and is not booked.
        start: the progress of an earlier run of the same call; None = from the beginning. With the same algorithm,
            federation and seed the result is that of a run that never stopped, bit for bit.
        keep: called with the progress after every round, to start from later.

    A federation that bundles a test with the request after it, see :class:`drfl.federation.Bundling`, plays the round
    after a test before the test's result has arrived. Callbacks do not see that; where one ends the run that round is
    dropped, and only its traffic remains.

    Raises:
        InputError: a number is out of range, the hyperparameters do not fit the federation, the certifier not them, or
            the algorithm has no averaged solution.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    checks.whole("rounds", rounds, low=0)
    checks.whole("evaluate_every", evaluate_every)
    view, key, log = _view(fed, averaged, table_dir), Key(seed), _Log(algorithm, fed, certify, start)
    begun = first(algorithm, fed, averaged=averaged, table_dir=table_dir) if start is None else start
    at = _Played(begun.round, begun.skipped, cast("S", begun.state), begun.average, None)

    def after(at: _Played[S]) -> _Played[S]:  # one more round
        return _round(algorithm, view, key.fold("round", at.round + 1), at)

    stop, evaluation = False, None
    while True:
        # Taken before the test: a federation that bundles it plays, and books, the next round along with it.
        cost, ahead = log.cost(), None
        due = at.round % evaluate_every == 0 or at.round == rounds
        # A resumed run starts at a round whose row the history may hold already.
        if due and not log.has(at.round):
            # fed, not the view of it: whether a test can wait for the next request is for the federation itself to say.
            if isinstance(fed, Bundling) and at.round < rounds:
                evaluation, ahead = _test_and_play(fed, at, after)
            else:
                evaluation = fed.evaluate(at.state.w)
            log.add(at, evaluation, cost)
        row = log.history.last if due else None
        seen = [callback(Step(at.round, rounds, at.state, at.info, row, at.average)) for callback in callbacks]
        # A list first: every callback sees every step, also after one has asked to stop.
        stop = any(seen)
        # Not where the run starts: that state has a checkpoint, or is the initial one.
        if keep is not None and at.info is not None and at.round < rounds:
            keep(log.progress(at, cost), stop)
        if stop or at.round >= rounds:
            break
        # Only now: without the bundling a round that a callback prevents would not have been played.
        if isinstance(ahead, DrflError):
            raise ahead
        at, evaluation = ahead or after(at), None
    # Where a callback stopped the run at a round that was not due, or it was resumed at its end.
    if evaluation is None:
        evaluation = fed.evaluate(at.state.w)
        if not log.has(at.round):
            log.add(at, evaluation, log.cost())
    return log.result(at, evaluation)


def first(
    algorithm: Algorithm[S], fed: Federation, *, averaged: bool = False, table_dir: str | None = None
) -> RunState:
    """Where a run is before its first round; the arguments are those of :func:`run`.

    Raises:
        InputError: the hyperparameters do not fit the federation, ``table_dir`` cannot be used, or there is no
            averaged solution.
    """
    if averaged and isinstance(core_of(algorithm), WithoutAverage):
        raise _no_average(algorithm)
    state = algorithm.init(_view(fed, averaged, table_dir))
    average = Average.start(state.w, mixture_of(algorithm, state, fed)) if averaged else None
    return RunState(0, 0, state, (), {}, 0.0, None, average)


def _view(fed: Federation, averaged: bool, table_dir: str | None) -> Federation:
    return _View(fed, averaged, table_dir) if averaged or table_dir is not None else fed


def _test_and_play(
    fed: Bundling, at: _Played[S], after: Callable[[_Played[S]], _Played[S]]
) -> tuple[Evaluation, _Played[S] | DrflError]:
    """A test of the model, and the round after it, played before the test's result is there.

    If that round fails its error is returned, as a callback may end the run before it.
    """
    result = fed.evaluate_later(at.state.w)
    try:
        ahead = after(at)
    except DrflError as error:
        ahead = error
    return result(), ahead


def _round(algorithm: Algorithm[S], fed: Federation, key: Key, at: _Played[S]) -> _Played[S]:
    """One round more.

    Raises:
        InputError: the algorithm has no averaged solution.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    r, average, core = at.round + 1, at.average, core_of(algorithm)
    try:
        state, info = algorithm.round(at.state, fed, key)
        if not bool(torch.isfinite(state.w).all()):
            raise NonFiniteError("the global model holds NaN or infinity")
    except NonFiniteError as error:
        sizes = ["lr", *(name for name in STEP_SIZES if hasattr(core, name))]
        raise DivergedError(
            f"{type(core).__name__} diverged in round {r} ({error}): lower {' or '.join(sizes)}"
        ) from error
    # The mean over the mixtures that the rounds started from, hence at.state and not state.
    if average is not None and not info.empty:
        if info.average is None:
            raise _no_average(algorithm)
        average = average.add(info.average, mixture_of(algorithm, at.state, fed))
    return _Played(r, at.skipped + info.empty, state, average, info)


def _no_average(algorithm: Algorithm[S]) -> InputError:
    return InputError(f"{type(core_of(algorithm)).__name__} has no averaged solution: leave 'averaged' out")


class _Log:
    """Writes the history of one run, counting time and cost from its start: the federation may have served another."""

    def __init__(
        self, algorithm: Algorithm[S], fed: Federation, certify: Certifier | None, start: RunState | None
    ) -> None:
        self.algorithm, self.fed, self.certify = algorithm, fed, certify
        self.history, self.point = History(certified=certify is not None), None
        # The federation's ledger goes on from run to run: a run's cost is a difference.
        self.start, self.before = time.perf_counter(), fed.ledger.totals()
        if start is not None:
            # Clock and ledger are set back by what the run had used before, so that differences go on from there.
            self.history.rows.extend(start.rows)
            self.point, self.start = start.point, self.start - start.seconds
            self.before = {name: value - start.ledger.get(name, 0) for name, value in self.before.items()}

    def has(self, r: int) -> bool:
        """Whether the history has a row of round r, or a later one."""
        return bool(self.history.rows) and self.history.last.round >= r

    def cost(self) -> dict[str, int]:
        """What the run has cost so far."""
        return {name: value - self.before[name] for name, value in self.fed.ledger.totals().items()}

    def progress(self, at: _Played[S], cost: dict[str, int]) -> RunState:
        """Where the run is after a round that it has cost so much to come to."""
        rows, seconds = tuple(self.history.rows), self._seconds()
        return RunState(at.round, at.skipped, at.state, rows, cost, seconds, self.point, at.average)

    def add(self, at: _Played[S], evaluation: Evaluation, cost: dict[str, int]) -> None:
        """Add the row of a round."""
        lam = mixture_of(self.algorithm, at.state, self.fed)
        certificate = self._certificate(at.state.w, lam)
        metrics, seconds = Metrics.of(evaluation), self._seconds()
        self.history.rows.append(Row(at.round, metrics, cost, lam, seconds, certificate, flagged(at.state)))

    def result(self, at: _Played[S], evaluation: Evaluation) -> Result:
        """What the run gives, with a test of the averaged solution where it was kept."""
        lam, average = mixture_of(self.algorithm, at.state, self.fed), at.average
        found = Result(at.state, lam, self.history, evaluation, at.round, at.skipped)
        if average is None:
            return found
        averaged = self.fed.evaluate(average.w)
        certificate = self._certificate(average.w, average.lam)
        return found._replace(average=average, averaged=averaged, averaged_certificate=certificate)

    def _seconds(self) -> float:
        return time.perf_counter() - self.start

    def _certificate(self, w: Tensor, lam: Tensor) -> Certificate | None:
        if self.certify is None:
            return None
        ambiguity = ambiguity_of(self.algorithm)
        found = self.certify(self.fed, w, lam, local=self.algorithm.local, ambiguity=ambiguity, start=self.point)
        if found is None:
            return None
        # The next search starts where this one ended, as (w, λ) moves little between two tests.
        certificate, self.point = found
        return certificate
