"""Personal models for the clients that clearly gain from them on validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.algorithms import FineTuned
from drfl.algorithms.fedavg import FedAvgState
from drfl.assessment.choice import is_clear_gain
from drfl.assessment.scores import Floats
from drfl.core.key import Key
from drfl.engine import Simulation
from drfl.experiments.fit.members import ROW_LOSS, FitJobs
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


def candidates(run: FinishedRun, fed: Simulation, alone: ClientTable) -> dict[str, ClientTable]:
    """Return the clients' personal models, by candidate.

    Args:
        run: The run of the global model.
        fed: The clients that train.
        alone: (N, d) The models that the clients trained alone.
    """
    result, local = run.result, core_of(run.job.algorithm).local
    if result.step_size is not None:
        local = replace(local, lr=float(result.step_size.eta))
    key, state = Key(run.job.settings.seed).fold("personal"), FedAvgState(result.model)
    tuned = {
        name: FineTuned(local=local, fine_steps=steps).personal(state, result.model, fed, key)
        for name, steps in STEPS.items()
    }
    return {**tuned, LOCAL: alone}


def row_losses(fed: Simulation, models: Tensor | ClientTable) -> Floats:
    """Return the loss of each validation row (n,), client by client."""
    return fed.row_scores(models).scores[ROW_LOSS].double().numpy()


def decide(shared: Floats, personal: Mapping[str, Floats], sizes: Sequence[int]) -> list[tuple[str, float]]:
    """Return each client's candidate and its mean gain: the one with the largest gain among those with a clear one.

    Args:
        shared: (n,) Loss of the global model on each validation row, client by client.
        personal: The losses of the other candidates.
        sizes: (N,) Validation rows of each client.
    """
    gains = {name: np.split(shared - losses, np.cumsum(sizes)[:-1]) for name, losses in personal.items()}
    decisions: list[tuple[str, float]] = []
    for i in range(len(sizes)):
        clear = {name: float(parts[i].mean()) for name, parts in gains.items() if is_clear_gain(parts[i])}
        decisions.append(max(clear.items(), key=lambda item: item[1], default=(GLOBAL, 0.0)))
    return decisions


def personalise(
    jobs: FitJobs,
    selection: tuple[FinishedRun, ClientTable],
    final: tuple[FinishedRun, ClientTable],
    sizes: Sequence[int],
) -> Personalisation:
    """Choose the clients' models in the selection stage, and make them from the final global model.

    A client keeps the final global model unless the final personal model has a clear gain over it on the same
    validation rows, and is there at least as good as the global model of the selection stage. These rows are now
    training rows, so the check only finds decisions that no longer hold.

    Args:
        jobs: The clients of both stages.
        selection: The run of the chosen member in the selection stage, and the models that clients trained alone there.
        final: The same for all training rows.
        sizes: (N,) Validation rows of each client.
    """
    (run, alone), (last, last_alone) = selection, final
    judge, fed = jobs.selection.fed, jobs.final.fed
    before = row_losses(judge, run.result.model)
    made = candidates(run, judge, alone)
    decisions = decide(before, {name: row_losses(judge, table) for name, table in made.items()}, sizes)
    made = candidates(last, fed, last_alone)
    shared = row_losses(judge, last.result.model)
    losses = {name: row_losses(judge, made[name]) for name, _ in decisions if name != GLOBAL}
    ends = np.cumsum(sizes)
    used, clients = [GLOBAL] * len(sizes), torch.arange(len(sizes))
    models = fed.client_table().put(clients, last.result.model.expand(len(sizes), -1))
    for i, (name, _) in enumerate(decisions):
        rows = slice(ends[i] - sizes[i], ends[i])
        if name == GLOBAL or not is_clear_gain(shared[rows] - losses[name][rows]):
            continue
        if losses[name][rows].mean() <= before[rows].mean():
            used[i], models = name, models.put(clients[i : i + 1], made[name][clients[i : i + 1]])
    names, gains = zip(*decisions, strict=True)
    return Personalisation(names, gains, tuple(used), models)
