"""Plain PyTorch: a deep copy of the model and an ``SGD`` per client, one client after another.

A round ends when the weighted mean of the copies has been written into the global model.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch.nn.functional import cross_entropy

from peer.job import Clock, from_command


def main() -> None:
    """Run the job."""
    job = from_command()
    clock, model = Clock(job), job.model
    clock.mark()
    for _ in range(job.rounds):
        clients = torch.randperm(len(job.y))[: job.cohort].tolist()
        shares = torch.tensor([len(job.y[i]) for i in clients], dtype=torch.float32, device=job.device)
        trained = []
        for i in clients:
            mine = deepcopy(model)
            optimiser = torch.optim.SGD(mine.parameters(), lr=job.lr)
            for x, y in job.batches(i):
                optimiser.zero_grad()
                cross_entropy(mine(x), y).backward()
                optimiser.step()
            trained.append(mine)
        shares /= shares.sum()
        with torch.no_grad():
            for into, *parts in zip(model.parameters(), *(mine.parameters() for mine in trained), strict=True):
                into.copy_(torch.einsum("k,k...->...", shares, torch.stack(parts)))
        clock.mark()
    clock.report(model)


if __name__ == "__main__":
    main()
