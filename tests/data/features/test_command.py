"""Test features from the command line."""

from __future__ import annotations

import json
import tomllib

import pytest

from drfl.cli.app import call
from drfl.data.features import pretraining
from drfl.data.features.pretraining import Training

SMALL = ["--clients", "5", "--rounds", "2", "--steps", "2"]


@pytest.fixture(autouse=True)
def _quick(tmp_path, monkeypatch):
    monkeypatch.setitem(pretraining.TRAININGS, "cnn", Training(1, 64, 3e-3, 0.01))
    monkeypatch.chdir(tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        ["--features", "penultimate", "--backbone", "cnn-digits"],
        ["--features", "entk", "--backbone", "cnn_digits", "--feature-count", "60", "--loss", "squared"],
    ],
    ids=["penultimate", "entk"],
)
def test_saved_configuration_repeats_the_run(options, tmp_path):
    assert call(["run", *SMALL, *options, "--out", "a"]) == 0
    told = tomllib.loads((tmp_path / "a/config.toml").read_text())
    assert told["features"] == options[1]
    assert told["backbone"] == options[3]
    assert told["loss"] == ("squared" if "squared" in options else "cross-entropy")
    assert call(["run", "a/config.toml", "--out", "b"]) == 0
    for name in ("config.toml", "history.csv", "model.safetensors"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
    summary = json.loads((tmp_path / "a/summary.json").read_text())
    assert summary["model_parameters"] == 10 * (61 if "60" in options else 501)


@pytest.mark.long
def test_train_convexify_train(tmp_path):
    assert call(["run", *SMALL, "--algorithm", "FedAvg", "--model", "cnn", "--out", "first"]) == 0
    second = ["--features", "entk", "--backbone", "first/model.safetensors", "--feature-count", "50"]
    algorithms = ["--algorithms", "ScaffPD,DRDM", "--seeds", "2", "--loss", "squared", "--lr", "0.001"]
    assert call(["compare", *SMALL, *second, *algorithms, "--out", "second"]) == 0
    assert len(list((tmp_path / "cache/drfl/features").iterdir())) == 1
    assert (tmp_path / "second/table.md").exists()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--features", "entk"], "--features entk needs --backbone, such as 'resnet18-imagenet'"),
        (["--features", "ntk", "--backbone", "cnn-digits"], "--features must be 'penultimate' or 'entk', got 'ntk'"),
        (["--features", "entk", "--backbone", "cnn-digit"], "'cnn-digits'"),
        (["--features", "entk", "--backbone", "none.pth"], "none.pth"),
        (["--backbone", "cnn-digits"], "--backbone requires --features"),
        (["--feature-count", "3"], "--feature-count requires --features"),
        (["--resize", "3"], "--resize requires --features"),
        (
            ["--features", "penultimate", "--backbone", "cnn-digits", "--feature-count", "9"],
            "--feature-count has no effect on --features penultimate",
        ),
        (["--features", "entk", "--backbone", "cnn-digits", "--resize", "28"], "Set --resize 8"),
        (["--features", "penultimate", "--backbone", "cnn-digits", "--model", "cnn"], "the CNN needs inputs"),
        (["--features", "entk", "--backbone", "cnn-digits", "--dataset", "heart-disease"], "is a table"),
        (["--features", "penultimate", "--backbone", "resnet18-imagenet"], "cannot download"),
        (["--loss", "hinge"], "unknown loss 'hinge'"),
    ],
)
@pytest.mark.parametrize("command", ["run", pytest.param("compare", marks=pytest.mark.long)])
def test_mistake_is_one_line_and_leaves_no_results(command, options, part, tmp_path, capsys):
    assert call([command, *options]) == 2
    *told, mistake = capsys.readouterr().err.splitlines()  # some of these commands first train a backbone
    assert part in mistake
    assert mistake.startswith("drfl: ")
    assert not any(line.startswith("drfl: ") for line in told)
    assert not (tmp_path / "runs").exists()
