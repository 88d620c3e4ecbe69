"""Test ResNet-18: torchvision's names, and its arithmetic."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from drfl.core.key import Key
from drfl.data.features.backbone import resnet18
from drfl.task.layout import Layout
from drfl.task.task import Task
from drfl.task.task_checks import check_task

from .conftest import pictures, small_resnet


def names():
    """Parameters and buffers of torchvision's resnet18, in its order."""
    statistics = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    found = ["conv1.weight", *(f"bn1.{name}" for name in statistics)]
    for stage in range(1, 5):
        for block in range(2):
            where = f"layer{stage}.{block}"
            for layer in (1, 2):
                found += [f"{where}.conv{layer}.weight", *(f"{where}.bn{layer}.{name}" for name in statistics)]
            if stage > 1 and block == 0:
                found += [f"{where}.downsample.0.weight", *(f"{where}.downsample.1.{name}" for name in statistics)]
    return [*found, "fc.weight", "fc.bias"]


def test_names_sizes_and_shapes_match_the_published_weights():
    state = resnet18(1000).state_dict()
    assert list(state) == names()
    assert sum(p.numel() for p in resnet18(1000).parameters()) == 11_689_512
    shapes = {name: tuple(value.shape) for name, value in state.items()}
    assert shapes["conv1.weight"] == (64, 3, 7, 7)
    assert shapes["layer3.0.downsample.0.weight"] == (256, 128, 1, 1)
    assert shapes["layer4.1.conv2.weight"] == (512, 512, 3, 3)
    assert shapes["fc.weight"] == (1000, 512)


def by_hand(w, x):
    """Compute the network in eval mode from its weights."""

    def norm(x, name):
        scale = w[f"{name}.weight"] / (w[f"{name}.running_var"] + 1e-5).sqrt()
        shift = w[f"{name}.bias"] - scale * w[f"{name}.running_mean"]
        return x * scale[:, None, None] + shift[:, None, None]

    x = norm(functional.conv2d(x, w["conv1.weight"], stride=2, padding=3), "bn1").relu()
    x = functional.max_pool2d(x, 3, 2, 1)
    for stage in range(1, 5):
        for block in range(2):
            at, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            y = norm(functional.conv2d(x, w[f"{at}.conv1.weight"], stride=stride, padding=1), f"{at}.bn1").relu()
            y = norm(functional.conv2d(y, w[f"{at}.conv2.weight"], padding=1), f"{at}.bn2")
            if stride == 2:
                x = norm(functional.conv2d(x, w[f"{at}.downsample.0.weight"], stride=2), f"{at}.downsample.1")
            x = (x + y).relu()
    return x.mean((2, 3)) @ w["fc.weight"].T + w["fc.bias"]


@pytest.mark.parametrize("side", [28, 33, 64])
def test_forward_pass_matches_plain_arithmetic(side):
    model = small_resnet(dtype=torch.float64).model
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(model(x), by_hand(model.state_dict(), x))


def test_group_norm_variant_can_be_trained():
    with Key(0).torch_scope():
        model = resnet18(3, "group", width=4)
    assert not dict(model.named_buffers())
    assert Layout.of(model).d == sum(p.numel() for p in model.parameters())
    x = pictures(shape=(3, 8, 8)).inputs[:4]
    check_task(Task(model), x, torch.tensor([0, 1, 2, 0]))
