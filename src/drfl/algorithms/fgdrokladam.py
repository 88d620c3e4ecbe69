"""FGDRO-KL-Adam: Adam-type local steps on the KL-regularised worst-case loss, weighted by running estimates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drfl.algorithms.client_side import ClientSide
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.federation.local_method import ClientRowsView, Named, StepContext
from drfl.optim.local import LocalSGD, refuse_optimizer
from drfl.task.client_model import ClientModel


@dataclass(frozen=True)
class FGDROKLAdam(ClientSide):
    """FGDRO-KL-Adam (Guo and Yang 2024, Algorithm 3).

    Minimises λ·log((1/N)·Σ_i exp(f_i(w)/λ)), which is the worst mean loss over mixtures p minus λ times the KL
    divergence of p from uniform (equations 1 and 5). In every local step, a client weights its gradient by exp(u_i/λ)/v
    and takes an Adam-type step. u_i is a moving average of its loss, and v one of all clients' exp(u_i/λ).

    =============== ======================= =====================================================
    paper           code                    meaning
    =============== ======================= =====================================================
    w̄^r             ``state.w``             (d,) global model
    u_i             ``"u"``                 () moving average of client i's loss, which it stores
    v               ``exp(log_v)``          () estimate of the mean of exp(u_i/λ)
    h_i             ``h``                   (d,) weighted gradient
    m, q            ``"m"``, ``"q"``        (d,) moving averages of h_i and h_i²
    λ               ``temperature``         weight of the KL divergence
    β₁, …, β₄       ``beta1``, …            weights of the new terms in u, v, m and q
    η, I            ``local``               step size and local steps
    τ               ``epsilon``             constant in the denominator
    =============== ======================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        local: Local solver with a step size and plain steps; its weight decay is decoupled, as in AdamW.
        by_samples: Whether to weight clients by their samples instead of equally (the default).
        server: Server optimiser, applied to the mean of the local models; None uses the mean as the next model.
        temperature: λ > 0. The smaller it is, the more the largest losses count.
        beta1: β₁ in (0, 1].
        beta2: β₂ in (0, 1].
        beta3: β₃ in (0, 1].
        beta4: β₄ in (0, 1].
        epsilon: τ > 0.

    Deviations: see ``docs/algorithms/client-side/fgdrokladam.md``.

    Raises:
        InputError: If a value is out of range, if ``local`` has no step size, momentum or another optimiser, or if
            m > N (on first use).
    """

    local: LocalSGD = field(default_factory=lambda: LocalSGD(lr=0.01))
    by_samples: bool = False
    temperature: float = 1.0
    beta1: float = 0.1
    beta2: float = 0.1
    beta3: float = 0.1
    beta4: float = 0.01
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        checks.positive("temperature", self.temperature)
        checks.positive("epsilon", self.epsilon)
        for name in ("beta1", "beta2", "beta3", "beta4"):
            value = getattr(self, name)
            checks.positive(name, value)
            if value > 1:
                raise InputError(f"{name} must be in (0, 1], got {value!r}", code="out-of-range", field=name)
        if self.local.lr is None:
            raise InputError(
                "FGDROKLAdam needs lr, because its steps do not shrink with the gradient. Try lr=0.01.",
                code="needs-option",
                field="lr",
            )
        refuse_optimizer("FGDROKLAdam", self.local, "its update rule replaces that of the optimiser")
        if self.local.momentum:
            raise InputError(
                "momentum has no effect with FGDROKLAdam. Remove momentum, or set beta3.",
                code="unused-option",
                field="momentum",
            )

    def state(self, model: ClientModel) -> dict[str, Tensor]:
        """Return u_i, and whether it is known, which it is after a client's first step."""
        return {"u": model.vector.new_zeros(()), "u_known": model.vector.new_zeros(())}

    def shared(self, model: ClientModel) -> dict[str, Tensor]:
        """Return log v, whether it is known, and m = q = 0."""
        zeros = model.vector.new_zeros
        return {"log_v": zeros(()), "v_known": zeros(()), "m": zeros(len(model.vector)), "q": zeros(len(model.vector))}

    def direction(self, gradient: Tensor, loss: Tensor, context: StepContext) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return m/(√q + τ) after the updates of u_i, v, m and q (Algorithm 3, lines 6 to 9)."""
        state, log_v = context.state, context["log_v"]
        # The paper leaves the first values open. The first term of each average is its first value here.
        u = torch.where(state["u_known"] > 0, (1 - self.beta1) * state["u"] + self.beta1 * loss, loss)
        # exp(u/λ) may exceed the range of floats, so v ← (1 − β₂)·v + β₂·exp(u/λ) is computed in logarithms. The
        # quotient exp(u/λ)/v is at most 1/β₂.
        log_term = u / self.temperature
        mixed = log_term
        if self.beta2 < 1:
            mixed = torch.logaddexp(log_v + math.log1p(-self.beta2), log_term + math.log(self.beta2))
        log_v = torch.where(context["v_known"] > 0, mixed, log_term)
        h = (log_term - log_v).exp() * gradient
        m = (1 - self.beta3) * context["m"] + self.beta3 * h
        q = (1 - self.beta4) * context["q"] + self.beta4 * h.square()
        known = torch.ones_like(loss)
        return m / (q.sqrt() + self.epsilon), {
            "u": u,
            "u_known": known,
            "log_v": log_v,
            "v_known": known,
            "m": m,
            "q": q,
        }

    def message_shapes(self, model: ClientModel) -> dict[str, tuple[int, ...]]:
        """Return the shapes of log v_i, m_i and q_i."""
        return {"log_v": (), "m": (len(model.vector),), "q": (len(model.vector),)}

    def message(self, model: ClientModel, data: ClientRowsView, context: StepContext) -> dict[str, Tensor]:
        """Return log v_i, m_i and q_i after the last step."""
        return {name: context[name] for name in ("log_v", "m", "q")}

    def merge(self, shared: Named, messages: Named, weights: Tensor) -> dict[str, Tensor]:
        """Return the means of v, m and q (Algorithm 3, line 11)."""
        return {
            "log_v": torch.logsumexp(messages["log_v"] + weights.log(), 0),
            "v_known": torch.ones_like(shared["v_known"]),
            "m": weights @ messages["m"],
            "q": weights @ messages["q"],
        }
