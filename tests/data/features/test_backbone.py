"""Test how backbones are recognised, and how their images are prepared."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import refused
from torch.nn import functional

from drfl.data.features.backbone import Backbone, resnet18
from drfl.data.features.efficientnet import efficientnet_lite0
from drfl.task.models import cnn, mlp

from .conftest import pictures, small_cnn, small_lite, small_resnet

LITE = efficientnet_lite0(3, width=4).state_dict()


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_is_recognised_by_parameter_names(norm):
    state = resnet18(7, norm, width=4).state_dict()
    found = Backbone.of("mine", state)
    assert (found.classes, found.channels, found.quarter) == (7, 3, None)
    assert all(found.model.state_dict()[name].equal(value) for name, value in state.items())
    assert not found.model.training
    assert not any(p.requires_grad for p in found.model.parameters())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 8, 8), (1, 10, 15)])
def test_cnn_is_recognised_by_parameter_names(shape):
    model = cnn(shape, 5)
    found = Backbone.of("mine", model.state_dict())
    assert (found.classes, found.channels) == (5, shape[0])
    x = torch.rand(4, *shape)
    torch.testing.assert_close(found.model(found.prepare(x, None)), model(x))


def test_efficientnet_is_recognised_by_parameter_names():
    state = efficientnet_lite0(7, width=4).state_dict()
    found = Backbone.of("mine", state)
    assert (found.classes, found.channels, found.quarter) == (7, 3, None)
    assert all(found.model.state_dict()[name].equal(value) for name, value in state.items())
    assert not found.model.training


def test_digest_identifies_the_weights():
    state = cnn((1, 8, 8), 3).state_dict()
    same, other = Backbone.of("a", state), Backbone.of("b", {**state, "7.bias": state["7.bias"] + 1e-6})
    assert Backbone.of("c", state).digest == same.digest != other.digest
    assert len(same.digest) == 32


@pytest.mark.parametrize(
    ("state", "quoted"),
    [
        ({**cnn((1, 8, 8), 3).state_dict(), "2.weight": torch.zeros(2)}, ("2.weight",)),
        ({**cnn((1, 8, 8), 3).state_dict(), "0.weight": torch.zeros(2)}, ()),
        ({"fc.weight": torch.zeros(3, 2), "layer1.0.conv1.weight": torch.zeros(1)}, ("conv1.weight",)),
        ({**LITE, "_conv_stem.weight": torch.zeros(2**20, 1)}, ("_conv_stem.weight",)),
        ({**LITE, "_fc.bias": torch.zeros(0)}, ("_fc.bias",)),
        ({name: value[:0] for name, value in resnet18(3, "group", 8).state_dict().items()}, ()),
        (
            {
                **LITE,
                "_conv_stem.weight": torch.zeros(2),
                "_conv_head.weight": torch.zeros(80, 20, 1, 1),
                "_fc.weight": torch.zeros(3, 80),
            },
            ("4", "2"),
        ),
    ],
)
def test_other_weights_are_one_line_errors(state, quoted):
    with refused("damaged-file", "backbone", *quoted) as caught:
        Backbone.of("mine", state)
    assert "\n" not in str(caught.value)
    assert "ResNet-18" not in str(caught.value)


@pytest.mark.parametrize(
    ("backbone", "mean", "std"),
    [
        (small_resnet(), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        (small_lite(), (127 / 255,) * 3, (128 / 255,) * 3),
    ],
)
def test_grey_images_are_repeated_and_normalised(backbone, mean, std):
    x = pictures(4).inputs
    found = backbone.prepare(x, None)
    assert found.shape == (4, 3, 8, 8)
    for c in range(3):
        torch.testing.assert_close(found[:, c], (x[:, 0] - mean[c]) / std[c])


@pytest.mark.parametrize(("backbone", "resize"), [(small_resnet(), 16), (small_cnn((3, 8, 8)), None)])
def test_bytes_are_divided_by_255(backbone, resize):
    pixels = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(backbone.prepare(pixels, resize), backbone.prepare(pixels / 255, resize))


def test_images_are_resized_with_antialiasing():
    x = pictures(2, shape=(1, 16, 12)).inputs
    found = small_cnn().prepare(x, 8)
    torch.testing.assert_close(found, functional.interpolate(x, (8, 8), mode="bilinear", antialias=True))
    assert not torch.allclose(found, functional.interpolate(x, (8, 8), mode="bilinear"))
    assert small_cnn().prepare(x[..., :8, :8], 8).equal(x[..., :8, :8])


@pytest.mark.parametrize(
    ("backbone", "shape", "sizes"),
    [
        (small_cnn(), (1, 28, 28), ("8×8", "28×28")),
        (small_cnn(), (3, 8, 8), ("1", "3")),
        (small_resnet(), (2, 8, 8), ("3", "2")),
        (small_resnet(), (13,), ("(13,)",)),
    ],
)
def test_unsuitable_images_are_refused(backbone, shape, sizes):
    with refused("unsupported-data", "backbone", *sizes):
        backbone.prepare(torch.rand(2, *shape), None)


@pytest.mark.parametrize("state", [{}, {"layer.weight": torch.zeros(3, 3)}, mlp((1, 8, 8), 3).state_dict()])
def test_weights_of_another_network_are_not_called_damaged(state):
    with refused("unsupported-file", "backbone", "mine", "ResNet-18"):
        Backbone.of("mine", state)
