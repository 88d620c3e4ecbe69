"""The step-size controller: it decides whether a run continues, repeats a round or is reset with a smaller η.

It controls step sizes that drfl determines itself, see :mod:`drfl.training.step_size`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import DivergedError, Notice
from drfl.training.run_state import RunState
from drfl.training.safeguard import Objective, SafePoint, largest
from drfl.training.step_size import StepSize

LOG = logging.getLogger("drfl")

FIRST = 4
"""The first round after which losses are compared with the start; they need a few rounds to settle."""

RUNAWAY = 2
"""A round that moves the model farther than this multiple of the longest round so far is checked as well."""

SHORTER = 4
"""If a smaller step size shortens a far too long update by this factor, the step size was the cause."""

RISE = 0.5
"""Relative rise of the loss above the start that exceeds noise; split classes and cohorts drawn by λ cause 0.2."""

MOST_LOWERED = 10
"""Number of halvings of η after which the run fails; η is then a thousandth of its first value."""


class Continue(NamedTuple):
    """Continue from this attempt at the round, the latest or an earlier one."""

    progress: RunState


class Repeat(NamedTuple):
    """Repeat the round from its beginning with this step size."""

    eta: float


class RollBack(NamedTuple):
    """Reset the model to the safe point and play the round from there.

    Args:
        size: The step size from now on.
        reason: The reason, for the log.
        safe: The safe point.
        w: (d,) the model at which the step size was too large; None if it is not finite.
    """

    size: StepSize
    reason: str
    safe: SafePoint
    w: Tensor | None = None

    def notice(self, size: StepSize, rounds: int) -> Notice:
        """Return the message for the log, for the step size that is used from now on after some completed rounds."""
        where = "initial one" if self.safe.round == 0 else f"one of round {int(self.safe.round)}"
        text = (
            f"lowered the local step size to {float(size.eta):.3g} and reset the model to the {where} in round "
            f"{rounds + 1}: {self.reason}"
        )
        return Notice(text, "step-size-lowered", "lr")


class Watch(NamedTuple):
    """The controller's requests to the clients.

    Args:
        report: Returns the clients' losses (N,) at the model (d,) of a run, or at their own; NaN = unknown.
        objective: The objective that the safeguard watches. None = the model is only compared with the initial one.
        limit: See :func:`drfl.training.safeguard.limit_of`.
        names_of: Returns the names of clients (k,) in messages.
    """

    report: Callable[[RunState, Tensor], Tensor]
    objective: Objective | None
    limit: Objective = largest
    names_of: Callable[[Tensor], str] = str


class StepSizeController:
    """Decides how a run continues after each attempt at one round.

    Knowledge that is shared between rounds is in the run's :class:`drfl.training.step_size.StepSize`, which checkpoints
    store.

    Args:
        size: The step size before the round.
        before: The run before the round.
        factor: The factor of the step-size schedule in this round.
        safe: The safe point before the round.
        watch: Requests to the clients.
    """

    def __init__(self, size: StepSize, before: RunState, factor: float, safe: SafePoint, watch: Watch) -> None:
        self._first, self._before, self._factor, self._safe, self._watch = size, before, factor, safe, watch
        # The best attempt so far, its step size, and by how much each client's update was too long in it.
        self._best: RunState | None = None
        self._size, self._excess = size, torch.zeros(len(size.unaffected)).double()
        # The step size of the latest attempt, and whether that attempt helped no client.
        self._tried, self._in_vain = size, False

    def accept(self, attempt: RunState | DivergedError) -> Continue | Repeat | RollBack:
        """Decide how the run continues after an attempt at the round.

        If the step size is too large for a client, its local steps diverge and its reply is rejected like that of a
        Byzantine client. Ignoring that reply would exclude the very client that is served worst. The two cases differ
        in that a smaller step size helps the honest client. So the round is repeated with smaller step sizes. Each
        attempt starts from the same state, because the rejected reply was not used.

        A client that a smaller step size did not help is ignored from then on. If η is at most half of the value that
        the curvature allows, it is not lowered further. No local step diverges with it, so it is not the cause, and no
        malicious client can lower it further.

        Args:
            attempt: The run after the round, or the error if the round diverged.

        Raises:
            DivergedError: If the round diverged and the step size was halved as often as allowed.
        """
        last_try = bool(self._first.lowered >= MOST_LOWERED)
        if isinstance(attempt, DivergedError):
            if last_try:
                raise attempt
            return self._roll_back(self._first, str(attempt), self._safe, None)
        if self._best is None:
            self._best, self._excess = attempt, _excess(attempt, self._size)
        else:
            # A repeated round replaces the best attempt only if its smaller step size has helped a client. All updates
            # shrink with the step size, but the update of a diverging client shrinks by far more. If a client does not
            # answer again, the smaller step size did not help it.
            remaining, answered = _excess(attempt, self._size), torch.zeros(len(self._excess), dtype=torch.bool)
            if attempt.info is not None:
                answered[attempt.info.answered.cpu()] = True
            helped = (self._excess > 0) & (remaining < self._excess / SHORTER) & (answered | (remaining > 0))
            self._in_vain = not bool(helped.any())
            if not self._in_vain:
                self._best, self._size, self._excess = attempt, self._tried, remaining
                names = self._watch.names_of(helped.nonzero().flatten())
                text = (
                    f"lowered the local step size to {float(self._size.eta):.3g} in round {attempt.round} and repeated "
                    f"the round, because the local steps of {names} diverged"
                )
                LOG.warning(Notice(text, "step-size-lowered", "lr"))
        if bool(self._excess.any()) and self._tried.lowered < MOST_LOWERED:
            self._tried = self._tried.halve()
            # With a step size this small no local step diverges. It is not the cause, and no malicious client can lower
            # it further.
            if float(self._tried.eta) * self._factor > self._size.first / 4:
                return Repeat(float(self._tried.eta))
        best, size = self._best, self._size
        if self._in_vain:
            size = size._replace(unaffected=size.unaffected | (self._excess > 0))
        r, distance = best.round, (best.state.w - self._before.state.w).norm().double().cpu()
        objective, safe = self._watch.objective, self._safe
        # Ask for losses only when they are needed: a diverging model moves farther than in any round before.
        scheduled = r >= FIRST and r // (r & -r) in (1, 3)  # r = 2^k or 3·2^k: 4, 6, 8, 12, 16, 24, …
        due = (scheduled if objective is None else safe.is_due(r)) or (
            r > FIRST and bool(distance > RUNAWAY * size.moved)
        )
        if due and not size.losses.isnan().all() and not (objective is None and last_try):
            now = self._watch.report(best, best.state.w if objective is None else best.model)
            is_gross = has_risen = rises(size, torch.where(safe.spent, torch.nan, now))
            if objective is not None:
                safe, has_risen = safe.after(best, size, now, objective, self._watch.limit, is_gross=is_gross)
            if has_risen and not last_try:
                what = "far above its value at the start" if is_gross else f"above its value in round {int(safe.round)}"
                return self._roll_back(size, f"the loss rose {what}", safe, best.state.w)
        moved = torch.maximum(size.moved, distance)
        return Continue(best._replace(step_size=size._replace(moved=moved), safe=safe))

    def _roll_back(self, size: StepSize, reason: str, safe: SafePoint, w: Tensor | None) -> RollBack:
        # The finished rounds and their cost still count.
        return RollBack(size.reset(self._before.round, int(safe.round - safe.lost)), reason, safe, w)


def _excess(attempt: RunState, size: StepSize) -> Tensor:
    """Return (N,) by how much updates were too long; 0 for clients that a smaller step size did not help."""
    excess = None if attempt.info is None else attempt.info.excess
    return torch.zeros(len(size.unaffected)).double() if excess is None else torch.where(size.unaffected, 0.0, excess)


def rises(size: StepSize, now: Tensor) -> bool:
    """Return whether losses are far above those at the start, on the samples that :func:`find` drew.

    Both the mean and the maximum over the sampled clients must be far above. A robust method may raise the mean, and
    the first rounds on split classes may raise the maximum. Once η has been halved, the client whose loss rose most is
    excluded: the reported loss of a single client, which may be malicious, thus halves η at most once.

    Args:
        size: The step size, with the losses at the start.
        now: (N,) reported losses; NaN = unknown.
    """
    known = ~(now.isnan() | size.losses.isnan())
    values, start = now[known], size.losses[known]
    if not values.numel():
        return False
    if values.numel() > 1 and size.lowered > 0:
        most = (values - start).argmax()
        values = values.index_copy(0, most[None], start[most][None])
    # The rise is relative to |loss|, because a multiple of a negative loss would be lower than the loss.
    limits = [level + RISE * level.abs() for level in (start.max(), start.mean())]
    return bool(values.max() > limits[0]) and bool(values.mean() > limits[1])
