"""Test tensors that were read without their metadata."""

from __future__ import annotations

import pytest
import torch

from drfl.core.errors import DrflWarning
from drfl.data import split_weights


def test_weights_without_metadata_are_returned_with_a_warning():
    tensors = {"weight": torch.eye(2)}
    with pytest.warns(DrflWarning) as told:
        standardisation, weights = split_weights(tensors)
    assert [warning.message.code for warning in told] == ["no-preparation"]
    assert standardisation is None
    assert torch.equal(weights["weight"], torch.eye(2))
