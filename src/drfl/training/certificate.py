"""Certificates: the duality gap of a model and its client weights on the clients' training data."""

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
from drfl.core.short_repr import BRIEF
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD
from drfl.task.convexity import convexity
from drfl.task.task import Task

KEY = Key(0).fold("certificate")
"""Every exchange uses all training data, so nothing is drawn with this key."""

EXCHANGE = 2**23
"""Maximum count of numbers in one exchange of gradients. A large federation needs several exchanges."""


class Certificate(NamedTuple):
    """Bounds on both sides of the saddle value min_w max_{u∈Λ} F(w, u), with F(w, λ) = Σ_i λ_i F_i(w) − ψ(λ).

    Args:
        primal: max_{u∈Λ} F(w, u), the model's worst-case objective.
        lower: A lower bound on min_v F(v, λ), which no model can beat with these client weights.
        gradient_norm: ‖Σ_i λ_i ∇F_i(v̂)‖ at the point v̂ of the lower bound.
        proven: Whether ``lower`` is a valid bound regardless of the remaining gradient. If not (convex losses that are
            not strongly convex, and no radius), min_v F(v, λ) may be lower by at most gradient_norm·‖v* − v̂‖.
    """

    primal: float
    lower: float
    gradient_norm: float
    proven: bool

    @property
    def gap(self) -> float:
        """primal − lower, which is ≥ 0 up to rounding and 0 at a saddle point; it bounds the error of both w and λ."""
        return self.primal - self.lower


class SilentClientError(Exception):
    """A client did not reply, or its reply was not finite, so there is no certificate."""


class Exchange(NamedTuple):
    """The clients' replies at one point.

    Args:
        losses: (k,) float64, F_i of the k clients in the exchange.
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
    """The clients' objectives F_i(w) = f_i(w) + (weight_decay/2)·‖w‖²; f_i is the mean loss over i's training data.

    Args:
        fed: The clients.
        weight_decay: Weight decay of the local solver.
        mu: A known modulus of strong convexity of every F_i; 0 = convex only.
        radius: Radius of the ball around 0 to which w is constrained; None = unconstrained.
    """

    fed: Federation
    weight_decay: float = 0.0
    mu: float = 0.0
    radius: float | None = None

    @property
    def all_clients(self) -> Tensor:
        """(N,) all clients."""
        return torch.arange(self.fed.n)

    def losses(self, w: Tensor) -> Tensor:
        """Return (N,) float64: F_i(w) of every client."""
        reply = self.fed.losses(self.all_clients, w, KEY, batch=None)
        # Reported losses exclude the local solver's weight decay, so add it here.
        losses = reply.values[_order(reply.clients, self.all_clients)] + self._decay(w)
        return _finite(losses)

    def exchange(self, asked: Tensor, w: Tensor, lam: Tensor) -> Exchange:
        """Collect losses and gradients at w (d,) from the clients ``asked`` (k,), ascending; others have λ_i = 0."""
        # Σ_i λ_i = 1, so the weight decay's gradient enters once. Sums are always in float64.
        gradient, losses = self.weight_decay * w.detach().cpu().double(), []
        # Ask in parts, because the gradients (k, d) of all clients together may not fit into memory.
        for part in asked.split(max(1, EXCHANGE // w.numel())):
            reply = self.fed.gradients(part, w, KEY, batch=None)
            order = _order(reply.clients, part)
            losses.append(reply.losses[order].double())
            rows = reply.values[order.to(reply.values.device)].double()
            gradient = gradient + (lam[part].to(rows.device) @ rows).cpu()
        # The engines' gradients exclude weight decay, so add it to the value and the gradient here.
        values = _finite(torch.cat(losses) + self._decay(w))
        return Exchange(values, float(lam[asked] @ values), _finite(gradient))

    def floor(self, at: Exchange, v: Tensor) -> tuple[float, bool]:
        """Return a lower bound on min_u Σ_i λ_i F_i(u) from value and gradient at v (d,), and whether it is proven.

        F(u) ≥ F(v) + ⟨g, u − v⟩ + (μ/2)‖u − v‖² for every u. The minimum of the right side is F(v) − ‖g‖²/(2μ) if
        μ > 0. If ‖u‖ ≤ R, the right side is at least F(v) − ⟨g, v⟩ − R‖g‖.
        """
        bounds = []
        if self.mu > 0:
            bounds.append(at.value - at.norm**2 / (2 * self.mu))
        if self.radius is not None:
            bounds.append(at.value - float(at.gradient @ v.detach().cpu().double()) - self.radius * at.norm)
        # If both lower bounds apply, the larger one is tighter.
        return (max(bounds), True) if bounds else (at.value, False)

    def _decay(self, w: Tensor) -> float:
        return self.weight_decay / 2 * float(w.detach().double().square().sum())


def _order(clients: Tensor, expected: Tensor) -> Tensor:
    """Return the order that sorts the rows of a reply by client, checking that all ``expected`` clients replied."""
    # Replies arrive in any order.
    order = clients.argsort()
    if not torch.equal(clients[order], expected):
        raise SilentClientError
    return order


def _finite(values: Tensor) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise SilentClientError
    return values


class Bound(NamedTuple):
    """A lower bound and the point at which it was computed.

    Args:
        losses: (N,) F_i(w) of every client.
        lower: A lower bound on min_v Σ_i λ_i F_i(v).
        gradient_norm: Norm of the gradient at ``point``.
        proven: See :class:`Certificate`.
        point: (d,) the point of the bound.
    """

    losses: Tensor
    lower: float
    gradient_norm: float
    proven: bool
    point: Tensor


class LowerBoundMethod(Protocol):
    """A method that computes the lower bound."""

    def check(self, mu: float, radius: float | None) -> None:
        """Raise an InputError if the method's assumptions do not hold."""
        ...

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """Compute the bound at λ (N,) for a model w (d,); ``start`` (d,) is the point of an earlier bound."""
        ...


@dataclass(frozen=True)
class PooledSolver:
    """Minimises Σ_i λ_i F_i by L-BFGS on all clients' training data, as if the data were pooled.

    Args:
        tolerance: Norm of the gradient at which the solver stops.
        iterations: Maximum number of iterations.
    """

    tolerance: float = 1e-6
    iterations: int = 500

    def __post_init__(self) -> None:
        checks.positive("tolerance", self.tolerance)
        checks.integer("iterations", self.iterations)

    def check(self, mu: float, radius: float | None) -> None:
        """Accept any mu and radius, because convexity is sufficient."""

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """Compute the bound, see :class:`LowerBoundMethod`."""
        # The primal value requires all clients' losses at w, even those with λ_i = 0.
        losses = objective.losses(w)
        # The earlier point was computed for another λ, so start from it only if it is better than w at this λ.
        if start is None or float(lam @ objective.losses(start)) >= float(lam @ losses):
            start = w
        # Clients with λ_i = 0 do not enter the sum that is minimised.
        active = lam.nonzero().flatten()
        # Imported here, because SciPy loads slowly and only certificates need it.
        from scipy.optimize import minimize

        def oracle(v: np.ndarray) -> tuple[float, np.ndarray]:
            reply = objective.exchange(active, torch.from_numpy(v).to(start), lam)
            return reply.value, reply.gradient.numpy()

        # L-BFGS-B searches in float64, whatever the model's dtype; each point is rounded to the model's type before
        # use.
        solution = minimize(
            oracle, start.detach().cpu().double().numpy(), jac=True, method="L-BFGS-B",
            options={
                "maxiter": self.iterations, "maxfun": 2 * self.iterations, "maxcor": 20,
                "gtol": self.tolerance / start.numel() ** 0.5,  # bounds the largest entry, hence the norm
                "ftol": torch.finfo(start.dtype).eps / 100,  # a smaller gain per iteration is rounding error
            },
        )  # fmt: skip
        point = torch.from_numpy(solution.x).to(start)
        reply = objective.exchange(active, point, lam)
        # Recompute the bound's value, because most engines average losses in float64 only in requests without
        # gradients.
        reply = reply._replace(value=float(lam @ objective.losses(point)))
        lower, proven = objective.floor(reply, point)
        return Bound(losses, lower, reply.norm, proven, point)


@dataclass(frozen=True)
class OneGradient:
    """The bound F(w, λ) − ‖∇F(w, λ)‖²/(2μ) from one exchange of gradients at w, which a real federation can afford.

    It requires strongly convex losses (weight decay makes convex losses strongly convex) or a radius. The bound is
    loose far from the optimum.
    """

    def check(self, mu: float, radius: float | None) -> None:
        """Raise an InputError if the problem is neither strongly convex nor constrained to a ball."""
        if mu <= 0 and radius is None:
            raise InputError(
                "`certificate = 'gradient'` requires strongly convex losses. Set weight_decay > 0 (or a "
                "radius), or use 'pooled'.",
                code="unsupported-combination",
                field="certificate",
            )

    def __call__(self, objective: Objective, w: Tensor, lam: Tensor, start: Tensor | None) -> Bound:
        """Compute the bound, see :class:`LowerBoundMethod`."""
        reply = objective.exchange(objective.all_clients, w, lam)
        lower, proven = objective.floor(reply, w)
        return Bound(reply.losses, lower, reply.norm, proven, w)


@dataclass(frozen=True)
class Certifier:
    """Computes certificates for a task.

    Args:
        task: The task, which must be convex in the model's parameters.
        method: Method for the lower bound: :class:`PooledSolver` or :class:`OneGradient`.
        mu: Known modulus of strong convexity of every f_i, without weight decay.
        assume_convex: Assume that every f_i is convex without checking the task. If one is not, the certificates are
            invalid.

    Raises:
        InputError: If the task is not known to be convex (see :func:`drfl.task.convexity.convexity`) or mu is negative.
    """

    task: Task
    method: LowerBoundMethod = field(default_factory=PooledSolver)
    mu: float = 0.0
    assume_convex: bool = False

    def __post_init__(self) -> None:
        checks.non_negative("mu", self.mu)
        if not isinstance(self.task, Task):
            text = f"expected a drfl.Task, got an object of type {type(self.task).__name__}"
            raise InputError(text, code="wrong-type", field="task")
        if not callable(self.method):
            text = f"expected a method such as drfl.certificate.PooledSolver(), got {self.method!r:.60}"
            raise InputError(text, code="wrong-type", field="method")
        reason = None if self.assume_convex else convexity(self.task)
        if reason:
            raise InputError(
                f"cannot compute a certificate: {reason}. Remove `certificate`, or train a linear model.",
                code="no-certificate",
                field="certificate",
            )

    def check(self, local: LocalSGD) -> None:
        """Check that the method can prove a bound for the objective of this local solver.

        Raises:
            InputError: If it cannot.
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
        reference: Tensor | None = None,
    ) -> tuple[Certificate, Tensor] | None:
        """Compute the certificate of (w, λ) and the point (d,) of its lower bound; its cost is not counted.

        Args:
            fed: The clients. All take part, with all their training data.
            w: (d,) the model.
            lam: (N,) float64, the client weights, in Λ.
            local: The local solver, whose weight decay and radius are part of the problem.
            ambiguity: Λ and ψ; None = the whole simplex.
            start: (d,) the point of an earlier certificate, to start from.
            reference: (N,) float64, constants that are subtracted from the clients' losses in F; None = 0.

        Returns:
            The certificate and the point, or None if a client did not reply or a loss was not finite.

        Raises:
            InputError: If w is not (d,), λ is not (N,) or λ is outside Λ; and as for :meth:`check`.
        """
        self.check(local)
        trained, own = fed.describe_task(), self.task.description
        for part in ("module", "loss"):
            if trained and trained[part] != own[part]:
                raise InputError(
                    f"cannot compute a certificate: the clients have {part} = {BRIEF.repr(trained[part])}, and the "
                    f"certifier's task has {BRIEF.repr(own[part])}. Use one task for both",
                    code="no-certificate",
                    field="certificate",
                )
        if w.shape != fed.w0.shape or lam.shape != (fed.n,):
            raise InputError(
                f"cannot compute a certificate: w must have shape {tuple(fed.w0.shape)} and λ shape ({fed.n},), got "
                f"{tuple(w.shape)} and {tuple(lam.shape)}",
                code="wrong-shape",
                field="certificate",
            )
        w, lam = w.to(fed.w0), lam.detach().to("cpu", torch.float64)
        ambiguity = Simplex() if ambiguity is None else ambiguity
        # Rounding may move a projected λ slightly outside Λ.
        if not ambiguity.contains(lam, 1e-6):
            raise InputError(
                "cannot compute a certificate: the client weights λ are outside the ambiguity set Λ",
                code="no-certificate",
                field="lam",
            )
        objective = Objective(fed, local.weight_decay, self.mu + local.weight_decay, local.radius)
        try:
            # Runs are compared by the cost of training, which excludes certificates.
            with fed.ledger.paused():
                bound = self.method(objective, w, lam, start)
        except SilentClientError:
            return None
        # ψ does not depend on the model, so min_v F(v, λ) is at least the bound without ψ, minus ψ(λ).
        # By weak duality, a proven gap is valid for every λ: a poor λ makes it larger, not wrong.
        # The same holds for Σ_i λ_i f_i*, which shifts the objective at each λ by a constant.
        shift = torch.zeros_like(lam) if reference is None else reference
        primal = ambiguity.worst_case(bound.losses - shift).value
        lower = bound.lower - float(lam @ shift) - ambiguity.penalty(lam)
        return Certificate(primal, lower, bound.gradient_norm, bound.proven), bound.point


METHODS: dict[str, LowerBoundMethod] = {"pooled": PooledSolver(), "gradient": OneGradient()}
"""The methods by their names on the command line."""
