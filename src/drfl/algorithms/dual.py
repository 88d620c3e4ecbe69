"""The dual update: how λ follows the reported losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.excess_loss import Reference, excess
from drfl.algorithms.sparse_vector import SparseVector, spread
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.ambiguity.ambiguity_set import as_vector, check_ambiguity, on_simplex
from drfl.core import checks
from drfl.core.errors import InputError, NonFiniteError, unknown
from drfl.core.key import Key
from drfl.federation.algorithm import References
from drfl.federation.federation import Federation
from drfl.federation.requests import Losses, Merged
from drfl.federation.sampling import Sampling, check_sampling, size, uniform, with_replacement
from drfl.optim.local import LocalSGD, refuse_epochs
from drfl.optim.schedules import Constant, Schedule, check_schedule


def check_finite(losses: Losses, fed: Federation) -> Losses:
    """Return the losses unchanged if they are all finite.

    Raises:
        NonFiniteError: If a loss is NaN or infinite; the message names the clients.
    """
    bad = losses.clients[~torch.isfinite(losses.values)]
    if bad.numel():
        raise NonFiniteError(f"the losses reported by {fed.names_of(bad)} are NaN or infinite")
    return losses


RATE = 0.1
"""D of the built-in rule: Euclidean length of the first step of λ, independent of the size of the losses."""

LEAST = torch.finfo(torch.float64).tiny
"""Lower bound on the rule's divisor. Smaller loss differences would make the step infinite."""


def step_size(gamma: float | None, v: Tensor | SparseVector, squares: Tensor) -> tuple[float, Tensor]:
    """Compute how far λ moves along v: γ if it is set, else D/√(Σ ‖v − v̄‖²) over all rounds up to this one.

    This is AdaGrad's step with one scale for all coordinates (Duchi et al. 2011; Streeter and McMahan 2010). On a set
    of diameter about D its regret is optimal up to a constant, without knowledge of N, of the number of rounds or of
    the size of the losses. Only the component of v along the simplex counts, v − v̄: adding a constant to all losses
    does not move λ, and multiplying all losses by ten gives the same λ. ``docs/defaults.md`` compares it with other
    rules.

    Args:
        gamma: The step, already multiplied by τ if the paper uses τγ; None applies the rule.
        v: (N,) float64 ascent direction.
        squares: () float64 Sum of squares over the previous rounds.

    Returns:
        The step and the new sum of squares.
    """
    # Update the sum even if γ is set, so that the state does not depend on γ.
    squares = squares + (v.spread() if isinstance(v, SparseVector) else spread(v))
    if gamma is not None:
        return gamma, squares
    # If all losses have been equal so far, λ has no direction to move in, and the rule has no scale to divide by.
    return (RATE / max(float(squares) ** 0.5, LEAST) if float(squares) > 0 else 0.0), squares


def check_dual_step(name: str, gamma: float | None, schedule: Schedule) -> None:
    """Check a dual step size, and that a schedule multiplies one that is set.

    Raises:
        InputError: If gamma is negative, or None although there is a schedule, or the schedule is not one.
    """
    check_schedule(f"{name}_schedule", schedule)
    if gamma is not None:
        checks.non_negative(name, gamma)
    if gamma is None and schedule != Constant():
        raise InputError(
            f"{name}_schedule requires {name}; without it, the built-in rule shortens the dual step by itself",
            code="needs-option",
            field=f"{name}_schedule",
        )


def no_squares() -> Tensor:
    """Return the sum of squares before the first reported loss, which is 0."""
    return torch.zeros((), dtype=torch.float64)


Start = Literal["uniform", "shares"] | Sequence[float]
"""Initial λ before projection onto Λ: uniform, the clients' shares of the training samples, or a weight per client."""


def first_mixture(ambiguity: AmbiguitySet, fed: Federation, start: Start) -> Tensor:
    """Return λ^(0) (N,) float64: the uniform weights, the clients' shares or given weights, projected onto Λ.

    Raises:
        InputError: If ``start`` is neither a known value nor one weight per client, with sum 1.
    """
    if not isinstance(start, str):
        expected = f"lam0 must be one weight of at least 0 for each of the {fed.n} clients, with sum 1, or 'uniform'"
        try:
            lam = as_vector(start)
        except InputError:
            raise InputError(f"{expected}, got {start!r:.60}", code="wrong-type", field="lam0") from None
        if lam.shape != (fed.n,) or not bool(lam.isfinite().all()) or not on_simplex(lam):
            raise InputError(f"{expected}, got {lam.tolist()!r:.60}", code="invalid-value", field="lam0")
    elif start in ("uniform", "shares"):
        uniform = torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)
        lam = uniform if start == "uniform" else fed.shares.double()
    else:
        raise unknown("lam0", start, ("uniform", "shares"))
    # None of them needs to be in Λ: a floor, a cap or a ball around another prior may exclude them.
    return ambiguity.project(lam)


class Ascent(NamedTuple):
    """Result of a dual update.

    Args:
        lam: (N,) Next client weights.
        squares: () Sum of squares of the step rule, see :func:`step_size`.
        losses: Losses behind the update.
        target: (N,) The point whose projection is ``lam``.
        reference: The losses of the clients' own models.
    """

    lam: Tensor
    squares: Tensor
    losses: Losses
    target: Tensor
    reference: References | None


@dataclass(frozen=True)
class SnapshotMethod:
    """The parameters and the dual update that DRFA, DRFA-Prox, DRDM and dual DRDM share.

    Args:
        m: Cohort size, for training and for the loss reports; None = :func:`drfl.federation.sampling.size`.
        gamma: Dual step size γ ≥ 0; a round moves λ by τγ·v. With None, :func:`step_size` sets the step.
        local: Local solver.
        dual_batch: Samples per reported loss; None uses all local training data.
        ambiguity: Ambiguity set Λ and regulariser ψ.
        sampling: How the cohort D is drawn from λ: ``sampling.with_replacement`` (as in the papers),
            ``sampling.without_replacement``, ``sampling.all_clients`` (all clients, weighted by λ) or
            ``sampling.uniform_weighted`` (m uniformly drawn clients, weighted by λ).
        centred: Whether to subtract the mean of the reported losses before multiplying by N/m. On the simplex this has
            the same expectation, but without the noise of the overall loss level. The papers do not centre.
        gamma_schedule: Multiplies γ in each round, see :mod:`drfl.optim.schedules`.
        lam0: Initial λ, see :func:`first_mixture`.
        reference: "own" subtracts the loss of each client's own model from its reported losses, see
            :mod:`drfl.algorithms.excess_loss`.

    Raises:
        InputError: If a value is out of range, or if m > N (on first use).
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
    reference: Reference = field(default="none", kw_only=True)

    def __post_init__(self) -> None:
        if self.dual_batch is not None:
            checks.integer("dual_batch", self.dual_batch)
        check_dual_step("gamma", self.gamma, self.gamma_schedule)
        check_ambiguity(self.ambiguity)
        check_sampling(self.sampling)
        refuse_epochs(type(self).__name__, self.local, "its snapshot needs the same number of local steps everywhere")

    def snapshot_ascent(
        self, fed: Federation, model: Merged, lam: Tensor, squares: Tensor, reference: References | None, key: Key
    ) -> Ascent:
        """Update λ ← prox(λ + τγ·v) with v_i = (N/m)·ℓ_i(w^{t'}) on a uniform sample; without ψ, project onto Λ.

        DRFA (Deng et al. 2020), Algorithm 1, lines 14–17, and Algorithm 2; DRDM (Krouka et al. 2025), Algorithm 3.
        Because t' is uniform on {1, …, τ}, τ·v is an unbiased estimate of the gradients in λ summed over the round's
        local steps (DRFA, eq. 3). If only some of the m clients answer, N/m becomes N divided by their number. If none
        answers, λ does not change.

        Args:
            fed: The federation.
            model: The merged model, with the snapshot w^{t'}.
            lam: (N,) Current client weights.
            squares: () Sum of squares of the step rule, see :func:`step_size`.
            reference: The losses of the clients' own models; None unless the dual update follows excess losses.
            key: The round's key.

        Raises:
            NonFiniteError: If a reported loss is NaN or infinite.
        """
        assert model.snapshot is not None, "the local steps were requested without a snapshot"
        # Draw a second cohort independently of λ, because reports of clients drawn from λ are a biased sample of the
        # losses.
        U = uniform(fed.n, size(self.m, fed.n), key.fold("U"))
        f = fed.losses(U.clients, model.snapshot, key.fold("xi"), batch=self.dual_batch)
        f, reference = excess(f, reference, fed, self.local, key)
        if not f.clients.numel():
            return Ascent(lam, squares, f, lam, reference)
        # Use a sparse vector, because only the m clients that report, out of perhaps a million, differ from the rest.
        v = SparseVector(fed.n, f.clients, f.scaled(fed.n, centred=self.centred))
        gamma = None if self.gamma is None else self.local.tau * self.gamma
        step, squares = step_size(gamma, v, squares)
        target = v.plus(lam, step)
        return Ascent(prox(self.ambiguity, target, step), squares, f, target, reference)


def ascend(ambiguity: AmbiguitySet, lam: Tensor, step: float, v: Tensor) -> Tensor:
    """Compute argmax_{u∈Λ} step·(⟨v, u⟩ − ψ(u)) − ‖u − λ‖²/2, the proximal step of DRFA-Prox and SCAFF-PD.

    Args:
        ambiguity: Λ and ψ.
        lam: (N,) Current λ.
        step: Length of the step; 0 leaves a λ in Λ unchanged.
        v: (N,) Ascent direction of the part that is linear in λ.

    Raises:
        NonFiniteError: If v contains NaN or infinity.
    """
    return prox(ambiguity, lam + step * v, step)


def prox(ambiguity: AmbiguitySet, target: Tensor, step: float) -> Tensor:
    """Compute argmax_{u∈Λ} −step·ψ(u) − ‖u − target‖²/2 (N,) for step ≥ 0.

    Raises:
        NonFiniteError: If target (N,) contains NaN or infinity.
    """
    return ambiguity.prox(target, step) if step > 0 else ambiguity.project(target)
