"""Stochastic controlled averaging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.algorithms.drift import moves, summed
from drfl.algorithms.fedavg import uniform_weights
from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Info
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Federation
from drfl.optim.local import LocalSGD
from drfl.optim.local_optimizers import refuse


class SCAFFOLDState(NamedTuple):
    """w (d,) global model; c (d,) mean of all rows of c_i; c_i (N, d) the clients' controls."""

    w: Tensor
    c: Tensor
    c_i: ClientTable


@dataclass(frozen=True)
class SCAFFOLD:
    """SCAFFOLD (Karimireddy et al. 2020, Algorithm 1) with option II for the controls.

    Minimises the mean of all f_i without client drift: the controls estimate the clients' gradients, and a client
    exchanges its own for the mean of all.

    ========= ================= =====================================================
    paper     code              meaning
    ========= ================= =====================================================
    x         ``state.w``       (d,) global model
    c_i       ``state.c_i``     (N, d) controls, row i of client i, zero at first
    c         ``state.c``       (d,) c = mean_i c_i over all N, at all times
    S         ``D``             cohort, uniform without replacement
    y_i       ``up.w``          (d,) local model after the last step
    K         ``K``             local steps (their effective number, with momentum), with epochs each client's own
    η_l       ``eta``           local step size
    η_g       ``server_lr``     server step size
    ========= ================= =====================================================

    Args:
        m: cohort size; None = :func:`drfl.federation.sampling.size`.
        server_lr: η_g > 0; 1 takes the mean of the local models.
        local: what a client runs.

    Deviations: none. With momentum, (x − y_i)/η_l is a sum of directions of total weight K larger than the number of
    steps; dividing by that weight keeps c_i a mean of gradients. Weight decay is part of f_i. The controls lie at the
    server, which sends c − c_i as one vector.

    Raises:
        InputError: server_lr is not positive, m > N (when first used), or the local solver projects or is not SGD:
            x − y_i is then no sum of gradients.
    """

    m: int | None = None
    server_lr: float = 1.0
    local: LocalSGD = field(default_factory=LocalSGD)

    def __post_init__(self) -> None:
        checks.positive("server_lr", self.server_lr)
        refuse("SCAFFOLD", self.local.optimizer, "its controls need x − y_i to be a sum of gradients")
        if self.local.radius is not None:
            raise InputError(
                "SCAFFOLD cannot take a local solver with radius: its controls need x − y_i to be a sum of gradients, "
                "which a projection breaks; leave radius out, or take weight_decay, or FedDyn",
                code="unsupported-combination",
                field="radius",
            )

    def init(self, fed: Federation) -> SCAFFOLDState:
        """The initial model and zero controls."""
        sampling.size(self.m, fed.n)
        self.local.steps_of(fed.sizes, torch.arange(fed.n))  # epochs are refused where nobody knows n_i
        return SCAFFOLDState(fed.w0, torch.zeros_like(fed.w0), fed.client_table())

    def weights(self, fed: Federation) -> Tensor:
        """(N,) float64, all alike."""
        return uniform_weights(fed.n)

    def round(self, state: SCAFFOLDState, fed: Federation, key: Key) -> tuple[SCAFFOLDState, Info]:
        """One round of Algorithm 1."""
        (x, c, c_i), N = state, fed.n
        eta = self.local.eta

        D = sampling.uniform(N, sampling.size(self.m, N), key.fold("D"))
        up = fed.train(D.clients, x, self.local, key.fold("sgd"), shift=c - c_i[D.clients])
        if not up.clients.numel():
            return state, Info.nobody(D)

        model = up.merged(lambda y: x + self.server_lr * (moves(y, x) / len(y)))

        steps = self.local.steps_of(fed.sizes, up.clients)
        K = [self.local.effective(tau) for tau in steps.tolist()]  # K_i, one a client
        K_i = torch.tensor(K, dtype=torch.float64)[:, None].to(x) if self.local.epochs else K[0]

        def dc_i(part: slice) -> Tensor:  # c_i⁺ − c_i, option II, in some columns (k', part)
            return (x[part] - up.w[:, part]) / (K_i * eta) - c[part]

        # Update c_i client by client and c by columns: the differences (k', d) are never all in memory.
        c_i_next = c_i.add(up.clients, ((x - y_i) / (k * eta) - c for y_i, k in zip(up.w, K, strict=True)))
        # Divide by N: clients that did not answer keep their control variates, and c remains the mean of all.
        c_next = c + summed(dc_i, x.numel()) / N
        return SCAFFOLDState(model.w, c_next, c_i_next), Info(D, up.clients, average=model.average)
