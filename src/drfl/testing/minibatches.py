"""Checks of the minibatches that a federation's clients draw."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from drfl.data import ClientData
from drfl.optim.local import LocalSGD
from drfl.task.metrics import Metric
from drfl.task.task import Task
from drfl.testing.federation_checks import (
    ALL_CLIENTS,
    BATCH,
    KEY,
    SIZES,
    FederationSubject,
    TrainCall,
    by_client,
    require_part,
    shifts,
)
from drfl.testing.report import CheckError, require
from drfl.testing.toy_problem import linear_model

KEYS = 150
"""Number of keys for estimating a frequency or a mean."""
ERRORS = 5.0
"""Tolerance of an estimate, in standard errors."""


def samples_belong_to_key_and_client(served: FederationSubject) -> None:
    """Check that a client's draws depend only on the key and its index, not on the cohort, its order, or the past.

    Catches a generator shared by clients.
    """
    fed, w = served.both()
    call, w = TrainCall(average=True, shift=shifts(w.w0.numel())), fed.w0
    complete = call.of(fed)
    losses = by_client(f := fed.losses(torch.tensor(ALL_CLIENTS), w, KEY, batch=BATCH), f.values, ALL_CLIENTS)
    for cohort in ((3, 1, 0, 2), (2,), (3, 2)):
        clients = torch.tensor(cohort)
        reply = TrainCall(cohort=cohort, average=True, shift=call.shift).of(fed)
        served.close(reply.w, complete.w[clients], f"models of clients {cohort} requested in this order")
        served.close(
            require_part(reply.average),
            require_part(complete.average)[clients],
            f"averages of clients {cohort} requested in this order",
        )
        f = fed.losses(clients, w, KEY, batch=BATCH)
        served.close(
            by_client(f, f.values, cohort), losses[clients], f"losses of clients {cohort} requested in this order"
        )


def threads_are_irrelevant(served: FederationSubject) -> None:
    """Check that one and two threads of torch give the same models."""
    threads, models = torch.get_num_threads(), []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            models.append(TrainCall(prox=0.3).of(served.both()[0]).w)
    finally:
        torch.set_num_threads(threads)
    served.close(models[1], models[0], "models with two threads")


def minibatches_are_distinct_samples(served: FederationSubject) -> None:
    """Check that a minibatch is min(batch, n_i) distinct samples, different for every step and key.

    Sample j contributes 2^j, so a client's reply reveals which samples it took.
    """
    fed = served.make(_coded(), _coded_task())
    clients, batches = torch.arange(len(SIZES)), []
    local = LocalSGD(steps=2, lr=1.0, batch=BATCH)
    for k in range(8):
        key = KEY.fold("distinct", k)
        up = fed.train(clients, fed.w0, local, key, snapshot=1)
        first, last = by_client(up, require_part(up.snapshot), ALL_CLIENTS), by_client(up, up.w, ALL_CLIENTS)
        f = fed.losses(clients, fed.w0, key.fold("losses"), batch=BATCH)
        # With step size 1, a step is the mean of the samples.
        moves = {"the first step": fed.w0 - first, "the second step": first - last}
        means = moves | {"a reported loss": by_client(f, f.values, ALL_CLIENTS)[:, None]}
        for what, mean in means.items():
            for i in range(len(SIZES)):
                batches.append((i, _decoded(float(mean[i]), i, what, served.tolerance)))
    for i, size in enumerate(SIZES):
        drawn = {batch for j, batch in batches if j == i}
        # A client with at most BATCH rows has only one minibatch.
        enough = 1 if size <= BATCH else 8
        require(len(drawn) >= enough, f"client {i} drew only {len(drawn)} different minibatches in 24 draws of {size}")


def minibatches_are_unbiased(served: FederationSubject) -> None:
    """Check that losses and gradients on minibatches are unbiased, and that all samples are drawn equally often."""
    fed, oracle = served.both()
    w, clients, losses, gradients = oracle.w0, torch.tensor(ALL_CLIENTS), [], []
    for k in range(KEYS):
        f = fed.losses(clients, w, KEY.fold("losses", k), batch=BATCH)
        g = fed.gradients(clients, w, KEY.fold("gradients", k), batch=BATCH)
        losses.append(by_client(f, f.values, ALL_CLIENTS))
        gradients.append(by_client(g, g.values, ALL_CLIENTS).flatten())
    _require_mean(losses, oracle.losses(clients, w, KEY).values, "losses", served.tolerance)
    _require_mean(gradients, oracle.gradients(clients, w, KEY).values.flatten(), "gradients", served.tolerance)

    # Every sample is in a minibatch with probability min(batch, n_i)/n_i.
    fed, counts = served.make(_coded(), _coded_task()), [0 * np.arange(n) for n in SIZES]
    for k in range(KEYS):
        f = fed.losses(clients, fed.w0, KEY.fold("frequencies", k, "losses"), batch=BATCH)
        g = fed.gradients(clients, fed.w0, KEY.fold("frequencies", k, "gradients"), batch=BATCH)
        for reply in (by_client(f, f.values, ALL_CLIENTS), by_client(g, g.values, ALL_CLIENTS)[:, 0]):
            for i in range(len(SIZES)):
                counts[i][list(_decoded(float(reply[i]), i, "a report", served.tolerance))] += 1
    for i, size in enumerate(SIZES):
        p = min(BATCH, size) / size
        off = np.abs(counts[i] / (2 * KEYS) - p) > ERRORS * (p * (1 - p) / (2 * KEYS)) ** 0.5 + 1e-12
        shares = (counts[i] / (2 * KEYS)).round(2).tolist()
        require(not off.any(), f"client {i}'s samples were in {shares} of the minibatches, not each in {p:.2f}")


def no_running_statistics(served: FederationSubject) -> None:
    """Check that a model whose forward pass changes its buffers is rejected with an InputError.

    Running statistics are not parameters, and averaging them, including integer counters, is not meaningful.
    """
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double().eval()
    what = Task(copy.deepcopy(model))  # in eval mode it is a function of its parameters
    what.model.train()
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n, 2)), rng.integers(3, size=n)) for n in SIZES]
    try:
        served.make(ClientData.from_arrays(pairs, pairs, dtype=torch.float64), what)
    except ValueError:  # InputError is a ValueError
        return
    raise CheckError("a model with BatchNorm in training mode is accepted: refuse it and suggest GroupNorm")


def _coded() -> ClientData:
    """Make data in which sample j of every client is the number 2^j."""
    pairs = [(2.0 ** np.arange(n)[:, None], np.zeros(n)) for n in SIZES]
    return ClientData.from_arrays(pairs, pairs, dtype=torch.float64)


def _coded_task() -> Task:
    """Make the model w·x with w = 1 and itself as loss, so that loss and gradient are the mean of the samples."""
    return Task(linear_model(1, 1, 1, 1), _itself, Metric("itself", _itself, per_sample=True))


def _itself(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.flatten() + 0 * targets


def _decoded(mean: float, client: int, what: str, tolerance: float) -> frozenset[int]:
    """Decode which samples of a client are in a minibatch from the mean of 2^j over it."""
    size = min(BATCH, SIZES[client])
    total = round(mean * size)
    samples = frozenset(j for j in range(SIZES[client]) if total >> j & 1)
    exact = abs(mean * size - total) <= size * tolerance * (1 + abs(mean)) and sum(2**j for j in samples) == total
    sentence = f"client {client} with {SIZES[client]} samples did not take {size} distinct ones for {what}"
    require(exact and len(samples) == size, sentence)
    return samples


def _require_mean(draws: list[Tensor], mean: Tensor, what: str, tolerance: float) -> None:
    values = torch.stack(draws)
    error = values.std(0) / len(draws) ** 0.5
    off = (values.mean(0) - mean).abs() > ERRORS * error + tolerance * (1 + mean.abs())
    count = f"{int(off.sum())} of {off.numel()} entries"
    require(not bool(off.any()), f"{what} on minibatches differ on average from those on all data, in {count}")
