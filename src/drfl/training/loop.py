"""The loop that runs an algorithm: rounds, tests, callbacks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from drfl.core import checks
from drfl.core.errors import DataWarning, DrflError, InputError, RunWarning
from drfl.core.intraop import VECTORS, threads_for
from drfl.core.key import Key
from drfl.core.run_end import Stopped, late_rollbacks
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Bundling, DataChecked, Federation
from drfl.training import step_size
from drfl.training.certificate import Certifier
from drfl.training.history import undefined_names, undefined_notices
from drfl.training.model_selection import Best, ModelSelection, Patience, Target
from drfl.training.rounds import next_round
from drfl.training.run_log import Result, RunLog, Tested
from drfl.training.run_state import CheckpointFolder, CheckpointWriter, Returned, RunState, first, view_of

Callback = Callable[[RunState], bool | None]
"""Called after each round (and once before the first); a true answer ends the run there, with a last evaluation."""


def run(
    algorithm: Algorithm,
    fed: Federation,
    *,
    rounds: int,
    seed: int = 0,
    evaluate_every: int = 1,
    returned: Returned = "average",
    averaged: bool = False,
    table_dir: str | None = None,
    best: Best | None = None,
    patience: Patience | None = None,
    until: Target | None = None,
    callbacks: Sequence[Callback] = (),
    certify: Certifier | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
    check_data: bool = True,
) -> Result:
    """Run an algorithm on a federation.

    Args:
        algorithm: what to run.
        fed: the clients.
        rounds: how many rounds of communication, ≥ 0. In round r the step sizes are those of their schedules, see
            :mod:`drfl.optim.schedules`.
        seed: root of all randomness; round r draws from ``Key(seed).fold("round", r)``.
        evaluate_every: test every so many rounds; the initial and the last model always are.
        returned: which model the run returns, and callbacks and certificates judge: "average" is the decaying one of
            the server's models (see :class:`drfl.training.averages.DecayingAverage`), "last" the last iterate. Both are
            tested. "best" is "average" until the end; then all clients report both models' loss on all their training
            samples, and the one whose largest loss is smaller is returned, and is what the last row of the history
            tells of.
        averaged: keep the averaged solution (ŵ, λ̂) of the theorems as well; clients then send one more vector.
        table_dir: folder for the files that hold the server's tables of client vectors; None = they are in memory. On
            the CPU only.
        best: return the model of the round that does best on the clients' validation rows, which they must have, see
            :meth:`drfl.data.ClientData.with_validation`; what ``returned`` says is then what is judged in every round,
            and the last row of the history is of the model that is returned.
        patience: stop when validation rows have shown no gain for so many rounds.
        until: stop when a metric of the clients' validation rows has reached a value, as with
            ``Target("worst_accuracy", 0.5)``.
        callbacks: called after every round.
        certify: makes a certificate with every test; it takes no part in the training and is not booked.
        checkpoints: keep the progress in a folder, ``drfl.Checkpoints("folder", every=5)``, and go on from what the
            same call left there. With the same algorithm, federation and settings, all but ``rounds``, the result is
            that of a run that never stopped, bit for bit; with others the call is refused.
        start: the progress of an earlier run of the same call; None = from the beginning. With the same algorithm,
            federation and seed the result is that of a run that never stopped, bit for bit.
        keep: called with the progress after every round, to start from later.
        check_data: warn, with :class:`drfl.core.errors.DataWarning`, of what is conspicuous in the clients' data, and
            at the end of clients at which a metric is undefined, if the federation knows its clients' data, as
            :class:`drfl.Simulation` does. Warn, with :class:`drfl.core.errors.RunWarning`, of a run that was set back
            so late that fewer than half of its rounds count.

    Where the algorithm's local solver has no step size, one is found before the first round, see
    :func:`drfl.training.step_size.find`. After the rounds 4, 6, 8, 12, 16, …, and those in which the model goes far,
    the loss is compared with that at the start; where it is far higher, or the model left the finite numbers, the run
    goes back to the initial state, with half the step size. A round in which :class:`drfl.resilience.Protected` rejects
    replies as far too long is done again with a smaller one, which is kept where that helps.

    A federation that bundles a test with the request after it, see :class:`drfl.federation.federation.Bundling`, plays
    the round after a test before the test's result has arrived. Callbacks do not see that; where one ends the run that
    round is dropped, and only its traffic remains.

    Raises:
        InputError: a number is out of range, the hyperparameters do not fit the federation, the certifier not them, the
            algorithm has no averaged solution, ``checkpoints`` are of another run, or what is given is no algorithm or
            no federation.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    _check_objects(algorithm, fed)
    checks.whole("rounds", rounds, low=0)
    checks.whole("evaluate_every", evaluate_every)
    step_size.in_round(algorithm, max(rounds, 1))  # a schedule that comes to 0 is refused before anything is asked
    # Settings are checked before the first request to a client.
    select = ModelSelection(best, patience, fed.measures[0], until)
    select.check()
    # The run starts again if a step size turns out to be too large.
    begin = partial(
        first, algorithm, fed, returned=returned, averaged=averaged, table_dir=table_dir, validates=select.validates
    )
    settings = {"seed": seed, "evaluate_every": evaluate_every, "returned": returned, "averaged": averaged}
    settings |= {"best": repr(best), "patience": repr(patience), "until": repr(until)}
    start, keep = _kept(checkpoints, start, keep, lambda kept: kept.resume(algorithm, fed, rounds, begin(), settings))
    begun = begin() if start is None else start
    _warn(fed.data_warnings() if check_data and isinstance(fed, DataChecked) else (), DataWarning)
    view, key = view_of(fed, averaged, table_dir), Key(seed)
    log = RunLog(algorithm, fed, certify, start, select, key.fold("personal"))
    progress = _begun(algorithm, view, key, begun)._replace(rounds=rounds, score=fed.measures[0])

    def after(progress: RunState) -> RunState:  # one more round
        with threads_for(VECTORS * progress.state.w.numel()):
            return next_round(algorithm, view, key, progress, begin)

    # fed, not the view of it: whether a test can wait for the next request is for the federation itself to say.
    bundling = fed if isinstance(fed, Bundling) and not log.personalised else None
    evaluation = None
    while True:
        # Taken before the test: a federation that bundles it plays, and books, the next round along with it.
        cost, ahead = log.cost(), None
        due = progress.round % evaluate_every == 0 or progress.round == rounds
        # A resumed run starts at a round whose row the history may hold already.
        if due and progress.row is None:
            if bundling is not None and progress.round < rounds:
                evaluation, ahead = _test_and_play(bundling, progress, after)
            else:
                evaluation = _test(fed, progress, log)
            progress = log.add(progress, evaluation, cost)
        progress = log.booked(progress, cost)
        # A list first: every callback sees every round, also after one has asked to stop.
        seen = [callback(progress) for callback in callbacks]
        stop = select.stops(progress.selected, progress.round, progress.row) or ("interrupted" if any(seen) else None)
        # Not where the run starts: that state has a checkpoint, or is the initial one.
        if keep is not None and progress.info is not None and progress.round < rounds:
            keep(log.booked(progress, cost), stop is not None)  # the time that callbacks took counts
        if stop is not None or progress.round >= rounds:
            break
        progress, evaluation = _moved_on(progress, ahead, after), None
    # Where a callback stopped the run at a round that was not due, or it was resumed at its end.
    if evaluation is None:
        evaluation = _test(fed, progress, log)
        if progress.row is None:
            progress = log.add(progress, evaluation, log.cost())
    stopped: Stopped = "rounds" if stop is None or progress.round >= rounds else stop
    found = log.result(progress, evaluation, stopped, key.fold("best") if returned == "best" else None)
    _warn(late_rollbacks([found.marks.counted]) if check_data and found.marks.is_late else (), RunWarning)
    names = fed.names if check_data and isinstance(fed, DataChecked) else None
    undefined = [] if names is None else [undefined_names(found.evaluation, fed.measures, names)]
    _warn(undefined_notices(fed.measures, undefined, fed.n), DataWarning)
    return found


def _kept(
    checkpoints: CheckpointFolder | None,
    start: RunState | None,
    keep: CheckpointWriter | None,
    resume: Callable[[CheckpointFolder], RunState | None],
) -> tuple[RunState | None, CheckpointWriter | None]:
    if checkpoints is None:
        return start, keep
    if start is not None or keep is not None:
        raise InputError(
            "checkpoints say where a run starts, and keep it: leave start and keep out",
            code="conflicting-options",
            field="checkpoints",
        )
    return resume(checkpoints), checkpoints


def _check_objects(algorithm: object, fed: object) -> None:
    # Without this check the first error would be a missing attribute.
    if isinstance(algorithm, type):
        raise InputError(
            f"{algorithm.__name__} is a class: give an object, such as {algorithm.__name__}(m=10)",
            code="wrong-type",
            field="algorithm",
        )
    if not (hasattr(algorithm, "local") and callable(getattr(algorithm, "round", None))):
        raise InputError(
            f"a {type(algorithm).__name__} is no algorithm: give one such as drfl.DRFA(m=10)",
            code="wrong-type",
            field="algorithm",
        )
    if not isinstance(fed, Federation):
        what = fed.__name__ if isinstance(fed, type) else type(fed).__name__
        raise InputError(
            f"{what} is no federation: give one such as drfl.Simulation(data, task)", code="wrong-type", field="fed"
        )


def _warn(notices: Sequence[str], category: type[Warning]) -> None:
    for line in notices:
        warnings.warn(line, category, stacklevel=3)  # stacklevel: the line that called run


def _begun(algorithm: Algorithm, fed: Federation, key: Key, start: RunState) -> RunState:
    size = start.step_size
    # A resumed run already has its step size.
    if size is not None and not size.known:
        size = step_size.find(algorithm, fed, start.state.w, key.fold("step size"))
    # What happened in the round before is told once, by the run that played it.
    return start._replace(step_size=size, info=None)


def _moved_on(
    progress: RunState, ahead: RunState | DrflError | None, after: Callable[[RunState], RunState]
) -> RunState:
    """The run after one more round, which may have been played already, see :func:`_test_and_play`."""
    if ahead is None:
        return after(progress)
    # Only now: without the bundling a round that a callback prevents would not have been played.
    if isinstance(ahead, DrflError):
        raise ahead
    # It was played before the results of the test were there.
    return ahead._replace(rows=progress.rows, point=progress.point, selected=progress.selected)


def _models(progress: RunState) -> list[Tensor]:
    """What is tested: the last iterate, and the model to return where that is another one, as it is after a round."""
    last, decaying = progress.state.w, progress.decaying
    return [last] if decaying is None or progress.round == 0 else [last, decaying.w]


def _test(fed: Federation, progress: RunState, log: RunLog) -> Tested:
    """Tests of the model to return and of the last iterate."""
    models = _models(progress)
    if log.personalised:
        found = [log.evaluate(progress, w) for w in models]
        return Tested(found[-1], found[0])
    found = fed.evaluate_later(models)() if isinstance(fed, Bundling) else fed.evaluate_all(models)
    return Tested(found[-1], found[0])


def _test_and_play(
    fed: Bundling, progress: RunState, after: Callable[[RunState], RunState]
) -> tuple[Tested, RunState | DrflError]:
    """The tests, and the round after them, played before the tests' results are there.

    If that round fails its error is returned, as a callback may end the run before it.
    """
    # The request for the test is sent with that of the next round, and clients answer both at once.
    results = fed.evaluate_later(_models(progress))
    try:
        ahead = after(progress)
    except DrflError as error:
        ahead = error
    # The results arrive with the replies of the round, so they are read after it.
    found = results()
    return Tested(found[-1], found[0]), ahead
