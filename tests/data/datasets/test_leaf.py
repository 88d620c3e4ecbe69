"""Test data in LEAF's JSON format."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.cli.app import call
from drfl.data import ClientData, Natural
from drfl.data.datasets.leaf import leaf_files, read_leaf
from drfl.data.datasets.shakespeare import VOCABULARY, WINDOW
from drfl.experiments.config.config import load_config
from drfl.experiments.execution.training_cells import job_from_config


def user(seed, n, shape=(3,)):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, *shape)).round(3)
    return {"x": x.tolist(), "y": (x.reshape(n, -1).sum(1) > 0).astype(int).tolist()}


def write(path, users, **other):
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in users.values()]
    content = {"users": [*users], "num_samples": counts, "user_data": users, **other}
    path.write_text(json.dumps(content))
    return content


def test_users_are_clients_and_the_official_split_is_kept(tmp_path):
    train = {name: user(k, 20 + k) for k, name in enumerate(["f1", "f0", "f2"])}
    test = {name: user(9 + k, 7) for k, name in enumerate(["f0", "f1", "f2"])}
    first, *rest = train.items()
    # LEAF's format: users may have groups, and a removed user has no rows.
    write(tmp_path / "train/all_data_0_train_9.json", dict([first]), hierarchies=["play"])
    content = write(tmp_path / "train/all_data_1_train_9.json", dict(rest))
    content["user_data"]["removed"] = {"x": [], "y": []}
    (tmp_path / "train/all_data_1_train_9.json").write_text(json.dumps(content))
    write(tmp_path / "test/all_data_0_test_9.json", test)
    (tmp_path / "all_data").mkdir()

    dataset = read_leaf(tmp_path)
    data = ClientData.from_dataset(dataset, Natural())
    assert data.names == ("f0", "f1", "f2")
    assert [len(rows) for rows in data.train] == [21, 20, 22]
    for k, name in enumerate(data.names):
        assert torch.equal(data.targets[data.train[k]], torch.tensor(train[name]["y"]))
        assert torch.equal(data.test_targets[data.test[k]], torch.tensor(test[name]["y"]))
        assert torch.equal(dataset.inputs[data.train[k]], torch.tensor(train[name]["x"]))
        assert torch.equal(dataset.test_inputs[data.test[k]], torch.tensor(test[name]["x"]))
    assert data.standardisation is not None


@pytest.mark.parametrize("single", [True, False])
def test_test_rows_are_drawn_without_an_official_split(tmp_path, single):
    write(tmp_path / "all_data.json", {"a": user(0, 30, (2, 4, 4)), "b": user(1, 20, (2, 4, 4))})
    dataset = read_leaf(tmp_path / "all_data.json" if single else tmp_path)
    assert (dataset.is_one_pool, dataset.inputs.shape, dataset.standardise) == (True, (50, 2, 4, 4), False)
    data = ClientData.from_dataset(dataset, Natural())
    assert [len(rows) for rows in data.test] == [6, 4]


@pytest.mark.long
def test_texts_use_the_tokens_of_the_shakespeare_data(tmp_path):
    play = "To be, or not to be: that is the question. " * 4
    x = [play[k : k + WINDOW] for k in range(20)]
    y = [play[k + WINDOW] for k in range(20)]
    users = {"HAMLET": {"x": x, "y": y}, "OPHELIA": {"x": [x[3].replace(" ", "_"), *x[:4]], "y": y[:5]}}
    write(tmp_path / "train/a.json", users)
    write(tmp_path / "test/a.json", users)
    dataset = read_leaf(tmp_path)
    assert (dataset.inputs.dtype, dataset.inputs.shape, dataset.classes) == (torch.int64, (25, WINDOW), len(VOCABULARY))
    assert ["".join(VOCABULARY[k] for k in row) for row in dataset.inputs[:20].tolist()] == x
    assert "".join(VOCABULARY[k] for k in dataset.targets[:20].tolist()) == "".join(y)
    assert "".join(VOCABULARY[k] for k in dataset.inputs[20].tolist()) == x[3]
    settings = {"model": "lstm", "rounds": 1, "cohort": 2}
    assert load_config(None, {"data": tmp_path, **settings}).partition == "natural"
    assert call(["run", "--data", str(tmp_path), "--model", "lstm", "--rounds", "1", "--cohort", "2",
                 "--out", str(tmp_path / "run")]) == 0  # fmt: skip


def test_numeric_text_and_label_targets(tmp_path):
    numbers, words, labels = user(0, 12), user(0, 12), user(0, 12)
    numbers["y"] = [k / 7 for k in range(12)]
    words["y"] = ["up", "down"] * 6
    labels["y"] = [[1, 0], [0, 1]] * 6
    write(tmp_path / "numbers.json", {"a": numbers})
    write(tmp_path / "words.json", {"a": words})
    write(tmp_path / "labels.json", {"a": labels})
    assert torch.allclose(read_leaf(tmp_path / "numbers.json", "regression").targets, torch.tensor(numbers["y"]))
    named = read_leaf(tmp_path / "words.json")
    assert (named.class_names, named.targets.tolist()) == (("down", "up"), [1, 0] * 6)
    assert read_leaf(tmp_path / "labels.json", "multi-label").targets.tolist() == labels["y"]
    with refused("invalid-value", "y", "a", "2"):
        read_leaf(tmp_path / "numbers.json")


def broken(content, change):
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        (lambda c: c.pop("users"), "unsupported-file", "users"),
        (lambda c: c.pop("user_data"), "unsupported-file", "user_data"),
        (lambda c: c.update(users="ab"), "wrong-type", "users"),
        (lambda c: c.update(users=["a", 3]), "wrong-type", "users"),
        (lambda c: c.update(num_samples=[12, None]), "wrong-type", "num_samples"),
        (lambda c: c.update(num_samples=[12]), "count-mismatch", "num_samples"),
        (lambda c: c.update(num_samples=[12, 13]), "count-mismatch", "b"),
        (lambda c: c.update(users=["a", "a"]), "duplicate-name", "a"),
        (lambda c: c.update(users=[], num_samples=[]), "no-rows", None),
        (lambda c: c["user_data"].pop("b"), "missing-column", "b"),
        (lambda c: c["user_data"]["b"].pop("x"), "missing-column", "b"),
        (lambda c: c["user_data"]["b"]["x"].pop(), "count-mismatch", "b"),
        (lambda c: c["user_data"]["b"]["x"].__setitem__(4, [1, 2]), "not-a-number", "b"),
        (lambda c: c["user_data"]["b"]["x"].__setitem__(4, [1, 2, "?"]), "not-a-number", "b"),
        (lambda c: c["user_data"]["b"]["x"].__setitem__(4, [1, 2, None]), "not-a-number", "b"),
        (lambda c: c["user_data"]["b"]["x"].__setitem__(4, [1, 2, float("nan")]), "not-a-number", "b"),
        (lambda c: c["user_data"]["b"].update(x=[[1, 2]] * 12), "wrong-shape", "b"),
        (lambda c: c["user_data"]["b"].update(y=[[1, 2]] * 12), "wrong-shape", "b"),
        (lambda c: c["user_data"]["b"].update(y=[None] * 12), "not-a-number", "b"),
        (lambda c: c["user_data"]["b"].update(x=["0001.jpg"] * 12), "unsupported-data", "b"),
        (lambda c: c["user_data"]["b"].update(x=["a", "bc"] * 6, y=["a"] * 12), "unsupported-data", "b"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path, change, code, field):
    content = write(tmp_path / "x.json", {"a": user(0, 12), "b": user(1, 12)})
    (tmp_path / "x.json").write_text(json.dumps(broken(content, change)))
    with refused(code, field):
        read_leaf(tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_part_without_rows_is_refused(tmp_path, part):
    write(tmp_path / "train/x.json", {"a": user(0, 12), "b": user(1, 12)})
    write(tmp_path / "test/x.json", {"a": user(2, 12), "b": user(3, 12)})
    write(tmp_path / part / "x.json", {"a": {"x": [], "y": []}})
    with refused("no-rows", str(tmp_path / part)):
        read_leaf(tmp_path)


def test_non_json_files_and_clients_without_test_rows_are_refused(tmp_path):
    (tmp_path / "x.json").write_text('{"users": ["a"')
    with refused("damaged-file"):
        read_leaf(tmp_path)
    write(tmp_path / "split/train/x.json", {"a": user(0, 12), "b": user(1, 12)})
    write(tmp_path / "split/test/x.json", {"a": user(2, 12), "c": user(1, 12)})
    with refused("no-rows", "b"):
        ClientData.from_dataset(read_leaf(tmp_path / "split"), Natural())
    spec = drfl.data_spec(data=tmp_path / "split", test_fraction=0.5)
    assert spec.for_seed(0).names == ("a", "b", "c")


def test_options_without_effect_on_leaf_data_are_refused(tmp_path):
    write(tmp_path / "leaf/x.json", {"a": user(0, 12), "b": user(1, 12)})
    with refused("unused-option", "target"):
        load_config(None, {"data": tmp_path / "leaf", "target": "y"})
    with refused("conflicting-options", "data"):
        load_config(None, {"data": [tmp_path / "leaf", tmp_path / "leaf/x.json"]})
    pd.DataFrame({"x": [1.0, 2, 3, 4], "y": [0, 1, 0, 1]}).to_csv(tmp_path / "leaf/table.csv", index=False)
    assert leaf_files(tmp_path / "leaf") is None  # a folder of tables, with notes in JSON


def test_comparison_detects_a_changed_file(tmp_path):
    write(tmp_path / "x.json", {"a": user(0, 12), "b": user(1, 12)})
    before = job_from_config(load_config(None, {"data": tmp_path}))["files"]
    write(tmp_path / "x.json", {"a": user(5, 12), "b": user(1, 12)})
    after = job_from_config(load_config(None, {"data": tmp_path}))["files"]
    assert [*before] == [*after] == [(tmp_path / "x.json").as_posix()]
    assert before != after
