"""The loop that runs an algorithm: rounds, tests, callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from drfl import checks, step_size
from drfl.algorithm import Algorithm, Info, S, State, ambiguity_of, flagged, mixture_of
from drfl.averages import Average
from drfl.certificate import Certificate, Certifier
from drfl.errors import DrflError, InputError
from drfl.federation import Bundling, Evaluation, Federation
from drfl.history import History, Metrics, Row
from drfl.key import Key
from drfl.rounds import Played, next_round
from drfl.run_state import CheckpointWriter, Returned, RunState, first, view_of
from drfl.step_size import StepSize


class Step(NamedTuple):
    """What a callback sees after each round.

    Args:
        round: rounds done; 0 before the first.
        rounds: how many the run has.
        state: the algorithm's state.
        info: what happened; None at round 0.
        row: the new row of the history, where this round was evaluated.
        average: the averaged solution, where the run keeps it.
        model: (d,) the model that the run would return now.
    """

    round: int
    rounds: int
    state: State
    info: Info | None
    row: Row | None
    average: Average | None
    model: Tensor


Callback = Callable[[Step], bool | None]
"""Called after each round (and once before the first); a true answer ends the run there, with a last evaluation."""


class Result(NamedTuple):
    """What a run gives.

    Args:
        model: (d,) the model that is returned.
        state: the last state; ``state.w`` is the last iterate.
        lam: (N,) the last mixture, see :func:`drfl.algorithm.mixture_of`.
        history: a row per evaluated round.
        evaluation: of ``model`` after the last round, per client.
        last: of the last iterate, per client.
        rounds: rounds done.
        skipped: how many of them nobody answered.
        returned: which model that is: "average" or "last".
        step_size: the local step size that was found; None where one was given.
        average: the averaged solution; None unless the run keeps it.
        averaged: its evaluation, per client.
        averaged_certificate: the averaged iterate's; None where either was not asked for, or there is none.
    """

    model: Tensor
    state: State
    lam: Tensor
    history: History
    evaluation: Evaluation
    last: Evaluation
    rounds: int
    skipped: int
    returned: Returned
    step_size: StepSize | None = None
    average: Average | None = None
    averaged: Evaluation | None = None
    averaged_certificate: Certificate | None = None

    def __repr__(self) -> str:
        m = self.history.last.metrics
        end = f"worst accuracy {m.worst_accuracy:.3f}, average {m.avg_accuracy:.3f}"
        return f"<Result of {self.rounds} rounds, the {self.returned} model of {len(self.model):,} parameters: {end}>"

    def write_into(self: Self, module: torch.nn.Module) -> None:
        """Write the returned model into a module of the architecture that was trained."""
        from drfl.layout import Layout

        Layout.of(module).load(module, self.model)


class _Tested(NamedTuple):
    """Evaluations of the model to return and of the last iterate."""

    model: Evaluation
    last: Evaluation


def run(
    algorithm: Algorithm[S],
    fed: Federation,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    returned: Returned = "average",
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
        returned: which model the run returns, and callbacks and certificates judge: "average" is the decaying one of
            the server's models (see :class:`drfl.averages.DecayingAverage`), "last" the last iterate. Both are tested.
            "best" is "average" until the end; then all clients report both models' loss on all their training samples,
            and the one whose largest loss is smaller is returned, and is what the last row of the history tells of.
        averaged: keep the averaged solution (ŵ, λ̂) of the theorems as well; clients then send one more vector.
        table_dir: folder for the files that hold the server's tables of client vectors; None = they are in memory. On
            the CPU only.
        callbacks: called after every round.
        certify: makes a certificate with every test; it takes no part in the training and is not booked.
        start: the progress of an earlier run of the same call; None = from the beginning. With the same algorithm,
            federation and seed the result is that of a run that never stopped, bit for bit.
        keep: called with the progress after every round, to start from later.

    Where the algorithm's local solver has no step size, one is found before the first round, see
    :func:`drfl.step_size.find`. After the rounds 4, 6, 8, 12, 16, …, and those in which the model goes far, the loss is
    compared with that at the start; where it is far higher, or the model left the finite numbers, the run goes back to
    the initial state, with half the step size.

    A federation that bundles a test with the request after it, see :class:`drfl.federation.Bundling`, plays the round
    after a test before the test's result has arrived. Callbacks do not see that; where one ends the run that round is
    dropped, and only its traffic remains.

    Raises:
        InputError: a number is out of range, the hyperparameters do not fit the federation, the certifier not them, the
            algorithm has no averaged solution, or what is given is no algorithm or no federation.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    _check_objects(algorithm, fed)
    checks.whole("rounds", rounds, low=0)
    checks.whole("evaluate_every", evaluate_every)
    view, key, log = view_of(fed, averaged, table_dir), Key(seed), _Log(algorithm, fed, certify, start)
    begin = partial(first, algorithm, fed, returned=returned, averaged=averaged, table_dir=table_dir)
    at = _begun(algorithm, view, key, begin() if start is None else start)

    def after(at: Played[S]) -> Played[S]:  # one more round
        return next_round(algorithm, view, key, at, begin)

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
                evaluation = _test(fed, at)
            log.add(at, evaluation, cost)
        row = log.history.last if due else None
        seen = [
            callback(Step(at.round, rounds, at.state, at.info, row, at.average, at.model)) for callback in callbacks
        ]
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
        evaluation = _test(fed, at)
        if not log.has(at.round):
            log.add(at, evaluation, log.cost())
    return log.result(at, evaluation, key.fold("best") if returned == "best" else None)


def _check_objects(algorithm: object, fed: object) -> None:
    """Name what was given in place of an algorithm or a federation, before an attribute of it is missed."""
    if isinstance(algorithm, type):
        raise InputError(f"{algorithm.__name__} is a class: give an object, such as {algorithm.__name__}(m=10)")
    if not (hasattr(algorithm, "local") and callable(getattr(algorithm, "round", None))):
        raise InputError(f"a {type(algorithm).__name__} is no algorithm: give one such as drfl.DRFA(m=10)")
    if not isinstance(fed, Federation):
        what = fed.__name__ if isinstance(fed, type) else type(fed).__name__
        raise InputError(f"{what} is no federation: give one such as drfl.Simulation(data, task)")


def _begun(algorithm: Algorithm[S], fed: Federation, key: Key, start: RunState) -> Played[S]:
    """Where a run begins or goes on, with a step size."""
    size = start.step_size
    if size is not None and not size.known:
        size = step_size.find(algorithm, fed, start.state.w, key.fold("step size"))
    return Played(start.round, start.skipped, cast("S", start.state), start.average, start.decaying, size, None)


def _last_is_better(fed: Federation, at: Played[S], key: Key) -> bool:
    """Whether the last iterate's largest training loss is below the average's, over those who report both."""
    everybody = torch.arange(fed.n)
    last, average = (fed.losses(everybody, w, key) for w in (at.state.w, at.model))
    both = torch.isin(last.clients, average.clients), torch.isin(average.clients, last.clients)
    worst = [reply.values[told].amax() for reply, told in zip((last, average), both, strict=True) if told.any()]
    # A NaN is below nothing; nobody's word leaves the average.
    return bool(worst) and bool(worst[0] < worst[1])


def _models(at: Played[S]) -> list[Tensor]:
    """What is tested: the last iterate, and the model to return where that is another one, as it is after a round."""
    return [at.state.w] if at.decaying is None or at.round == 0 else [at.state.w, at.decaying.w]


def _test(fed: Federation, at: Played[S]) -> _Tested:
    """Tests of the model to return and of the last iterate."""
    models = _models(at)
    found = fed.evaluate_later(models)() if isinstance(fed, Bundling) else [fed.evaluate(w) for w in models]
    return _Tested(found[-1], found[0])


def _test_and_play(
    fed: Bundling, at: Played[S], after: Callable[[Played[S]], Played[S]]
) -> tuple[_Tested, Played[S] | DrflError]:
    """The tests, and the round after them, played before the tests' results are there.

    If that round fails its error is returned, as a callback may end the run before it.
    """
    results = fed.evaluate_later(_models(at))
    try:
        ahead = after(at)
    except DrflError as error:
        ahead = error
    found = results()
    return _Tested(found[-1], found[0]), ahead


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

    def progress(self, at: Played[S], cost: dict[str, int]) -> RunState:
        """Where the run is after a round that it has cost so much to come to."""
        rows, seconds = tuple(self.history.rows), self._seconds()
        return RunState(
            at.round, at.skipped, at.state, rows, cost, seconds, self.point, at.average, at.decaying, at.step_size
        )

    def add(self, at: Played[S], tested: _Tested, cost: dict[str, int]) -> None:
        """Add the row of a round."""
        lam = mixture_of(self.algorithm, at.state, self.fed)
        certificate = self._certificate(at.model, lam if at.decaying is None else at.decaying.lam)
        metrics, last, seconds = Metrics.of(tested.model), Metrics.of(tested.last), self._seconds()
        self.history.rows.append(Row(at.round, metrics, cost, lam, seconds, certificate, flagged(at.state), last))

    def result(self, at: Played[S], tested: _Tested, best: Key | None) -> Result:
        """What the run gives, with a test of the averaged solution where it was kept.

        Args:
            at: its end.
            tested: the tests there.
            best: key of the choice between average and last iterate; None = there is none.
        """
        if best is not None and at.round > 0:
            if _last_is_better(self.fed, at, best):
                at, tested = at._replace(decaying=None), _Tested(tested.last, tested.last)
            self.history.rows.pop()  # for one of the model that is returned, with what the choice has cost
            self.add(at, tested, self.cost())
        lam, average = mixture_of(self.algorithm, at.state, self.fed), at.average
        returned: Returned = "last" if at.decaying is None else "average"
        found = Result(at.model, at.state, lam, self.history, *tested, at.round, at.skipped, returned, at.step_size)
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
