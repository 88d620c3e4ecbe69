"""Excess losses: the dual update uses by how much each client's loss exceeds that of its own model."""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import torch

from drfl.core.errors import NonFiniteError, unknown
from drfl.core.key import Key
from drfl.federation.algorithm import References
from drfl.federation.federation import Federation
from drfl.federation.requests import Losses, TrainRequest, select_rows
from drfl.optim.local import LocalSGD

Reference = Literal["none", "own"]
"""What reported losses are compared with: nothing, or the loss of the client's own model."""

STEPS = 200
"""Local steps of a client's own model."""


def first_references(reference: Reference, fed: Federation) -> References | None:
    """Return the references before the first round; None for "none".

    Raises:
        InputError: If ``reference`` is not a known value.
    """
    if reference not in get_args(Reference):
        raise unknown("reference", reference, get_args(Reference))
    if reference == "none":
        return None
    return References(torch.zeros(fed.n, dtype=torch.float64), torch.zeros(fed.n, dtype=torch.bool))


def excess(
    reports: Losses, references: References | None, fed: Federation, local: LocalSGD, key: Key
) -> tuple[Losses, References | None]:
    """Subtract the clients' references from their reported losses; without references return the reports unchanged.

    A client without a reference gets one now: it takes 200 local steps from the initial model and reports the loss of
    the resulting model on all its training data. If it does not answer both requests, its report is dropped as if it
    were missing, and it is asked again at its next report.

    Args:
        reports: Reported losses.
        references: The references so far; None = losses are not compared.
        fed: The clients.
        local: Local solver of the clients' own models, except for the number of steps.
        key: The round's key.

    Returns:
        The excess losses f_i − f_i*, and the references after the round.

    Raises:
        NonFiniteError: If the loss of a client's own model is NaN or infinite.
    """
    if references is None or not reports.clients.numel():
        return reports, references
    missing = reports.clients[~references.known[reports.clients]].sort().values
    if missing.numel():
        key, own_local = key.fold("reference"), dataclasses.replace(local, steps=STEPS, epochs=None)
        # Do not use fed.train, which may also request means for the averaged solution.
        up = fed.ask(TrainRequest(missing, fed.w0, key, own_local))
        values, known = references.values.clone(), references.known.clone()
        # Send one request per client, because each has its own model.
        for client, w in zip(up.clients, up.w, strict=True):
            f = fed.losses(client[None], w, key.fold("loss"))
            if not bool(torch.isfinite(f.values).all()):
                raise NonFiniteError(
                    f"the loss of {fed.name_of(int(client))}'s own model is {float(f.values):g}, not a finite number"
                )
            values[f.clients], known[f.clients] = f.values, True
        references = References(values, known)
    reports = select_rows(reports, references.known[reports.clients])
    return reports._replace(values=reports.values - references.values[reports.clients]), references
