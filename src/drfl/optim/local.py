"""What a client runs: a few steps of stochastic gradient descent along a corrected direction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.optim.local_optimizers import SGD, Adam, LocalOptimizer
from drfl.optim.schedules import Constant, Schedule

STEPS = 10
"""τ where nothing is said."""


@dataclass(frozen=True)
class LocalSGD:
    """Local steps u ← Π_W(u − η·v), v ← momentum·v + ∇ℓ(u) + weight_decay·u + shift + prox·(u − w), from u = w, v = 0.

    With ``steps`` every step takes a fresh minibatch of min(batch, n_i) distinct samples, drawn uniformly and
    independently of the other steps. With ``epochs`` client i goes so many times through its n_i samples, each time in
    another order, and takes τ_i = epochs·⌈n_i/batch⌉ steps; the last minibatch of an epoch may be smaller. Momentum and
    the state of ``optimizer`` start from zero in every round. ``shift`` and ``prox`` come from the algorithm.

    Args:
        steps: τ ≥ 1, local steps per round; None = 10, or by ``epochs``.
        lr: η > 0, the local step size; None = one that fits the job, which :func:`drfl.training.loop.run` finds from
            the curvature of the clients' losses (see :mod:`drfl.training.step_size`).
        batch: Samples per minibatch; None = all local training data.
        momentum: In [0, 1).
        weight_decay: ≥ 0, adds (weight_decay/2)·‖u‖² to the loss.
        radius: W = the ball of this radius around 0; None = no constraint.
        epochs: E ≥ 1 passes over the local data per round, in place of ``steps``.
        optimizer: What is made of the gradients in place of v, see :mod:`drfl.optim.local_optimizers`.
        lr_schedule: Multiplies η round by round, see :mod:`drfl.optim.schedules`.

    Raises:
        InputError: If a value is outside its range, or two contradict each other.
    """

    steps: int | None = None
    lr: float | None = None
    batch: int | None = 32
    momentum: float = 0.0
    weight_decay: float = 0.0
    radius: float | None = None
    epochs: int | None = None
    optimizer: LocalOptimizer = field(default_factory=SGD)
    lr_schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if self.epochs is not None:
            checks.whole("epochs", self.epochs)
            if self.steps is not None:
                raise InputError(
                    f"steps={self.steps} and epochs={self.epochs} both say how long a client works: give one",
                    code="conflicting-options",
                    field="epochs",
                )
        elif self.steps is None:
            # None means the default. Only object.__setattr__ can set it, as the class is frozen.
            object.__setattr__(self, "steps", STEPS)
        else:
            checks.whole("steps", self.steps)
        if self.lr is not None:
            checks.positive("lr", self.lr)
        if self.batch is not None:
            checks.whole("batch", self.batch)
        if self.radius is not None:
            checks.positive("radius", self.radius)
        checks.non_negative("momentum", self.momentum)
        if self.momentum >= 1:
            raise InputError(f"momentum must be in [0, 1), not {self.momentum}", code="out-of-range", field="momentum")
        checks.non_negative("weight_decay", self.weight_decay)
        self._check_kinds()

    def _check_kinds(self) -> None:
        if not isinstance(self.optimizer, LocalOptimizer):
            raise InputError(
                f"optimizer={self.optimizer!r} must be an object such as Adam(), not a name or a class",
                code="wrong-type",
                field="optimizer",
            )
        if not isinstance(self.lr_schedule, Schedule):
            raise InputError(
                f"lr_schedule={self.lr_schedule!r} must be an object such as Cosine(100)",
                code="wrong-type",
                field="lr_schedule",
            )
        if isinstance(self.optimizer, Adam):
            if self.lr is None:
                raise InputError(
                    "optimizer adam needs lr, as its steps do not shrink with the gradient: try lr=0.001",
                    code="needs-option",
                    field="optimizer",
                )
            if self.momentum:
                raise InputError(
                    "momentum has no effect on optimizer adam, which has beta1: leave one of them out",
                    code="unused-option",
                    field="momentum",
                )

    @property
    def eta(self) -> float:
        """η.

        Raises:
            InputError: If it is still to be found.
        """
        if self.lr is None:
            raise InputError(
                "the local step size is not known outside of a run: give LocalSGD(lr=…), or call drfl.run",
                code="missing-option",
                field="lr",
            )
        return self.lr

    @property
    def tau(self) -> int:
        """τ, the same for every client.

        Raises:
            InputError: If it differs from client to client, as it does by ``epochs``.
        """
        if self.steps is None:
            raise InputError(
                "with epochs clients take different numbers of steps, and one is needed here: give steps",
                code="missing-option",
                field="steps",
            )
        return self.steps

    @property
    def fewest_steps(self) -> int:
        """Steps of a client whose minibatch holds all its samples: τ, or one an epoch."""
        return self.tau if self.epochs is None else self.epochs

    def steps_of(self, sizes: Tensor | None, clients: Tensor) -> Tensor:
        """(k,) int64, τ_i of each of these clients.

        Args:
            sizes: (N,) int64, training samples of all clients; needed where τ_i depends on them.
            clients: (k,).

        Raises:
            InputError: If it does, and they are not known.
        """
        if self.epochs is None:
            return clients.new_full((len(clients),), self.tau)
        if sizes is None:
            raise InputError(
                "epochs needs to know how many samples every client has, which this federation does not say",
                code="unsupported-combination",
                field="epochs",
            )
        own = sizes[clients]
        # The last minibatch of an epoch may be smaller, so the number is rounded up.
        per_epoch = torch.ones_like(own) if self.batch is None else -(-own // self.batch)
        return self.epochs * per_epoch

    def effective(self, steps: int) -> float:
        """Weight of all directions in the distance travelled in so many steps: w − u_τ = η·Σ_s a_s·d_s, Σ_s a_s.

        The direction of step s stays in the velocity: a_s = (1 − momentum^{τ−s+1}) / (1 − momentum), s = 1…τ. Without
        momentum this is τ. So (w − u_τ) / (η·effective_steps) is a weighted mean of the local directions, unless
        ``radius`` cut a step short.
        """
        total = velocity = 0.0
        for _ in range(steps):
            velocity = 1 + self.momentum * velocity
            total += velocity
        return total

    @property
    def effective_steps(self) -> float:
        """:meth:`effective` of τ.

        Raises:
            InputError: If τ differs from client to client.
        """
        return self.effective(self.tau)


def refuse_epochs(algorithm: str, local: LocalSGD, why: str) -> None:
    """Raise an InputError where clients take different numbers of steps, which an algorithm's formulas do not allow."""
    if local.epochs is not None:
        raise InputError(
            f"{algorithm} cannot take epochs: {why}; give steps, or take FedAvg, FedNova or SCAFFOLD",
            code="unsupported-combination",
            field="epochs",
        )
