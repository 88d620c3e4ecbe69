"""What a client runs: a few steps of stochastic gradient descent along a corrected direction."""

from __future__ import annotations

from dataclasses import dataclass

from drfl import checks
from drfl.errors import InputError


@dataclass(frozen=True)
class LocalSGD:
    """Local steps u ← Π_W(u − η·v), v ← momentum·v + ∇ℓ(u) + weight_decay·u + shift + prox·(u − w), from u = w, v = 0.

    Every step takes a fresh minibatch of min(batch, n_i) distinct samples, drawn uniformly and independently of the
    other steps. Momentum starts from zero in every round. ``shift`` and ``prox`` come from the algorithm.

    Args:
        steps: τ ≥ 1, local steps per round.
        lr: η > 0, the local step size; None = one that fits the job, which :func:`drfl.loop.run` finds from the
            curvature of the clients' losses (see :mod:`drfl.step_size`).
        batch: samples per minibatch; None = all local training data.
        momentum: in [0, 1).
        weight_decay: ≥ 0, adds (weight_decay/2)·‖u‖² to the loss.
        radius: W = the ball of this radius around 0; None = no constraint.

    Raises:
        InputError: a value is outside its range.
    """

    steps: int = 10
    lr: float | None = None
    batch: int | None = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    radius: float | None = None

    def __post_init__(self) -> None:
        checks.whole("steps", self.steps)
        if self.lr is not None:
            checks.positive("lr", self.lr)
        if self.batch is not None:
            checks.whole("batch", self.batch)
        if self.radius is not None:
            checks.positive("radius", self.radius)
        checks.non_negative("momentum", self.momentum)
        if self.momentum >= 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum}")
        checks.non_negative("weight_decay", self.weight_decay)

    @property
    def eta(self) -> float:
        """η.

        Raises:
            InputError: it is still to be found.
        """
        if self.lr is None:
            raise InputError("the local step size is not known outside of a run: give LocalSGD(lr=…), or call drfl.run")
        return self.lr

    @property
    def effective_steps(self) -> float:
        """Weight of all directions in the distance travelled: w − u_τ = η·Σ_s a_s·d_s has Σ_s a_s = effective_steps.

        The direction of step s stays in the velocity: a_s = (1 − momentum^{τ−s+1}) / (1 − momentum), s = 1…τ. Without
        momentum this is τ. So (w − u_τ) / (η·effective_steps) is a weighted mean of the local directions, unless
        ``radius`` cut a step short.
        """
        total = velocity = 0.0
        for _ in range(self.steps):
            velocity = 1 + self.momentum * velocity
            total += velocity
        return total
