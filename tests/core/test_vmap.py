"""Test that torch's request to report missing batching rules does not reach users."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from drfl.core.vmap import vmap


def test_only_the_request_about_a_missing_rule_is_suppressed():
    """torch has no batching rule for this loss, and computes it once per entry."""
    outputs, targets = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)), torch.ones(3, 4).long()
    losses = vmap(functional.multi_margin_loss)(outputs, targets)
    torch.testing.assert_close(losses, torch.stack([*map(functional.multi_margin_loss, outputs, targets)]))
    # The user's own calls still warn, also after an error in one of drfl's.
    with pytest.raises(RuntimeError, match="target"):
        vmap(functional.multi_margin_loss)(outputs, targets[:, :1])
    with pytest.warns(UserWarning, match="performance drop"):
        torch.func.vmap(functional.multi_margin_loss)(outputs, targets)
