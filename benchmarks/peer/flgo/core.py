"""The job as an FLGo benchmark: how clients get their data, and a calculator with a loader of a round's batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from flgo.benchmark.base import BasicTaskGenerator, BasicTaskPipe
from flgo.benchmark.toolkits.cv.classification import GeneralCalculator

from peer.job import Job, from_command

JOB = from_command()


class Client(torch.utils.data.TensorDataset):
    """A client's samples and its number."""

    def __init__(self, job: Job, client: int) -> None:
        super().__init__(job.x[client], job.y[client])
        self.client = client


class Loader:
    """A pass over it is a round's batches."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return JOB.batches(self.client.client)


class TaskGenerator(BasicTaskGenerator):
    """The partition of the job."""

    def __init__(self) -> None:
        super().__init__(benchmark="peer.flgo", rawdata_path="")
        self.num_clients = len(JOB.y)

    def generate(self) -> None:
        """Do nothing, because the partition is fixed."""


class TaskPipe(BasicTaskPipe):
    """Gives each client its samples."""

    TaskDataset = Client

    def save_task(self, generator: TaskGenerator) -> None:
        """Write the clients' names, which is all that FLGo reads back."""
        names = self.gen_client_names(generator.num_clients)
        Path(self.task_path, "data.json").write_text(json.dumps({"client_names": names}))

    def load_data(self, running_time_option: dict) -> dict:
        """Return the data sets of each party."""
        clients = {name: {"train": Client(JOB, i)} for i, name in enumerate(self.feddata["client_names"])}
        return {"server": {"test": None, "val": None}, **clients}


class TaskCalculator(GeneralCalculator):
    """FLGo's calculator of classification, with this loader."""

    def get_dataloader(self, dataset: Client, *args: object, **kwargs: object) -> Loader:
        """Return a loader of this client's samples."""
        return Loader(dataset)
