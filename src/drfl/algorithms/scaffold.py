"""Stochastic controlled averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.drift import sum_rows, sum_updates
from drfl.algorithms.fedavg import EqualWeights
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD, refuse_optimizer


class SCAFFOLDState(NamedTuple):
    """State of SCAFFOLD.

    Args:
        w: (d,) Global model.
        c: (d,) Mean of all rows of c_i.
        c_i: (N, d) The clients' control variates.
    """

    w: Tensor
    c: Tensor
    c_i: ClientTable


@dataclass(frozen=True)
class SCAFFOLD(EqualWeights):
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with option II for the control variates.

    Minimises the mean of all f_i without client drift. The control variates estimate the clients' gradients, and each
    client replaces its estimated gradient by the mean of all estimates.

    ========= ================= =====================================================
    paper     code              meaning
    ========= ================= =====================================================
    x         ``state.w``       (d,) global model
    c_i       ``state.c_i``     (N, d) control variates, one row per client, initially zero
    c         ``state.c``       (d,) c = mean_i c_i over all N, at all times
    S         ``D``             cohort, uniform without replacement
    y_i       ``up.w``          (d,) local model after the last step
    K         ``K``             local steps (effective number with momentum); with epochs one number per client
    η_l       ``eta``           local step size
    η_g       ``server_lr``     server step size
    ========= ================= =====================================================

    Args:
        m: Cohort size; None = :func:`drfl.federation.sampling.size`.
        server_lr: η_g > 0; 1 takes the mean of the local models.
        local: Local solver.

    Deviations: none. With momentum, (x − y_i)/η_l is a sum of directions whose total weight K is larger than the
    number of steps. Dividing by K keeps c_i a mean of gradients. Weight decay is part of f_i. The server stores the
    control variates and sends c − c_i as one vector.

    Raises:
        InputError: If server_lr is not positive, if m > N (on first use), or if the local solver projects or is not
            SGD, because x − y_i is then not a sum of gradients.
    """

    m: int | None = None
    server_lr: float = 1.0
    local: LocalSGD = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        checks.positive("server_lr", self.server_lr)
        refuse_optimizer("SCAFFOLD", self.local, "its control variates need x − y_i to be a sum of gradients")
        if self.local.radius is not None:
            raise InputError(
                "SCAFFOLD cannot use a local solver with radius: its control variates need x − y_i to be a sum of "
                "gradients, and a projection breaks that. Remove radius, or use weight_decay or FedDyn",
                code="unsupported-combination",
                field="radius",
            )

    def init(self, fed: Federation) -> SCAFFOLDState:
        """Return the state with the initial model and zero control variates."""
        sampling.size(self.m, fed.n)
        self.local.steps_of(fed.sizes, torch.arange(fed.n))  # raises if local epochs are set but n_i is unknown
        return SCAFFOLDState(fed.w0, torch.zeros_like(fed.w0), fed.client_table())

    def round(self, state: SCAFFOLDState, fed: Federation, key: Key) -> tuple[SCAFFOLDState, Info]:
        """Run one round of Algorithm 1."""
        (x, c, c_i), N = state, fed.n
        eta = self.local.eta

        D = sampling.uniform(N, sampling.size(self.m, N), key.fold("D"))
        # Each local direction g_i − c_i + c has the client's estimated gradient replaced by the mean one.
        up = fed.train(D.clients, x, self.local, key.fold("sgd"), shift=c - c_i[D.clients])
        if not up.clients.numel():
            return state, Info.without_replies(D)

        # Divide by the replies, not by |S|: a client that is missing did not send an update of 0.
        model = up.merged(lambda y: x + self.server_lr * (sum_updates(y, x) / len(y)))

        steps = self.local.steps_of(fed.sizes, up.clients)
        K = [self.local.effective(tau) for tau in steps.tolist()]  # K_i, one per client
        K_i = torch.tensor(K, dtype=torch.float64)[:, None].to(x) if self.local.epochs else K[0]

        def dc_i(part: slice) -> Tensor:  # c_i⁺ − c_i, option II, in a slice of columns, (k', part)
            return (x[part] - up.w[:, part]) / (K_i * eta) - c[part]

        # Update c_i client by client and c by columns, so that the differences (k', d) are never all in memory.
        c_i_next = c_i.add(up.clients, ((x - y_i) / (k * eta) - c for y_i, k in zip(up.w, K, strict=True)))
        # Divide by N: clients that did not answer keep their control variates, and c remains the mean of all.
        c_next = c + sum_rows(dc_i, x) / N
        return SCAFFOLDState(model.w, c_next, c_i_next), Info(D, up.clients, average=model.average)
