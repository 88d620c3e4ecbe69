"""Determine the local step size from the curvature of the clients' losses, if the user gives none."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm, S, Wrapping, is_isolated, proximal_weight
from drfl.federation.federation import DataChecked, Federation
from drfl.federation.requests import Gradients, select_rows
from drfl.optim.local import LocalSGD
from drfl.optim.schedules import Constant, Schedule

LOG = logging.getLogger("drfl.training")

T = TypeVar("T")

CLIENTS = 32
"""Maximum number of clients in the estimate: a few tens suffice, and a federation may have 100,000."""

BATCH = 256
"""Maximum number of samples behind each client's gradients; all its gradients use the same samples."""

COMPARED = 1024
"""Samples per client for comparing the loss with the loss at the start. With only a few samples, divergence along a
column that is rarely nonzero would remain unnoticed."""

CHECKED = 256
"""Samples per client if every fourth round compares losses: a check then costs less than a client's local steps."""

ITERATIONS, PROBE_ITERATIONS = 8, 3
"""Maximum number of power iterations at the model, and at a probe."""

CLOSE = 0.03
"""Power iterations end when the estimate changes by less than this fraction."""

DISTANCE = 1e-2
"""Distance between the two points of a difference of gradients."""

OUTLIER = 2.0
"""The largest value of a client is capped at this multiple of the second largest."""

PROBES = (1.0, 0.5, 0.25)
"""Lengths of the probe steps along the gradient, as fractions of the step to a loss of 0 if the loss were linear."""

PROGRESS = 0.5
"""A probe counts if the loss falls by at least this fraction of the predicted fall; others are too long."""

STEEPER = 4.0
"""The curvature at a probe counts if it is this multiple of the curvature at the model; a step of 1/L̂ would diverge."""

SHRINKAGE = 2.0
"""Largest factor by which the curvature measured after a roll-back lowers η."""

REQUESTS = 2 + ITERATIONS + len(PROBES) + PROBE_ITERATIONS
"""Maximum number of requests of :func:`find` to a client: a gradient, a loss, and the gradients of the search."""

FALLBACK = 0.1
"""η if no client replies or all losses are flat."""

LEAST = torch.finfo(torch.float64).tiny


class StepSize(NamedTuple):
    """The local step size of a run, determined by drfl.

    Args:
        eta: () float64, η.
        curvature: () float64, L̂, the largest eigenvalue of a client's Hessian at the start; NaN if unknown.
        client: () int64, the client with that eigenvalue; −1 if unknown.
        lowered: () int64, how often η has been halved since.
        moved: () float64, the longest distance that the global model has moved in one round since.
        losses: (N,) float64, losses of the sampled clients at the start; NaN for the others.
        unaffected: (N,) bool, clients whose updates were far too long, and remained so with a smaller step size.
        rollbacks: () int64, how often the model has been reset to an earlier one.
        restarted: () int64, completed rounds before the last reset.
        lost: () int64, completed rounds whose effect on the model has been lost by resets.
    """

    eta: Tensor
    curvature: Tensor
    client: Tensor
    lowered: Tensor
    moved: Tensor
    losses: Tensor
    unaffected: Tensor
    rollbacks: Tensor
    restarted: Tensor
    lost: Tensor

    def __repr__(self) -> str:
        origin = f", from curvature {float(self.curvature):.3g} of client {int(self.client)}" * (int(self.client) >= 0)
        return f"<StepSize {float(self.eta):.3g}{origin}, halved {int(self.lowered)} times>"

    @classmethod
    def unknown(cls, n: int) -> StepSize:
        """Return the state before the step size has been determined, for n clients."""
        nan, unit = torch.tensor(torch.nan, dtype=torch.float64), torch.tensor(1)
        unaffected = torch.zeros(n, dtype=torch.bool)
        # Make separate tensors, because a checkpoint rejects tensors that share memory.
        moved = torch.zeros((), dtype=torch.float64)
        return cls(nan, nan, -unit, 0 * unit, moved, nan.repeat(n), unaffected, 0 * unit, 0 * unit, 0 * unit)

    @property
    def is_known(self) -> bool:
        """Whether the step size has been determined."""
        return bool(self.eta > 0)

    @property
    def first(self) -> float:
        """η before any halving."""
        return float(self.eta) * 2 ** int(self.lowered)

    def halve(self) -> StepSize:
        """Return the step size with η/2."""
        return self._replace(eta=self.eta / 2, lowered=self.lowered + 1)

    def reset(self, rounds: int, kept: int = 0) -> StepSize:
        """Return the step size with η/2, after a reset of the model at this number of rounds.

        Args:
            rounds: Completed rounds.
            kept: Number of rounds of training behind the model to which the run returns; 0 for the initial one.
        """
        restarted = torch.full_like(self.restarted, rounds)
        return self.halve()._replace(
            moved=0 * self.moved, rollbacks=self.rollbacks + 1, restarted=restarted, lost=restarted - kept
        )

    def describe_fault(self) -> str | None:
        """Describe an inconsistency, see :class:`drfl.federation.algorithm.Consistent`."""
        if not (0 < self.eta < torch.inf and self.lowered >= 0):
            return "the step size is not a number above 0"
        fits = 0 <= self.rollbacks <= self.lowered and 0 <= self.restarted * self.rollbacks.sign() == self.restarted
        fits = fits and 0 <= self.lost <= self.restarted
        return None if fits else "the number of resets contradicts the step size"


def with_step_size(algorithm: Algorithm[S], eta: float) -> Algorithm[S]:
    """Return the algorithm, inside all its wrappers, with the local step size η."""
    if isinstance(algorithm, Wrapping):
        part: dict[str, object] = {"algorithm": with_step_size(algorithm.algorithm, eta)}
    else:
        part = {"local": dataclasses.replace(algorithm.local, lr=eta)}
    return _with(algorithm, **part)


def in_round(algorithm: Algorithm[S], r: int) -> Algorithm[S]:
    """Return the algorithm, inside all its wrappers, with the step sizes of round r = 1, 2, ….

    Every field ``NAME_schedule`` of the algorithm or of its local solver multiplies that object's ``NAME``, and is
    replaced by a constant. A step size that is None has yet to be determined and remains None.

    Raises:
        InputError: If a schedule reaches 0.
    """
    inside = getattr(algorithm, "algorithm", None)
    # Schedules belong to the innermost algorithm; its wrappers use its step sizes.
    if inside is not None:
        inner = in_round(inside, r)
        return algorithm if inner is inside else _with(algorithm, algorithm=inner)
    changes, local = _scheduled(algorithm, r), _scheduled(algorithm.local, r)
    if local:
        changes["local"] = _with(algorithm.local, **local)
    return _with(algorithm, **changes) if changes else algorithm


def _scheduled(thing: object, r: int) -> dict[str, object]:
    """Return the fields of a dataclass that change in round r."""
    changes: dict[str, object] = {}
    # Any dataclass is accepted, so that schedules also work in algorithms of users.
    for field in dataclasses.fields(cast("Any", thing)) if dataclasses.is_dataclass(thing) else ():
        schedule = getattr(thing, field.name, None) if field.name.endswith("_schedule") else None
        if not isinstance(schedule, Schedule) or schedule == Constant():
            continue
        name, factor = field.name.removesuffix("_schedule"), schedule.multiplier(r)
        value = getattr(thing, name)
        if factor == 0 or (value and value * factor == 0):
            raise InputError(
                f"{field.name} = '{schedule}' is 0 in round {r}. Give it at least as many rounds as the run has, or a "
                "larger end value.",
                code="invalid-value",
                field=field.name,
            )
        changes |= {field.name: Constant()} | ({} if value is None else {name: value * factor})
    return changes


def _with(thing: T, **changes: object) -> T:
    # An algorithm is a frozen dataclass, which its protocol cannot express.
    fields = dataclasses.fields(cast("Any", thing)) if dataclasses.is_dataclass(thing) else ()
    missing = sorted(set(changes) - {field.name for field in fields if field.init})
    if missing:
        kind = type(thing).__name__
        raise InputError(
            f"drfl cannot set the step size of {kind}, because '{missing[0]}' is not a field of a dataclass. Put "
            "@dataclass(frozen=True) above the class and annotate the field, such as local: LocalSGD = LocalSGD().",
            code="not-a-dataclass",
            field=kind,
        )
    return dataclasses.replace(cast("Any", thing), **changes)


def find(algorithm: Algorithm, fed: Federation, w: Tensor, key: Key, *, is_checked: bool = True) -> StepSize:
    """Determine η = (1 − momentum)/L̂, with L̂ the largest curvature of a client's objective at w (d,).

    On a quadratic of curvature L, 1/L is the longest step of gradient descent that cannot overshoot. The curvature is
    measured along one direction for all clients, which power iterations on the sum of the clients' Hessians determine,
    using differences of gradients. If the loss is saturated, its Hessian is close to 0 even if the curvature is large
    elsewhere. The bound L̂ ≥ ‖∇f‖²/(8f) then limits η: a smooth loss above 0 has at least four times that curvature
    somewhere, because otherwise one step would make it negative.

    If the model is checked during the run, the curvature is measured once more at a point along the negative gradient
    at which the loss is clearly lower. If it is far larger there, as with inputs that are not scaled, it is used
    instead.

    Requests are made as in a round, and counted. In the direction and in the estimate, the largest value of a client is
    capped at twice the second largest, so a malicious client hardly changes η.

    Args:
        algorithm: The algorithm; its weight decay and its proximal term add to the curvature.
        fed: The clients, of which at most :data:`CLIENTS` are asked; all report their loss if each trains alone.
        w: (d,) the initial model.
        key: Key of the draws.
        is_checked: Whether the clients check the model during the run, see :mod:`drfl.training.safeguard`.

    Returns:
        The step size; η = :data:`FALLBACK` if no client replies or all losses are flat.

    Raises:
        InputError: If no client has a finite loss and gradient, or the curvature is too large for any step size.
    """
    LOG.info("finding the step size: up to %d requests to each client", REQUESTS)
    # Sort, because searchsorted matches replies to clients.
    clients = sampling.uniform(fed.n, min(fed.n, CLIENTS), key.fold("clients")).clients.sort().values
    # Use as many samples as a local step, because the curvature of one minibatch can be far above that of all data.
    replies = fed.gradients(clients, w, key, batch=samples(algorithm.local))
    # A client whose gradient is not finite has no curvature to compare.
    gradients = _finite(replies)
    if replies.clients.numel() and not gradients.clients.numel():
        if not _extremes(fed) and not fed.target_advice():
            check_losses(fed, replies.clients, replies.losses)
        raise _unfit(fed, "no client has a finite gradient at the initial model")
    # Later losses are compared with these; clients whose loss is not finite are excluded.
    watched = torch.arange(fed.n) if is_isolated(algorithm) else clients
    start = fed.losses(watched, w, key, batch=CHECKED if is_checked else COMPARED)
    start = select_rows(start, torch.isfinite(start.values).nonzero().flatten())
    size = StepSize.unknown(fed.n)
    size = size._replace(losses=size.losses.index_copy(0, start.clients, start.values))
    largest, client = largest_curvature(algorithm, fed, w, gradients, key, probes=is_checked)
    if not largest > 0:
        return size._replace(eta=torch.tensor(FALLBACK, dtype=torch.float64))
    eta = _step(algorithm, largest)
    if not eta > torch.finfo(w.dtype).tiny:  # too small to change any parameter
        raise _unfit(
            fed, f"the loss of {fed.name_of(int(client))} has curvature {float(largest):.3g} at the initial model"
        )
    return size._replace(eta=eta, curvature=largest, client=client)


def found_again(algorithm: Algorithm, fed: Federation, w: Tensor, key: Key, size: StepSize) -> StepSize:
    """Return the step size with the η that the curvature at w (d,) allows, if that is smaller.

    Args:
        algorithm: The algorithm.
        fed: The clients, of which those are asked whose losses at the start are known.
        w: (d,) a model at which the step size turned out to be too large.
        key: The key that :func:`find` used.
        size: The step size.
    """
    clients = (~size.losses.isnan()).nonzero().flatten()
    gradients = _finite(fed.gradients(clients, w, key, batch=samples(algorithm.local)))
    largest, client = largest_curvature(algorithm, fed, w, gradients, key, probes=True)
    # Far from the safe model the curvature may be a million times as large, and η would be too small for any progress.
    eta = max(_step(algorithm, largest), size.eta / SHRINKAGE)
    if not torch.finfo(w.dtype).tiny < eta < size.eta:
        return size
    return size._replace(eta=eta, curvature=largest, client=client)


def largest_curvature(
    algorithm: Algorithm, fed: Federation, w: Tensor, gradients: Gradients, key: Key, *, probes: bool
) -> tuple[Tensor, Tensor]:
    """Return () float64 the largest curvature of a client's loss, and () int64 its client, −1 if no client has one.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        w: (d,) the model.
        gradients: The clients' gradients at w, which are finite and sorted by client.
        key: Key of the requests.
        probes: Whether to measure the curvature along the gradient as well.
    """
    if not gradients.clients.numel():
        return torch.zeros((), dtype=torch.float64), torch.tensor(-1)
    batch = samples(algorithm.local)
    curvature = _curvature(fed, w, gradients, key, batch, ITERATIONS)
    largest, client = curvature.max(), gradients.clients[curvature.argmax()]
    slope = _mean_gradient(gradients)
    loss, length = cap_largest(gradients.losses.double().clamp(min=0)).mean(), slope.norm().double()
    if not (probes and 0 < length < torch.inf and 0 < loss < torch.inf):
        return largest, client
    for fraction in PROBES:
        point = w - (fraction * loss / length.square()).to(w) * slope
        there = _finite(fed.gradients(gradients.clients, point, key, batch=batch))
        if not there.clients.numel():
            continue
        lower = cap_largest(there.losses.double().clamp(min=0)).mean()
        # Require most of the decrease that the gradient predicts, because the run will not move to points of higher
        # loss.
        if lower <= (1 - PROGRESS * fraction) * loss:
            curvature = _curvature(fed, point, there, key, batch, PROBE_ITERATIONS)
            if curvature.max() > STEEPER * largest:
                largest, client = curvature.max(), there.clients[curvature.argmax()]
            break
    return largest, client


def _step(algorithm: Algorithm, curvature: Tensor) -> Tensor:
    # Over many steps momentum multiplies the step size by 1/(1 − β).
    curvature = curvature + algorithm.local.weight_decay + proximal_weight(algorithm)
    return (1 - algorithm.local.momentum) / curvature


def check_losses(fed: Federation, clients: Tensor, losses: Tensor) -> None:
    """Check that the losses (k,) of clients (k,) at the initial model are finite.

    Raises:
        InputError: If one is not. The message names its client.
    """
    bad = (~torch.isfinite(losses)).nonzero().flatten()
    if not bad.numel():
        return
    name, loss = fed.name_of(int(clients[bad[0]])), float(losses[bad[0]])
    raise InputError(
        f"the loss of {name} is {loss} at the initial model, before any training: {fed.target_advice()}check its "
        "inputs, the model and the loss, for example for a logarithm of numbers that are not positive",
        code="not-finite",
        field="loss",
    )


def _extremes(fed: Federation) -> str:
    """Return the clients and columns with far too large inputs in parentheses; "" if none are known."""
    notes = fed.data_warnings() if isinstance(fed, DataChecked) else ()
    # The cases of a notice come before its advice.
    return next((f" ({note.partition(';')[0]})" for note in notes if note.startswith("values beyond")), "")


def _unfit(fed: Federation, why: str) -> InputError:
    """Return an error about inputs without a suitable step size, naming columns and clients if the data are local."""
    culprits = _extremes(fed)
    what = "targets" if fed.target_advice() and not culprits else "inputs"
    return InputError(
        f"no local step size suits these {what}: {why}{culprits}. Standardise the {what}, or scale them to about 1.",
        code="inputs-too-large", field=what,
    )  # fmt: skip


def _curvature(fed: Federation, w: Tensor, gradients: Gradients, key: Key, batch: int, iterations: int) -> Tensor:
    """Return (k,) float64 ≥ 0, the curvature of each client's loss at w (d,), given the replies ``gradients``."""
    # A saturated loss has a Hessian close to 0, even if its curvature is large elsewhere. The bound ‖∇F‖²/(8F) then
    # limits η.
    losses, slopes = gradients.losses.double(), _norms(gradients.values)
    curvature = least = cap_largest(torch.where(losses > 0, slopes.square() / (8 * losses), 0.0))
    # The mean gradient already lies along directions of large curvature, which saves iterations over a random start.
    v = _mean_gradient(gradients)
    if not v.any():
        v = torch.from_numpy(key.fold("direction").generator().standard_normal(w.numel())).to(w)
    for _ in range(iterations):
        # Normalise the direction, so that every difference of gradients is taken at the same distance.
        v = v / v.norm()
        shifted = _finite(fed.gradients(gradients.clients, w + DISTANCE * v, key, batch=batch))
        rows = torch.searchsorted(gradients.clients, shifted.clients)  # clients that replied again, ascending
        # Clients send no Hessians, so differences of gradients on the same samples give H_i v.
        products = (shifted.values - gradients.values[rows]) / DISTANCE  # H_i v
        norms = _norms(products)
        # Clients that do not reply this time retain their previous value.
        before, curvature = curvature, curvature.index_copy(0, rows, torch.maximum(least[rows], cap_largest(norms)))
        v = _shares(norms).to(products) @ products
        if not v.any() or abs(curvature.max() - before.max()) <= CLOSE * curvature.max():
            break
    return curvature


def _mean_gradient(gradients: Gradients) -> Tensor:
    """Return (d,) the mean of the clients' gradients, with the longest one capped."""
    return (_shares(_norms(gradients.values))[:, None].to(gradients.values) * gradients.values).mean(0)


def samples(local: LocalSGD) -> int:
    """Return the number of samples behind each reply of a client."""
    return BATCH if local.batch is None else min(local.batch, BATCH)


def cap_largest(values: Tensor) -> Tensor:
    """Cap the largest of the values (k,) ≥ 0 at :data:`OUTLIER` times the second largest."""
    if values.numel() < 2:
        return values
    # The cap limits how far a single malicious client can lower η.
    return values.clamp(max=OUTLIER * float(values.topk(2).values[1]))


def _shares(norms: Tensor) -> Tensor:
    """Return (k,) in [0, 1], the weight of each row in the direction: rows longer than the cap are shortened to it."""
    return cap_largest(norms) / norms.clamp(min=LEAST)


def _norms(rows: Tensor) -> Tensor:
    return rows.norm(dim=1).double().cpu()


def _finite(reply: Gradients) -> Gradients:
    """Return the replies without NaN or infinity, sorted by client."""
    good = torch.isfinite(reply.losses).cpu() & torch.isfinite(reply.values).all(1).cpu()
    reply = select_rows(reply, good.nonzero().flatten())
    return select_rows(reply, reply.clients.argsort())
