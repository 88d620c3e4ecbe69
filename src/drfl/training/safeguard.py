"""The safeguard: it keeps the best model that the clients have checked, for roll-backs and for the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, State, ambiguity_of, flagged, lam_of, references_of
from drfl.federation.federation import Federation
from drfl.training.averages import Average, DecayingAverage
from drfl.training.step_size import CHECKED, CLIENTS, StepSize

if TYPE_CHECKING:
    from drfl.training.run_state import RunState

T = TypeVar("T")

SafeguardRule = Literal["best", "start"]
"""The model to which a run returns if its step size is too large: the best one checked so far, or the initial one."""

EVERY = 4
"""Rounds between checks at first, and after a check with a rise."""

DENSE = 32
"""Up to this round the clients check every fourth round; the distance doubles with the number of rounds from then on.
The share of the checks in the cost of a run therefore falls."""

RISE = 0.05
"""Smallest relative rise of the objective above its best value that counts as a rise."""

NOISE = 0.01
"""A rise of less than this fraction of the objective at the start does not count, however small the best is."""

CLEAR = 0.8
"""A loss below this fraction of the largest sampled loss at the start counts as below that of the initial model."""

CHECKS = 2
"""Consecutive checks with a rise after which the run returns to the best model. If the last roll-back has already
returned to it, twice as many are needed: a smaller η has not prevented the rise, so η may not be the cause."""

Objective = Callable[[Tensor], float]
"""Returns the value of an algorithm's objective for the clients' losses (N,), which are NaN if unknown."""


class SafePoint(NamedTuple):
    """The state to which a run returns if its step size is too large, and the checks since.

    Args:
        state: State of the algorithm.
        average: The averaged solution, if the run keeps it.
        decaying: The decaying average, if the run returns it.
        round: () int64, completed rounds; 0 for the initial model.
        lost: () int64, number of these rounds that do not count because of earlier roll-backs.
        losses: (N,) float64, reported losses of the model that the run would have returned; NaN = unknown.
        rises: () int64, consecutive checks with a rise.
        spent: (N,) bool, clients whose report alone has caused a roll-back. It cannot cause another one.
    """

    state: State
    average: Average | None
    decaying: DecayingAverage | None
    round: Tensor
    lost: Tensor
    losses: Tensor
    rises: Tensor
    spent: Tensor

    @classmethod
    def start(cls, n: int, state: State, average: Average | None, decaying: DecayingAverage | None) -> SafePoint:
        """Return the initial model of a run with n clients as the first safe point."""
        zero, unknown = torch.tensor(0), torch.full((n,), torch.nan, dtype=torch.float64)
        spent = torch.zeros(n, dtype=torch.bool)
        parts = copied(state), copied(average), copied(decaying)
        return cls(*parts, zero, zero.clone(), unknown, zero.clone(), spent)

    @property
    def model(self) -> Tensor:
        """(d,) the model that the run would have returned."""
        return self.state.w if self.decaying is None else self.decaying.w

    def describe_fault(self) -> str | None:
        """Describe an inconsistency, see :class:`drfl.federation.algorithm.Consistent`."""
        good = 0 <= self.lost <= self.round and self.rises >= 0
        return None if good else "a number of rounds or checks is impossible"

    def is_due(self, r: int) -> bool:
        """Return whether the clients check the model after round r."""
        every = EVERY if self.rises > 0 or r <= DENSE else EVERY * 2 ** ((r - 1) // DENSE).bit_length()
        return r > 0 and r % every == 0

    def after(
        self, attempt: RunState, size: StepSize, now: Tensor, objective: Objective, limit: Objective, *, is_gross: bool
    ) -> tuple[SafePoint, bool]:
        """Return the safe point after a check, and whether the run must return to it.

        Args:
            attempt: The run.
            size: Its step size, with the losses at the start.
            now: (N,) reported losses of the model that the run would return; NaN = unknown.
            objective: The algorithm's objective.
            limit: See :func:`limit_of`.
            is_gross: Whether the losses are far above those at the start, which needs no second check.
        """
        known = ~(now.isnan() | self.losses.isnan() | size.losses.isnan() | excluded(attempt.state, now))
        trusted = known & ~self.spent
        if not bool(trusted.any()):
            return self, False

        def has_risen(clients: Tensor) -> bool:
            start, best, new = (objective(select(v, clients)) for v in (size.losses, self.losses, now))
            return new > best + tolerance(start, best)

        # While the mean falls, the largest loss may rise for other reasons than η: λ has yet to follow the client that
        # is now the worst, or the sampled cohorts left it out. A fall counts at most twice the median change, so that
        # with four clients or more, one false report cannot hide that all others rise.
        change = select(now - self.losses, trusted)
        is_learning = mean(torch.maximum(change, -2 * change.abs().nanmedian())) < 0
        if is_gross or (has_risen(trusted) and not is_learning):
            rises, has_returned = self.rises + 1, self.round < size.restarted
            if not is_gross and rises < CHECKS * (2 if has_returned else 1):
                return self._replace(rises=rises), False
            # Without the client whose loss has risen most, would there have been a rise?
            most = select(now - self.losses, trusted).nan_to_num(-torch.inf).argmax()
            others, spent = trusted.index_fill(0, most[None], False), self.spent
            if bool(others.any()) and not has_risen(others):
                spent = spent.index_fill(0, most[None], True)
            return self._replace(rises=0 * rises, spent=spent), True
        before, new = (objective(select(v, trusted)) for v in (self.losses, now))
        # A spent client counts at most twice the largest loss of the others, so it cannot hide their progress.
        limits = [objective(capped(select(v, known), self.spent)) for v in (self.losses, now)]
        has_improved = new < before and limits[1] <= limits[0]
        safe = self._replace(rises=0 * self.rises)
        # The best model must also be one that may be returned.
        if has_improved and limit(select(now, trusted)) <= limit(select(size.losses, trusted)):
            safe = SafePoint(
                copied(attempt.state), copied(attempt.average), copied(attempt.decaying), torch.tensor(attempt.round),
                size.lost.clone(), select(now, known & now.isfinite()), safe.rises, self.spent,
            )  # fmt: skip
        return safe, False


class Fallback(NamedTuple):
    """An earlier model that a run returns because its last one is worse.

    Args:
        round: Its round; 0 = the initial model.
        effective_rounds: The number of rounds that it has been trained for.
        model: (d,) its parameters.
        lam: (N,) its client weights; None for the initial model.
        end: The limited training loss with the last model, see :func:`limit_of`.
        loss: The same with this model.
        client: The client with the largest training loss at the end; None if the mean is limited.
        ignored: Clients that do not count although their loss at the end is even larger, by descending loss.
    """

    round: int
    effective_rounds: int
    model: Tensor
    lam: Tensor | None
    end: float
    loss: float
    client: int | None
    ignored: tuple[tuple[int, float], ...] = ()


def fallback(
    algorithm: Algorithm, fed: Federation, progress: RunState, model: Tensor, key: Key, *, is_selected: bool
) -> Fallback | None:
    """Return an earlier model if the one at the end must not be returned; otherwise None.

    A run of a robust algorithm never returns a model whose largest training loss is above that of the initial model.
    For other algorithms this applies to the mean training loss, see :func:`limit_of`. If validation rows have not
    selected the model, it does not return one whose objective is clearly above that of the best checked model either.
    All clients report the loss on all their training rows; those whose report alone has caused a roll-back do not
    count.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        progress: The run at its end.
        model: (d,) the model that the run would return.
        key: The key of the reports.
        is_selected: Whether validation rows selected the model.
    """
    size, safe = progress.step_size, progress.safe
    if size is None or safe is None or bool(size.losses.isnan().all()):
        return None
    # If the checks have covered all training rows, the clients need not report again.
    covered = fed.n <= CLIENTS and fed.sizes is not None and bool(fed.sizes.max() <= CHECKED)
    objective, limit = objective_of(algorithm, progress.state), limit_of(algorithm)
    clients = torch.arange(fed.n)

    def losses_of(w: Tensor, checked: Tensor | None) -> Tensor:
        if checked is not None and covered and not bool(checked.isnan().any()):
            return checked
        return report(fed, clients, w, key, None)

    end = losses_of(model, safe.losses if torch.equal(model, safe.model) else None)
    # If the loss has clearly fallen, the reports of the samples at the start are enough.
    start = size.losses
    is_clear = limit(end) < CLEAR * limit(start)
    if not is_clear:
        start = losses_of(fed.w0, start)
    asked = ~end.isnan() if is_clear else ~(end.isnan() | start.isnan())
    counted = asked & ~safe.spent & ~excluded(progress.state, end)
    if not bool(counted.any()):
        return None
    is_too_large = not is_clear and limit(select(end, counted)) > limit(select(start, counted))
    # The losses of the last check show whether the best model is worth a request.
    checked = counted & ~safe.losses.isnan() & ~start.isnan()
    values = [objective(select(v, checked)) for v in (start, safe.losses, end)] if bool(checked.any()) else [0.0] * 3
    has_risen = not is_selected and values[2] > values[1] + tolerance(values[0], values[1])
    if not (is_too_large or has_risen):
        return None
    at_end = limit(select(end, counted))
    client = int(select(end, counted).nan_to_num(-torch.inf).argmax()) if limit is largest else None
    others = asked & ~counted & (end > at_end)
    ignored = tuple((i, float(end[i])) for i in end.argsort(descending=True).tolist() if others[i])
    if safe.round > 0:
        best = losses_of(safe.model, safe.losses)
        both = counted & ~best.isnan() & ~start.isnan()
        first, earlier, last = (select(v, both) for v in (start, best, end))
        value = objective(earlier) if bool(both.any()) else torch.inf
        is_better = is_too_large or objective(last) > value + tolerance(objective(first), value)
        if bool(both.any()) and limit(earlier) <= limit(first) and is_better:
            lam = lam_of(safe.state) if safe.decaying is None else safe.decaying.lam
            effective = int(safe.round - safe.lost)
            return Fallback(int(safe.round), effective, safe.model, lam, at_end, limit(earlier), client, ignored)
    if not is_too_large:
        return None
    return Fallback(0, 0, fed.w0, None, at_end, limit(select(start, counted)), client, ignored)


def objective_of(algorithm: Algorithm, state: State) -> Objective:
    """Return the objective that the safeguard watches: that of a robust algorithm, or else the mean over clients."""
    ambiguity, references = ambiguity_of(algorithm), references_of(state)

    def objective(losses: Tensor) -> float:
        known = ~losses.isnan()
        values = losses[known]
        if not values.numel() or bool(values.isinf().any()):
            return torch.inf
        if ambiguity is None:
            return float(values.mean())
        # A client that is not asked counts like the mean of the others.
        filled = torch.where(known, losses, values.mean())
        if references is not None and bool(references.known.all()):
            filled = filled - references.values.double().cpu()
        return float(ambiguity.worst_case(filled).value)

    return objective


def limit_of(algorithm: Algorithm) -> Objective:
    """Return the statistic that must not exceed its value at the initial model: the largest loss, or the mean without
    Λ.

    An algorithm that minimises a mean may rightly serve one client worse than the initial model does, if the others
    gain more.
    """
    return mean if ambiguity_of(algorithm) is None else largest


def report(fed: Federation, clients: Tensor, w: Tensor, key: Key, batch: int | None) -> Tensor:
    """Return (N,) float64 losses at w (d,) as reported by clients (k,); NaN for the others, ∞ instead of a NaN."""
    losses = torch.full((fed.n,), torch.nan, dtype=torch.float64)
    if not clients.numel():
        return losses
    reply = fed.losses(clients, w, key, batch=batch)
    values = reply.values.double().cpu().nan_to_num(torch.inf, posinf=torch.inf, neginf=-torch.inf)
    return losses.index_copy(0, reply.clients.cpu(), values)


def tolerance(start: float, best: float) -> float:
    """Return by how much an objective may exceed the best one, given its value at the start."""
    return max(RISE * abs(best), NOISE * abs(start))


def select(losses: Tensor, clients: Tensor) -> Tensor:
    """Return the losses (N,) with NaN for all but some clients (N,) bool."""
    return torch.where(clients, losses, torch.nan)


def largest(losses: Tensor) -> float:
    """Return the largest of the losses (N,) that are known."""
    return float(losses.nan_to_num(-torch.inf, posinf=torch.inf).max())


def mean(losses: Tensor) -> float:
    """Return the mean of the losses (N,) that are known."""
    return float(losses.nanmean())


def capped(losses: Tensor, spent: Tensor) -> Tensor:
    """Cap the losses (N,) of spent clients at twice the largest of the others."""
    return torch.where(spent, losses.clamp(max=2 * largest(losses[~spent])), losses)


def excluded(state: State, like: Tensor) -> Tensor:
    """Return (N,) bool, the clients that the guard of an algorithm's dual update excludes at present."""
    flags = flagged(state)
    return torch.zeros_like(like, dtype=torch.bool) if flags is None else flags.cpu()


def copied(state: T) -> T:
    """Copy the tensors of a state, because a checkpoint rejects two tensors that share memory.

    Client tables are not copied, because their rows never change.
    """
    if isinstance(state, Tensor):
        return cast("T", state.clone())
    if not isinstance(state, tuple):
        return state
    parts = tuple(copied(part) for part in state)
    return type(state)(*parts) if hasattr(state, "_fields") else cast("T", parts)
