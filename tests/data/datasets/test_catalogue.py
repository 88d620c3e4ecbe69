"""Test data sets by name: their locations, content and one-line errors."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from tests.data.conftest import STEMS, write_tiny
from tests.support.refusals import refused

from drfl.data import DATASETS, describe, load, write_idx


def test_digits_are_embedded_scaled_and_split_by_class():
    digits = load("Digits")
    assert digits.name == "digits"
    assert digits.inputs.shape == (1198, 1, 8, 8)
    assert digits.test_inputs.shape == (599, 1, 8, 8)
    assert digits.inputs.min() == 0
    assert digits.inputs.max() == 1
    mixes = [torch.bincount(y, minlength=10) / len(y) for y in (digits.targets, digits.test_targets)]
    assert (mixes[0] - mixes[1]).abs().max() < 2e-3
    assert torch.equal(digits.inputs, load("digits").inputs)


def test_mnist_is_complete(shared):
    mnist = load("MNIST", data_dir=shared / "mnist")
    assert mnist.inputs.shape == (60_000, 1, 28, 28)
    assert mnist.test_inputs.shape == (10_000, 1, 28, 28)
    assert mnist.inputs.dtype == torch.float32
    assert (mnist.inputs.min(), mnist.inputs.max()) == (0, 1)
    assert mnist.inputs.mean().item() == pytest.approx(0.1307, abs=1e-4)  # the published mean of the pixels
    assert mnist.targets[:5].tolist() == [5, 0, 4, 1, 9]


def test_kmnist_t10k_is_split_by_class_and_needs_only_test_files(shared):
    part = load("kmnist_T10k", data_dir=shared)
    assert part.name == "kmnist-t10k"
    assert torch.bincount(part.targets).tolist() == [800] * 10
    assert torch.bincount(part.test_targets).tolist() == [200] * 10
    with refused("dataset-not-found", "data_dir", "train-images-idx3-ubyte, train-labels-idx1-ubyte"):
        load("kmnist", data_dir=shared)


def test_files_of_another_known_data_set_are_refused(shared):
    with refused("wrong-dataset", None, "mnist", "kmnist"):
        load("kmnist-t10k", data_dir=shared / "mnist")


@pytest.mark.parametrize("below", [".", "fashion-mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("style", ["{}", "{}.gz", "dotted", "dotted.gz"])
def test_data_dir_layouts_and_file_names(tmp_path, below, style):
    def named(stem):
        return style.format(stem).replace("dotted", stem.replace("-idx", ".idx"))

    write_tiny(tmp_path / below, style=named)
    tiny = load("fashion_mnist", data_dir=str(tmp_path))
    assert tiny.inputs.shape == (20, 1, 4, 4)
    assert tiny.targets.tolist() == list(range(10)) * 2
    torch.testing.assert_close(tiny.inputs[9], torch.full((1, 4, 4), 225 / 255))


@pytest.mark.parametrize(
    ("variable", "folder"),
    [
        ("DRFL_DATA", ""),
        ("DRFL_DATA", "mnist"),
        ("DRFL_DATA", "MNIST/raw"),
        (None, "system/mnist"),
        (None, "data/MNIST/raw"),
        (None, "data/mnist"),
        (None, ".cache/torch/datasets/MNIST/raw"),
        ("TORCH_HOME", "datasets/MNIST/raw"),
        (None, ".cache/drfl/mnist"),
        ("XDG_CACHE_HOME", "drfl/mnist"),
    ],
)
def test_usual_folders_are_searched(bare_machine, monkeypatch, variable, folder):
    root = bare_machine
    if variable:
        root = root / "elsewhere"
        monkeypatch.setenv(variable, str(root))
    write_tiny(root / folder)
    assert len(load("mnist", download=False).targets) == 20
    assert next(info for info in describe() if info.name == "mnist").found is not None


def test_data_dir_takes_precedence_over_usual_folders(bare_machine, monkeypatch):
    write_tiny(bare_machine / ".cache/drfl/mnist", train=10)
    write_tiny(bare_machine / "own/mnist", train=20)
    write_tiny(bare_machine / "given", train=30)
    assert len(load("mnist").targets) == 10
    monkeypatch.setenv("DRFL_DATA", str(bare_machine / "own"))
    assert len(load("mnist").targets) == 20
    assert len(load("mnist", data_dir=bare_machine / "given").targets) == 30


def test_data_dir_without_the_files_does_not_fall_through(bare_machine):
    write_tiny(bare_machine / ".cache/drfl/mnist")
    with refused("folder-not-found", "data_dir"):
        load("mnist", data_dir=bare_machine / "none")
    (bare_machine / "empty").mkdir()
    with refused("dataset-not-found", "data_dir") as caught:
        load("mnist", data_dir=bare_machine / "empty")
    for said in (*STEMS, "empty", "MNIST/raw", "data_dir"):
        assert said in str(caught.value)


@pytest.mark.parametrize("download", [False, pytest.param(True, marks=pytest.mark.long)])
def test_missing_files_without_network_name_places_and_remedy(bare_machine, download):
    places = ("data/MNIST/raw", ".cache/drfl/mnist", "data_dir", "$DRFL_DATA")
    with refused("download-failed" if download else "dataset-not-found", "mnist", *places) as caught:
        load("mnist", download=download)
    assert "\n" not in str(caught.value)


def test_unwritable_cache_is_a_one_line_error(bare_machine):
    (bare_machine / ".cache").write_text("in the way")
    with refused("download-failed", "mnist"):
        load("mnist")


def test_unknown_names_suggest_the_nearest():
    with refused("unknown-name", "dataset", "'fashion-mnist'"):
        load("fasion-mnist")


@pytest.mark.parametrize(
    ("stem", "array", "error"),
    [
        (STEMS[0], np.zeros((20, 16), np.uint8), ("wrong-shape", None, STEMS[0], "(20, 16)")),
        (STEMS[1], np.zeros((20, 1), np.uint8), ("wrong-shape", None, STEMS[1], "(20, 1)")),
        (STEMS[1], np.zeros(19, np.uint8), ("count-mismatch", None, "20", "19")),
        (STEMS[3], np.full(10, 10, np.uint8), ("wrong-dataset", None, "0..9")),
        (STEMS[2], np.zeros((10, 5, 5), np.uint8), ("wrong-shape", "test_inputs")),
    ],
)
def test_inconsistent_files_are_refused(tmp_path, stem, array, error):
    write_idx(write_tiny(tmp_path) / stem, array)
    with refused(*error):
        load("mnist", data_dir=tmp_path)


def test_description_matches_the_data_and_opens_no_file(bare_machine, monkeypatch):
    monkeypatch.setattr("builtins.open", None)
    infos = {info.name: info for info in describe()}
    assert list(infos) == list(DATASETS) == [
        "digits", "heart-disease", "adult", "shakespeare", "mnist", "fashion-mnist", "kmnist", "kmnist-t10k",
        "cifar-10", "cifar-100", "tiny-imagenet",
    ]  # fmt: skip
    found = {name: info.found for name, info in infos.items() if info.found is not None}
    assert found == {"digits": "drfl", "heart-disease": "drfl"}
    assert all(info.licence and info.source.startswith("http") and info.title for info in infos.values())


@pytest.mark.parametrize("name", ["digits", "kmnist-t10k"])
def test_described_sizes_match_loaded_sizes(name, request):
    data = load(name, data_dir=None if name == "digits" else request.getfixturevalue("shared"))
    info = DATASETS[name].info
    sizes = len(data.targets), len(data.test_targets), data.classes, tuple(data.inputs.shape[1:])
    assert sizes == (info.train, info.test, info.classes, info.shape)


@pytest.mark.long
def test_import_is_light():
    code = "import sys, drfl.data; print([m for m in ('pandas', 'sklearn', 'pooch', 'requests') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
