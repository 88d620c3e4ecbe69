"""The loop that runs an algorithm: rounds, tests and callbacks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import get_args
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import DataWarning, DrflError, InputError, Notice, RunWarning
from drfl.core.full_memory import explain_full_memory
from drfl.core.intraop import VECTORS, threads_for
from drfl.core.key import Key
from drfl.core.run_end import StopReason
from drfl.federation.algorithm import Algorithm, check_algorithm_type, core_of, is_isolated, lam_of
from drfl.federation.federation import Bundling, DataChecked, Federation
from drfl.federation.local_method import OwnModels, has_user_loss
from drfl.training import step_size
from drfl.training.certificate import Certifier
from drfl.training.history import undefined_names, undefined_notices
from drfl.training.model_selection import ModelSelection
from drfl.training.rounds import next_round
from drfl.training.run_identity import Identity, check_same, run_identity
from drfl.training.run_log import Result, RunLog, Tested, end_notices
from drfl.training.run_state import CheckpointFolder, CheckpointWriter, Returned, RunState, first, view_of
from drfl.training.safeguard import SafeguardRule

LOG = logging.getLogger("drfl.training")

Callback = Callable[[RunState], bool | None]
"""Called before the first round and after each round. A true result ends the run there, after a last evaluation."""


def run(
    algorithm: Algorithm,
    fed: Federation,
    *,
    rounds: int,
    seed: int = 0,
    init_from: str | Path | None = None,
    evaluate_every: int = 1,
    returned: Returned = "average",
    averaged: bool = False,
    table_dir: str | None = None,
    select: str | None = None,
    patience: int | None = None,
    until: str | None = None,
    safeguard: SafeguardRule = "best",
    callbacks: Sequence[Callback] = (),
    certify: Certifier | None = None,
    checkpoints: CheckpointFolder | None = None,
    start: RunState | None = None,
    keep: CheckpointWriter | None = None,
    check_data: bool = True,
) -> Result:
    """Run an algorithm on a federation.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        rounds: Number of communication rounds, ≥ 0. Step sizes follow their schedules, see
            :mod:`drfl.optim.schedules`.
        seed: Root of all randomness; round r draws from ``Key(seed).fold("round", r)``.
        init_from: Model file to start from, of the same architecture, columns and classes. Columns are scaled by the
            new rows. A linear first layer is adjusted so that the initial model computes the same outputs as the stored
            one.
        evaluate_every: Test the model every this many rounds. The initial and the last model are always tested.
        returned: The model that the run returns, and that callbacks and certificates see. "average" is the decaying
            average of the global models (see :class:`drfl.training.averages.DecayingAverage`), "last" the last
            iterate. Both are tested. "best" is "average" until the end. All clients then report the loss of both models
            on all their training samples, and the run returns the model whose largest loss is smaller. The last row of
            the history describes that model.
        averaged: Also keep the averaged solution (ŵ, λ̂) of the theorems. Clients then send one more vector.
        table_dir: Folder for the files with the server's tables of client vectors; None = in memory. CPU only.
        select: Return the model of the round that does best on the clients' validation rows by "worst", "worst20" or
            "average" (score), "loss" (of the worst client), or a column of the history. The clients must have such
            rows, see :meth:`drfl.data.ClientData.with_validation`. The candidate in each round is the model that
            ``returned`` names. The last row of the history describes the returned model.
        patience: Stop when the metric of ``select``, or "worst" without it, has not improved on validation rows for
            this number of rounds.
        until: Stop when validation rows reach a target, such as ``"worst_accuracy=0.9"``. ``"test:worst_accuracy=0.9"``
            uses test rows instead, and the result then has no confidence intervals.
        safeguard: The model to which the run rolls back if a step size that drfl determined is too large: "best", the
            best model that the clients have checked, or "start", the initial one. With "best", a robust algorithm never
            returns a model whose largest training loss exceeds that of the initial model. For other algorithms this
            applies to the mean training loss. A model that has reached ``until`` is exempt. Clients whose report alone
            has caused a roll-back do not count.
        callbacks: Functions called before the first round and after every round. If one returns True, the run stops.
        certify: Computes a certificate with every test. It does not affect training, and its cost is not counted.
        checkpoints: Store the progress in a folder, ``drfl.Checkpoints("folder", every=5)``, and resume from the
            progress that the same call stored there. With the same algorithm, federation and settings (``rounds`` may
            differ), the result is bitwise that of an uninterrupted run. Other settings raise an error.
        start: Progress of an earlier run of the same call, of which only ``rounds`` may differ; None = from the
            beginning. The result is bitwise that of an uninterrupted run.
        keep: Called with the progress after every round, to store it for ``start``.
        check_data: Emit a :class:`drfl.core.errors.DataWarning` for suspicious client data in the first run of a
            federation, and at the end for clients at which a metric is undefined. This requires a federation that
            knows its clients' data, such as :class:`drfl.Simulation`. Emit a :class:`drfl.core.errors.RunWarning` if
            the model of ``init_from`` may have been trained on test rows, if the model was reset in the second half of
            the run, if the run returns an earlier model, and if a test loss ends above its value at the start.

    Returns:
        The returned model, its test results, the history and the end of the run.

    If the algorithm's local solver has no step size, drfl determines one before the first round, see
    :func:`drfl.training.step_size.find`. After every fourth round, and less often after round 32, the clients check the
    model that the run would return. If each client trains alone, they check their own models. See
    :mod:`drfl.training.safeguard`. If it is clearly worse than the best one in two checks, or the model is not finite,
    the run continues from the best one with at most half the step size. If :class:`drfl.resilience.Protected` rejects
    updates as far too long, the round is repeated with a smaller step size, which is kept if it helps. With
    ``safeguard="start"``, the clients compare the last iterate with the initial model after the rounds 4, 6, 8, 12, 16,
    …, and the run restarts from the initial state.

    A federation may bundle a test with the next request, see :class:`drfl.federation.federation.Bundling`. The round
    after a test is then played before the test's result has arrived. Callbacks are not affected. If a callback ends
    the run, that round is dropped and only its traffic remains.

    Raises:
        InputError: If a number is out of range, the hyperparameters do not fit the federation, the certifier does not
            fit the hyperparameters, ``init_from`` does not fit the clients, the algorithm has no averaged solution,
            ``checkpoints`` or ``start`` belong to another run, a client's loss is not finite at the initial model, or
            an argument has the wrong type or is unknown.
        DivergedError: If the model, or a loss used for the dual update, is not finite.
        DrflError: If the memory of a GPU is full. Checkpoints remain.
    """
    objects = {
        "init_from": init_from, "table_dir": table_dir, "select": select, "until": until, "certify": certify,
        "checkpoints": checkpoints, "start": start, "keep": keep,
    }  # fmt: skip
    _check_arguments(algorithm, fed, rounds, evaluate_every, returned, safeguard, callbacks, objects)
    fed = _with_first_model(fed, init_from)
    step_size.in_round(algorithm, max(rounds, 1))  # rejects a schedule that reaches 0, before any request
    # Settings are checked before the first request to a client.
    selection = ModelSelection.parse(fed.measures[0], select, patience, until)
    begin = partial(
        first, algorithm, fed, returned=returned, averaged=averaged, table_dir=table_dir, validates=selection.validates
    )
    settings = {"seed": seed, "evaluate_every": evaluate_every, "returned": returned, "averaged": averaged}
    settings |= {"select": select, "patience": patience, "until": until, "safeguard": safeguard}
    if checkpoints is not None:
        start, keep = checkpoints.resume(algorithm, fed, rounds, begin(), settings), checkpoints
    identity = run_identity(algorithm, fed, settings)
    with explain_full_memory():
        initial = begin() if start is None else _checked_start(start, rounds, identity)
    _warn(_new_data_warnings(fed) if check_data else (), DataWarning)
    _warn(fed.start_notices if check_data else (), RunWarning)
    view, key = view_of(fed, averaged, table_dir), Key(seed)
    log = RunLog(algorithm, fed, certify, start, selection, key)
    progress = _initialise(algorithm, view, key, initial, safeguard)._replace(
        rounds=rounds, score=fed.measures[0], identity=identity
    )

    def after(progress: RunState) -> RunState:  # plays one more round
        # Small vectors take one thread, because waking other threads costs more than they save.
        # The server's tables and sums are on the device of the models.
        with threads_for(VECTORS * progress.state.w.numel()), explain_full_memory():
            return next_round(algorithm, view, key, progress, safeguard)

    # Pass fed and not its view, because only the federation itself can bundle a test with the next request.
    bundling = fed if isinstance(fed, Bundling) and not log.personalised else None
    evaluation = None
    while True:
        # Read the cost before the test: a bundling federation plays the next round, and counts it, along with the test.
        cost, ahead = log.cost(), None
        due = progress.round % evaluate_every == 0 or progress.round == rounds
        # The history of a resumed run may already have the row of this round.
        if due and progress.row is None:
            if bundling is not None and progress.round < rounds:
                evaluation, ahead = _test_and_play(bundling, progress, after)
            else:
                evaluation = _test(fed, progress, log, is_last=progress.round == rounds)
            progress = log.add(progress, evaluation, cost)
        progress = log.booked(progress, cost)
        # Collect in a list, so that every callback sees every round, even if an earlier callback asked to stop.
        flags = [_asks_to_stop(callback, progress) for callback in callbacks]
        stop = selection.stops(progress.selected, progress.round, progress.row) or ("callback" if any(flags) else None)
        # Write no checkpoint of the round at which the run starts. That state already has one, or is the initial state.
        if keep is not None and progress.info is not None and progress.round < rounds:
            keep(log.booked(progress, cost), stop is not None)  # the time includes the callbacks
        if stop is not None or progress.round >= rounds:
            break
        progress, evaluation = _advance(progress, ahead, after), None
    # A callback may have stopped the run at a round without a test, or the run may have been resumed at its end. Sites
    # store their own models in a test that is marked as the last one.
    if evaluation is None or (isinstance(log.personal, OwnModels) and not log.personal.is_last):
        evaluation = _test(fed, progress, log, is_last=True)
        if progress.row is None:
            progress = log.add(progress, evaluation, log.cost())
    stopped: StopReason = "rounds" if stop is None or progress.round >= rounds else stop
    result = log.result(progress, evaluation, stopped, choose=returned == "best", guard=safeguard == "best")
    _warn(end_notices(algorithm, fed, result) if check_data else (), RunWarning)
    names = fed.names if check_data and isinstance(fed, DataChecked) else None
    undefined = [] if names is None else [undefined_names(result.evaluation, fed.measures, names)]
    _warn(undefined_notices(fed.measures, undefined, fed.n), DataWarning)
    return result


_OBJECTS: Mapping[str, tuple[Callable[[object], bool], str]] = {
    "init_from": (lambda given: isinstance(given, str | Path), "the path of a model file"),
    "table_dir": (lambda given: isinstance(given, str | Path), "the path of a folder"),
    "select": (lambda given: isinstance(given, str), "a metric such as 'worst'"),
    "until": (lambda given: isinstance(given, str), "a target such as 'worst_accuracy=0.9'"),
    "certify": (lambda given: isinstance(given, Certifier), "an object such as drfl.certificate.Certifier(task)"),
    "checkpoints": (
        lambda given: not isinstance(given, type) and hasattr(given, "resume"),
        "an object such as drfl.Checkpoints('folder')",
    ),
    "start": (lambda given: isinstance(given, RunState), "the state that a callback receives"),
    "keep": (callable, "a function"),
}
"""Check of each option of :func:`run` that may be None, and what it must be."""


def _check_arguments(
    algorithm: object,
    fed: object,
    rounds: int,
    evaluate_every: int,
    returned: object,
    safeguard: object,
    callbacks: Sequence[object],
    objects: Mapping[str, object],
) -> None:
    check_algorithm_type(algorithm)
    if not isinstance(fed, Federation):
        name = fed.__name__ if isinstance(fed, type) else type(fed).__name__
        raise InputError(
            f"expected a federation such as drfl.Simulation(data, task), got {name}", code="wrong-type", field="fed"
        )
    checks.integer("rounds", rounds, low=0)
    checks.integer("evaluate_every", evaluate_every)
    checks.one_of("returned", returned, get_args(Returned))
    checks.one_of("safeguard", safeguard, get_args(SafeguardRule))
    no_functions = [c for c in callbacks if not callable(c)] if isinstance(callbacks, Sequence) else [callbacks]
    if no_functions:
        raise _wrong_type("callbacks", "a list of functions", no_functions[0])
    for name, given in objects.items():
        is_valid, expected = _OBJECTS[name]
        if given is not None and not is_valid(given):
            raise _wrong_type(name, expected, given)
    if objects["checkpoints"] is not None and (objects["start"] is not None or objects["keep"] is not None):
        raise InputError(
            "checkpoints cannot be combined with start and keep: they set both. Remove start and keep.",
            code="conflicting-options",
            field="checkpoints",
        )


def _with_first_model(fed: Federation, init_from: str | Path | None) -> Federation:
    """Return the federation with the model of the file, if there is one; the initial model must be finite."""
    if init_from is not None:
        fed = fed.starting_from(Path(init_from))
    good = torch.isfinite(fed.w0)
    if not bool(good.all()):
        raise InputError(
            f"the initial model contains NaN or infinity in {int((~good).sum()):,} of {good.numel():,} parameters. "
            "Initialise the module before drfl.Task(module), or start from another file.",
            code="not-finite",
            field="model",
        )
    return fed


def _checked_start(start: RunState, rounds: int, identity: Identity) -> RunState:
    """Return the progress from which a run starts, which must be that of the same run."""
    # Checkpoints have been checked already, and have no identity.
    if start.identity is not None:
        check_same(identity, start.identity, "`start` belongs", "remove `start`")
    if start.round > rounds:
        raise InputError(
            f"`start` already has {start.round} rounds, but `rounds` is {rounds}: set `rounds` to at least "
            f"{start.round}",
            code="out-of-range",
            field="rounds",
        )
    return start


def _wrong_type(name: str, expected: str, given: object) -> InputError:
    got = f"the class {given.__name__}" if isinstance(given, type) else f"an object of type {type(given).__name__}"
    return InputError(f"`{name}` must be {expected}, got {got}", code="wrong-type", field=name)


def _asks_to_stop(callback: Callback, progress: RunState) -> bool:
    """Call a callback, and return whether it ends the run.

    Raises:
        InputError: If a user's callback changes a tensor of the run in place, or returns something else.
    """
    if str(getattr(callback, "__module__", "")).partition(".")[0] == "drfl":
        return bool(callback(progress))
    parts = [part for part in (progress.state, progress.decaying, progress.average) if part is not None]
    tensors = [tensor for part in parts for tensor in (part.w, lam_of(part)) if tensor is not None]
    # Copies, because the parameters of a module may be views whose changes PyTorch does not count.
    before = [tensor.clone() for tensor in tensors]
    result = callback(progress)
    unchanged = partial(torch.allclose, rtol=0, atol=0, equal_nan=True)
    if not all(map(unchanged, tensors, before)):
        name = getattr(callback, "__name__", type(callback).__name__)
        raise InputError(
            f"the callback {name} changes the state of the run in place. Change a copy, as in "
            "`progress.state.w.clone()`; `progress.model` is a copy already.",
            code="user-code-failed",
            field="callbacks",
        )
    if result is None or isinstance(result, bool | np.bool_):
        return bool(result)
    if isinstance(result, Tensor) and result.dim() == 0 and result.dtype == torch.bool:
        return bool(result)
    raise _wrong_type("callbacks", "functions that return None, or whether to stop (True or False)", result)


_WARNED: WeakSet[Federation] = WeakSet()
"""Federations whose data have been checked, so that further runs of a script do not repeat the warnings."""


def _new_data_warnings(fed: Federation) -> Sequence[str]:
    if not isinstance(fed, DataChecked) or fed in _WARNED:
        return ()
    _WARNED.add(fed)
    return fed.data_warnings()


def _warn(notices: Sequence[str], category: type[Warning]) -> None:
    for line in notices:
        warnings.warn(line, category, stacklevel=3)  # 3 = the line that called run


def _initialise(algorithm: Algorithm, fed: Federation, key: Key, start: RunState, rule: SafeguardRule) -> RunState:
    size, safe = start.step_size, start.safe
    # A resumed run already has its step size.
    if size is not None and safe is not None and not size.is_known:
        with fed.ledger.unsent() if is_isolated(algorithm) else nullcontext():
            size = step_size.find(algorithm, fed, start.state.w, key.fold("step size"), is_checked=rule == "best")
        safe = safe._replace(losses=size.losses.clone())
        method = core_of(algorithm)
        if has_user_loss(method):
            _warn_of_loss(type(method))
    # A resumed run does not report the round before it again.
    return start._replace(step_size=size, safe=safe, info=None)


@cache  # once, and not for every seed of a comparison
def _warn_of_loss(method: type) -> None:
    text = (
        f"drfl chooses lr for the task's loss, but the loss of {method.__name__} may need a smaller one. Set lr if its "
        "accuracy is low"
    )
    LOG.warning(Notice(text, "step-size-of-task-loss", "lr"))


def _advance(progress: RunState, ahead: RunState | DrflError | None, after: Callable[[RunState], RunState]) -> RunState:
    """Return the run after one more round, which :func:`_test_and_play` may have played already."""
    if ahead is None:
        return after(progress)
    # Raise it only now, because a callback may have ended the run before this round.
    if isinstance(ahead, DrflError):
        raise ahead
    # The round was played before the test results arrived, so they are added here.
    return ahead._replace(rows=progress.rows, point=progress.point, selected=progress.selected)


def _models(progress: RunState) -> list[Tensor]:
    """List the models to test: the last iterate, and the model to return if it is a different one."""
    last, decaying = progress.state.w, progress.decaying
    return [last] if decaying is None or progress.round == 0 else [last, decaying.w]


def _test(fed: Federation, progress: RunState, log: RunLog, *, is_last: bool) -> Tested:
    """Test the model to return and the last iterate; the loss of the initial model must be finite."""
    models = _models(progress)
    if log.personalised:
        results = [log.evaluate(progress, w, is_last=is_last) for w in models]
        return Tested(results[-1], results[0])
    results = fed.evaluate_later(models)() if isinstance(fed, Bundling) else fed.evaluate_all(models)
    # Only for clients in this process, because a single site must not be able to stop a deployment.
    if progress.round == 0 < progress.rounds and isinstance(fed, DataChecked):
        step_size.check_losses(fed, torch.arange(fed.n), results[0].loss)
    return Tested(results[-1], results[0])


def _test_and_play(
    fed: Bundling, progress: RunState, after: Callable[[RunState], RunState]
) -> tuple[Tested, RunState | DrflError]:
    """Run the tests, and play the next round before the test results arrive.

    If that round fails, return its error, because a callback may end the run before it.
    """
    # The request for the test is sent with that of the next round, and clients answer both at once.
    collect = fed.evaluate_later(_models(progress))
    try:
        ahead = after(progress)
    except DrflError as error:
        ahead = error
    # The results arrive with the replies of the round, so they are read after it.
    results = collect()
    return Tested(results[-1], results[0]), ahead
