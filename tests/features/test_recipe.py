"""The names that backbones have."""

from __future__ import annotations

from pathlib import Path

import pytest

from drfl.errors import InputError
from drfl.features.recipe import IMAGENET, LITE_IMAGENET, PUBLISHED, Recipe, StandIn, names, parse


def test_names_and_files():
    assert parse("resnet18-imagenet") == parse("ResNet18_ImageNet") == IMAGENET
    assert parse("EfficientNet-Lite0_ImageNet") == LITE_IMAGENET == "efficientnet-lite0-imagenet"
    assert parse("cnn-digits") == StandIn("cnn", "digits")
    assert parse("resnet18-fashion_mnist") == StandIn("resnet18", "fashion-mnist")
    assert parse("a/b.PTH") == Path("a/b.PTH")
    assert parse("model.safetensors") == Path("model.safetensors")


def test_every_name_is_known():
    assert all(parse(name) in PUBLISHED or isinstance(parse(name), StandIn) for name in names())
    assert set(PUBLISHED) <= set(names())
    assert "cnn-mnist" in names()
    assert not any("heart" in name for name in names())


@pytest.mark.parametrize(
    ("backbone", "part"),
    [
        ("resnet18-mnst", "unknown backbone 'resnet18-mnst': did you mean 'resnet18-mnist'?"),
        ("cnn-heart-disease", "unknown backbone"),
        ("cnn-imagenet", "unknown backbone"),
        ("efficientnet-lite0-mnist", "unknown backbone"),
        ("weights/mine.bin", "does not end in .pth or .pt or .safetensors"),
        ("", "unknown backbone"),
    ],
)
def test_unknown_backbones(backbone, part):
    with pytest.raises(InputError) as caught:
        Recipe("entk", backbone)
    assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"kind": "ntk"}, "did you mean 'entk'?"),
        ({"count": 0}, "feature_count must be"),
        ({"resize": 0}, "resize must be"),
        ({"resize": 2.5}, "resize must be"),
    ],
)
def test_impossible_values(options, part):
    with pytest.raises(InputError) as caught:
        Recipe(**{"kind": "entk", "backbone": "cnn-digits", **options})
    assert part in str(caught.value)


def test_gradients_alone_are_scaled_unless_told():
    assert Recipe("entk", IMAGENET).scaled
    assert not Recipe("penultimate", IMAGENET).scaled
    assert Recipe("penultimate", IMAGENET, standardise=True).scaled
