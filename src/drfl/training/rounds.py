"""One round of a run: the algorithm's round, the averages over rounds, and the control of the step size."""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from drfl.core.errors import DivergedError, NonFiniteError
from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, core_of, is_isolated, is_separate, mixture_of, personal_models
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.federation.user_algorithm import play
from drfl.training.run_state import RunState, no_average
from drfl.training.safeguard import SafeguardRule, copied, limit_of, objective_of, report
from drfl.training.step_size import CHECKED, COMPARED, found_again, in_round, with_step_size
from drfl.training.step_size_controller import Continue, Repeat, StepSizeController, Watch

LOG = logging.getLogger("drfl")

STEP_SIZES = ("server_lr", "gamma", "sigma")
"""Step sizes that an algorithm may have besides that of the local solver; the message of a divergence lists them."""


def next_round(algorithm: Algorithm, fed: Federation, key: Key, progress: RunState, rule: SafeguardRule) -> RunState:
    """Run one more round; if drfl's step size turns out too large, lower it and continue from the safe point.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        key: Key of the run.
        progress: The run before the round.
        rule: The safe point: the best model that the clients have checked, or the initial one.

    Raises:
        InputError: If the algorithm has no averaged solution.
        DivergedError: If the model, or a loss used for the dual update, is not finite.
    """
    size, core, safe, requests = progress.step_size, core_of(algorithm), progress.safe, key.fold("step size")
    if size is None or safe is None:
        return _play(algorithm, fed, key, progress)

    # If no client uses the global model, its loss is irrelevant. Clients that train alone check their own models.
    isolated, batch = is_isolated(algorithm), CHECKED if rule == "best" else COMPARED
    unchecked = is_separate(algorithm) and not isolated
    clients = torch.arange(0) if unchecked else (~size.losses.isnan()).nonzero().flatten()

    def ask(attempt: RunState, w: Tensor) -> Tensor:
        own = personal_models(algorithm, attempt.state, w, fed, requests) if isolated else None
        if not isinstance(own, ClientTable):
            return report(fed, clients, w, requests, batch)
        with fed.ledger.unsent():
            losses = [report(fed, client, own[client][0], requests, batch)[client] for client in clients.split(1)]
        return torch.full((fed.n,), torch.nan).double().index_copy(0, clients, torch.cat(losses))

    factor = core.local.lr_schedule.multiplier(progress.round + 1)
    while True:
        objective = objective_of(algorithm, progress.state) if rule == "best" and not unchecked else None
        watch = Watch(ask, objective, limit_of(algorithm), fed.names_of)
        control = StepSizeController(size, progress, factor, safe, watch)
        answer = Repeat(float(size.eta))
        while isinstance(answer, Repeat):
            try:
                attempt = _play(with_step_size(algorithm, answer.eta), fed, key, progress)
            except DivergedError as error:
                attempt = error
            answer = control.accept(attempt)
        if isinstance(answer, Continue):
            return answer.progress
        size, safe = answer.size, answer.safe
        if isolated:  # a false report would harm only the client itself, so it may cause further roll-backs
            safe = safe._replace(spent=torch.zeros_like(safe.spent))
        elif rule == "best" and answer.w is not None:
            size = found_again(algorithm, fed, answer.w, requests, size)
        LOG.warning(answer.notice(size, progress.round))
        # Rounds, history and cost remain, because the lost rounds took time and traffic too.
        parts = copied((safe.state, safe.average, safe.decaying))
        progress = progress._replace(state=parts[0], average=parts[1], decaying=parts[2])


def _play(algorithm: Algorithm, fed: Federation, key: Key, progress: RunState) -> RunState:
    """Run one more round with the algorithm's step sizes, as scheduled for this round."""
    r, average, decaying, core = progress.round + 1, progress.average, progress.decaying, core_of(algorithm)
    try:
        state, info = play(in_round(algorithm, r), progress.state, fed, key.fold("round", r))
        if not bool(torch.isfinite(state.w).all()):
            raise NonFiniteError("the global model contains NaN or infinity")
    except NonFiniteError as error:
        sizes = ["lr", *(name for name in STEP_SIZES if hasattr(core, name))]
        raise DivergedError(
            f"{type(core).__name__} diverged in round {r} ({error}): {fed.target_advice()}lower {' or '.join(sizes)}"
        ) from error
    if not info.is_empty:
        if average is not None:
            if info.average is None:
                raise no_average(algorithm)
            # By default the average uses the client weights with which the round started.
            lam = mixture_of(algorithm, progress.state, fed) if info.mixture is None else info.mixture
            average = average.add(info.average, lam, info.weight)
        decaying = None if decaying is None else decaying.add(state.w, mixture_of(algorithm, state, fed))
    skipped = progress.skipped + info.is_empty
    return progress._replace(round=r, skipped=skipped, state=state, average=average, decaying=decaying, info=info)
