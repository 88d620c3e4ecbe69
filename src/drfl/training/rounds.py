"""One round more of a run: the algorithm's round, the averages over rounds, and the step size held in check."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, NamedTuple, cast

import torch
from torch import Tensor

from drfl.core.errors import DivergedError, NonFiniteError, Notice
from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, Info, S, Separate, core_of, mixture_of
from drfl.federation.federation import Federation
from drfl.training import step_size
from drfl.training.averages import Average, DecayingAverage
from drfl.training.run_state import RunState, no_average
from drfl.training.step_size import StepSize, in_round, rises, with_step_size

LOG = logging.getLogger("drfl")

STEP_SIZES = ("server_lr", "gamma", "sigma")
"""Step sizes that an algorithm may have besides the local solver's; the message of a divergence names those it has."""

FIRST = 4
"""The first round after which losses are compared with the start: they need a few to settle."""

RUNAWAY = 2
"""A round that goes so many times as far as the longest one before is looked at, too."""

SHORTER = 4
"""A far too long reply that a smaller step size makes so many times shorter was the step size's fault."""


class Played(NamedTuple, Generic[S]):
    """Where the run is after a round.

    Args:
        round: rounds done.
        skipped: how many of them nobody answered.
        state: the algorithm's state.
        average: the averaged solution, where the run keeps it.
        decaying: the decaying average, where it is what the run returns.
        step_size: the local step size that was found; None where one was given.
        info: what happened; None before the first round.
    """

    round: int
    skipped: int
    state: S
    average: Average | None
    decaying: DecayingAverage | None
    step_size: StepSize | None
    info: Info | None

    @property
    def model(self) -> Tensor:
        """(d,) what the run would return."""
        return self.state.w if self.decaying is None else self.decaying.w


def next_round(
    algorithm: Algorithm[S], fed: Federation, key: Key, at: Played[S], begin: Callable[[], RunState]
) -> Played[S]:
    """One round more, with half the step size, from the initial state, where one that was found is too large.

    Raises:
        InputError: the algorithm has no averaged solution.
        DivergedError: the model, or a loss behind the dual step, left the finite numbers.
    """
    r, size = at.round + 1, at.step_size
    if size is None:
        return _played(algorithm, fed, key, at)
    scheduled = r >= FIRST and r // (r & -r) in (1, 3)  # r = 2^k or 3·2^k: 4, 6, 8, 12, 16, 24, …
    # Where the clients' models never meet, the global one is nobody's: its loss says nothing.
    alone = isinstance(core_of(algorithm), Separate)
    while True:
        last_try = size.lowered >= step_size.MOST_LOWERED
        try:
            played, size = _without_runaway_steps(algorithm, fed, key, at, size)
            way = (played.state.w - at.state.w).norm().double().cpu()
            # A model that runs away goes farther in a round than in any before: no need to ask anybody until then.
            due = scheduled or (r > FIRST and bool(way > RUNAWAY * size.moved))
            if last_try or not due or alone or not rises(size, fed, played.state.w, key.fold("step size")):
                return played._replace(step_size=size._replace(moved=torch.maximum(size.moved, way)))
            reason = "the loss had risen far above that at the start"
        except DivergedError as error:
            if last_try:
                raise
            reason = str(error)
        # The finished rounds and their cost still count.
        size, fresh = size.set_back(at.round), begin()
        text = (
            f"the local step size is halved to {float(size.eta):.3g}, and the model set back to the initial one, in "
            f"round {r}: {reason}"
        )
        LOG.warning(Notice(text, "step-size-lowered", "lr"))
        at = at._replace(state=cast("S", fresh.state), average=fresh.average, decaying=fresh.decaying)


def _without_runaway_steps(
    algorithm: Algorithm[S], fed: Federation, key: Key, at: Played[S], size: StepSize
) -> tuple[Played[S], StepSize]:
    """The round, again with a smaller step size where that shortens replies that were rejected as far too long.

    A step size that is too large for one client lets its local steps run away, and its reply is rejected like that of a
    Byzantine client; to go on without it would leave out the very client that is served worst. What tells the two apart
    is that a smaller step size helps the one. Nothing was used of the reply, so the round begins where it began before.

    A client that nothing helped once does not count again. An η of half of what the curvature allows, or less, stays:
    no step runs away with it, so that it is not to blame, and no lie can lower it further.

    Returns:
        The round, and the step size that it had.
    """
    played = _played(with_step_size(algorithm, float(size.eta)), fed, key, at)
    tried, excess, in_vain = size, _excess(played, size), False
    while bool(excess.any()) and tried.lowered < step_size.MOST_LOWERED:
        tried = tried.halved()
        lower = with_step_size(algorithm, float(tried.eta))
        # With a step size this small no local step diverges. It is not the cause, and no malicious client can lower it
        # further.
        if (core_of(in_round(lower, at.round + 1)).local.lr or 0.0) <= size.first / 4:
            break
        # The round is repeated from its beginning, as rejected replies were not used.
        again = _played(lower, fed, key, at)
        left = _excess(again, size)
        # All updates shrink with the step size, but an update that grew from step to step shrinks by far more. If a
        # client does not answer again, the smaller step size did not help it.
        answered = torch.zeros(fed.n, dtype=torch.bool)
        if again.info is not None:
            answered[again.info.answered.cpu()] = True
        helped = (excess > 0) & (left < excess / SHORTER) & (answered | (left > 0))
        in_vain = not bool(helped.any())
        if not in_vain:
            played, size, excess = again, tried, left
            text = (
                f"the local step size is lowered to {float(size.eta):.3g} in round {at.round + 1}, which is done "
                f"again: with a larger one the steps of clients {helped.nonzero().flatten().tolist()} had run away"
            )
            LOG.warning(Notice(text, "step-size-lowered", "lr"))
    return played, size._replace(unaffected=size.unaffected | (excess > 0)) if in_vain else size


def _excess(played: Played[S], size: StepSize) -> Tensor:
    """(N,) how far too long replies were, 0 of clients that a smaller step size did not help."""
    excess = None if played.info is None else played.info.excess
    return torch.zeros(len(size.unaffected)).double() if excess is None else torch.where(size.unaffected, 0.0, excess)


def _played(algorithm: Algorithm[S], fed: Federation, key: Key, at: Played[S]) -> Played[S]:
    """One round more, with the algorithm's own step sizes, as they are in this round."""
    r, average, decaying, core = at.round + 1, at.average, at.decaying, core_of(algorithm)
    try:
        state, info = in_round(algorithm, r).round(at.state, fed, key.fold("round", r))
        if not bool(torch.isfinite(state.w).all()):
            raise NonFiniteError("the global model holds NaN or infinity")
    except NonFiniteError as error:
        sizes = ["lr", *(name for name in STEP_SIZES if hasattr(core, name))]
        raise DivergedError(
            f"{type(core).__name__} diverged in round {r} ({error}): {fed.target_advice()}lower {' or '.join(sizes)}"
        ) from error
    if not info.empty:
        if average is not None:
            if info.average is None:
                raise no_average(algorithm)
            # Unless it says otherwise, the mixture that the round started from: hence at.state and not state.
            lam = mixture_of(algorithm, at.state, fed) if info.mixture is None else info.mixture
            average = average.add(info.average, lam, info.weight)
        decaying = None if decaying is None else decaying.add(state.w, mixture_of(algorithm, state, fed))
    return Played(r, at.skipped + info.empty, state, average, decaying, at.step_size, info)
