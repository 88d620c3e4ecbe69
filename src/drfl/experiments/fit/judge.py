"""The validation rows of a fit, in groups by which models are judged."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from drfl.assessment.choice import FEW, group_clients, worst_group
from drfl.assessment.scores import Floats
from drfl.core.errors import InputError
from drfl.engine import Simulation
from drfl.experiments.config.build import Setup
from drfl.experiments.fit.members import ROW_LOSS
from drfl.federation.client_table import ClientTable


class Judge(NamedTuple):
    """Clients that are tested on validation rows, by their losses.

    Args:
        fed: The clients; their test rows are the validation rows.
        sizes: (N,) Validation rows of each client.
        counted: (Σ sizes) Whether a row counts. The row of a client with a single one is a training row, too.
        groups: (n,) Group of each row that counts.
        patients: (Σ sizes) Patient of each row, numbered over all clients; None if rows are independent.
        names: Names of the groups: those of clients, or a text for several clients with few rows.
    """

    fed: Simulation
    sizes: list[int]
    counted: NDArray[np.bool_]
    groups: NDArray[np.intp]
    patients: NDArray[np.intp] | None
    names: list[str]

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """Group the validation rows of the selection stage.

        Raises:
            InputError: If no client has a validation row that is not a training row.
        """
        data, scores = setup.data, setup.fed.row_scores(setup.fed.w0)
        sizes = scores.starts.diff().tolist()
        unseen = [not np.isin(test, train).any() for train, test in zip(data.train, data.test, strict=True)]
        if not any(unseen):
            raise InputError(
                "no client has two training rows, so there are no validation rows", code="no-validation", field="data"
            )
        # A number names another patient at another client.
        patients = None if data.patients is None else np.unique(
            np.stack([np.repeat(np.arange(data.n), sizes), data.patients[scores.rows].numpy()]),
            axis=1, return_inverse=True,
        )[1].reshape(-1)  # fmt: skip
        unit = "rows" if patients is None else "patients"
        of_client = group_clients(np.where(unseen, data.patient_counts(data.test), 0).tolist())
        present, groups = np.unique(np.repeat(of_client, sizes)[np.repeat(unseen, sizes)], return_inverse=True)
        members = [np.flatnonzero((of_client == group) & unseen) for group in present]
        names = [
            data.names[own[0]] if len(own) == 1 else f"{len(own)} clients with fewer than {FEW} validation {unit}"
            for own in members
        ]
        return cls(setup.fed, sizes, np.repeat(unseen, sizes), groups, patients, names)

    def losses(self, models: Tensor | ClientTable) -> Floats:
        """Return the loss of each validation row, client by client, of one model or of one per client."""
        return self.fed.row_scores(models).scores[ROW_LOSS].double().numpy()

    def worst(self, losses: Floats) -> tuple[str, float]:
        """Return the group with the largest mean loss, and that loss, from the losses of rows that count."""
        group, worst = worst_group(losses, self.groups)
        return self.names[group], worst
