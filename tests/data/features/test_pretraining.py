"""Test that substitute networks are trained once, reproducibly, and cached."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.refusals import refused

from drfl.data import Dataset
from drfl.data.features import load_backbone, pretraining
from drfl.data.features.pretraining import Training, compute_accuracy, train

from .conftest import pictures

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
QUICK = Training(epochs=1, batch=32, lr=3e-3, weight_decay=0.01)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setitem(pretraining.TRAININGS, "cnn", QUICK)


def test_stand_in_is_trained_once_and_cached(quick, home, lines):
    first = load_backbone("cnn-digits", lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("cnn-digits: epoch 1 of 1, training loss ")
    told = json.loads((home / "cache/drfl/backbones/cnn-digits.json").read_text())
    assert told["training"] == asdict(QUICK)
    assert told["accuracy"] > 0.7
    assert f"{told['accuracy']:.1%}" in lines[0]
    assert {"python", "torch"} == set(told["versions"])
    second = load_backbone("cnn-digits", lines.append)
    assert len(lines) == 1
    assert second.digest == first.digest


@pytest.mark.parametrize("how", long_beyond(1, ["cut", "gone", "told_cut", "told_gone", "other_training", "no_table"]))
def test_inconsistent_cache_is_rebuilt(how, quick, home, lines, monkeypatch):
    first = load_backbone("cnn-digits", lines.append)
    weights, told = (home / "cache/drfl/backbones" / f"cnn-digits.{end}" for end in ("safetensors", "json"))
    before = weights.read_bytes()
    if how == "other_training":
        monkeypatch.setitem(pretraining.TRAININGS, "cnn", Training(2, 32, 3e-3, 0.01))
    elif how == "no_table":
        told.write_text("[]")
    else:
        path = told if how.startswith("told") else weights
        path.write_bytes(path.read_bytes()[:-9]) if how.endswith("cut") else path.unlink()
    second = load_backbone("cnn-digits", lines.append)
    assert len(lines) == (3 if how == "other_training" else 2)
    assert (second.digest == first.digest) == (weights.read_bytes() == before) == (how != "other_training")


def test_unwritable_cache_is_skipped(quick, lines, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # no user, including root, can create files under /proc
    assert load_backbone("cnn-digits", lines.append).classes == 10
    assert "cannot store cnn-digits in '/proc/nowhere/drfl/backbones'" in lines[-1]


@pytest.mark.parametrize("architecture", ["cnn", pytest.param("resnet18", marks=pytest.mark.long)])
def test_seed_changes_the_network_and_training_helps(architecture):
    data = pictures(60, 30) if architecture == "cnn" else pictures(16, 4)
    runs = [train(architecture, data, Training(2, 20, 3e-3, 0.01, seed), lambda line: None) for seed in (0, 0, 1)]
    digests = [backbone.digest for backbone, _ in runs]
    assert digests[0] == digests[1] != digests[2]
    backbone, accuracy = runs[0]
    assert not backbone.model.training
    assert not any(p.requires_grad for p in backbone.model.parameters())
    right = backbone.model(backbone.prepare(data.test_inputs, None)).argmax(1) == data.test_targets
    assert (
        accuracy
        == compute_accuracy(backbone, data.test_inputs, data.test_targets)
        == pytest.approx(right.float().mean())
    )
    if architecture == "cnn":
        assert accuracy > 0.8


@pytest.mark.long
def test_number_of_threads_does_not_change_the_weights():
    data, before = pictures(256, 30, (1, 28, 28)), torch.get_num_threads()
    digests = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            digests.append(train("cnn", data, Training(1, 128, 1e-3, 0.01), lambda line: None)[0].digest)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert digests[0] == digests[1]


@pytest.mark.long
def test_last_batch_of_one_sample_works():
    backbone, _ = train("resnet18", pictures(9, 3), Training(1, 4, 1e-3, 0.0), lambda line: None)
    assert all(value.isfinite().all() for value in backbone.model.state_dict().values())


def test_tables_are_refused():
    data = Dataset("table", torch.zeros(4, 3), torch.arange(4) % 2, torch.zeros(4, 3), torch.arange(4) % 2, 2)
    with refused("unsupported-data", "dataset", "'table'"):
        train("cnn", data, QUICK, lambda line: None)
