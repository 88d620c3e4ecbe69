"""Test vectorised functions and their gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from drfl.core.vmap import values_and_gradients, vmap


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


def test_values_and_gradients_inside_vmap():
    """d/dW of Σ_b weights_b·(Wx_b)² is 2·Σ_b weights_b·(Wx_b)·x_b, computed for three clients at once."""
    rng = torch.Generator().manual_seed(0)
    w, unused, x = (torch.randn(3, *shape, generator=rng, dtype=torch.float64) for shape in ((4,), (2,), (5, 4)))
    weights = torch.rand(3, 5, generator=rng, dtype=torch.float64)

    def of_client(w, unused, x, weights):
        return values_and_gradients(lambda w, unused: ((x @ w).square(), {"sum": x.sum()}), [w, unused], weights)

    values, (gradient, zero), more = vmap(of_client)(w, unused, x, weights)
    products = torch.einsum("kbd,kd->kb", x, w)
    torch.testing.assert_close(values, products.square())
    torch.testing.assert_close(gradient, 2 * torch.einsum("kb,kb,kbd->kd", weights, products, x))
    assert torch.equal(zero, torch.zeros_like(unused))
    torch.testing.assert_close(more["sum"], x.sum((1, 2)))
    assert not any(t.requires_grad for t in (values, gradient, zero, more["sum"]))


def test_no_tensors_have_no_gradients():
    values, gradients, _ = vmap(lambda x: values_and_gradients(lambda: (x.sum(), ()), []))(torch.ones(2, 3))
    assert (values.tolist(), gradients) == ([3.0, 3.0], ())
