"""Test runs as published: their settings and refusals."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import check_refusal, refused

import drfl
from drfl.cli.app import call
from drfl.experiments.config.config import load_config

LOCAL = drfl.LocalSGD(steps=2, lr=0.1)
TASK = drfl.Task(torch.nn.Linear(3, 2))


def data():
    generator = torch.Generator().manual_seed(0)
    x = [torch.randn(30, 3, generator=generator) + i for i in range(3)]
    return drfl.ClientData.from_arrays([(rows, (rows.sum(1) > 0).long()) for rows in x])


def compared(algorithms, **options):
    options = {"rounds": 3, "seeds": 1, "progress": None, **options}
    return drfl.compare(algorithms, data(), TASK, **options)


def test_as_published_gives_the_last_iterate_without_guards():
    algorithms = {"DRFA": drfl.DRFA(m=2, gamma=0.01, local=LOCAL)}
    published = compared(algorithms, as_published=True)
    by_hand = compared(algorithms, returned="last", guards="none", step_bound=0)
    assert published.outcomes == by_hand.outcomes
    assert published.outcomes != compared(algorithms).outcomes


def test_every_table_states_as_published():
    found = compared({"FedAvg": drfl.FedAvg(m=2, local=LOCAL)}, as_published=True)
    for text in (found.to_markdown(), found.to_latex(), found._repr_html_()):
        assert text.count("as published") == 1
    assert "as published" not in compared({"FedAvg": drfl.FedAvg(m=2, local=LOCAL)}).to_markdown()


@pytest.mark.parametrize(
    ("algorithm", "field"),
    [
        (drfl.FedAvg(m=2), "lr"),
        (drfl.DRFA(m=2, local=LOCAL), "gamma"),
        (drfl.ScaffPD(local=LOCAL), "sigma"),
        (drfl.FedMGDAPlus(m=2, local=LOCAL), "server_lr"),
    ],
)
def test_missing_step_sizes_are_refused(algorithm, field):
    with refused("needs-option", field, type(algorithm).__name__):
        compared({"a": algorithm}, as_published=True)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("returned", "average"),
        ("guards", "trim:f=1"),
        ("step_bound", 10.0),
        ("aggregator", "median"),
        ("max_norm", 3.0),
    ],
)
def test_settings_without_a_paper_are_refused(setting, value):
    with refused("conflicting-options", setting):
        compared({"FedAvg": drfl.FedAvg(m=2, local=LOCAL)}, as_published=True, **{setting: value})


def test_command_and_file_accept_as_published(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ["run", "--clients", "4", "--rounds", "2", "--algorithm", "FedAvg", "--as-published"]
    check_refusal([*job, "--out", "a"], "needs-option", "lr")
    assert call([*job, "--lr", "0.1", "--out", "a"]) == 0
    assert load_config(tmp_path / "a" / "config.toml", {}).as_published
    assert call(["run", "a/config.toml", "--out", "b"]) == 0
    assert (tmp_path / "a/history.csv").read_bytes() == (tmp_path / "b/history.csv").read_bytes()
