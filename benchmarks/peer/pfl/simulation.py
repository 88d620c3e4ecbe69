"""pfl: ``FederatedAveraging`` on the ``SimulatedBackend``, weighted by data points.

A round ends when pfl calls ``after_central_iteration``. pfl evaluates in its first iteration, whatever the frequency.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from peer.job import Clock, Job


class Network(torch.nn.Module):
    """A model with the two methods that pfl calls."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.body, self.criterion = body, torch.nn.CrossEntropyLoss()

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        return self.criterion(self.body(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Weighted]:
        """Return the report of pfl's evaluation."""
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class Client(Dataset):
    """A client's samples; a pass over them is a round's batches."""

    def __init__(self, job: Job, client: int) -> None:
        super().__init__((job.x[client], job.y[client]), user_id=client)
        self.job = job

    def iter(self, batch_size: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Return a round's batches."""
        return self.job.batches(self.user_id)


class Cohorts:
    """Draws cohorts of distinct clients, the same ones at every worker."""

    def __init__(self, job: Job) -> None:
        self.n, self.m = len(job.y), job.cohort
        self.draws = np.random.RandomState(job.seed)
        self.left: list[int] = []

    def __call__(self) -> int:
        """Return the next client."""
        if not self.left:
            self.left = self.draws.permutation(self.n)[: self.m].tolist()
        return self.left.pop()


class Mark(TrainingProcessCallback):
    """Marks the ends of rounds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Pfl calls this once, before the first round."""
        self.clock.mark()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Pfl calls this after each round."""
        self.clock.mark()
        return False, Metrics()


def run(job: Job, *, first: bool) -> None:
    """Run the job in this worker."""
    clock, network = Clock(job), Network(job.model)
    clients = [Client(job, i) for i in range(len(job.y))]
    data = FederatedDataset(clients.__getitem__, Cohorts(job))
    FederatedAveraging().run(
        NNAlgorithmParams(job.rounds, evaluation_frequency=job.rounds, train_cohort_size=job.cohort, val_cohort_size=0),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=job.batch, local_num_epochs=1, local_learning_rate=job.lr),
        NNEvalHyperParams(local_batch_size=job.batch),
        [Mark(clock)],
        send_metrics_to_platform=False,
    )
    if first:
        clock.report(job.model)
