"""Clients tested on other rows than their test rows: on validation rows, or on those that they train on."""

from __future__ import annotations

import dataclasses

from drfl.core.key import Key
from drfl.data.client_data import ClientData


def held_out_training(data: ClientData, fraction: float, key: Key) -> ClientData:
    """Return the clients with a share of their training rows as test rows, to choose hyperparameters.

    Existing validation rows are used as they are. The test pool becomes the training pool: no test row is looked at.
    """
    held = data.with_validation(fraction, key) if data.validation is None else data
    assert held.validation is not None
    return dataclasses.replace(
        held, test_inputs=data.inputs, test_targets=data.targets, test=held.validation, validation=None
    )


def training_as_test(data: ClientData) -> ClientData:
    """Return the clients with their training rows as test rows, for curves of the training loss and accuracy."""
    return dataclasses.replace(data, test_inputs=data.inputs, test_targets=data.targets, test=data.train)
