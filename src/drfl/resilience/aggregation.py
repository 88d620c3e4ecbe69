"""A federation whose clients' models and gradients pass a Byzantine-robust rule on their way to the algorithm."""

from __future__ import annotations

import torch
from torch import Tensor

from drfl.federation import Federation, WrappedFederation
from drfl.requests import Gradients, Losses, R, Replies, Request, TrainRequest, answers
from drfl.resilience.aggregators import Aggregator


def first_centres(rule: Aggregator | None, w: Tensor) -> Tensor:
    """(2, d) the means of earlier steps and gradients before there were any, 0; (2, 0) for a rule without a memory.

    Args:
        rule: the rule; None = none.
        w: (d,) a model.
    """
    return w.new_zeros(2, w.numel() if rule is not None and rule.memory is not None else 0)


class Aggregating(WrappedFederation):
    """Passes replies on as a rule leaves them; records for one round whom it left out.

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
        """Send a request and apply the rule to the vectors that come; losses pass."""
        reply = self.fed.ask(request)
        if isinstance(reply, Losses) or not len(reply.clients):
            return reply
        if len(reply.clients) < self.rule.least:
            # Not as they are: a client that makes others drop out would have the rule out of its way.
            self.left_out[reply.clients] = True
            self.too_few += 1
            return request.nobody()
        if isinstance(reply, Gradients):
            return self._gradients(request.w, reply)
        assert isinstance(request, TrainRequest)
        return self._models(request, reply)

    def _gradients(self, w: Tensor, reply: Gradients) -> Gradients:
        centre = self.rule.expected(reply.clients, w, self.centres[1])
        kept, values = self.rule.apply(reply.values, centre)
        self._note(reply.clients, kept, values, 1)
        return answers(reply, kept)._replace(values=values)

    def _models(self, request: TrainRequest, reply: Replies) -> Replies:
        """The rule on what each client says of its own gradient, G_i = −shift_i − κ·(w_i − w).

        That is h_i after FedDyn's and DRDM's update and c_i after SCAFFOLD's (option II), so that no drift term ever
        lies where the rule would not let it. A bound on the moves w_i − w would not do: a client that pushes the same
        way in every round, however little, has it all added up in its drift term.
        """
        shift, tau = request.shift, request.local.fewest_steps
        centre = self.rule.expected(reply.clients, request.w, self.centres[0])
        if shift is not None:
            row_of = {client: row for row, client in enumerate(request.cohort.tolist())}
            shift = shift[torch.tensor([row_of[client] for client in reply.clients.tolist()])]
        # After t of τ steps models are t/τ of the way, and the mean of models 1…τ is (τ+1)/(2τ) of it.
        way = 1.0, (request.snapshot or tau) / tau, (tau + 1) / (2 * tau)
        kept, parts = None, []
        for U, part in zip(reply[1:], way, strict=True):
            if U is None or (self.rule.selects and kept is not None):
                parts.append(None if U is None else U[kept])
                continue
            rate = self._rate(request, reply.clients, part).to(U)
            G = (request.w - U) * rate if shift is None else (request.w - U) * rate - shift
            found = self.rule.apply(G, centre)
            if kept is None:
                kept = found.kept
                self._note(reply.clients, kept, found.vectors, 0)
            rate = rate if rate.dim() == 0 else rate[kept]
            G = found.vectors if shift is None else found.vectors + shift[kept]
            parts.append(U[kept] if self.rule.selects else request.w - G / rate)
        return Replies(reply.clients[kept], *parts)

    def _rate(self, request: TrainRequest, clients: Tensor, part: float) -> Tensor:
        """κ, () or (k, 1): μ of a penalty with drift terms, else 1/(η·steps) of this part of the way."""
        if request.shift is not None and request.prox:
            return torch.tensor(request.prox, dtype=torch.float64)
        local = request.local
        steps = [local.effective(tau) for tau in local.steps_of(self.fed.sizes, clients).tolist()]
        return 1 / (local.eta * part * torch.tensor(steps, dtype=torch.float64))[:, None]

    def _note(self, clients: Tensor, kept: Tensor, vectors: Tensor, kind: int) -> None:
        self.left_out[clients[~kept]] = True
        if self.rule.memory is not None:
            # A new tensor: the old one is part of the state that the round began with.
            self.centres = self.centres.clone()
            self.centres[kind].lerp_(vectors.mean(0), 1 - self.rule.memory)
