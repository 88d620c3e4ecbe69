"""Test targets that are conditions, such as 'price > 100'."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import refused

from drfl import load_model
from drfl.cli.app import call
from drfl.data import ClientData
from drfl.data.table_description import check_files, describe
from drfl.data.tables.columns import Columns
from drfl.data.tables.conditions import Condition
from drfl.data.tables.hugging_face import from_splits
from drfl.data.tables.table_files import read_tables
from drfl.flower.site_data import load_site


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("price > 100000", ("price", ">", 100000)),
        ("price>=-1.5e3", ("price", ">=", -1500)),
        (" length of stay<.5 ", ("length of stay", "<", 0.5)),
        ("`a > b` != 2", ("a > b", "!=", 2)),
        ("stage == IV b", ("stage", "==", "IV b")),
        ("stage != 'IV'", ("stage", "!=", "IV")),
        ('code == "007"', ("code", "==", "007")),
        ("x <= +3.", ("x", "<=", 3)),
    ],
)
def test_conditions_are_parsed(text, parts):
    assert Condition.parse(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "price", "price > ", "> 3", "price = 3", "price > IV", "price > 1e999", "price >> 3", "1 < price < 3",
        "a > 1 and b > 2", "a == ''", "`a > 3", "a == 'x", "a > nan", "a(1) > b(2)", "a > 3 4", "a =< 3",
    ],
)  # fmt: skip
def test_other_texts_are_not_conditions(text):
    assert Condition.parse(text) is None


def houses(seed=0, n=120):
    rng = np.random.default_rng(seed)
    size = rng.normal(100, 20, n).round(1)
    return pd.DataFrame(
        {"size": size, "price": (size * 3 + rng.normal(0, 30, n)).round(2), "kind": rng.choice(["flat", "hut"], n)}
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sites").mkdir()
    for seed, name in enumerate("abc"):
        houses(seed).to_csv(tmp_path / "sites" / f"{name}.csv", index=False)
    return tmp_path


TARGET = "price > 300"


def test_all_routes_give_the_same_targets(folder):
    expected = torch.from_numpy(np.concatenate([(houses(seed).price > 300).to_numpy() for seed in range(3)])).long()
    plain = read_tables([folder / "sites"], TARGET)
    assert torch.equal(plain.targets, expected)
    assert (plain.class_names, plain.columns) == (("no", "yes"), ("size", "kind_hut"))

    schema = describe([folder / "sites"], TARGET).schema
    assert (schema.positive, schema.classes, schema.task) == ("yes", ("no", "yes"), "classification")
    schema.write(folder / "schema.toml")
    assert not any(file.problems for file in check_files([folder / "sites"], schema).files)
    described = read_tables([folder / "sites"], TARGET, schema=schema)
    assert torch.equal(described.targets, expected)
    assert described.columns == ("size", "kind_hut")

    frame = pd.concat([houses(seed).assign(site="abc"[seed]) for seed in range(3)], ignore_index=True)
    framed = ClientData.from_frame(frame.drop(columns="kind"), group="site", target=TARGET)
    assert torch.equal(framed.targets, expected)
    assert (framed.classes, framed.columns) == (("no", "yes"), ("size",))

    hub = from_splits("h", "h", datasets.Dataset.from_pandas(frame), Columns((TARGET,), "site"))
    assert torch.equal(hub.targets, expected)
    assert hub.columns == plain.columns

    inputs = np.concatenate([houses(seed)[["size"]] for seed in range(3)])
    np.savez(folder / "all.npz", inputs=inputs, price=frame.price)
    assert torch.equal(read_tables([folder / "all.npz"], TARGET).targets, expected)

    for data in ('schema = "schema.toml"', f"target = '{TARGET}'"):
        without = houses(1) if "schema" in data else houses(1).drop(columns="kind")
        without.to_csv(folder / "site.csv", index=False)
        (folder / "site.toml").write_text(f'name = "b"\n[data]\ncsv = "site.csv"\n{data}\n')
        site = load_site(folder / "site.toml")
        assert torch.equal(site.targets, expected[120:240])
        assert site.classes == ("no", "yes")


def test_several_conditions_are_labels_with_unknown_values(folder):
    frame = houses()
    frame.loc[3, "price"] = np.nan
    frame.to_csv(folder / "one.csv", index=False)
    targets, task = ["price > 300", "price > 350", "kind == hut"], "multi-label"
    expected = np.stack([frame.price > 300, frame.price > 350, frame.kind == "hut"], 1).astype(np.float32)
    expected[3, :2] = np.nan
    schema = describe([folder / "one.csv"], targets).schema
    assert schema.task == task
    for data in (
        read_tables([folder / "one.csv"], targets, task=task),
        read_tables([folder / "one.csv"], schema=schema),
        ClientData.from_frame(frame.assign(site=frame.index % 2), group="site", target=targets),
        from_splits("h", "h", datasets.Dataset.from_pandas(frame), Columns(tuple(targets), task=task)),
    ):
        np.testing.assert_array_equal(data.targets.float().numpy(), expected)
        assert data.inputs.shape[1] == 1
    np.savez(folder / "one.npz", inputs=frame[["size"]], price=frame.price)
    arrays = read_tables([folder / "one.npz"], targets[:2], task=task)
    np.testing.assert_array_equal(arrays.targets.numpy(), expected[:, :2])


def test_missing_value_is_refused_and_never_compared(folder):
    frame = houses()
    frame.loc[4, "price"] = np.nan
    frame.to_csv(folder / "one.csv", index=False)
    for target in (TARGET, "price != 300"):
        with refused("missing-values", target, "line 6"):
            read_tables([folder / "one.csv"], target)
    schema = describe([folder / "sites"], TARGET).schema
    with refused("missing-values", "price", "line 6"):
        read_tables([folder / "one.csv"], schema=schema)
    with refused("missing-values", TARGET, "row 4"):
        ClientData.from_frame(frame.drop(columns="kind").assign(s=1), group="s", target=TARGET)


def test_column_of_that_name_takes_precedence(folder):
    frame = houses().assign(**{TARGET: np.arange(120) % 2})
    frame.to_csv(folder / "one.csv", index=False)
    data = read_tables([folder / "one.csv"], TARGET)
    assert torch.equal(data.targets, torch.arange(120) % 2)
    assert "price" in data.columns


def test_texts_are_compared_as_written(folder):
    (folder / "one.csv").write_text("code,x\n" + "007,1\n7,2\n008,3\nA,4\n" * 9)
    for schema in (None, describe([folder / "one.csv"], "code == '007'").schema):
        data = read_tables([folder / "one.csv"], "code == '007'", schema=schema)
        assert data.targets.tolist() == [1, 0, 0, 0] * 9


def test_numbers_are_read_as_in_features(folder):
    (folder / "one.csv").write_text("price;x\n" + "1.234,5;1\n12,25;2\n" * 9)
    for schema in (None, describe([folder / "one.csv"], "price > 1000").schema):
        assert read_tables([folder / "one.csv"], "price > 1000", schema=schema).targets.tolist() == [1, 0] * 9


@pytest.mark.long
def test_unsuitable_conditions_are_refused(folder):
    path, schema = [folder / "sites"], describe([folder / "sites"], TARGET).schema
    with refused("invalid-format", "target", "price = 3"):
        read_tables(path, "price = 3")
    with refused("unknown-name", "target", "prise"):
        read_tables(path, "prise > 3")
    with refused("conflicting-options", "target", "price"):
        read_tables(path, TARGET, drop=["price"])
    with refused("conflicting-options", "target", "price"):
        read_tables(path, [TARGET, "price"], task="multi-label")
    with refused("invalid-value", TARGET):
        read_tables(path, TARGET, task="regression")
    with refused("constant-target", "price > 1e9"):
        read_tables(path, "price > 1e9")
    with refused("conflicting-options", "target", "price > 299"):
        read_tables(path, "price > 299", schema=schema)
    with refused("not-a-number", "kind", "'flat'"):
        read_tables(path, "kind > 3")
    houses().drop(columns="price").to_csv(folder / "one.csv", index=False)
    with refused("unknown-name", "target", "price", "schema") as caught:
        read_tables([folder / "one.csv"], schema=schema)
    assert "`target`" not in str(caught.value)  # the option was not given
    bad = houses().astype({"price": object})
    bad.loc[2, "price"] = "cheap"
    bad.to_csv(folder / "one.csv", index=False)
    problems = describe([folder / "one.csv"], TARGET).problems
    assert [(p.code, p.field) for p in problems] == [("not-a-number", "price")]


def test_schema_column_cannot_be_feature_and_condition(folder):
    schema = describe([folder / "sites"], "size > 100").schema
    text = (folder / "s.toml").write_text
    schema.write(folder / "s.toml")
    content = (folder / "s.toml").read_text()
    text(content + '\n[columns.size]\ntype = "number"\n')
    problems = check_files([folder / "sites"], type(schema).read(folder / "s.toml")).files[0].problems
    assert [(p.code, p.field) for p in problems] == [("conflicting-options", "size")]
    text(content + '\n[columns.size]\ntype = "number"\nrole = "excluded"\n')
    check = check_files([folder / "sites"], type(schema).read(folder / "s.toml"))
    assert not check.files[0].problems


def test_conditions_in_command_and_model_file(folder, capsys):
    out = folder / "run"
    options = ["--target", TARGET, "--algorithm", "FedAvg", "--cohort", "2", "--rounds", "3", "--out", str(out)]
    assert call(["run", "--data", str(folder / "sites"), *options]) == 0
    model = load_model(out)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.about["positive_class"] == "yes"
    assert [column.name for column in model.schema.targets] == [TARGET]
    assert list(model.feature_names_in_) == ["size", "kind"]
    capsys.readouterr()
    houses(7).to_csv(folder / "new.csv", index=False)
    houses(7).drop(columns="price").to_csv(folder / "unknown.csv", index=False)
    texts = []
    for name in ("new.csv", "unknown.csv"):
        predicted = folder / f"predicted-{name}"
        assert call(["predict", str(out), str(folder / name), "--out", str(predicted)]) == 0
        texts.append(predicted.read_text())
    capsys.readouterr()
    assert texts[0] == texts[1]
    assert texts[0].startswith("row,prediction,probability_no,probability_yes\n1,")
    assert call(["data", "describe", str(folder / "sites"), "--target", TARGET, "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    counts = [int((houses(seed).price > 300).sum()) for seed in range(3)]
    assert [client["positive"] for client in described["clients"]] == counts
