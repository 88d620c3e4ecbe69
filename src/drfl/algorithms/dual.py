"""The dual step: how λ follows the reported losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from drfl.algorithms.sparse_vector import SparseVector, spread
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core import checks
from drfl.core.errors import InputError, NonFiniteError, unknown
from drfl.core.key import Key
from drfl.federation.federation import Federation
from drfl.federation.requests import Losses, Merged
from drfl.federation.sampling import Sampling, size, uniform, with_replacement
from drfl.optim.local import LocalSGD, refuse_epochs
from drfl.optim.schedules import Constant, Schedule


def finite(losses: Losses) -> Losses:
    """The same reports.

    Raises:
        NonFiniteError: a report is NaN or infinite; names the client.
    """
    bad = losses.clients[~torch.isfinite(losses.values)]
    if bad.numel():
        raise NonFiniteError(f"the losses reported by clients {bad.tolist()} are NaN or infinite")
    return losses


RATE = 0.1
"""D of the built-in rule: a first step moves λ by so much in the Euclidean norm, whatever the losses."""

LEAST = torch.finfo(torch.float64).tiny
"""The rule divides by no less than this: differences that small would make the step infinite."""


def step_size(gamma: float | None, v: Tensor | SparseVector, squares: Tensor) -> tuple[float, Tensor]:
    """How far λ moves along v in this round: γ where it is given, else D/√(Σ ‖v − v̄‖²), this round's included.

    This is the step of AdaGrad with one scale for all coordinates (Duchi et al. 2011; Streeter and McMahan 2010), whose
    regret on a set of diameter about D is optimal up to a constant without a number for the size of the losses, for N
    or for the rounds. Only the part of v along the simplex counts, v − v̄: a constant added to all losses does not move
    λ, and losses ten times as large give the same λ. ``docs/defaults.md`` compares it with other rules.

    Args:
        gamma: the step, already times τ where the paper has τγ; None = the rule.
        v: (N,) float64 direction of ascent.
        squares: () float64, of the rounds before.

    Returns:
        The step and the new sum of squares.
    """
    # Add to the sum even if γ is given, so that the state is the same in both cases.
    squares = squares + (v.spread() if isinstance(v, SparseVector) else spread(v))
    if gamma is not None:
        return gamma, squares
    # While all losses are equal there is no direction, and no scale to divide by.
    return (RATE / max(float(squares) ** 0.5, LEAST) if float(squares) > 0 else 0.0), squares


def check_schedule(name: str, gamma: float | None, schedule: Schedule) -> None:
    """Raise an :class:`drfl.core.errors.InputError` where a schedule is for a dual step that no number is given of."""
    if gamma is None and schedule != Constant():
        raise InputError(
            f"{name}_schedule needs {name}: without a number the rule shortens the dual step by itself",
            code="needs-option",
            field=f"{name}_schedule",
        )


def no_squares() -> Tensor:
    """The sum of squares before the first report."""
    return torch.zeros((), dtype=torch.float64)


Start = Literal["uniform", "shares"]
"""What λ^(0) is nearest to: the uniform mixture, or the clients' shares of the training samples."""


def first_mixture(ambiguity: AmbiguitySet, fed: Federation, start: Start) -> Tensor:
    """λ^(0): the point of Λ nearest to where λ is to start, (N,) float64.

    Raises:
        InputError: there is no such start.
    """
    if start not in get_args(Start):
        raise unknown("lam0", start, get_args(Start))
    uniform = torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)
    return ambiguity.project(uniform if start == "uniform" else fed.shares.double())


class Ascent(NamedTuple):
    """Where the dual step leads.

    Args:
        lam: (N,) the next mixture.
        squares: () of the rule so far, see :func:`step_size`.
        losses: the reports behind it.
        target: (N,) of which the next mixture is the projection.
    """

    lam: Tensor
    squares: Tensor
    losses: Losses
    target: Tensor


@dataclass(frozen=True)
class SnapshotMethod:
    """The parameters and the dual step that DRFA, DRFA-Prox, DRDM and dual DRDM share.

    Args:
        m: cohort size, for training and for the loss reports; None = :func:`drfl.federation.sampling.size`.
        gamma: dual step size γ ≥ 0: a round moves λ by τγ·v. None = the rule of :func:`step_size`.
        local: what a client runs.
        dual_batch: samples per loss report; None = all local training data.
        ambiguity: the set Λ and the regulariser ψ.
        sampling: how D is drawn from λ: ``sampling.with_replacement`` (the papers'), ``sampling.without_replacement``,
            ``sampling.everybody`` (all clients, weighted by λ) or ``sampling.uniform_weighted`` (m of them).
        centred: subtract the mean of the reports before the factor N/m: on the simplex the same in expectation, without
            the noise of the whole loss. The papers do not.
        gamma_schedule: multiplies γ round by round, see :mod:`drfl.optim.schedules`.
        lam0: where λ starts, see :func:`first_mixture`.

    Raises:
        InputError: a value is out of range, or m > N (when first used).
    """

    m: int | None = None
    gamma: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    dual_batch: int | None = 32
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = with_replacement
    centred: bool = False
    gamma_schedule: Schedule = field(default_factory=Constant, kw_only=True)
    lam0: Start = field(default="uniform", kw_only=True)

    def __post_init__(self) -> None:
        if self.gamma is not None:
            checks.non_negative("gamma", self.gamma)
        if self.dual_batch is not None:
            checks.whole("dual_batch", self.dual_batch)
        check_schedule("gamma", self.gamma, self.gamma_schedule)
        refuse_epochs(type(self).__name__, self.local, "its snapshot is after one number of local steps")

    def snapshot_ascent(self, fed: Federation, model: Merged, lam: Tensor, squares: Tensor, key: Key) -> Ascent:
        """λ ← prox(λ + τγ·v), v_i = (N/m)·ℓ_i(w^{t'}) at a uniform sample of clients; without ψ the projection on Λ.

        DRFA (Deng et al. 2020), Algorithm 1, lines 14–17, and Algorithm 2; DRDM (Krouka et al. 2025), Algorithm 3. As
        t' is uniform on {1, …, τ}, τ·v is an unbiased estimate of the gradients in λ summed over the round's local
        steps (DRFA, eq. 3). When only some of the m answer, N/m becomes N over the number who did; when nobody does, λ
        stays.

        Args:
            fed: the clients.
            model: with the snapshot w^{t'} of the global model.
            lam: (N,) the mixture.
            squares: () of the rule so far, see :func:`step_size`.
            key: the round's key.

        Raises:
            NonFiniteError: a report is NaN or infinite.
        """
        assert model.snapshot is not None, "the local steps were asked for without a snapshot"
        U = uniform(fed.n, size(self.m, fed.n), key.fold("U"))
        f = fed.losses(U.clients, model.snapshot, key.fold("xi"), batch=self.dual_batch)
        if not f.clients.numel():
            return Ascent(lam, squares, f, lam)
        # Sparse: of a million clients, only the m that report differ from the rest.
        v = SparseVector(fed.n, f.clients, f.scaled(fed.n, centred=self.centred))
        gamma = None if self.gamma is None else self.local.tau * self.gamma
        step, squares = step_size(gamma, v, squares)
        target = v.plus(lam, step)
        return Ascent(prox(self.ambiguity, target, step), squares, f, target)


def ascend(ambiguity: AmbiguitySet, lam: Tensor, step: float, v: Tensor) -> Tensor:
    """argmax_{u∈Λ} step·(⟨v, u⟩ − ψ(u)) − ‖u − λ‖²/2: the proximal step of DRFA-Prox and SCAFF-PD.

    Args:
        ambiguity: Λ and ψ.
        lam: (N,) where it starts.
        step: its length; 0 leaves a λ of Λ where it is.
        v: (N,) ascent direction of the part linear in λ.

    Raises:
        NonFiniteError: v holds NaN or infinity.
    """
    return prox(ambiguity, lam + step * v, step)


def prox(ambiguity: AmbiguitySet, target: Tensor, step: float) -> Tensor:
    """argmax_{u∈Λ} −step·ψ(u) − ‖u − target‖²/2 (N,), step ≥ 0.

    Raises:
        NonFiniteError: target (N,) holds NaN or infinity.
    """
    return ambiguity.prox(target, step) if step > 0 else ambiguity.project(target)
