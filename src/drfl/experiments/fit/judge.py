"""Judge models by the group of clients in which they have the largest loss on validation rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from drfl.assessment.choice import FEW, group_clients, worst_group
from drfl.assessment.row_moments import RowMoments
from drfl.core.errors import InputError
from drfl.experiments.fit.validation_rows import ValidationRows


class Judge(NamedTuple):
    """The clients with validation rows, in groups by which models are judged.

    Args:
        rows: The validation rows.
        clients: (c,) Clients that count. The row of a client with a single one is a training row, too.
        groups: (c,) Group of each client that counts.
        names: Names of the groups: those of clients, or a text for several clients with few rows.
        total: Number of rows of these clients.
        initial: Loss of the initial model in its worst group.
    """

    rows: ValidationRows
    clients: NDArray[np.intp]
    groups: NDArray[np.intp]
    names: list[str]
    total: int
    initial: float

    @classmethod
    def of(cls, rows: ValidationRows, names: Sequence[str], unseen: Sequence[bool], initial: Tensor) -> Self:
        """Group clients by the number of their validation rows, or of their patients.

        ``unseen`` (N,) states whether a client's validation rows are not training rows.
        """
        clients = np.flatnonzero(unseen)
        if not len(clients):
            raise InputError(
                "no client has two training rows, so there are no validation rows", code="no-validation", field="data"
            )
        losses = rows.compare([initial]).losses[0].select(clients)
        unit = "rows" if (losses.units == losses.rows).all() else "patients"
        groups = group_clients(losses.units.tolist())
        members = [clients[groups == group] for group in range(groups.max() + 1)]
        labels = [
            str(names[own[0]]) if len(own) == 1 else f"{len(own)} clients with fewer than {FEW} validation {unit}"
            for own in members
        ]
        worst = worst_group(losses.merged(groups))[1]
        return cls(rows, clients, groups, labels, int(losses.rows.sum()), worst)

    def losses(self, model: Tensor) -> RowMoments:
        """Return the losses of a model (d,) in each group."""
        return self._grouped(self.rows.compare([model]).losses[0])

    def gains(self, reference: Tensor, others: Sequence[Tensor]) -> list[RowMoments]:
        """Return the losses of a model (d,) minus those of each other one, row by row, in each group."""
        return [self._grouped(each) for each in self.rows.compare([reference, *others]).gains]

    def worst(self, losses: RowMoments) -> tuple[str, float]:
        """Return the group with the largest mean loss, and that loss."""
        group, worst = worst_group(losses)
        return self.names[group], worst

    def _grouped(self, moments: RowMoments) -> RowMoments:
        return moments.select(self.clients).merged(self.groups)
