"""The local solver of the clients: steps of stochastic gradient descent along a corrected direction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.short_repr import short_repr
from drfl.optim.local_optimizers import SGD, Adam, LocalOptimizer
from drfl.optim.schedules import Constant, Schedule, check_schedule

STEPS = 10
"""Default number of local steps τ."""


@dataclass(frozen=True)
class LocalSGD:
    """Local steps u ← Π_W(u − η·v), v ← momentum·v + ∇ℓ(u) + weight_decay·u + shift + prox·(u − w), from u = w, v = 0.

    With ``steps``, each step uses a new minibatch of min(batch, n_i) distinct samples, drawn uniformly and
    independently of the other steps. With ``epochs``, client i passes that number of times over its n_i samples, each
    time in a new order, and takes τ_i = epochs·⌈n_i/batch⌉ steps. The last minibatch of an epoch may be smaller.
    Momentum and the state of ``optimizer`` start from zero in every round. ``shift`` and ``prox`` come from the
    algorithm.

    Args:
        steps: Local steps τ ≥ 1 per round; None = 10, unless ``epochs`` is set.
        lr: Local step size η > 0; None = :func:`drfl.training.loop.run` chooses it from the curvature of the clients'
            losses (see :mod:`drfl.training.step_size`).
        batch: Samples per minibatch; None = all local training data.
        momentum: Momentum in [0, 1).
        weight_decay: Weight decay ≥ 0. It adds (weight_decay/2)·‖u‖² to the loss.
        radius: Radius of the ball around 0 that constrains the model, W; None = no constraint.
        epochs: Passes over the local data per round, at least 1, instead of ``steps``.
        optimizer: Rule of a local step, which replaces v; see :mod:`drfl.optim.local_optimizers`.
        lr_schedule: Factor for η in each round; see :mod:`drfl.optim.schedules`.

    Raises:
        InputError: If a value is out of range, or two values contradict each other.
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

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.epochs is not None:
            checks.integer("epochs", self.epochs)
            if self.steps is not None:
                raise InputError(
                    f"steps={self.steps} and epochs={self.epochs} cannot be combined. Set one of them.",
                    code="conflicting-options",
                    field="epochs",
                )
        elif self.steps is None:
            # None means the default. Only object.__setattr__ can set it, because the class is frozen.
            object.__setattr__(self, "steps", STEPS)
        else:
            checks.integer("steps", self.steps)
        if self.lr is not None:
            checks.positive("lr", self.lr)
        if self.batch is not None and not (checks.is_integer(self.batch) and self.batch >= 1):
            raise InputError(
                f"`batch` must be an integer of at least 1, or None for the full batch ('full' in a command), got "
                f"{self.batch!r}",
                code="out-of-range",
                field="batch",
            )
        if self.radius is not None:
            checks.positive("radius", self.radius)
        checks.non_negative("momentum", self.momentum)
        # With momentum 1 no gradient would ever be forgotten, and the velocity would grow without bound.
        if self.momentum >= 1:
            raise InputError(f"momentum must be in [0, 1), got {self.momentum}", code="out-of-range", field="momentum")
        checks.non_negative("weight_decay", self.weight_decay)
        if not isinstance(self.optimizer, LocalOptimizer):
            raise InputError(
                f"optimizer must be an object such as drfl.local_optimizers.Adam(), not a name or a class, got "
                f"{self.optimizer!r:.60}",
                code="wrong-type",
                field="optimizer",
            )
        check_schedule("lr_schedule", self.lr_schedule)
        if isinstance(self.optimizer, Adam):
            if self.lr is None:
                raise InputError(
                    "optimizer adam needs lr, because its steps do not shrink with the gradient. Try lr=0.001.",
                    code="needs-option",
                    field="optimizer",
                )
            if self.momentum:
                raise InputError(
                    "momentum has no effect with optimizer adam. Remove momentum, or set beta1 of adam.",
                    code="unused-option",
                    field="momentum",
                )

    @property
    def eta(self) -> float:
        """Local step size η.

        Raises:
            InputError: If ``lr`` is None.
        """
        if self.lr is None:
            raise InputError(
                "the local step size is unknown outside a run. Set LocalSGD(lr=…), or call drfl.run.",
                code="missing-option",
                field="lr",
            )
        return self.lr

    @property
    def tau(self) -> int:
        """Number of local steps τ, the same for every client.

        Raises:
            InputError: If the number differs between clients because of ``epochs``.
        """
        if self.steps is None:
            raise InputError(
                "all clients must take the same number of steps here, but epochs makes them differ. Set steps.",
                code="missing-option",
                field="steps",
            )
        return self.steps

    @property
    def fewest_steps(self) -> int:
        """Number of steps of a client whose samples fit into one minibatch: τ, or one per epoch."""
        return self.tau if self.epochs is None else self.epochs

    def steps_of(self, sizes: Tensor | None, clients: Tensor) -> Tensor:
        """Compute the number of local steps τ_i of each client, int64 (k,).

        Args:
            sizes: Numbers of training samples of all clients, int64 (N,). Only needed with ``epochs``.
            clients: Indices of the clients, (k,).

        Raises:
            InputError: If ``epochs`` is set and ``sizes`` is None.
        """
        if self.epochs is None:
            return clients.new_full((len(clients),), self.tau)
        if sizes is None:
            raise InputError(
                "epochs needs the number of samples of every client, which this federation does not provide",
                code="unsupported-combination",
                field="epochs",
            )
        samples = sizes[clients]
        # Round up, because the last minibatch of an epoch may be smaller.
        per_epoch = torch.ones_like(samples) if self.batch is None else -(-samples // self.batch)
        return self.epochs * per_epoch

    def effective(self, steps: int) -> float:
        """Compute the total weight Σ_s a_s of the directions d_s in the update, w − u_τ = η·Σ_s a_s·d_s.

        The direction of step s stays in the velocity: a_s = (1 − momentum^{τ−s+1}) / (1 − momentum), s = 1…τ. Without
        momentum, the total is τ. Therefore, (w − u_τ) / (η·effective_steps) is a weighted mean of the local directions,
        unless ``radius`` has shortened a step.
        """
        return self.effective_after_each(steps)[-1]

    def effective_after_each(self, steps: int) -> list[float]:
        """Compute :meth:`effective` for 1, 2, …, ``steps`` steps."""
        totals, total, velocity = list[float](), 0.0, 0.0
        for _ in range(steps):
            # The velocity if every direction were 1. The closed form loses digits if momentum is near 1.
            velocity = 1 + self.momentum * velocity
            total += velocity
            totals.append(total)
        return totals

    @property
    def effective_steps(self) -> float:
        """The total weight :meth:`effective` for τ steps.

        Raises:
            InputError: If τ differs between clients.
        """
        return self.effective(self.tau)


def check_local(local: object) -> None:
    """Raise InputError unless ``local`` is a local solver."""
    if not isinstance(local, LocalSGD):
        raise InputError(
            f"local must be a local solver such as drfl.LocalSGD(steps=5), got {local!r:.60}",
            code="wrong-type",
            field="local",
        )


def refuse_optimizer(algorithm: str, local: LocalSGD, why: str) -> None:
    """Raise InputError unless the optimiser is SGD, for algorithms whose formulas need a sum of plain steps."""
    check_local(local)
    if not isinstance(local.optimizer, SGD):
        raise InputError(
            f"{algorithm} does not support optimizer '{local.optimizer}': {why}. Remove optimizer, or use FedAvg.",
            code="unsupported-combination",
            field="optimizer",
        )


def refuse_epochs(algorithm: str, local: LocalSGD, why: str) -> None:
    """Raise InputError if ``local`` uses epochs, for algorithms that need the same number of steps at all clients."""
    check_local(local)
    if local.epochs is not None:
        raise InputError(
            f"{algorithm} does not support epochs: {why}. Set steps, or use FedAvg, FedNova or SCAFFOLD.",
            code="unsupported-combination",
            field="epochs",
        )
