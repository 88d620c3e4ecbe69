"""A federation that applies a Byzantine-robust rule to clients' models and gradients before the algorithm sees them."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import Gradients, Losses, R, Replies, Request, TrainRequest, select_rows
from drfl.resilience.aggregators import Aggregator


def first_centres(rule: Aggregator | None, w: Tensor) -> Tensor:
    """Return the initial means of earlier updates and gradients: zeros (2, d), or (2, 0) for a rule without memory.

    Args:
        rule: The aggregation rule; None if there is none.
        w: (d,) A model, for its size and dtype.
    """
    return w.new_zeros(2, w.numel() if rule is not None and rule.memory is not None else 0)


class AggregatingFederation(WrappedFederation):
    """Applies an aggregation rule to replies; for one round, drops the reported losses of excluded clients.

    Args:
        fed: The wrapped federation.
        rule: Aggregation rule for updates and gradients.
        centres: (2, d) or (2, 0), see :func:`first_centres`.
    """

    def __init__(self, fed: Federation, rule: Aggregator, centres: Tensor) -> None:
        super().__init__(fed)
        self.rule, self.centres = rule, centres
        self.left_out = torch.zeros(fed.n, dtype=torch.bool)
        self.too_few = 0

    def ask(self, request: Request[R]) -> R:
        """Send a request and apply the rule to the vectors in the replies; drop the losses of excluded clients."""
        reply = self.fed.ask(request)
        if not len(reply.clients):
            return reply
        if isinstance(reply, Losses):
            # An excluded client is served badly. Its true losses would draw λ to it and away from the honest clients,
            # so a client excluded from the model update is excluded from the dual update too.
            included = ~self.left_out[reply.clients]
            if bool(included.all()):
                return reply
            return select_rows(reply, included) if bool(included.any()) else request.empty_reply()
        if len(reply.clients) < self.rule.min_vectors:
            # Do not pass too few replies on unchanged: a client that makes others drop out could then disable the rule.
            self.left_out[reply.clients] = True
            self.too_few += 1
            return request.empty_reply()
        if isinstance(reply, Gradients):
            centre = self.rule.expected(reply.clients, request.w, self.centres[1])
            kept = self.rule.keep(reply.values, centre)
            self.left_out[reply.clients[~kept]] = True
            reply, centre = select_rows(reply, kept), _of(centre, kept)
            return reply._replace(values=self._bounded(reply.values, centre, 1)) if bool(kept.any()) else reply
        assert isinstance(request, TrainRequest)
        return self._models(request, reply)

    def _models(self, request: TrainRequest, reply: Replies) -> Replies:
        """Apply the rule to each client's implied gradient, G_i = −shift_i − κ·(w_i − w).

        This is h_i after the update of FedDyn and DRDM, and c_i after SCAFFOLD's update (option II). No drift term can
        therefore leave the region that the rule allows. Bounding the updates w_i − w would not be enough: a client that
        pushes in the same direction every round, however little, accumulates all of it in its drift term.
        """
        w, local, k = request.w, request.local, len(reply.clients)
        penalised = request.shift is not None and request.prox > 0
        centre = self.rule.expected(reply.clients, w, self.centres[0])

        # (k, 3) κ of the last model, the snapshot and the mean of models 1…τ_i: μ if there is a penalty with drift
        # terms, else 1/(η·steps). With equal directions, the snapshot and the mean are as far from w as after fewer
        # steps.
        if penalised:
            rates = torch.full((k, 3), request.prox, dtype=torch.float64)
        else:
            taus = local.steps_of(self.fed.sizes, reply.clients).tolist()
            after = {tau: torch.tensor(local.effective_after_each(tau), dtype=torch.float64) for tau in set(taus)}
            at = (request.snapshot or 1) - 1
            steps = {tau: torch.stack([each[-1], each[at], each.mean()]) for tau, each in after.items()}
            rates = 1 / (local.eta * torch.stack([steps[tau] for tau in taus]))
        rates = rates.to(w)

        # (k, d) the shift added to the directions. Replies may arrive in a different order from the cohort.
        if request.shift is None:
            shift = w.new_zeros(k, 1)
        else:
            row_of = {client: row for row, client in enumerate(request.cohort.tolist())}
            shift = request.shift[torch.tensor([row_of[client] for client in reply.clients.tolist()])]

        # Exclude clients by their final models; their snapshots and means are then excluded too.
        kept = self.rule.keep(rates[:, :1] * (w - reply.w) - shift, centre)
        self.left_out[reply.clients[~kept]] = True
        reply, centre, rates, shift = select_rows(reply, kept), _of(centre, kept), rates[kept], shift[kept]
        if not bool(kept.any()):
            return reply
        parts = []
        for kind, U in enumerate(reply.models):
            if U is not None:
                kappa = rates[:, kind : kind + 1]
                G = kappa * (w - U) - shift
                bounded = self._bounded(G, centre, None if kind else 0)
                # Return the same models if the rule changes nothing: converting to G and back would round them.
                U = U if bounded is G else w - (bounded + shift) / kappa
            parts.append(U)
        w, snapshot, average = parts
        return reply._replace(w=w, snapshot=snapshot, average=average)

    def _bounded(self, G: Tensor, centre: Tensor | None, kind: int | None) -> Tensor:
        """Apply the rule's bound; update its mean of this kind, updates (0) or gradients (1), or none (None)."""
        G = self.rule.bound(G, centre)
        if self.rule.memory is not None and kind is not None:
            # Clone, because the old tensor is part of the state before this round.
            self.centres = self.centres.clone()
            self.centres[kind].lerp_(G.mean(0), 1 - self.rule.memory)
        return G


def _of(centre: Tensor | None, kept: Tensor) -> Tensor | None:
    return centre if centre is None or centre.dim() == 1 else centre[kept]
