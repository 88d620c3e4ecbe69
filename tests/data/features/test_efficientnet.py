"""Test EfficientNet-Lite0: the names of its published weights, its arithmetic, and its classifications."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_sample_image
from tests.support.marks import long_except
from torch.nn import functional

from drfl.core.errors import InputError
from drfl.data.features import load_backbone
from drfl.data.features.efficientnet import efficientnet_lite0

from .conftest import small_lite

KERNELS = (3, 3, 3, 5, 5, 3, 3, 3, 5, 5, 5, 5, 5, 5, 5, 3)
"""Kernel sizes of the 16 blocks."""


def test_names_sizes_and_shapes_match_the_published_weights():
    model = efficientnet_lite0(1000)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    assert sum(p.numel() for p in model.parameters()) == 4_652_008
    assert len(shapes) == 296
    assert list(shapes)[:3] == ["_conv_stem.weight", "_bn0.weight", "_bn0.bias"]
    assert list(shapes)[-2:] == ["_fc.weight", "_fc.bias"]
    assert "_blocks.0._expand_conv.weight" not in shapes
    assert shapes["_blocks.3._expand_conv.weight"] == (144, 24, 1, 1)
    assert shapes["_blocks.15._project_conv.weight"] == (320, 1152, 1, 1)
    assert [shapes[f"_blocks.{k}._depthwise_conv.weight"][2] for k in range(16)] == list(KERNELS)


def same(x, weight, stride, groups=1):
    """Convolve with ⌈side/stride⌉ outputs per side; the larger half of the padding is at the end."""
    kernel, pads = weight.shape[2], []
    for side in (x.shape[3], x.shape[2]):
        total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        pads += [total // 2, total - total // 2]
    return functional.conv2d(functional.pad(x, pads), weight, stride=stride, groups=groups)


def by_hand(w, x):
    """Compute the network in eval mode from its weights."""

    def norm(x, name):
        scale = w[f"{name}.weight"] / (w[f"{name}.running_var"] + 1e-3).sqrt()
        shift = w[f"{name}.bias"] - scale * w[f"{name}.running_mean"]
        return x * scale[:, None, None] + shift[:, None, None]

    x = norm(same(x, w["_conv_stem.weight"], 2), "_bn0").clamp(0, 6)
    for k in range(16):
        at, y = f"_blocks.{k}", x
        if k > 0:
            y = norm(same(y, w[f"{at}._expand_conv.weight"], 1), f"{at}._bn0").clamp(0, 6)
        depthwise = w[f"{at}._depthwise_conv.weight"]
        y = same(y, depthwise, 2 if k in (1, 3, 5, 11) else 1, len(depthwise))
        y = norm(y, f"{at}._bn1").clamp(0, 6)
        y = norm(same(y, w[f"{at}._project_conv.weight"], 1), f"{at}._bn2")
        x = x + y if k in (2, 4, 6, 7, 9, 10, 12, 13, 14) else y
    x = norm(same(x, w["_conv_head.weight"], 1), "_bn1").clamp(0, 6)
    return x.mean((2, 3)) @ w["_fc.weight"].T + w["_fc.bias"]


@pytest.mark.parametrize("side", long_except(["33"], [28, 33, 64]))
def test_forward_pass_matches_plain_arithmetic(side):
    model = small_lite(dtype=torch.float64).model
    x = torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(model(x), by_hand(model.state_dict(), x))


@pytest.mark.long
@pytest.mark.parametrize(("image", "label"), [("china.jpg", 698), ("flower.jpg", 985)], ids=["palace", "daisy"])
def test_published_weights_classify_two_pictures(image, label, monkeypatch):
    """With the right weights, layers, normalisation and colour order, the network recognises scikit-learn's two
    pictures.
    """
    monkeypatch.delenv("DRFL_MIRROR")
    try:
        backbone = load_backbone("efficientnet-lite0-imagenet")
    except InputError as error:
        pytest.skip(str(error))  # 17 MB from PyPI
    pixels = torch.tensor(load_sample_image(image)).permute(2, 0, 1)[None, :, :, 107:534]
    output = backbone.model(backbone.prepare(pixels, 224))
    assert output.shape == (1, 1000)
    assert output.argmax() == label
