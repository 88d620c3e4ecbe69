"""How far a model and a mixture are from the saddle point: the duality gap, on the clients' training data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet, Simplex
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD
from drfl.task.convexity import convexity
from drfl.task.task import Task

KEY = Key(0).fold("certificate")
"""Every exchange is on all training data, so that nothing is drawn from it."""

EXCHANGE = 2**23
"""Most numbers in one exchange of gradients: a large federation is asked in several exchanges."""


class Certificate(NamedTuple):
    """Bounds on both sides of the saddle value min_w max_{u∈Λ} F(w, u), F(w, λ) = Σ_i λ_i F_i(w) − ψ(λ).

    Args:
        primal: max_{u∈Λ} F(w, u), the model's worst-case objective.
        lower: a lower bound on min_v F(v, λ), which no model can beat at this mixture.
        gradient_norm: ‖Σ_i λ_i ∇F_i(v̂)‖ where the lower bound was taken.
        proven: whether ``lower`` is a bound whatever the remaining gradient. If not (losses that are convex but not
            strongly, and no radius), min_v F(v, λ) may lie below it by at most gradient_norm·‖v* − v̂‖.
    """

    primal: float
    lower: float
    gradient_norm: float
    proven: bool

    @property
    def gap(self) -> float:
        """primal − lower ≥ 0, up to rounding; 0 at a saddle point. Neither w nor λ is worse than this."""
        return self.primal - self.lower


class SilentClientError(Exception):
    """A client did not answer, or not with finite numbers: there is no certificate."""


class Exchange(NamedTuple):
    """What clients answer at one point.

    Args:
        losses: (k,) float64, F_i of those asked.
        value: Σ_i λ_i F_i, without ψ.
        gradient: (d,) float64, Σ_i λ_i ∇F_i.
    """

    losses: Tensor
    value: float
    gradient: Tensor

    @property
    def norm(self) -> float:
        """‖gradient‖."""
        return float(self.gradient.norm())


@dataclass(frozen=True)
class Objective:
    """The clients' objectives F_i(w) = f_i(w) + (weight_decay/2)·‖w‖², f_i the mean loss over all of i's training data.

    Args:
        fed: the clients.
        weight_decay: the local solver's.
        mu: every F_i is known to be so strongly convex; 0 = merely convex.
        radius: w is constrained to a ball around 0; None = free.
    """

    fed: Federation
    weight_decay: float = 0.0
    mu: float = 0.0
    radius: float | None = None

    @property
    def everybody(self) -> Tensor:
        """(N,) all clients."""
        return torch.arange(self.fed.n)

    def losses(self, w: Tensor) -> Tensor:
        """(N,) float64: every F_i(w)."""
        reply = self.fed.losses(self.everybody, w, KEY, batch=None)
        # Reports are on the data alone: the weight decay, part of the local solver, is added here.
        losses = reply.values[_order(reply.clients, self.everybody)] + self._decay(w)
        return _finite(losses)

    def exchange(self, asked: Tensor, w: Tensor, lam: Tensor) -> Exchange:
        """Losses and gradients at w (d,) of the clients ``asked`` (k,), ascending; λ_i = 0 for the others."""
        # Σ_i λ_i = 1, so that the weight decay's gradient enters once. Sums are in float64 whatever the model's type.
        gradient, losses = self.weight_decay * w.detach().cpu().double(), []
        for part in asked.split(max(1, EXCHANGE // w.numel())):
            reply = self.fed.gradients(part, w, KEY, batch=None)
            order = _order(reply.clients, part)
            losses.append(reply.losses[order].double())
            rows = reply.values[order.to(reply.values.device)].double()
            gradient = gradient + (lam[part].to(rows.device) @ rows).cpu()
        values = _finite(torch.cat(losses) + self._decay(w))
        return Exchange(values, float(lam[asked] @ values), _finite(gradient))

    def floor(self, at: Exchange, v: Tensor) -> tuple[float, bool]:
        """A lower bound on min_u Σ_i λ_i F_i(u) from value and gradient at v (d,), and whether it is proven.

        F(u) ≥ F(v) + ⟨g, u − v⟩ + (μ/2)‖u − v‖² for every u. The right side is least at F(v) − ‖g‖²/(2μ) where μ > 0;
        it is at least F(v) − ⟨g, v⟩ − R‖g‖ where ‖u‖ ≤ R.
        """
        bounds = []
        if self.mu > 0:
            bounds.append(at.value - at.norm**2 / (2 * self.mu))
        if self.radius is not None:
            bounds.append(at.value - float(at.gradient @ v.detach().cpu().double()) - self.radius * at.norm)
        # Both are lower bounds where both apply, so that the larger one is the better one.
        return (max(bounds), True) if bounds else (at.value, False)

    def _decay(self, w: Tensor) -> float:
        return self.weight_decay / 2 * float(w.detach().double().square().sum())


def _order(clients: Tensor, asked: Tensor) -> Tensor:
    """The rows of the reply in the order of the clients that were asked, ascending."""
    # Replies come in any order.
    order = clients.argsort()
    if not torch.equal(clients[order], asked):
        raise SilentClientError
    return order


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise SilentClientError
    return values


class Bound(NamedTuple):
    """What a method found.

    Args:
        losses: (N,) every F_i(w).
        lower: a lower bound on min_v Σ_i λ_i F_i(v).
        gradient_norm: where it was taken.
        proven: see :class:`Certificate`.
        point: (d,) where it was taken.
    """

    losses: Tensor
    lower: float
    gradient_norm: float
    proven: bool
    point: Tensor


class LowerBoundMethod(Protocol):
    """How the lower bound is found."""

    def check(self, mu: float, radius: float | None) -> None:
        """Raises InputError where the method's assumptions do not hold."""
        ...

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """The bound at λ (N,), for a model w (d,); ``start`` (d,) is where an earlier bound was taken."""
        ...


@dataclass(frozen=True)
class PooledSolver:
    """Minimises Σ_i λ_i F_i by L-BFGS on all clients' training data, as if it lay in one place.

    Args:
        tolerance: norm of the gradient at which it stops.
        iterations: at most so many.
    """

    tolerance: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        checks.positive("tolerance", self.tolerance)
        checks.whole("iterations", self.iterations)

    def check(self, mu: float, radius: float | None) -> None:
        """Convexity is enough."""

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """See :class:`LowerBoundMethod`."""
        # The primal value needs all clients' losses at w, whatever λ is.
        losses = objective.losses(w)
        # An earlier point was found for another λ: it is taken only where it is better than w at this one.
        if start is None or float(lam @ objective.losses(start)) >= float(lam @ losses):
            start = w
        # Clients with λ_i = 0 do not enter the sum that is minimised.
        asked = lam.nonzero().flatten()
        # Here, as it takes a while to load and only certificates need it.
        from scipy.optimize import minimize

        def oracle(v: np.ndarray) -> tuple[float, np.ndarray]:
            at = objective.exchange(asked, torch.from_numpy(v).to(start), lam)
            return at.value, at.gradient.numpy()

        found = minimize(
            oracle, start.detach().cpu().double().numpy(), jac=True, method="L-BFGS-B",
            options={
                "maxiter": self.iterations, "maxfun": 2 * self.iterations, "maxcor": 20,
                "gtol": self.tolerance / start.numel() ** 0.5,  # bounds the largest entry, so the norm by the tolerance
                "ftol": torch.finfo(start.dtype).eps / 100,  # a gain per iteration below this is rounding
            },
        )  # fmt: skip
        point = torch.from_numpy(found.x).to(start)
        at = objective.exchange(asked, point, lam)
        # For the bound the value is computed again: without gradients most engines average losses in float64.
        at = at._replace(value=float(lam @ objective.losses(point)))
        lower, proven = objective.floor(at, point)
        return Bound(losses, lower, at.norm, proven, point)


@dataclass(frozen=True)
class OneGradient:
    """F(w, λ) − ‖∇F(w, λ)‖²/(2μ) from one exchange of gradients at w: what a real federation can afford.

    It needs strongly convex losses (weight decay makes convex ones so) or a radius. Far from the optimum it is loose.
    """

    def check(self, mu: float, radius: float | None) -> None:
        """Raises InputError where one gradient proves nothing."""
        if mu <= 0 and radius is None:
            raise InputError(
                "certificate 'gradient' needs strongly convex losses: set weight_decay above 0 (or a radius), or use "
                "'pooled'",
                code="unsupported-combination",
                field="certificate",
            )

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """See :class:`LowerBoundMethod`."""
        at = objective.exchange(objective.everybody, w, lam)
        lower, proven = objective.floor(at, w)
        return Bound(at.losses, lower, at.norm, proven, w)


@dataclass(frozen=True)
class Certifier:
    """Makes certificates for a task.

    Args:
        task: what is learned; it must be convex in the model's parameters.
        method: how the lower bound is found: :class:`PooledSolver` or :class:`OneGradient`.
        mu: modulus of strong convexity that every f_i is known to have, weight decay not counted.
        assume_convex: take every f_i as convex without checking the task. If one is not, the certificates mean
            nothing.

    Raises:
        InputError: the task is not known to be convex (see :func:`drfl.task.convexity.convexity`), or mu is negative.
    """

    task: Task
    method: LowerBoundMethod = field(default_factory=PooledSolver)
    mu: float = 0.0
    assume_convex: bool = False

    def __post_init__(self) -> None:
        checks.non_negative("mu", self.mu)
        reason = None if self.assume_convex else convexity(self.task)
        if reason:
            raise InputError(
                f"no certificate: {reason}; remove it, or train a linear model",
                code="no-certificate",
                field="certificate",
            )

    def check(self, local: LocalSGD) -> None:
        """Whether the method can prove anything about what this local solver minimises.

        Raises:
            InputError: it cannot.
        """
        self.method.check(self.mu + local.weight_decay, local.radius)

    def __call__(
        self,
        fed: Federation,
        w: Tensor,
        lam: Tensor,
        *,
        local: LocalSGD,
        ambiguity: AmbiguitySet | None = None,
        start: Tensor | None = None,
    ) -> tuple[Certificate, Tensor] | None:
        """The certificate of (w, λ), and the point (d,) where its lower bound was taken; its cost is not booked.

        Args:
            fed: the clients. All are asked, on all their training data.
            w: (d,) the model.
            lam: (N,) float64, the mixture, in Λ.
            local: the local solver, whose weight decay and radius are part of the problem.
            ambiguity: Λ and ψ; None = the whole simplex.
            start: (d,) the point of an earlier certificate, to start from.

        Returns:
            None where a client did not answer or a loss was not finite: there is no certificate then.

        Raises:
            InputError: w is not (d,) or λ not (N,), λ lies outside Λ, or see :meth:`check`.
        """
        self.check(local)
        if w.shape != fed.w0.shape or lam.shape != (fed.n,):
            raise InputError(
                f"no certificate: w must be of shape {tuple(fed.w0.shape)} and λ of shape ({fed.n},), not "
                f"{tuple(w.shape)} and {tuple(lam.shape)}",
                code="wrong-shape",
                field="certificate",
            )
        w, lam = w.to(fed.w0), lam.detach().to("cpu", torch.float64)
        ambiguity = Simplex() if ambiguity is None else ambiguity
        # Rounding may put a projected λ slightly outside.
        if not ambiguity.contains(lam, 1e-6):
            raise InputError(
                "no certificate: the mixture λ lies outside the ambiguity set Λ", code="no-certificate", field="lam"
            )
        objective = Objective(fed, local.weight_decay, self.mu + local.weight_decay, local.radius)
        try:
            # Runs are compared by the cost of training, which does not include certificates.
            with fed.ledger.paused():
                bound = self.method(objective, w, lam, start)
        except SilentClientError:
            return None
        # ψ does not depend on the model, so that min_v F(v, λ) is the bound without it, less ψ(λ).
        primal = ambiguity.worst_case(bound.losses).value
        lower = bound.lower - ambiguity.penalty(lam)
        return Certificate(primal, lower, bound.gradient_norm, bound.proven), bound.point


METHODS: dict[str, LowerBoundMethod] = {"pooled": PooledSolver(), "gradient": OneGradient()}
"""The methods by the names that the command knows them by."""
