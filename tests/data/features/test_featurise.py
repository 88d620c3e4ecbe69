"""Test data sets whose images are replaced by features."""

from __future__ import annotations

import dataclasses
import importlib

import pytest
import torch
from safetensors.torch import save_file
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import ClientData, Dataset, ZipfDirichlet, make_partition
from drfl.data.dataset import Pixels
from drfl.data.features import Recipe, featurise
from drfl.data.features.entk import penultimate
from drfl.data.features.featurise import check_memory, standardise

from .conftest import pictures, small_cnn


@pytest.fixture
def weights(tmp_path):
    """Write a file of a small network's weights."""
    path = tmp_path / "small.safetensors"
    save_file({name: v.contiguous() for name, v in small_cnn().model.state_dict().items()}, path)
    return str(path)


def test_penultimate_features_replace_images(weights):
    data = pictures()
    found = featurise(data, Recipe("penultimate", weights))
    assert found.inputs.equal(penultimate(small_cnn(), data.inputs))
    assert found.test_inputs.equal(penultimate(small_cnn(), data.test_inputs))
    assert (found.name, found.classes, found.standardise) == ("pictures", 3, False)
    assert found.targets is data.targets
    assert found.test_targets is data.test_targets


@pytest.mark.parametrize("kind", ["penultimate", "entk"])
def test_features_are_scaled_by_training_rows(kind, weights):
    data = pictures(300, 20)
    found = featurise(data, Recipe(kind, weights, count=40, standardise=True))
    assert not found.standardise
    x = found.inputs.double()
    varies = x.abs().max(0).values > 0
    assert int(varies.sum()) >= 30
    torch.testing.assert_close(x.mean(0), torch.zeros_like(x[0]), rtol=0, atol=1e-6)
    torch.testing.assert_close(x.std(0, correction=0)[varies], torch.ones(int(varies.sum())).double())
    raw = featurise(data, Recipe(kind, weights, count=40, standardise=False))
    std, mean = torch.std_mean(raw.inputs.double(), 0, correction=0)
    expected = ((raw.test_inputs.double() - mean) / std)[:, varies]
    torch.testing.assert_close(found.test_inputs.double()[:, varies], expected, rtol=1e-5, atol=1e-5)
    assert found.test_inputs.abs().max() < 100


def test_other_test_rows_do_not_change_the_training_rows(weights):
    data = pictures(60)
    other = dataclasses.replace(data, test_inputs=1 - data.test_inputs)
    a, b = (featurise(d, Recipe("entk", weights, count=40)) for d in (data, other))
    assert a.inputs.equal(b.inputs)
    assert not a.test_inputs.equal(b.test_inputs)


def test_constant_column_becomes_zero():
    x = torch.tensor([[0.1, 1.0, 0.0], [0.1, 3.0, 0.0], [0.1, 2.0, 0.0]])
    y = torch.tensor([[0.2, 2.0, 5.0]])
    standardise(x, y)
    assert x[:, 0].tolist() == x[:, 2].tolist() == [0.0] * 3
    assert y.tolist() == [[0.0, 0.0, 0.0]]
    assert x[:, 1].tolist() == pytest.approx([-(1.5**0.5), 1.5**0.5, 0], abs=1e-6)


def test_bytes_and_floats_give_the_same_features(weights):
    bytes_ = torch.randint(256, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % 3
    pixels = Pixels("pixels", bytes_[:30], y[:30], bytes_[30:], y[30:], 3)
    for recipe in (Recipe("penultimate", weights), Recipe("entk", weights, count=30)):
        a, b = featurise(pixels, recipe), featurise(pixels.dataset(), recipe)
        assert isinstance(a, Dataset)
        assert a.inputs.equal(b.inputs)
        assert a.test_inputs.equal(b.test_inputs)


def test_single_pool_stays_single(weights):
    data = pictures()
    pool = Dataset("pool", data.inputs, data.targets, data.inputs, data.targets, 3, tuple("ab" * 15))
    found = featurise(pool, Recipe("entk", weights, count=20))
    assert found.is_one_pool
    assert found.groups == pool.groups
    assert found.standardise
    assert not featurise(pool, Recipe("penultimate", weights)).standardise


def test_clients_share_the_features(weights):
    found = featurise(pictures(90, 30), Recipe("entk", weights, count=25))
    clients = ClientData.from_dataset(found, make_partition(found, ZipfDirichlet(4), Key(0)))
    assert clients.inputs is found.inputs
    assert clients.n == 4


def test_cache_distinguishes_recipes_backbones_and_images(weights, tmp_path, lines):
    data, folder = pictures(), tmp_path / "features"
    other = tmp_path / "other.safetensors"
    changed = {name: v.contiguous() for name, v in small_cnn().model.state_dict().items()}
    save_file({**changed, "7.bias": changed["7.bias"] + 1}, other)
    recipes = [
        Recipe("penultimate", weights),
        Recipe("penultimate", weights, standardise=True),
        Recipe("penultimate", str(other)),
        Recipe("penultimate", weights, resize=9),
        Recipe("entk", weights, count=9),
        Recipe("entk", weights, count=10),
        Recipe("entk", weights, count=10, seed=1),
    ]
    first = [featurise(data, recipe, folder, lines.append) for recipe in recipes]
    assert len(list(folder.iterdir())) == len(recipes)
    made = len(lines)
    for recipe, before in zip(recipes, first, strict=True):
        assert featurise(data, recipe, folder, lines.append).inputs.equal(before.inputs)
    assert len(lines) == made
    featurise(data, Recipe("penultimate", weights, count=3), folder, lines.append)  # the count has no effect
    assert len(lines) == made
    featurise(pictures(seed=1), recipes[0], folder, lines.append)
    assert len(lines) == made + 1
    assert lines[-1] == f"features of pictures by {weights}: 40 images"


def test_unresized_images_are_stored_once(weights, tmp_path):
    data = pictures()
    side = data.inputs.shape[2]
    found = [featurise(data, Recipe("penultimate", weights, resize=size), tmp_path) for size in (None, side)]
    assert torch.equal(found[0].inputs, found[1].inputs)
    assert len(list(tmp_path.glob("penultimate-*"))) == 1


def test_too_many_features_are_refused_early(weights, monkeypatch):
    with refused("out-of-memory", "feature_count", "10000000", "1000000", "37252.9 GiB"):
        check_memory(10**6, 10**7)
    module = importlib.import_module("drfl.data.features.featurise")  # drfl.data.features.featurise is the function
    monkeypatch.setattr(module, "entk", None)
    monkeypatch.setenv("DRFL_FILE_LIMIT", "1G")  # opening a file would otherwise call sysconf
    monkeypatch.setattr(module.os, "sysconf", lambda name: 10)
    with refused("out-of-memory", "feature_count", "40"):
        featurise(pictures(), Recipe("entk", weights))


def test_tables_are_refused(weights):
    y = torch.arange(4) % 2
    table = Dataset("table", torch.zeros(4, 3), y, torch.zeros(4, 3), y, 2)
    with refused("unsupported-data", "dataset", "'table'", "(3,)"):
        featurise(table, Recipe("penultimate", weights))


def test_images_of_another_size_are_refused(weights):
    with refused("unsupported-data", "backbone", "28×28", "resize = 8"):
        featurise(pictures(shape=(1, 28, 28)), Recipe("entk", weights))
