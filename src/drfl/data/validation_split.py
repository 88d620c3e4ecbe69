"""Validation rows held out of the clients' training rows."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from drfl import checks
from drfl.data.client_data import ClientData
from drfl.data.splitting import split_rows
from drfl.key import Key


def held_out_training(data: ClientData, fraction: float, key: Key) -> ClientData:
    """The same clients, tested on a share of their training rows: for choosing hyperparameters.

    The test pool becomes the training pool, so that no test row is looked at. A client's split is by class where
    targets are labels, and depends on its name and rows alone. A client with a single row trains and is tested on it.
    Inputs stay as they are: where they are standardised they stay so, and held-out rows had a say in the scale.

    Args:
        data: the clients.
        fraction: share of each client's training rows to test on, strictly between 0 and 1; at least one row goes to
            each part.
        key: names the draws.

    Returns:
        Clients of the same names; both pools are ``data``'s training pool.

    Raises:
        InputError: the fraction is out of range.
    """
    checks.inner_fraction("validation", fraction)
    parts = [
        _split(data, rows, fraction, key.fold("validation", name))
        for name, rows in zip(data.names, data.train, strict=True)
    ]
    return dataclasses.replace(
        data,
        train=tuple(kept for kept, _ in parts),
        test_inputs=data.inputs,
        test_targets=data.targets,
        test=tuple(held for _, held in parts),
    )


def _split(data: ClientData, rows: Tensor, fraction: float, key: Key) -> tuple[Tensor, Tensor]:
    """One client's (training rows, validation rows)."""
    if len(rows) == 1:
        return rows, rows
    labels = data.targets[rows]
    mine = None if labels.is_floating_point() or labels.ndim > 1 else labels.numpy(force=True)
    kept, held = split_rows(rows.numpy(force=True), mine, key, fraction)
    return torch.from_numpy(kept).to(rows.device), torch.from_numpy(held).to(rows.device)
