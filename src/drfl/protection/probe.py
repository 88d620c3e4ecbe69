"""A few rows of every client's training data that the server keeps, to check loss reports by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drfl import checks
from drfl.data import ClientData
from drfl.engine import Engine, Simulation
from drfl.federation import Federation
from drfl.key import Key
from drfl.task import Task

_KEY = Key(0)


@dataclass(frozen=True)
class Probe:
    """Scores a model on rows that the server holds for each client: a score for :class:`drfl.protection.Audit`.

    Clients give these rows away, which federated learning is there to avoid; and one that picks them itself can pick
    the hard ones. Rows that the server collected on its own serve as well: make the federation of those.

    Args:
        fed: a federation whose N clients hold the server's rows; it counts what this costs in a ledger of its own.
    """

    fed: Federation

    @classmethod
    def of(
        cls,
        data: ClientData,
        task: Task,
        *,
        rows: int = 16,
        key: Key = _KEY,
        engine: Engine | None = None,
        device: str = "cpu",
    ) -> Probe:
        """Of min(rows, n_i) training rows of each client, drawn uniformly.

        Args:
            data: the clients' samples.
            task: model, loss and score.
            rows: how many of each client.
            key: of the draw; client i draws from ``key.fold("probe", i)``.
            engine: see :class:`drfl.engine.Simulation`.
            device: see :class:`drfl.engine.Simulation`.

        Raises:
            InputError: rows is not at least 1, or data and task do not fit together.
        """
        checks.whole("rows", rows)

        def some(mine: Tensor, i: int) -> Tensor:
            generator = key.fold("probe", i).generator()
            return mine[torch.from_numpy(generator.choice(len(mine), min(rows, len(mine)), replace=False))]

        held = replace(data, train=tuple(some(mine, i) for i, mine in enumerate(data.train)))
        return cls(Simulation(held, task, engine=engine, device=device))

    def __call__(self, w: Tensor, clients: Tensor) -> Tensor:
        """(k,) float64 mean losses of w (d,) on the rows held for the clients (k,); NaN where there is no answer."""
        found = self.fed.losses(clients, w, _KEY)
        return torch.full((self.fed.n,), torch.nan, dtype=torch.float64).index_copy(0, *found)[clients]
