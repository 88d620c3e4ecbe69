"""FedAvg and dual DRDM in plain torch, on functions f_i(w) of the whole model, with all clients in every round."""

from __future__ import annotations

import torch
from tests.support.engines import same

import drfl
from drfl.federation import sampling

LR, TAU, MU, GAMMA = 0.1, 4, 0.5, 0.05


def gradient(objective, w):
    u = w.clone().requires_grad_()
    return torch.autograd.grad(objective(u), u)[0]


def path(objective, w, shift=0.0, mu=0.0):
    """Return a client's models after each local step."""
    u, models = w, []
    for _ in range(TAU):
        u = u - LR * (gradient(objective, u) + shift + mu * (u - w))
        models.append(u)
    return models


def fedavg(objectives, shares, w, rounds):
    """Return the mean of the local models with the clients' shares of the rows."""
    for _ in range(rounds):
        w = sum(share * path(f, w)[-1] for share, f in zip(shares, objectives, strict=True))
    return w


def projected(v):
    """Return the nearest point of the simplex."""
    ranked = v.sort(descending=True).values
    excess = (ranked.cumsum(0) - 1) / torch.arange(1, len(v) + 1)
    return (v - excess[(ranked > excess).nonzero().max()]).clamp(min=0)


def dual_drdm(objectives, w, snapshots):
    """Return the models and λ after rounds with these snapshot steps; every client trains and reports."""
    n = len(objectives)
    lam, h = torch.full((n,), 1 / n, dtype=torch.float64), torch.zeros(n, len(w), dtype=w.dtype)
    for t in snapshots:
        paths = [path(f, w, -h[i], MU) for i, f in enumerate(objectives)]

        def after(step, w=w, h=h, lam=lam, paths=paths):
            local = torch.stack([models[step - 1] for models in paths])
            drift = h - MU * (local - w)
            return lam @ local - lam @ drift / MU, drift

        snapshot, _ = after(t)
        w, h = after(TAU)
        losses = torch.stack([f(snapshot) for f in objectives])
        lam = projected(lam + TAU * GAMMA * (losses - losses.mean()))
    return w, lam


def played(algorithm, fed):
    """Return the state after two rounds, and the keys of the rounds."""
    state, keys = algorithm.init(fed), [drfl.Key(0).fold("round", r) for r in range(2)]
    for key in keys:
        state, _ = algorithm.round(state, fed, key)
    return state, keys


def same_as_plain_loops(fed, objectives):
    """Assert that two rounds of FedAvg and dual DRDM equal the plain loops, and return FedAvg's model."""
    local = drfl.LocalSGD(steps=TAU, lr=LR, batch=None)
    average, _ = played(drfl.FedAvg(local=local), fed)
    same(average.w, fedavg(objectives, fed.shares.tolist(), fed.w0, 2))
    dual, keys = played(drfl.DualDRDM(fed.n, GAMMA, local, None, sampling=sampling.all_clients, mu=MU), fed)
    w, lam = dual_drdm(objectives, fed.w0, [key.fold("t").integer(1, TAU) for key in keys])
    same(dual.w, w)
    same(dual.lam, lam)
    return average.w
