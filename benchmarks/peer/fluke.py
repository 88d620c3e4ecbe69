"""fluke: ``FedAVG`` with its own ``Client`` and ``Server``, clients one after another.

A round ends when fluke notifies its observers of ``end_round``; evaluation is off.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

from peer.job import Clock, Job, from_command


class Batches(FastDataLoader):
    """fluke's loader of a client's tensors; a pass over it is a round's batches."""

    def __init__(self, job: Job, client: int) -> None:
        x, y = job.x[client], job.y[client]
        super().__init__(x, y, num_labels=job.classes, batch_size=job.batch)
        self.job, self.client = job, client

    def __len__(self) -> int:
        return self.job.steps

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return self.job.batches(self.client)


class Mark(FederationObserver):
    """Marks the ends of rounds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def end_round(self, round: int) -> None:
        """Fluke calls this after each round."""
        self.clock.mark()


def main() -> None:
    """Run the job."""
    job = from_command()
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimiser = OptimizerConfigurator({"name": "SGD", "lr": job.lr})
    clients = [
        Client(i, Batches(job, i), None, optimiser, torch.nn.CrossEntropyLoss(), local_epochs=1)
        for i in range(len(job.y))
    ]
    server = Server(job.model, None, clients, weighted=True)
    federation = FedAVG(len(clients), None, {}, clients=clients, server=server)
    clock = Clock(job)
    federation.set_callbacks(Mark(clock))
    clock.mark()
    federation.run(job.rounds, job.cohort / len(clients), finalize=False)
    clock.report(server.model)


if __name__ == "__main__":
    main()
