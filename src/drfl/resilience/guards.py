"""Guards against Byzantine clients: reply filters by distance, by loss reports and by the server's own samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData
from drfl.engine import Engine, Simulation
from drfl.federation.federation import Federation
from drfl.federation.requests import GradientRequest, Losses, LossRequest
from drfl.task.task import Task


class GuardResult(NamedTuple):
    """A guard's result for k reports.

    Args:
        values: (k,) float64 losses to use; the value of a row that is not kept does not matter.
        kept: (k,) bool; the others count as missing.
        memory: (s,) float64, the guard's memory after them.
    """

    values: Tensor
    kept: Tensor
    memory: Tensor


class Guard(Protocol):
    """Checks clients' loss reports before the algorithm sees them: a frozen dataclass.

    It sees finite reports of clients that were asked, at least one.
    """

    def start(self, n: int) -> Tensor:
        """(s,) float64: its memory of n clients before the first report; its size never changes."""
        ...

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """Judge the reports of k clients.

        Args:
            reports: (k,) clients and losses.
            request: what they answer; its key is this request's alone.
            fed: to ask other clients; their answers pass no guard.
            memory: (s,) its memory.
        """
        ...


class WithoutMemory:
    """The part of a guard that remembers nothing."""

    def start(self, n: int) -> Tensor:
        """An empty vector."""
        return torch.empty(0, dtype=torch.float64)


def first_memories(guards: Sequence[Guard], n: int) -> Tensor:
    """(Σs,) the memories of guards one after the other."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *(guard.start(n) for guard in guards)])


def apply_guards(
    guards: Sequence[Guard], reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
) -> GuardResult:
    """Guards one after the other, each on what the ones before it left; the arguments are those of :class:`Guard`."""
    # A copy: Guarded compares it with what was reported.
    values, kept = reports.values.clone(), torch.ones(len(reports.clients), dtype=torch.bool)
    memories = list(memory.split([guard.start(fed.n).numel() for guard in guards]))
    for g, guard in enumerate(guards):
        rows = kept.nonzero().flatten()
        if rows.numel():
            found = guard.judge(Losses(reports.clients[rows], values[rows]), request, fed, memories[g])
            values[rows], kept[rows], memories[g] = found.values, found.kept, found.memory
    # The empty slice, as cat takes no empty list where there are no guards.
    return GuardResult(values, kept, torch.cat([memory[:0], *memories]))


SIGMAS = 1.4826
"""A normal law's standard deviation over its MAD."""


@dataclass(frozen=True)
class Clip(WithoutMemory):
    """Reports are cut to [−bound, bound]: for losses whose range is known.

    Args:
        bound: above 0.

    Raises:
        InputError: the bound is not a finite number above 0.
    """

    bound: float

    def __post_init__(self) -> None:
        checks.positive("bound", self.bound)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        return keep_all(reports.values.clamp(-self.bound, self.bound), memory)


@dataclass(frozen=True)
class RobustClip:
    """Reports are cut to med + k·max(1.4826·MAD, floor·peak), as found from every client's latest report.

    med and MAD are the median, and the median distance from it, over each client's latest report: this request's as
    they came, and the older ones of the clients that it did not reach, as they were cut. So the first round is judged
    by its own reports, and a round in which all losses jump is not cut. peak is the largest |med| so far: late in
    training, when nearly all losses are tiny, an honest client with hard data may still report a loss of early rounds.

    The defaults are wide: a report is cut when it is above eleven times the greatest median so far, and farther than
    ten times the spread. That keeps a claim of a million from corrupting λ and the dual step's scale for the whole
    run; a Byzantine client that claims ten times its loss is not bounded. k=3, floor=0.1 is tight: it does bound such a
    client, and may cut an honest one with large losses.

    Medians hold while fewer than half of the reports are false; those of the first round may be few. A report below
    −(|med| + k·…) is raised to it: it would spoil the dual step's scale.

    Args:
        k: widths above the median, > 0.
        floor: the least width as a share of the peak, ≥ 0.

    Raises:
        InputError: a value is out of range.
    """

    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def start(self, n: int) -> Tensor:
        """(n + 1,) every client's latest report, NaN where there was none, and the peak."""
        return torch.cat([torch.full((n,), torch.nan, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        last, peak = memory[:-1], memory[-1]
        # This request's reports as they came, so that a round in which all losses jump takes the median along.
        latest = last.index_copy(0, reports.clients, reports.values)
        latest = latest[~latest.isnan()]
        peak = torch.maximum(peak, latest.median().abs())
        values = near_median(reports.values, latest, self.k, self.floor * peak)
        # Remembered as cut, so that a false report does not widen the spread of later requests.
        last = last.index_copy(0, reports.clients, values)
        return keep_all(values, torch.cat([last, peak[None]]))


def near_median(values: Tensor, reference: Tensor, k: float, least: Tensor) -> Tensor:
    """(k',) values cut to within k·max(1.4826·MAD, least) of the median of a reference (r,), r ≥ 1, on the far sides.

    The lower of the two middle ones counts as the median. Where the width is 0 there is nothing to judge by: no cut.
    """
    middle = reference.median()
    width = k * torch.maximum(SIGMAS * (reference - middle).abs().median(), least)
    return values.clamp(-(middle.abs() + width), middle + width) if width > 0 else values


def keep_all(values: Tensor, memory: Tensor) -> GuardResult:
    """A result that drops no client."""
    return GuardResult(values, torch.ones(len(values), dtype=torch.bool), memory)


@dataclass(frozen=True)
class Trim(WithoutMemory):
    """The f largest reports of a request count as missing; those of gradients go with their gradients.

    At most f Byzantine clients that claim the largest losses are never used. Neither are the f worst-off clients, for
    whose sake λ exists: a strong measure. Of equal reports those of clients with smaller indices go. Where no more than
    f answer, none is left.

    Not for ScaffPD, which uses the last report of a client that does not answer: a client whose report was accepted
    once, when its loss was large, and is dropped ever since, keeps gaining weight by it.

    Args:
        f: how many, at least 1.

    Raises:
        InputError: f is out of range.
    """

    f: int = 1

    def __post_init__(self) -> None:
        checks.whole("f", self.f)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        by_client = reports.clients.argsort()  # replies may come in any order
        largest = by_client[reports.values[by_client].argsort(descending=True, stable=True)[: self.f]]
        kept = torch.ones(len(reports.values), dtype=torch.bool).index_fill(0, largest, False)
        return GuardResult(reports.values, kept, memory)


_KEY = Key(0)


@dataclass(frozen=True)
class ServerProbe:
    """Scores a model on rows that the server holds for each client, for :class:`drfl.resilience.Audit` and
    :class:`drfl.resilience.ProbeCosine`.

    Clients give these rows away, which federated learning is there to avoid; and a client that chooses them itself can
    choose hard ones. Rows that the server collected on its own serve as well: make the federation of those.

    Args:
        fed: a federation whose N clients hold the server's rows; it counts what this costs in a ledger of its own.
    """

    fed: Federation

    @classmethod
    def of(
        cls,
        data: ClientData,
        task: Task,
        *,
        rows: int = 16,
        key: Key = _KEY,
        engine: Engine | None = None,
        device: str = "cpu",
    ) -> ServerProbe:
        """Of min(rows, n_i) training rows of each client, drawn uniformly.

        Args:
            data: the clients' samples.
            task: model, loss and score.
            rows: how many of each client.
            key: of the draw; client i draws from ``key.fold("probe", i)``.
            engine: see :class:`drfl.engine.Simulation`.
            device: see :class:`drfl.engine.Simulation`.

        Raises:
            InputError: rows is not at least 1, or data and task do not fit together.
        """
        checks.whole("rows", rows)

        def some(mine: Tensor, i: int) -> Tensor:
            # One key per client: its rows do not depend on the other clients.
            generator = key.fold("probe", i).generator()
            return mine[torch.from_numpy(generator.choice(len(mine), min(rows, len(mine)), replace=False))]

        held = replace(data, train=tuple(some(mine, i) for i, mine in enumerate(data.train)))
        return cls(Simulation(held, task, engine=engine, device=device))

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """(k,) float64 mean losses of w (d,) on the rows held for the clients (k,); NaN where there is no answer."""
        found = self.fed.losses(clients, w, _KEY)
        # By client, as replies may come in any order and from fewer clients.
        return torch.full((self.fed.n,), torch.nan, dtype=torch.float64).index_copy(0, *found)[clients]

    def gradients(self, w: Tensor, clients: Tensor) -> Tensor:
        """(k, d) gradients at w (d,) on the rows held for the clients (k,)."""
        # Requests list clients in ascending order; indexing restores the order of `clients`.
        order = clients.argsort()
        found = self.fed.gradients(clients[order], w, _KEY)
        if len(found.clients) != len(clients):
            raise InputError(
                "a probe's federation has to answer for every client: make it of rows that the server holds",
                code="invalid-value",
                field="fed",
            )
        return found.values[found.clients.argsort()[order.argsort()]]


class Score(Protocol):
    """The server's own estimate of clients' losses; see :class:`drfl.resilience.ServerProbe`."""

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """(k,) losses of the model w (d,) on data that stand for each of the clients (k,)."""
        ...


@dataclass(frozen=True)
class Audit(WithoutMemory):
    """A claim above factor·score + slack is replaced by the server's score; a score of NaN lets every claim pass.

    Args:
        score: the server's scores.
        factor: ≥ 1.
        slack: ≥ 0, in the loss's units: what a minibatch may differ from the server's rows by.

    Raises:
        InputError: a value is out of range.
    """

    score: Score
    factor: float = 2.0
    slack: float = 1.0

    def __post_init__(self) -> None:
        checks.at_least("factor", self.factor, 1)
        checks.non_negative("slack", self.slack)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        scores = self.score(request.w, reports.clients).to(reports.values)
        # False for a score of NaN: there the claim passes.
        values = torch.where(reports.values > self.factor * scores + self.slack, scores, reports.values)
        return keep_all(values, memory)


@dataclass(frozen=True)
class PeerAudit(WithoutMemory):
    """Reports are cut by the losses of clients outside the cohort, which are asked for them at the same model.

    A reference from the same round, for federations of which few take part: reports are cut to med + k·max(1.4826·MAD,
    floor·|med|) over the peers' answers. The peers are drawn uniformly from those outside the cohort by the request's
    key, and take the samples that they would have taken in it. Where fewer than ``peers`` answer, the request's own
    reports join them. Each request costs ``peers`` loss reports more.

    Args:
        peers: how many others to ask, at least 1.
        k: widths above the median, > 0.
        floor: the least width as a share of the median, ≥ 0.

    Raises:
        InputError: a value is out of range.
    """

    peers: int = 5
    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.whole("peers", self.peers)
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        outside = torch.ones(fed.n, dtype=torch.bool).index_fill(0, request.cohort, False).nonzero().flatten()
        reference, size = torch.empty(0, dtype=torch.float64), min(self.peers, len(outside))
        if size:
            # A separate key folded from the request's: this draw changes none of the algorithm's.
            drawn = request.key.fold("peers").generator().choice(len(outside), size, replace=False)
            asked = outside[torch.from_numpy(drawn)].sort().values
            reference = fed.losses(asked, request.w, request.key, batch=request.batch).values
        if len(reference) < self.peers:  # too few are outside the cohort or answer: add its own reports
            reference = torch.cat([reference, reports.values])
        least = self.floor * reference.median().abs()
        return keep_all(near_median(reports.values, reference, self.k, least), memory)
