"""The dual step that DRFA and DRDM share: randomised snapshotting."""

from __future__ import annotations

from torch import Tensor

from drfl import cohort
from drfl.ambiguity import AmbiguitySet
from drfl.federation import Federation, Losses
from drfl.key import Key


def snapshot_ascent(
    fed: Federation,
    w_t: Tensor,
    lam: Tensor,
    *,
    m: int,
    step: float,
    ambiguity: AmbiguitySet,
    batch: int | None,
    key: Key,
) -> tuple[Tensor, Losses]:
    """λ ← Π_Λ(λ + τγ·v) with v_i = (N/m)·ℓ_i(w^{t'}) at a uniform sample of clients.

    DRFA (Deng et al. 2020), Algorithm 1, lines 14–17; DRDM (Krouka et al. 2025), Algorithm 3. As t' is uniform on
    {1, …, τ}, τ·v is an unbiased estimate of the gradients in λ summed over the round's local steps (001, eq. 3). When
    only some of the m answer, N/m becomes N over the number who did; when nobody does, λ stays.

    Args:
        fed: the clients.
        w_t: (d,) the snapshot w^{t'} of the global model.
        lam: (N,) the mixture.
        m: how many clients report their loss.
        step: τγ.
        ambiguity: Λ.
        batch: samples per loss report; None = all local training data.
        key: the round's key.

    Returns:
        The next mixture (N,) and the reports behind it.

    Raises:
        NonFiniteError: a report is NaN or infinite.
    """
    U = cohort.uniform(fed.n, m, key.fold("U"))
    f = fed.losses(U.clients, w_t, key.fold("xi"), batch=batch)
    if not f.clients.numel():
        return lam, f
    return ambiguity.project(lam + step * f.unbiased(fed.n)), f
