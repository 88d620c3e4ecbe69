"""Test the names of backbones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.refusals import refused

from drfl.data.features.recipe import (
    IMAGENET,
    LITE_IMAGENET,
    PUBLISHED,
    Recipe,
    StandInBackbone,
    backbone_names,
    parse_backbone,
)


def test_backbone_names_and_files():
    assert parse_backbone("resnet18-imagenet") == parse_backbone("ResNet18_ImageNet") == IMAGENET
    assert parse_backbone("EfficientNet-Lite0_ImageNet") == LITE_IMAGENET == "efficientnet-lite0-imagenet"
    assert parse_backbone("cnn-digits") == StandInBackbone("cnn", "digits")
    assert parse_backbone("resnet18-fashion_mnist") == StandInBackbone("resnet18", "fashion-mnist")
    assert parse_backbone("a/b.PTH") == Path("a/b.PTH")
    assert parse_backbone("model.safetensors") == Path("model.safetensors")


def test_every_listed_name_is_accepted():
    assert all(
        parse_backbone(name) in PUBLISHED or isinstance(parse_backbone(name), StandInBackbone)
        for name in backbone_names()
    )
    assert set(PUBLISHED) <= set(backbone_names())
    assert "cnn-mnist" in backbone_names()
    assert not any("heart" in name for name in backbone_names())


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
def test_unknown_backbones_are_refused(backbone, error):
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
def test_impossible_values_are_refused(options, error):
    with refused(*error):
        Recipe(**{"kind": "entk", "backbone": "cnn-digits", **options})


def test_only_gradients_are_scaled_by_default():
    assert Recipe("entk", IMAGENET).is_standardised
    assert not Recipe("penultimate", IMAGENET).is_standardised
    assert Recipe("penultimate", IMAGENET, standardise=True).is_standardised
