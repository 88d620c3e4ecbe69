"""The losses that models have on the clients' validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from drfl.assessment.row_moments import RowMoments
from drfl.assessment.scores import Floats
from drfl.core.errors import InputError
from drfl.engine import Simulation
from drfl.federation.client_table import ClientTable
from drfl.task.measure import Rows
from drfl.task.metrics import Metric
from drfl.task.task import Task

ROW_LOSS = "validation_loss"
"""The name of the only metric on validation rows: the loss of each row."""


def scored_by_loss(task: Task) -> Task:
    """Return the task with the loss of each row as its only metric."""
    if task.criterion.of_batch:
        raise InputError(
            "fit compares models by the losses of validation rows, which a BatchLoss does not give. Use a loss with "
            "one value per row",
            code="unsupported-combination",
            field="loss",
        )
    loss = Metric(ROW_LOSS, task.criterion, more_is_better=False, rows=Rows.REAL, per_sample=True)
    return replace(task, score=loss, metrics=())


class ComparedLosses(NamedTuple):
    """The losses of k models on the same rows of N clients.

    Args:
        losses: (k) Moments (N,) of each model's losses.
        gains: (k − 1) Moments (N,) of the first model's losses minus those of each other model, row by row.
    """

    losses: list[RowMoments]
    gains: list[RowMoments]


class ValidationRows(Protocol):
    """The validation rows of N clients, in this process or elsewhere."""

    def compare(self, models: Sequence[Tensor]) -> ComparedLosses:
        """Compute the moments of the losses of models (d,), and of their differences."""
        ...


class SimulatedRows:
    """Validation rows in this process.

    Args:
        fed: The clients, whose test rows are the validation rows and whose only metric is :data:`ROW_LOSS`.
    """

    def __init__(self, fed: Simulation) -> None:
        self.fed = fed

    def losses(self, models: Tensor | ClientTable) -> Floats:
        """Return the loss of each row (n,), client by client, of one model or of one per client."""
        return self.fed.row_scores(models).scores[ROW_LOSS].double().numpy()

    def compare(self, models: Sequence[Tensor]) -> ComparedLosses:
        """See :class:`ValidationRows`."""
        clients = np.repeat(np.arange(len(self.sizes)), self.sizes)
        first, *others = losses = [self.losses(model) for model in models]
        own, gains = (
            [RowMoments.of(x, clients, self.patients) for x in values]
            for values in (losses, [first - other for other in others])
        )
        return ComparedLosses(own, gains)

    @property
    def sizes(self) -> list[int]:
        """(N,) Rows of each client."""
        return self._rows[0]

    @property
    def patients(self) -> NDArray[np.intp] | None:
        """(n,) Patient of each row, numbered over all clients; None if rows are independent."""
        return self._rows[1]

    @cached_property
    def _rows(self) -> tuple[list[int], NDArray[np.intp] | None]:
        scores, patients = self.fed.row_scores(self.fed.w0), self.fed.data.patients
        sizes = scores.starts.diff().tolist()
        if patients is None:
            return sizes, None
        # Equal numbers name different patients at different clients.
        pairs = np.stack([np.repeat(np.arange(len(sizes)), sizes), patients.cpu()[scores.rows].numpy()])
        return sizes, np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1)
