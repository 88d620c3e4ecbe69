"""Personal models for the clients that clearly gain from them on validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from drfl.algorithms import FineTuned
from drfl.algorithms.fedavg import FedAvgState
from drfl.assessment.choice import is_clear_gain
from drfl.assessment.scores import Floats
from drfl.core.key import Key
from drfl.engine import Simulation
from drfl.experiments.fit.validation_rows import SimulatedRows
from drfl.experiments.run.finished import FinishedRun
from drfl.federation.algorithm import core_of
from drfl.federation.client_table import ClientTable

GLOBAL, LOCAL = "global model", "own model"
STEPS = {"10 local steps": 10, "50 local steps": 50}
"""The candidates of a client: the global model, local steps from it, and the model that it trains alone."""


class Personalisation(NamedTuple):
    """The model of each client.

    Args:
        decisions: (N,) Names of the candidates that the selection stage chose.
        gains: (N,) Mean gain in validation loss over the global model, in the selection stage; 0 for the global model.
        used: (N,) Names of the candidates that the clients get. It is the global model if the final models did not
            confirm the decision.
        models: (N, d) The clients' final models.
    """

    decisions: tuple[str, ...]
    gains: tuple[float, ...]
    used: tuple[str, ...]
    models: ClientTable


def candidates(run: FinishedRun, fed: Simulation, alone: FinishedRun | None) -> dict[str, ClientTable]:
    """Return the clients' personal models, by candidate.

    ``alone`` is the run of clients that train alone; None if it diverged.
    """
    result, local = run.result, core_of(run.job.algorithm).local
    if result.step_size is not None:
        # The personal steps use the step size that drfl found for the run, because they are too few to find their own.
        local = replace(local, lr=float(result.step_size.eta))
    key, state = Key(run.job.settings.seed).fold("personal"), FedAvgState(result.model)
    tuned = {
        name: FineTuned(local=local, fine_steps=steps).personal(state, result.model, fed, key)
        for name, steps in STEPS.items()
    }
    own = None if alone is None else alone.result.personal
    return {**tuned, LOCAL: own} if isinstance(own, ClientTable) else tuned


def decide(
    shared: Floats, personal: Mapping[str, Floats], sizes: Sequence[int], patients: NDArray[np.intp] | None = None
) -> list[tuple[str, float]]:
    """Return each client's candidate and its mean gain: the one with the largest gain among those with a clear one.

    Args:
        shared: (n,) Loss of the global model on each validation row, client by client.
        personal: The losses of the other candidates.
        sizes: (N,) Validation rows of each client.
        patients: (n,) Patient of each row; None if rows are independent.
    """
    decisions: list[tuple[str, float]] = []
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        rows = slice(end - size, end)
        # Rows of one patient resemble each other, so the test counts patients and not rows.
        units = None if patients is None else patients[rows]
        gains = {name: shared[rows] - losses[rows] for name, losses in personal.items()}
        clear = {name: float(gain.mean()) for name, gain in gains.items() if is_clear_gain(gain, units)}
        decisions.append(max(clear.items(), key=lambda item: item[1], default=(GLOBAL, 0.0)))
    return decisions


def personalise(
    rows: SimulatedRows,
    fed: Simulation,
    selection: tuple[FinishedRun, FinishedRun | None],
    final: tuple[FinishedRun, FinishedRun | None],
) -> Personalisation:
    """Choose the clients' models in the selection stage, and make them from the final global model.

    A client keeps the final global model unless the final personal model has a clear gain over it on the same
    validation rows, and is there at least as good as the global model of the selection stage. These rows are now
    training rows, so the check only finds decisions that no longer hold.

    Args:
        rows: The validation rows of the clients of the selection stage.
        fed: The clients that train on all their rows.
        selection: The run of the chosen member in the selection stage, and the one of clients that train alone.
        final: The same for all training rows.
    """
    before, shared = rows.losses(selection[0].result.model), rows.losses(final[0].result.model)
    first, last = candidates(selection[0], rows.fed, selection[1]), candidates(final[0], fed, final[1])
    # A candidate that diverged in either stage cannot be chosen.
    decisions = decide(
        before, {name: rows.losses(first[name]) for name in first if name in last}, rows.sizes, rows.patients
    )
    losses = {name: rows.losses(last[name]) for name, _ in decisions if name != GLOBAL}
    clients, ends = torch.arange(len(decisions)), np.cumsum(rows.sizes)
    used, models = [GLOBAL] * len(decisions), fed.client_table()
    models = models.put(clients, final[0].result.model.expand(len(decisions), -1))
    for client, end, size, (name, _) in zip(clients.split(1), ends, rows.sizes, decisions, strict=True):
        part = slice(end - size, end)
        units = None if rows.patients is None else rows.patients[part]
        if name == GLOBAL or not is_clear_gain(shared[part] - losses[name][part], units):
            continue
        if losses[name][part].mean() <= before[part].mean():
            used[int(client)], models = name, models.put(client, last[name][client])
    names, gains = zip(*decisions, strict=True)
    return Personalisation(names, gains, tuple(used), models)
