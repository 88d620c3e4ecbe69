"""The step-size controller: whether a run goes on from a round, plays it again, or starts again with a smaller η.

It watches over a step size that drfl found itself, see :mod:`drfl.training.step_size`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import DivergedError, Notice
from drfl.core.key import Key
from drfl.federation.federation import Federation
from drfl.training.run_state import RunState
from drfl.training.step_size import COMPARED, StepSize

LOG = logging.getLogger("drfl")

FIRST = 4
"""The first round after which losses are compared with the start: they need a few to settle."""

RUNAWAY = 2
"""A round that goes so many times as far as the longest one before is looked at, too."""

SHORTER = 4
"""A far too long reply that a smaller step size makes so many times shorter was the step size's fault."""

RISE = 0.5
"""A loss above the start's by this share of it is no noise: split classes and cohorts drawn by λ raise it by 0.2."""

MOST_LOWERED = 10
"""So often η is halved before the run is given up: a thousandth of the first one."""


class Continue(NamedTuple):
    """Go on from this attempt at the round, the latest or an earlier one."""

    progress: RunState


class Repeat(NamedTuple):
    """Play the round again from its beginning, with this step size."""

    eta: float


class RollBack(NamedTuple):
    """Go back to the initial state, and play the round from there.

    Args:
        size: the step size from now on.
        notice: what happened, for the log.
    """

    size: StepSize
    notice: Notice


class StepSizeController:
    """Decides on the attempts at one round, from the first on.

    What it knows from earlier rounds, and learns for later ones, is the :class:`drfl.training.step_size.StepSize` of
    the run, which checkpoints keep.

    Args:
        size: what the run knows before the round.
        before: where the run is then.
        factor: what the schedule of the local step size multiplies it by in this round.
        has_risen: whether the loss at a model (d,) is far above that at the start, see :func:`rises`.
    """

    def __init__(
        self, size: StepSize, before: RunState, factor: float, has_risen: Callable[[StepSize, Tensor], bool]
    ) -> None:
        self._first, self._before, self._factor, self._has_risen = size, before, factor, has_risen
        # The attempt that counts so far, with its step size, and the replies that were far too long in it.
        self._best: RunState | None = None
        self._size, self._excess = size, torch.zeros(len(size.unaffected)).double()
        # The step size of the latest attempt, and whether that attempt was of no use.
        self._tried, self._in_vain = size, False

    def accept(self, attempt: RunState | DivergedError) -> Continue | Repeat | RollBack:
        """Decide how a run goes on after an attempt at the round.

        A step size that is too large for one client lets its local steps run away, and its reply is rejected like that
        of a Byzantine client; to go on without it would leave out the very client that is served worst. What tells the
        two apart is that a smaller step size helps the one. So the round is repeated with smaller ones, which begins
        where it began before, as nothing was used of the reply.

        A client that nothing helped once does not count again. An η of half of what the curvature allows, or less,
        stays: no step runs away with it, so that it is not to blame, and no lie can lower it further.

        Args:
            attempt: the round, or the error with which it left the finite numbers.

        Raises:
            DivergedError: it did so, and the step size was halved as often as may be.
        """
        last_try = bool(self._first.lowered >= MOST_LOWERED)
        if isinstance(attempt, DivergedError):
            if last_try:
                raise attempt
            return self._roll_back(self._first, str(attempt))
        if self._best is None:
            self._best, self._excess = attempt, _excess(attempt, self._size)
        else:
            self._compare(attempt)
        if bool(self._excess.any()) and self._tried.lowered < MOST_LOWERED:
            self._tried = self._tried.halved()
            # With a step size this small no local step diverges. It is not the cause, and no malicious client can lower
            # it further.
            if float(self._tried.eta) * self._factor > self._size.first / 4:
                return Repeat(float(self._tried.eta))
        best, size = self._best, self._size
        if self._in_vain:
            size = size._replace(unaffected=size.unaffected | (self._excess > 0))
        r, way = best.round, (best.state.w - self._before.state.w).norm().double().cpu()
        scheduled = r >= FIRST and r // (r & -r) in (1, 3)  # r = 2^k or 3·2^k: 4, 6, 8, 12, 16, 24, …
        # A model that runs away goes farther in a round than in any before: no need to ask anybody until then.
        due = scheduled or (r > FIRST and bool(way > RUNAWAY * size.moved))
        if not last_try and due and self._has_risen(size, best.state.w):
            return self._roll_back(size, "the loss had risen far above that at the start")
        return Continue(best._replace(step_size=size._replace(moved=torch.maximum(size.moved, way))))

    def _compare(self, attempt: RunState) -> None:
        """Take a repeated round in place of the one that counted so far, if its smaller step size has helped."""
        left = _excess(attempt, self._size)
        # All updates shrink with the step size, but an update that grew from step to step shrinks by far more. If a
        # client does not answer again, the smaller step size did not help it.
        answered = torch.zeros(len(left), dtype=torch.bool)
        if attempt.info is not None:
            answered[attempt.info.answered.cpu()] = True
        helped = (self._excess > 0) & (left < self._excess / SHORTER) & (answered | (left > 0))
        self._in_vain = not bool(helped.any())
        if self._in_vain:
            return
        self._best, self._size, self._excess = attempt, self._tried, left
        text = (
            f"the local step size is lowered to {float(self._size.eta):.3g} in round {attempt.round}, which is done "
            f"again: with a larger one the steps of clients {helped.nonzero().flatten().tolist()} had run away"
        )
        LOG.warning(Notice(text, "step-size-lowered", "lr"))

    def _roll_back(self, size: StepSize, reason: str) -> RollBack:
        # The finished rounds and their cost still count.
        size = size.set_back(self._before.round)
        text = (
            f"the local step size is halved to {float(size.eta):.3g}, and the model set back to the initial one, in "
            f"round {self._before.round + 1}: {reason}"
        )
        return RollBack(size, Notice(text, "step-size-lowered", "lr"))


def _excess(attempt: RunState, size: StepSize) -> Tensor:
    """(N,) how far too long replies were, 0 of clients that a smaller step size did not help."""
    excess = None if attempt.info is None else attempt.info.excess
    return torch.zeros(len(size.unaffected)).double() if excess is None else torch.where(size.unaffected, 0.0, excess)


def rises(size: StepSize, fed: Federation, w: Tensor, key: Key) -> bool:
    """Whether the loss at w (d,) is well above that at the start, on the samples that :func:`find` drew with this key.

    Both the mean and the largest over the clients that were asked then must be: a robust method may raise the one, and
    the first rounds on split classes the other. Once η was halved, the client whose loss rose most does not count: a
    single client's word, which may be a lie, halves η once and no more.

    Args:
        size: with the losses at the start.
        fed: the clients.
        w: (d,) where.
        key: of :func:`find`.
    """
    asked = (~size.losses.isnan()).nonzero().flatten()
    if not asked.numel():
        return False
    now = fed.losses(asked, w, key, batch=COMPARED)
    if not now.clients.numel():
        return False
    # NaN counts as an infinite loss.
    values, start = now.values.nan_to_num(torch.inf), size.losses[now.clients]
    if values.numel() > 1 and size.lowered > 0:
        most = (values - start).argmax()
        values = values.index_copy(0, most[None], start[most][None])
    # The rise is relative to |loss|, as a multiple of a negative loss would be lower than the loss.
    limits = [level + RISE * level.abs() for level in (start.max(), start.mean())]
    return bool(values.max() > limits[0]) and bool(values.mean() > limits[1])
