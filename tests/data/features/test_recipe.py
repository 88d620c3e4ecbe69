"""The names that backbones have."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.refusals import refused

from drfl.data.features.recipe import IMAGENET, LITE_IMAGENET, PUBLISHED, Recipe, StandInBackbone, names, parse


def test_names_and_files():
    assert parse("resnet18-imagenet") == parse("ResNet18_ImageNet") == IMAGENET
    assert parse("EfficientNet-Lite0_ImageNet") == LITE_IMAGENET == "efficientnet-lite0-imagenet"
    assert parse("cnn-digits") == StandInBackbone("cnn", "digits")
    assert parse("resnet18-fashion_mnist") == StandInBackbone("resnet18", "fashion-mnist")
    assert parse("a/b.PTH") == Path("a/b.PTH")
    assert parse("model.safetensors") == Path("model.safetensors")


def test_every_name_is_known():
    assert all(parse(name) in PUBLISHED or isinstance(parse(name), StandInBackbone) for name in names())
    assert set(PUBLISHED) <= set(names())
    assert "cnn-mnist" in names()
    assert not any("heart" in name for name in names())


@pytest.mark.parametrize(
    ("backbone", "error"),
    [
        ("resnet18-mnst", ("unknown-name", "backbone", "'resnet18-mnst'", "'resnet18-mnist'")),
        ("cnn-heart-disease", ("unknown-name", "backbone")),
        ("cnn-imagenet", ("unknown-name", "backbone")),
        ("efficientnet-lite0-mnist", ("unknown-name", "backbone")),
        ("weights/mine.bin", ("unsupported-file", "backbone", ".pth", ".pt", ".safetensors")),
        ("", ("unknown-name", "backbone")),
    ],
)
def test_unknown_backbones(backbone, error):
    with refused(*error):
        Recipe("entk", backbone)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kind": "ntk"}, ("unknown-name", "features", "'entk'")),
        ({"count": 0}, ("out-of-range", "feature_count")),
        ({"resize": 0}, ("out-of-range", "resize")),
        ({"resize": 2.5}, ("out-of-range", "resize")),
    ],
)
def test_impossible_values(options, error):
    with refused(*error):
        Recipe(**{"kind": "entk", "backbone": "cnn-digits", **options})


def test_gradients_alone_are_scaled_unless_told():
    assert Recipe("entk", IMAGENET).scaled
    assert not Recipe("penultimate", IMAGENET).scaled
    assert Recipe("penultimate", IMAGENET, standardise=True).scaled
