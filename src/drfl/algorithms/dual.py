"""The dual step: how λ follows the reported losses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from drfl import checks
from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.errors import NonFiniteError
from drfl.federation import Federation, Losses, Merged
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.sampling import Sampling, size, uniform, with_replacement


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
"""The built-in rule's rate for the algorithms without drift correction: how far one round may move N·λ."""

CORRECTED_RATE = 0.03
"""The same for the drift-corrected ones, whose clients pull the global model further per round."""

LEAST = torch.finfo(torch.float64).tiny
"""The rule divides by no less than this: reports that small would make the step infinite."""


def step_size(gamma: float | None, rate: float, losses: Tensor, scale: Tensor, n: int) -> tuple[float, Tensor]:
    """How far λ moves along the losses in this round: γ where it is given, else rate / (N·scale).

    scale is the largest mean report so far. Under the rule λ_i changes by rate/N for a loss of that size, whatever
    the units of the loss, the number of clients and the number of local steps. As scale never falls, the step never
    grows. ``docs/defaults.md`` says how the rates were found.

    Args:
        gamma: the step, already times τ where the paper has τγ; None = the rule.
        rate: of the rule.
        losses: (k',) reports of this round, k' ≥ 1.
        scale: () float64, the largest mean report before it.
        n: N.

    Returns:
        The step and the new scale.
    """
    scale = torch.maximum(scale, losses.abs().mean())
    if gamma is not None:
        return gamma, scale
    return (rate / max(n * float(scale), LEAST) if float(scale) > 0 else 0.0), scale


def no_scale() -> Tensor:
    """The scale before the first report."""
    return torch.zeros((), dtype=torch.float64)


def first_mixture(ambiguity: AmbiguitySet, n: int) -> Tensor:
    """λ^(0): the point of Λ nearest to the uniform mixture, (N,) float64."""
    return ambiguity.project(torch.full((n,), 1 / n, dtype=torch.float64))


class Ascent(NamedTuple):
    """Where the dual step leads.

    Args:
        lam: (N,) the next mixture.
        scale: () the largest mean report so far.
        losses: the reports behind it.
    """

    lam: Tensor
    scale: Tensor
    losses: Losses


@dataclass(frozen=True)
class SnapshotMethod:
    """The parameters and the dual step that DRFA, DRFA-Prox, DRDM and dual DRDM share.

    Args:
        m: cohort size, for training and for the loss reports; None = :func:`drfl.sampling.size`.
        gamma: dual step size γ ≥ 0: a round moves λ by τγ·v. None = the rule of :func:`step_size`.
        local: what a client runs.
        dual_batch: samples per loss report; None = all local training data.
        ambiguity: the set Λ and the regulariser ψ.
        sampling: how D is drawn from λ: ``sampling.with_replacement`` (the papers'), ``sampling.without_replacement``
            or ``sampling.everybody`` (all clients, weighted by λ).

    Raises:
        InputError: a value is out of range, or m > N (when first used).
    """

    m: int | None = None
    gamma: float | None = None
    local: LocalSGD = field(default_factory=LocalSGD)
    dual_batch: int | None = 32
    ambiguity: AmbiguitySet = field(default_factory=Simplex)
    sampling: Sampling = with_replacement

    rate: ClassVar[float] = RATE

    def __post_init__(self) -> None:
        if self.gamma is not None:
            checks.non_negative("gamma", self.gamma)
        if self.dual_batch is not None:
            checks.whole("dual_batch", self.dual_batch)

    def snapshot_ascent(self, fed: Federation, model: Merged, lam: Tensor, scale: Tensor, key: Key) -> Ascent:
        """λ ← prox(λ + τγ·v), v_i = (N/m)·ℓ_i(w^{t'}) at a uniform sample of clients; without ψ the projection on Λ.

        DRFA (Deng et al. 2020), Algorithm 1, lines 14–17, and Algorithm 2; DRDM (Krouka et al. 2025), Algorithm 3. As
        t' is uniform on {1, …, τ}, τ·v is an unbiased estimate of the gradients in λ summed over the round's local
        steps (001, eq. 3). When only some of the m answer, N/m becomes N over the number who did; when nobody does, λ
        stays.

        Args:
            fed: the clients.
            model: with the snapshot w^{t'} of the global model.
            lam: (N,) the mixture.
            scale: () the largest mean report so far.
            key: the round's key.

        Raises:
            NonFiniteError: a report is NaN or infinite.
        """
        assert model.snapshot is not None, "the local steps were asked for without a snapshot"
        U = uniform(fed.n, size(self.m, fed.n), key.fold("U"))
        f = fed.losses(U.clients, model.snapshot, key.fold("xi"), batch=self.dual_batch)
        if not f.clients.numel():
            return Ascent(lam, scale, f)
        gamma = None if self.gamma is None else self.local.steps * self.gamma
        step, scale = step_size(gamma, self.rate, f.values, scale, fed.n)
        return Ascent(ascend(self.ambiguity, lam, step, f.unbiased(fed.n)), scale, f)


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
    moved = lam + step * v
    return ambiguity.prox(moved, step) if step > 0 else ambiguity.project(moved)
