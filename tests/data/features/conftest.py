"""A home folder without caches, small images and small networks."""

from __future__ import annotations

import pytest
import torch

from drfl.core.key import Key
from drfl.data import Dataset
from drfl.data.features.backbone import Backbone, resnet18
from drfl.data.features.efficientnet import efficientnet_lite0
from drfl.task.models import cnn


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Use caches below a temporary folder, which is returned, and no network."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")
    return tmp_path


@pytest.fixture
def lines():
    """Return a list of log lines; pass ``lines.append`` as the log."""
    return []


def pictures(n=30, k=10, shape=(1, 8, 8), classes=3, seed=0) -> Dataset:
    """Return random images in [0, 1] whose brightest part determines the class."""
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.rand(n + k, *shape, generator=rng) / 2, torch.arange(n + k) % classes
    for c in range(classes):
        x[y == c, :, c * shape[1] // classes : (c + 1) * shape[1] // classes] += 0.5
    return Dataset("pictures", x[:n], y[:n], x[n:], y[n:], classes)


def small_cnn(shape=(1, 8, 8), classes=3, dtype=torch.float32) -> Backbone:
    """Return DRDM's network at initialisation."""
    with Key(0).torch_scope():
        backbone = Backbone.of("small", cnn(shape, classes).state_dict())
    backbone.model.to(dtype)
    return backbone


def small_resnet(norm="batch", classes=3, dtype=torch.float32) -> Backbone:
    """Return a narrow ResNet-18 with non-initial running statistics."""
    with Key(1).torch_scope():
        model = resnet18(classes, norm, width=4)
        model(torch.randn(6, 3, 32, 32))
    backbone = Backbone.of("narrow", model.state_dict())
    backbone.model.to(dtype)
    return backbone


def small_lite(classes=3, dtype=torch.float32) -> Backbone:
    """Return a narrow EfficientNet-Lite0 with non-initial running statistics."""
    with Key(2).torch_scope():
        model = efficientnet_lite0(classes, width=4)
        for _ in range(20):  # so that the statistics are close to those of such images
            model(torch.randn(6, 3, 32, 32))
    backbone = Backbone.of("lite", model.state_dict())
    backbone.model.to(dtype)
    return backbone
