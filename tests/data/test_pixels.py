"""Test images as bytes: the same values as the floats of `load`, in a quarter of the memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.data.conftest import write_tiny
from tests.support.refusals import refused

from drfl.data import load
from drfl.data.dataset import Pixels
from drfl.data.datasets.catalogue import load_pixels

PIXELS = Pixels(
    "p",
    torch.arange(24, dtype=torch.uint8).reshape(2, 3, 2, 2),
    torch.tensor([0, 1]),
    torch.full((1, 3, 2, 2), 255, dtype=torch.uint8),
    torch.tensor([1]),
    2,
)


def assert_same(pixels, data):
    again = pixels.dataset()
    assert (again.name, again.classes) == (data.name, data.classes)
    for attribute in ("inputs", "targets", "test_inputs", "test_targets"):
        assert torch.equal(getattr(again, attribute), getattr(data, attribute))


def test_grey_images_have_one_channel(tmp_path):
    write_tiny(tmp_path)
    pixels = load_pixels("MNIST", data_dir=tmp_path)
    assert pixels.inputs.shape == (20, 1, 4, 4)
    assert pixels.inputs[9].unique().tolist() == [225]
    assert_same(pixels, load("mnist", data_dir=tmp_path))


def test_digits_are_divided_by_16():
    pixels = load_pixels("digits")
    assert (pixels.inputs.max(), pixels.white) == (16, 16)
    assert_same(pixels, load("digits"))


def test_pixels_are_split_like_floats(shared):
    assert_same(load_pixels("kmnist-t10k", data_dir=shared), load("kmnist-t10k", data_dir=shared))


def test_table_has_no_pixels():
    with refused("unsupported-data", "dataset", "'heart-disease'"):
        load_pixels("heart-disease")


def test_floats_are_bytes_divided_by_255():
    data = PIXELS.dataset()
    torch.testing.assert_close(data.inputs, torch.arange(24).reshape(2, 3, 2, 2) / 255, rtol=0, atol=0)
    assert data.test_inputs.unique().tolist() == [1]
    assert PIXELS.inputs.dtype == torch.uint8


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"inputs": PIXELS.inputs.float()}, ("wrong-type", "inputs", "uint8")),
        ({"inputs": PIXELS.inputs[0]}, ("wrong-type", "inputs", "uint8")),
        ({"targets": torch.tensor([0.0, 1.0])}, ("wrong-type", "targets", "int64")),
        ({"targets": torch.tensor([0])}, ("wrong-type", "targets", "2")),
        ({"targets": torch.tensor([0, 2])}, ("out-of-range", "dataset 'p': training labels", "0..1")),
        ({"test_inputs": PIXELS.test_inputs[:, :1]}, ("wrong-shape", "test_inputs")),
        (
            {"test_inputs": PIXELS.test_inputs[:0], "test_targets": PIXELS.test_targets[:0]},
            ("empty", "dataset 'p': test labels"),
        ),
    ],
)
def test_inconsistent_pixels_are_refused(changes, error):
    with refused(*error):
        replace(PIXELS, **changes)
