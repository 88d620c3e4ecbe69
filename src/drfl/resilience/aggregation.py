"""A federation whose clients' models and gradients pass a Byzantine-robust rule on their way to the algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import Gradients, Losses, R, Replies, Request, TrainRequest, answers
from drfl.resilience.aggregators import Aggregator


def first_centres(rule: Aggregator | None, w: Tensor) -> Tensor:
    """(2, d) the means of earlier steps and gradients before there were any, 0; (2, 0) for a rule without a memory.

    Args:
        rule: the rule; None = none.
        w: (d,) a model.
    """
    return w.new_zeros(2, w.numel() if rule is not None and rule.memory is not None else 0)


class Aggregating(WrappedFederation):
    """Passes replies on as a rule leaves them; records for one round whom it left out, whose losses it then drops.

    Args:
        fed: the federation inside.
        rule: for steps and for gradients.
        centres: (2, d) or (2, 0), see :func:`first_centres`.
    """

    def __init__(self, fed: Federation, rule: Aggregator, centres: Tensor) -> None:
        super().__init__(fed)
        self.rule, self.centres = rule, centres
        self.left_out = torch.zeros(fed.n, dtype=torch.bool)
        self.too_few = 0

    def ask(self, request: Request[R]) -> R:
        """Send a request and apply the rule to the vectors that come; losses of those whom it left out are dropped."""
        reply = self.fed.ask(request)
        if not len(reply.clients):
            return reply
        if isinstance(reply, Losses):
            # A client that the rule leaves out is served badly, and by its true losses λ would go to it, and away from
            # the honest ones: whose model has no say has none in λ either.
            heard = ~self.left_out[reply.clients]
            if bool(heard.all()):
                return reply
            return answers(reply, heard) if bool(heard.any()) else request.nobody()
        if len(reply.clients) < self.rule.least:
            # Not as they are: a client that makes others drop out would have the rule out of its way.
            self.left_out[reply.clients] = True
            self.too_few += 1
            return request.nobody()
        if isinstance(reply, Gradients):
            centre = self.rule.expected(reply.clients, request.w, self.centres[1])
            kept = self.rule.keep(reply.values, centre)
            self.left_out[reply.clients[~kept]] = True
            reply, centre = answers(reply, kept), _of(centre, kept)
            return reply._replace(values=self._bounded(reply.values, centre, 1)) if bool(kept.any()) else reply
        assert isinstance(request, TrainRequest)
        return self._models(request, reply)

    def _models(self, request: TrainRequest, reply: Replies) -> Replies:
        """The rule on what each client says of its own gradient, G_i = −shift_i − κ·(w_i − w).

        That is h_i after FedDyn's and DRDM's update and c_i after SCAFFOLD's (option II), so that no drift term ever
        lies where the rule would not let it. A bound on the moves w_i − w would not do: a client that pushes the same
        way in every round, however little, has it all added up in its drift term.
        """
        w, local, tau, k = request.w, request.local, request.local.fewest_steps, len(reply.clients)
        penalised = request.shift is not None and request.prox > 0
        centre = self.rule.expected(reply.clients, w, self.centres[0])

        # (k, 1) κ: μ of a penalty with drift terms, else 1/(η·steps).
        if penalised:
            rate = torch.full((k, 1), request.prox, dtype=torch.float64)
        else:
            steps = [local.effective(tau_i) for tau_i in local.steps_of(self.fed.sizes, reply.clients).tolist()]
            rate = 1 / (local.eta * torch.tensor(steps, dtype=torch.float64))[:, None]
        rate = rate.to(w)

        # (k, d) what was added to the directions. Replies may come in another order than the cohort.
        if request.shift is None:
            shift = w.new_zeros(k, 1)
        else:
            row_of = {client: row for row, client in enumerate(request.cohort.tolist())}
            shift = request.shift[torch.tensor([row_of[client] for client in reply.clients.tolist()])]

        # Whom the rule leaves out is decided on the models; snapshots and means go with them.
        kept = self.rule.keep(rate * (w - reply.w) - shift, centre)
        self.left_out[reply.clients[~kept]] = True
        reply, centre, rate, shift = answers(reply, kept), _of(centre, kept), rate[kept], shift[kept]
        if not bool(kept.any()):
            return reply
        # After t of τ steps models are t/τ of the way, and the mean of models 1…τ is (τ+1)/(2τ) of it.
        way = 1.0, (request.snapshot or tau) / tau, (tau + 1) / (2 * tau)
        parts = []
        for kind, (U, part) in enumerate(zip(reply[1:], way, strict=True)):
            if U is not None:
                kappa = rate if penalised else rate / part
                G = kappa * (w - U) - shift
                bounded = self._bounded(G, centre, None if kind else 0)
                # The very models where the rule changes nothing: the way there and back would round them.
                U = U if bounded is G else w - (bounded + shift) / kappa
            parts.append(U)
        return Replies(reply.clients, *parts)

    def _bounded(self, G: Tensor, centre: Tensor | None, kind: int | None) -> Tensor:
        """The vectors as the rule leaves them; their mean is remembered of this kind, steps (0) or gradients (1)."""
        G = self.rule.bound(G, centre)
        if self.rule.memory is not None and kind is not None:
            # A new tensor: the old one is part of the state that the round began with.
            self.centres = self.centres.clone()
            self.centres[kind].lerp_(G.mean(0), 1 - self.rule.memory)
        return G


def _of(centre: Tensor | None, kept: Tensor) -> Tensor | None:
    return centre if centre is None or centre.dim() == 1 else centre[kept]
