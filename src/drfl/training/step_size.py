"""The local step size from the curvature of the clients' losses, where the user gives none."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm, S, Wrapping
from drfl.federation.federation import DataChecked, Federation
from drfl.federation.requests import Gradients, answers
from drfl.optim.local import LocalSGD
from drfl.optim.schedules import Constant, Schedule

T = TypeVar("T")

CLIENTS = 32
"""At most so many clients are asked: what a few tens of them agree on is enough, and a federation may have 100,000."""

BATCH = 256
"""At most so many samples are behind each client's gradients, the same in all of them."""

COMPARED = 1024
"""Samples of a client whose loss is compared with that at the start: a few would miss where the model runs away along
a column that is seldom other than 0."""

ITERATIONS = 8
"""At most so many power iterations."""

CLOSE = 0.03
"""They end once the estimate changes by less than this share of it."""

DISTANCE = 1e-2
"""How far the two points of a difference of gradients are apart."""

OUTLIER = 2.0
"""One client's answer counts at most so many times the largest of the others'."""

FALLBACK = 0.1
"""η where no client answers, or all losses are flat."""

LEAST = torch.finfo(torch.float64).tiny


class StepSize(NamedTuple):
    """The step size that a run has found.

    Args:
        eta: () float64, η.
        curvature: () float64, L̂, the largest eigenvalue of a client's Hessian at the start; NaN where it is not known.
        client: () int64, the client whose it is; −1 where it is not known.
        lowered: () int64, how often η was halved since.
        moved: () float64, the longest way that the global model went in one of the rounds since.
        losses: (N,) float64, the loss at the start of those who were asked; NaN of the others.
        unaffected: (N,) bool, clients whose far too long replies a smaller step size did not help.
        rollbacks: () int64, how often the model was set back to the initial one.
        restarted: () int64, rounds done before the last time.
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

    @classmethod
    def unknown(cls, n: int) -> StepSize:
        """Before it was looked for, for n clients."""
        nan, one = torch.tensor(torch.nan, dtype=torch.float64), torch.tensor(1)
        nobody = torch.zeros(n, dtype=torch.bool)
        # Tensors of their own: a checkpoint refuses those that share memory.
        still = torch.zeros((), dtype=torch.float64)
        return cls(nan, nan, -one, 0 * one, still, nan.repeat(n), nobody, 0 * one, 0 * one)

    @property
    def known(self) -> bool:
        """Whether it was found already."""
        return bool(self.eta > 0)

    @property
    def first(self) -> float:
        """η as it was found."""
        return float(self.eta) * 2 ** int(self.lowered)

    def halved(self) -> StepSize:
        """η/2."""
        return self._replace(eta=self.eta / 2, lowered=self.lowered + 1)

    def set_back(self, rounds: int) -> StepSize:
        """η/2, with the model set back to the initial one after this number of rounds."""
        restarted = torch.full_like(self.restarted, rounds)
        return self.halved()._replace(moved=0 * self.moved, rollbacks=self.rollbacks + 1, restarted=restarted)

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        if not (0 < self.eta < torch.inf and self.lowered >= 0):
            return "a step size that is no number above 0"
        fits = 0 <= self.rollbacks <= self.lowered and 0 <= self.restarted * self.rollbacks.sign() == self.restarted
        return None if fits else "roll-backs that do not fit the step size"


def with_step_size(algorithm: Algorithm[S], eta: float) -> Algorithm[S]:
    """The algorithm, inside all its wrappers, with η as its local step size."""
    if isinstance(algorithm, Wrapping):
        part: dict[str, object] = {"algorithm": with_step_size(algorithm.algorithm, eta)}
    else:
        part = {"local": dataclasses.replace(algorithm.local, lr=eta)}
    return _with(algorithm, **part)


def in_round(algorithm: Algorithm[S], r: int) -> Algorithm[S]:
    """The algorithm, inside all its wrappers, with the step sizes of round r = 1, 2, ….

    Every field ``NAME_schedule`` of the algorithm or of its local solver multiplies that object's ``NAME``, and is
    constant afterwards. A step size that is None is still to be found, and stays so.

    Raises:
        InputError: a schedule has come to 0.
    """
    inside = getattr(algorithm, "algorithm", None)
    # Schedules belong to the innermost algorithm; wrappers use its step sizes.
    if inside is not None:
        inner = in_round(inside, r)
        return algorithm if inner is inside else _with(algorithm, algorithm=inner)
    changes, local = _scheduled(algorithm, r), _scheduled(algorithm.local, r)
    if local:
        changes["local"] = _with(algorithm.local, **local)
    return _with(algorithm, **changes) if changes else algorithm


def _scheduled(thing: object, r: int) -> dict[str, object]:
    """The fields of a dataclass that are other ones in round r."""
    changes: dict[str, object] = {}
    for field in dataclasses.fields(cast("Any", thing)) if dataclasses.is_dataclass(thing) else ():
        schedule = getattr(thing, field.name, None) if field.name.endswith("_schedule") else None
        if not isinstance(schedule, Schedule) or schedule == Constant():
            continue
        name, factor = field.name.removesuffix("_schedule"), schedule.at(r)
        value = getattr(thing, name)
        if factor == 0 or (value and value * factor == 0):
            raise InputError(
                f"{field.name} = '{schedule}' is 0 in round {r}: give it as many rounds as the run has, or a "
                "larger end",
                code="invalid-value",
                field=field.name,
            )
        changes |= {field.name: Constant()} | ({} if value is None else {name: value * factor})
    return changes


def _with(thing: T, **changes: object) -> T:
    # An algorithm is a frozen dataclass, which its protocol cannot say.
    return dataclasses.replace(cast("Any", thing), **changes)


def find(algorithm: Algorithm, fed: Federation, w: Tensor, key: Key) -> StepSize:
    """η = (1 − momentum)/L̂, L̂ the largest curvature of a client's objective at w (d,), along one shared direction.

    A step of 1/L of gradient descent on a quadratic of curvature L cannot overshoot, and is as long as that allows. The
    direction is that of power iterations on the sum of the clients' Hessians, by differences of gradients. Where the
    loss is saturated its Hessian says nothing; there L̂ ≥ ‖∇f‖²/(8f) holds η back: no smooth loss above 0 has a
    curvature below four times that everywhere, as otherwise one step would make it negative.

    Everything is asked for as in a round, and booked. One client's answer counts at most twice the largest of the
    others', in the direction and in the estimate, so that a lie hardly moves η.

    Args:
        algorithm: whose local steps it is for; their weight decay adds to the curvature.
        fed: the clients, of which at most :data:`CLIENTS` are asked.
        w: (d,) where.
        key: of the draws.

    Returns:
        With η = :data:`FALLBACK` where no client answers or all losses are flat.
    """
    # Clients are ascending, as searchsorted matches replies to them.
    asked = sampling.uniform(fed.n, min(fed.n, CLIENTS), key.fold("clients")).clients.sort().values
    # As many samples as a local step takes: the curvature of one minibatch can be far above that of all data.
    batch = samples(algorithm.local)
    replies = fed.gradients(asked, w, key, batch=batch)
    here = _finite(replies)
    if replies.clients.numel() and not here.clients.numel():
        raise _unfit(fed, "no client has a finite gradient at the initial model")
    # Later losses are compared with these, at clients whose loss is finite.
    start = fed.losses(asked, w, key, batch=COMPARED)
    start = answers(start, torch.isfinite(start.values).nonzero().flatten())
    size = StepSize.unknown(fed.n)
    size = size._replace(losses=size.losses.index_copy(0, start.clients, start.values))
    curvature = _curvature(fed, w, here, key, batch) if here.clients.numel() else torch.zeros(1, dtype=torch.float64)
    largest = curvature.max()
    if not largest > 0:
        return size._replace(eta=torch.tensor(FALLBACK, dtype=torch.float64))
    # In the long run momentum multiplies the step size by 1/(1 − β).
    eta = (1 - algorithm.local.momentum) / (largest + algorithm.local.weight_decay)
    if not eta > torch.finfo(w.dtype).tiny:  # no step with it moves a model
        client = int(here.clients[curvature.argmax()])
        raise _unfit(fed, f"the loss of client {client} has curvature {float(largest):.3g} at the initial model")
    return size._replace(eta=eta, curvature=largest, client=here.clients[curvature.argmax()])


def _unfit(fed: Federation, why: str) -> InputError:
    """An error about inputs for which there is no step size, with the columns and clients if the data can be seen."""
    notes = fed.data_warnings() if isinstance(fed, DataChecked) else ()
    named = next((f" ({note.partition(':')[0]})" for note in notes if note.startswith("values beyond")), "")
    what = "targets" if fed.target_advice() and not named else "inputs"
    return InputError(
        f"no local step size suits these {what}: {why}{named}. Standardise the {what}, or scale them to about 1",
        code="inputs-too-large", field=what,
    )  # fmt: skip


def _curvature(fed: Federation, w: Tensor, here: Gradients, key: Key, batch: int) -> Tensor:
    """(k,) float64 ≥ 0, the curvature of each client's loss at w (d,), where their answers were ``here``."""
    # A saturated loss has a Hessian near 0, whatever its curvature elsewhere. The bound ‖∇F‖²/(8F) then limits η.
    losses, slopes = here.losses.double(), _norms(here.values)
    curvature = least = capped(torch.where(losses > 0, slopes.square() / (8 * losses), 0.0))
    # Not at random: the mean gradient lies along the directions of large curvature already, which saves iterations.
    v = (_shares(slopes)[:, None].to(here.values) * here.values).mean(0)
    if not v.any():
        v = torch.from_numpy(key.fold("direction").generator().standard_normal(w.numel())).to(w)
    for _ in range(ITERATIONS):
        v = v / v.norm()
        there = _finite(fed.gradients(here.clients, w + DISTANCE * v, key, batch=batch))
        rows = torch.searchsorted(here.clients, there.clients)  # those who answered again, ascending
        # Clients send no Hessians, so differences of gradients on the same samples give H_i v.
        products = (there.values - here.values[rows]) / DISTANCE  # H_i v
        norms = _norms(products)
        # Over the answers before, which stand for those who are silent now.
        before, curvature = curvature, curvature.index_copy(0, rows, torch.maximum(least[rows], capped(norms)))
        v = _shares(norms).to(products) @ products
        if not v.any() or abs(curvature.max() - before.max()) <= CLOSE * curvature.max():
            break
    return curvature


def samples(local: LocalSGD) -> int:
    """How many samples of a client are behind each of its answers."""
    return BATCH if local.batch is None else min(local.batch, BATCH)


def capped(values: Tensor) -> Tensor:
    """(k,) ≥ 0, the largest lowered to :data:`OUTLIER` times the second largest."""
    if values.numel() < 2:
        return values
    # The cap limits by how much a single malicious client can lower η.
    return values.clamp(max=OUTLIER * float(values.topk(2).values[1]))


def _shares(norms: Tensor) -> Tensor:
    """(k,) in [0, 1], how much of each row counts in the direction: those longer than the cap are shortened to it."""
    return capped(norms) / norms.clamp(min=LEAST)


def _norms(rows: Tensor) -> Tensor:
    return rows.norm(dim=1).double().cpu()


def _finite(reply: Gradients) -> Gradients:
    """The answers without NaN or infinity, by client."""
    good = torch.isfinite(reply.losses).cpu() & torch.isfinite(reply.values).all(1).cpu()
    reply = answers(reply, good.nonzero().flatten())
    return answers(reply, reply.clients.argsort())
