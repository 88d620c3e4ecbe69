"""Guards against Byzantine clients: filters for reported losses, and probes on rows that the server holds."""

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
    """A guard's result for k reported losses.

    Args:
        values: (k,) float64 losses to use; the values of rows outside the mask are ignored.
        mask: (k,) bool, True for the losses to use; the other rows count as missing.
        memory: (s,) float64, the guard's memory after the request.
    """

    values: Tensor
    mask: Tensor
    memory: Tensor


class Guard(Protocol):
    """A filter for reported losses, applied before the algorithm sees them: a frozen dataclass.

    It receives finite reports of clients in the cohort, at least one.
    """

    def start(self, n: int) -> Tensor:
        """Return the guard's initial memory for n clients, (s,) float64; its size never changes."""
        ...

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """Judge the reported losses of k clients.

        Args:
            reports: (k,) Clients and losses.
            request: The request; its key is used for no other request.
            fed: Federation for asking other clients; their replies pass no guard.
            memory: (s,) The guard's memory.
        """
        ...


class WithoutMemory:
    """Mixin for guards without memory."""

    def start(self, n: int) -> Tensor:
        """Return an empty vector."""
        return torch.empty(0, dtype=torch.float64)


def first_memories(guards: Sequence[Guard], n: int) -> Tensor:
    """Return the initial memories of several guards, concatenated, (Σs,)."""
    return torch.cat([torch.empty(0, dtype=torch.float64), *(guard.start(n) for guard in guards)])


def apply_guards(
    guards: Sequence[Guard], reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
) -> GuardResult:
    """Apply guards in sequence, each to the output of the previous one; the arguments are those of :class:`Guard`."""
    # Copy the values, because Guarded compares them with the reported ones.
    values, kept = reports.values.clone(), torch.ones(len(reports.clients), dtype=torch.bool)
    memories = list(memory.split([guard.start(fed.n).numel() for guard in guards]))
    for g, guard in enumerate(guards):
        rows = kept.nonzero().flatten()
        if rows.numel():
            result = guard.judge(Losses(reports.clients[rows], values[rows]), request, fed, memories[g])
            values[rows], kept[rows], memories[g] = result.values, result.mask, result.memory
    # Include an empty slice, because torch.cat rejects an empty list, which occurs without guards.
    return GuardResult(values, kept, torch.cat([memory[:0], *memories]))


SIGMAS = 1.4826
"""Ratio of a normal distribution's standard deviation to its MAD."""


@dataclass(frozen=True)
class Clip(WithoutMemory):
    """Clips reported losses to [−bound, bound], for losses with a known range.

    Args:
        bound: Bound above 0.

    Raises:
        InputError: If the bound is not a finite number above 0.
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
    """Clips reported losses to med + k·max(1.4826·MAD, floor·peak), computed from every client's latest report.

    med is the median over each client's latest report and MAD the median distance from it. Reports of the current
    request enter unclipped, earlier reports of other clients as clipped. The first round is therefore judged by its own
    reports, and a round in which all losses jump is not clipped. peak is the largest |med| so far: late in training,
    when nearly all losses are tiny, an honest client with hard data may still report a loss typical of early rounds.

    The defaults are wide. A report is clipped only if it is above eleven times the largest median so far and farther
    from the median than ten times the spread. This keeps a reported loss of a million from corrupting λ and the scale
    of the dual step for the whole run. It does not bound a Byzantine client that reports ten times its loss. k=3,
    floor=0.1 is tight: it bounds such a client, but may clip an honest one with large losses.

    Medians are reliable while fewer than half of the reports are false; the first rounds may have few reports. A report
    below −(|med| + k·…) is raised to that value, because it would corrupt the scale of the dual step.

    Args:
        k: Widths above the median, > 0.
        floor: Smallest width as a fraction of the peak, ≥ 0.

    Raises:
        InputError: If a value is out of range.
    """

    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def start(self, n: int) -> Tensor:
        """Return every client's latest report, NaN before the first one, and the peak, (n + 1,)."""
        return torch.cat([torch.full((n,), torch.nan, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        last, peak = memory[:-1], memory[-1]
        # Use this request's reports unclipped, so that the median follows a round in which all losses jump.
        latest = last.index_copy(0, reports.clients, reports.values)
        latest = latest[~latest.isnan()]
        peak = torch.maximum(peak, latest.median().abs())
        values = clip_near_median(reports.values, latest, self.k, self.floor * peak)
        # Store the clipped values, so that a false report does not widen the spread for later requests.
        last = last.index_copy(0, reports.clients, values)
        return keep_all(values, torch.cat([last, peak[None]]))


def clip_near_median(values: Tensor, reference: Tensor, k: float, least: Tensor) -> Tensor:
    """Clip values (k',) to within k·max(1.4826·MAD, least) of the median of a reference (r,), r ≥ 1.

    Below, the limit is −(|median| + width). For even r, the lower of the two middle values is the median. If the width
    is 0, there is no scale to judge by, and nothing is clipped.
    """
    middle = reference.median()
    width = k * torch.maximum(SIGMAS * (reference - middle).abs().median(), least)
    return values.clamp(-(middle.abs() + width), middle + width) if width > 0 else values


def keep_all(values: Tensor, memory: Tensor) -> GuardResult:
    """Return a result that drops no client."""
    return GuardResult(values, torch.ones(len(values), dtype=torch.bool), memory)


@dataclass(frozen=True)
class Trim(WithoutMemory):
    """Treats the f largest reports of a request as missing; gradients are dropped along with their losses.

    If at most f Byzantine clients report the largest losses, these are never used. But the f worst honest clients, for
    which λ exists, may be dropped instead, so this is a strong measure. Among equal reports, those of clients with
    smaller indices are dropped. If at most f clients answer, no report remains. f must be smaller than the number of
    clients that are asked.

    Do not use it with ScaffPD, which reuses the last report of a client that does not answer. A client whose report was
    accepted once, when its loss was large, and has been dropped ever since keeps gaining weight from it.

    Args:
        f: Number of reports to drop, at least 1.

    Raises:
        InputError: If f is out of range.
    """

    f: int = 1

    def __post_init__(self) -> None:
        checks.integer("f", self.f)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        by_client = reports.clients.argsort()  # replies may arrive in any order
        largest = by_client[reports.values[by_client].argsort(descending=True, stable=True)[: self.f]]
        kept = torch.ones(len(reports.values), dtype=torch.bool).index_fill(0, largest, False)
        return GuardResult(reports.values, kept, memory)


_KEY = Key(0)


@dataclass(frozen=True)
class ServerProbe:
    """Evaluates models on rows that the server holds for each client.

    It serves :class:`drfl.resilience.Audit` and :class:`drfl.resilience.ProbeCosine`. Clients give these rows away,
    which federated learning is meant to avoid, and a client that selects them itself can select hard ones. You can also
    use rows that the server collected itself: build the federation from those.

    Args:
        fed: Federation whose N clients hold the server's rows; it counts the cost in a separate ledger.
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
        """Build a probe from min(rows, n_i) training rows of each client, drawn uniformly.

        Args:
            data: The clients' samples.
            task: Model, loss and score.
            rows: Number of rows per client.
            key: Key of the draw; client i draws from ``key.fold("probe", i)``.
            engine: See :class:`drfl.engine.Simulation`.
            device: See :class:`drfl.engine.Simulation`.

        Raises:
            InputError: If rows is not at least 1, or if data and task do not fit together.
        """
        checks.integer("rows", rows)

        def sample(client_rows: Tensor, i: int) -> Tensor:
            # Use one key per client, so that its rows do not depend on the other clients.
            generator = key.fold("probe", i).generator()
            size = min(rows, len(client_rows))
            return client_rows[torch.from_numpy(generator.choice(len(client_rows), size, replace=False))]

        subset = replace(data, train=tuple(sample(client_rows, i) for i, client_rows in enumerate(data.train)))
        # Use a separate federation, whose ledger keeps the server's work apart from the clients'.
        return cls(Simulation(subset, task, engine=engine, device=device))

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """Compute the mean losses of w (d,) on the rows held for clients (k,), (k,) float64; NaN without an answer."""
        losses = self.fed.losses(clients, w, _KEY)
        # Index by client, because replies may arrive in any order and from fewer clients.
        return torch.full((self.fed.n,), torch.nan, dtype=torch.float64).index_copy(0, *losses)[clients]

    def gradients(self, w: Tensor, clients: Tensor) -> Tensor:
        """Compute the gradients at w (d,) on the rows held for clients (k,), (k, d)."""
        # Requests list clients in ascending order; indexing restores the order of `clients`.
        order = clients.argsort()
        reply = self.fed.gradients(clients[order], w, _KEY)
        if len(reply.clients) != len(clients):
            raise InputError(
                "a client of the probe's federation did not answer. Build the probe from rows that the server holds",
                code="invalid-value",
                field="fed",
            )
        return reply.values[reply.clients.argsort()[order.argsort()]]


class Score(Protocol):
    """The server's estimate of clients' losses; see :class:`drfl.resilience.ServerProbe`."""

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """Estimate the losses of the model w (d,) for clients (k,), from data that represent each client, (k,)."""
        ...


@dataclass(frozen=True)
class Audit(WithoutMemory):
    """Replaces a reported loss above factor·score + slack by the server's score; a NaN score accepts every report.

    Args:
        score: The server's scores.
        factor: Multiple of the score that is tolerated, ≥ 1.
        slack: Tolerance in the loss's units, ≥ 0, for the difference between a minibatch and the server's rows.

    Raises:
        InputError: If a value is out of range.
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
        # The comparison is False for a NaN score, which accepts the report.
        values = torch.where(reports.values > self.factor * scores + self.slack, scores, reports.values)
        return keep_all(values, memory)


@dataclass(frozen=True)
class PeerAudit(WithoutMemory):
    """Clips reported losses by the losses of clients outside the cohort, which are asked at the same model.

    The reference comes from the same round, which suits federations with few participants per round. Reports are
    clipped to med + k·max(1.4826·MAD, floor·|med|) over the peers' answers. The peers are drawn uniformly from the
    clients outside the cohort with the request's key, and use the same samples as if they were in the cohort. If fewer
    than ``peers`` answer, the request's own reports are added. Each request costs ``peers`` additional loss reports.

    Args:
        peers: Number of other clients to ask, at least 1.
        k: Widths above the median, > 0.
        floor: Smallest width as a fraction of the median, ≥ 0.

    Raises:
        InputError: If a value is out of range.
    """

    peers: int = 5
    k: float = 10.0
    floor: float = 1.0

    def __post_init__(self) -> None:
        checks.integer("peers", self.peers)
        checks.positive("k", self.k)
        checks.non_negative("floor", self.floor)

    def judge(
        self, reports: Losses, request: LossRequest | GradientRequest, fed: Federation, memory: Tensor
    ) -> GuardResult:
        """See :class:`drfl.resilience.guards.Guard`."""
        outside = torch.ones(fed.n, dtype=torch.bool).index_fill(0, request.cohort, False).nonzero().flatten()
        reference, size = torch.empty(0, dtype=torch.float64), min(self.peers, len(outside))
        if size:
            # Fold a separate key from the request's, so that this draw does not affect the algorithm's draws.
            drawn = request.key.fold("peers").generator().choice(len(outside), size, replace=False)
            peers = outside[torch.from_numpy(drawn)].sort().values
            reference = fed.losses(peers, request.w, request.key, batch=request.batch).values
        if len(reference) < self.peers:  # too few clients are outside the cohort or answered: add the request's reports
            reference = torch.cat([reference, reports.values])
        least = self.floor * reference.median().abs()
        return keep_all(clip_near_median(reports.values, reference, self.k, least), memory)
