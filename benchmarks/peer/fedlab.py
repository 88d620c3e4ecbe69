"""FedLab: its standalone pipeline, with a synchronous server and a serial trainer of clients.

A round ends when the pipeline calls ``evaluate``, right after the server has received the last client's model. FedLab's
server weights clients equally; here it weights by samples, with FedLab's own aggregator.
"""

from __future__ import annotations

import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils import Aggregators, SerializationTool

from peer.job import Clock, Job, from_command


class Clients:
    """A federated data set as FedLab expects it, with one loader per client."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def get_dataloader(self, client: int, batch_size: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return a round's batches of this client."""
        return list(self.job.batches(client))


class Trainer(SGDSerialClientTrainer):
    """Sends the number of a client's samples beside its model."""

    def local_process(self, payload: list[torch.Tensor], id_list: list[int]) -> None:
        """Train these clients, one after another."""
        super().local_process(payload, id_list)
        for pack, client in zip(self.cache, id_list, strict=True):
            pack.append(torch.tensor(len(self.dataset.job.y[client])))


class Server(SyncServerHandler):
    """Weights clients by their samples."""

    def global_update(self, buffer: list[list[torch.Tensor]]) -> None:
        """Return the next global model."""
        models, sizes = zip(*buffer, strict=True)
        mean = Aggregators.fedavg_aggregate(list(models), torch.stack(sizes).float())
        SerializationTool.deserialize_model(self._model, mean)


class Pipeline(StandalonePipeline):
    """Marks the ends of rounds."""

    clock: Clock

    def evaluate(self) -> None:
        """FedLab calls this after each round."""
        self.clock.mark()


def main() -> None:
    """Run the job."""
    job = from_command()
    server = Server(job.model, job.rounds, job.cohort / len(job.y))
    trainer = Trainer(job.model, len(job.y))
    trainer.setup_dataset(Clients(job))
    trainer.setup_optim(epochs=1, batch_size=job.batch, lr=job.lr)
    pipeline = Pipeline(server, trainer)
    pipeline.clock = Clock(job)
    pipeline.clock.mark()
    pipeline.main()
    pipeline.clock.report(server.model)


if __name__ == "__main__":
    main()
