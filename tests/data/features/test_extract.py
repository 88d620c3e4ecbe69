"""Test that penultimate features are the inputs of the last layer."""

from __future__ import annotations

import pytest
import torch

from drfl.data.features import entk
from drfl.data.features.entk import penultimate

from .conftest import pictures, small_cnn, small_lite, small_resnet


@pytest.mark.parametrize(
    ("backbone", "p"), [(small_cnn(), 500), (small_resnet(), 32), (small_lite(), 160)], ids=["cnn", "resnet", "lite"]
)
def test_last_layer_on_features_equals_the_network(backbone, p):
    x = pictures(7).inputs
    features = penultimate(backbone, x)
    assert features.shape == (7, p)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    torch.testing.assert_close(backbone.model[-1](features), backbone.model(backbone.prepare(x, None)))


@pytest.mark.parametrize("resize", [None, 20])
def test_batch_size_does_not_matter(resize, monkeypatch):
    backbone, x = small_resnet(), pictures(10).inputs
    whole = penultimate(backbone, x, resize)
    monkeypatch.setattr(entk, "PIXELS", 3 * 20 * 20 * 3)
    parts = list(entk.batches(backbone, x, resize))
    assert [len(part) for part in parts] == ([3, 3, 3, 1] if resize else [10])
    torch.testing.assert_close(penultimate(backbone, x, resize), whole)


def test_bytes_are_accepted():
    pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(penultimate(small_resnet(), pixels), penultimate(small_resnet(), pixels / 255))


def test_progress_is_reported(monkeypatch):
    monkeypatch.setattr(entk, "EVERY", 0.0)
    lines: list[str] = []
    penultimate(small_cnn(), pictures(11).inputs, log=lines.append)
    assert lines == ["features by small: 11 of 11 images"]
