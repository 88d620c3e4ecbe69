"""Test that the same files give the same inputs, targets and split in a simulation, a data frame and deployed sites."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from pandas.api.types import is_numeric_dtype
from tests.support.marks import crossed
from tests.support.refusals import refused

from drfl import FedAvg, Natural, ReadOptions, Task, compare, data_spec, evaluate, load_model, models
from drfl.data import ClientData
from drfl.data.table_description import describe
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import read_tables
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.flower.site_data import load_site


def sites(folder, permuted=()):
    """Write four files with numbers, categories, dates and blanks, some with their columns in another order."""
    frames = {}
    (folder / "sites").mkdir(parents=True)
    for seed, name in enumerate("abcd"):
        rng, n = np.random.default_rng(seed), 90
        days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D")
        frame = pd.DataFrame(
            {
                "age": rng.normal(60, 10, n).round(),
                "creatinine": rng.normal(1.1, 0.2, n).round(2),
                "sex": rng.choice(["m", "f"], n),
                "stage": rng.choice(["I", "II", "III"], n),
                "seen": days.strftime("%Y-%m-%d"),
                "ill": rng.choice(["no", "yes"], n),
            }
        )
        frame.loc[rng.choice(n, 6, replace=False), "creatinine"] = np.nan
        order = list(frame.columns[::-1] if name in permuted else frame.columns)
        frame[order].to_csv(folder / "sites" / f"{name}.csv", index=False)
        frames[name] = frame
    return frames


def test_all_routes_give_the_same_tensors_and_split(tmp_path):
    frames = sites(tmp_path, permuted="c")
    schema = describe([tmp_path / "sites"], "ill").schema
    schema.write(tmp_path / "schema.toml")
    simulated = ClientData.from_dataset(read_tables([tmp_path / "sites"], schema=schema), Natural())
    assert simulated.names == tuple("abcd")

    whole = pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)
    named = replace(schema, columns=(*schema.columns, Column("site", "text", role="client")))
    framed = ClientData.from_frame(whole, schema=named)
    assert torch.equal(framed.inputs, simulated.inputs)
    assert torch.equal(framed.targets, simulated.targets)
    assert all(map(torch.equal, framed.test, simulated.test))

    start = 0
    for k, name in enumerate("abcd"):
        path = tmp_path / f"{name}.toml"
        text = f'csv = "sites/{name}.csv"\nschema = "schema.toml"\n'
        path.write_text(f'name = "{name}"\ndtype = "float64"\n[data]\n{text}')
        site = load_site(path)
        rows = slice(start, start + len(site.inputs))
        inputs = site.standardised(simulated.standardisation).inputs.float()
        assert torch.equal(inputs, simulated.inputs[rows])
        assert torch.equal(site.targets, simulated.targets[rows])
        assert torch.equal(site.test[0] + start, simulated.test[k])
        start = rows.stop


@pytest.mark.parametrize("answer", ["class", "number"])
def test_words_of_a_data_frame_are_read_like_those_of_a_file(tmp_path, answer):
    whole = pd.concat([frame.assign(site=name) for name, frame in sites(tmp_path).items()], ignore_index=True)
    whole = whole.drop(columns=["seen", "creatinine"])
    if answer == "number":
        whole["ill"] = whole["age"] / 7
    task = "regression" if answer == "number" else None
    whole.to_csv(tmp_path / "whole.csv", index=False)
    of_file = ClientData.from_dataset(read_tables([tmp_path / "whole.csv"], "ill", group="site", task=task), Natural())
    of_frame = ClientData.from_frame(whole, group="site", target="ill")
    assert of_frame.columns == of_file.columns == ("age", "sex_m", "stage_II", "stage_III")
    assert of_frame.schema == of_file.schema
    assert torch.equal(of_frame.inputs, of_file.inputs)
    assert torch.equal(of_frame.targets, of_file.targets.to(of_frame.targets.dtype))
    assert of_frame.names == of_file.names


def test_numbers_are_names_in_a_column_of_categories():
    frame = pd.DataFrame({"site": ["a"] * 6 + ["b"] * 6, "ward": [10, 9, 8] * 4, "ill": [0, 1] * 6})
    data = ClientData.from_frame(frame.astype({"ward": "category"}), group="site", target="ill", standardise=False)
    assert data.columns == ("ward_8", "ward_9")
    assert data.inputs[:3].tolist() == [[0, 0], [0, 1], [1, 0]]


def as_npz(whole, folder):
    columns = {
        name: values.to_numpy() if is_numeric_dtype(values) else values.to_numpy().astype("U")
        for name, values in whole.items()
    }
    np.savez(folder / "whole.npz", **columns)
    return folder / "whole.npz"


def test_parquet_columns_of_decimals_and_a_named_index_are_read(tmp_path):
    half = [Decimal(k) / 4 if k % 3 else None for k in range(24)]
    frame = pd.DataFrame(
        {"chol": [Decimal(k) / 4 for k in range(24)], "code": [*map(Decimal, range(24))], "half": half}
    )
    frame["ill"], frame["visit"] = [0, 1] * 12, range(100, 124)
    frame.set_index("visit").to_parquet(tmp_path / "a.parquet")
    table = Table.read(tmp_path / "a.parquet", ["ill"]).frame
    assert table.dtypes.astype(str).to_dict() == {
        "chol": "float64", "code": "int64", "half": "float64", "ill": "int64", "visit": "int64",
    }  # fmt: skip
    assert table["chol"][:3].tolist() == [0.0, 0.25, 0.5]
    assert table["visit"].tolist() == [*range(100, 124)]
    assert table["half"].isna().sum() == 8
    data = read_tables([tmp_path / "a.parquet"], "ill", drop=["half"])
    assert data.columns == ("chol", "code", "visit")
    of_frame = ClientData.from_frame(
        frame.drop(columns="half").assign(site=["a", "b"] * 12), group="site", target="ill", standardise=False
    )
    assert of_frame.inputs[:, 0].sum() == 69


def as_parquet(whole, folder):
    whole.to_parquet(folder / "whole.parquet")
    return folder / "whole.parquet"


def as_sheet(whole, folder):
    whole.to_excel(folder / "whole.xlsx", index=False)
    return folder / "whole.xlsx"


def as_saved_data_set(whole, folder):
    datasets.disable_progress_bars()
    datasets.Dataset.from_pandas(whole).save_to_disk(folder / "whole")
    return folder / "whole"


def built(path, columns):
    return build(load_config(None, {"data": str(path), **columns})).data


@pytest.fixture(scope="module")
def with_schema(tmp_path_factory):
    """Return a frame of all sites, the options that name its schema, and the data of its CSV file."""
    folder = tmp_path_factory.mktemp("with")
    frames = sites(folder)
    schema = describe([folder / "sites"], "ill").schema
    replace(schema, columns=(*schema.columns, Column("site", "text", role="client"))).write(folder / "schema.toml")
    whole = pd.concat([frame.assign(site=name) for name, frame in frames.items()], ignore_index=True)
    whole.to_csv(folder / "whole.csv", index=False)
    columns = {"data_schema": str(folder / "schema.toml")}
    return whole, columns, built(folder / "whole.csv", columns)


@pytest.fixture(scope="module")
def without_schema(with_schema, tmp_path_factory):
    whole = with_schema[0].drop(columns=["creatinine", "seen"])
    path, columns = tmp_path_factory.mktemp("without") / "whole.csv", {"target": "ill", "group": "site"}
    whole.to_csv(path, index=False)
    return whole, columns, built(path, columns)


@pytest.mark.parametrize(
    ("write", "source"),
    crossed([as_npz, as_parquet, as_sheet, as_saved_data_set], ["with_schema", "without_schema"]),
)
def test_other_formats_give_the_same_tensors_and_split(write, source, tmp_path, request):
    whole, columns, data = request.getfixturevalue(source)
    same = built(write(whole, tmp_path), columns)
    assert (same.names, same.columns, same.classes) == (data.names, data.columns, data.classes)
    assert torch.equal(same.inputs, data.inputs)
    assert torch.equal(same.targets, data.targets)
    assert all(map(torch.equal, (*same.train, *same.test), (*data.train, *data.test)))


def test_named_npz_inputs_are_a_table_and_others_refuse_a_schema(tmp_path):
    x = np.arange(24.0).reshape(12, 2)
    schema = TableSchema(
        (Column("a", "number"), Column("b", "number"), Column("y", "number", role="target")), "regression"
    )
    np.savez(tmp_path / "named.npz", inputs=x, columns=["a", "b"], y=x[:, 0] * 2)
    for data in (
        read_tables([tmp_path / "named.npz"], schema=schema),
        read_tables([tmp_path / "named.npz"], "y", task="regression"),
    ):
        assert data.columns == ("a", "b")
        assert data.inputs.tolist() == x.tolist()
        assert data.targets.tolist() == (x[:, 0] * 2).tolist()
    np.savez(tmp_path / "bare.npz", inputs=x, y=x[:, 0])
    with refused("unsupported-file", str(tmp_path / "bare.npz"), "'columns'"):
        read_tables([tmp_path / "bare.npz"], schema=schema)
    np.savez(tmp_path / "few.npz", inputs=x, columns=["a"], y=x[:, 0])
    with refused("count-mismatch", "columns"):
        read_tables([tmp_path / "few.npz"], schema=schema)


def test_column_order_at_one_site_does_not_matter(tmp_path):
    sites(tmp_path / "plain"), sites(tmp_path / "permuted", permuted="bd")
    schema = describe([tmp_path / "plain" / "sites"], "ill").schema
    plain, permuted = (read_tables([tmp_path / name / "sites"], schema=schema) for name in ("plain", "permuted"))
    assert torch.equal(plain.inputs.nan_to_num(-1), permuted.inputs.nan_to_num(-1))
    assert torch.equal(plain.targets, permuted.targets)
    data = read_tables([tmp_path / "permuted" / "sites"], "ill", drop=["seen", "creatinine"])
    assert data.columns == ("age", "sex_m", "stage_II", "stage_III")


def test_group_names_are_text_in_all_files(tmp_path):
    (tmp_path / "a.csv").write_text("ward,x,ill\n" + "007,1,0\n7,2,1\n" * 6)
    (tmp_path / "b.csv").write_text("ward,x,ill\n" + "7.0,3,0\n007,4,1\n" * 6)
    assert set(read_tables([tmp_path], "ill", "ward").groups) == {"007", "7"}


WRITTEN = {"excel": ("FALSE", "TRUE"), "lower": ("false", "true"), "pandas": ("False", "True")}
"""Spellings of truth values by file name, in the order in which files are read."""


def flags(folder, blanks=()):
    """Write three files with the same truth values in different spellings, some with blank cells."""
    folder.mkdir()
    truths = np.arange(60) % 3 == 0
    for k, (name, (no, yes)) in enumerate(WRITTEN.items()):
        frame = pd.DataFrame({"dose": np.arange(60) + 0.5 * k, "flag": np.where(truths, yes, no), "ill": truths[::-1]})
        frame.loc[[4] if name in blanks else [], "flag"] = ""
        frame.to_csv(folder / f"{name}.csv", index=False)
    return folder


@pytest.mark.parametrize(
    "blanks", [(), pytest.param(("pandas",), marks=pytest.mark.long), tuple(WRITTEN)], ids=["none", "one", "all"]
)
def test_truth_values_are_one_column_in_every_spelling(tmp_path, blanks):
    folder = flags(tmp_path / "sites", blanks)
    found = describe([folder], "ill")
    assert not found.problems
    column = next(column for column in found.schema.columns if column.name == "flag")
    assert (column.type, column.levels) == ("yes/no", ("False", "True"))
    expected = np.tile(np.arange(60) % 3 == 0, 3).astype(float)
    expected[[60 * k + 4 for k, name in enumerate(WRITTEN) if name in blanks]] = np.nan
    # All files also conform to a schema with the spelling of one file.
    for levels in WRITTEN.values():
        parts = [replace(each, levels=levels) if each == column else each for each in found.schema.columns]
        schema = replace(found.schema, columns=tuple(parts))
        read = read_tables([folder], schema=schema)
        at = read.columns.index(f"flag_{levels[1]}")
        np.testing.assert_array_equal(read.inputs[:, at], expected)
        # pandas reads all three spellings as truth values.
        frame = pd.concat([pd.read_csv(path).assign(site=path.stem) for path in sorted(folder.iterdir())])
        named = replace(schema, columns=(*schema.columns, Column("site", "text", role="client")))
        data = ClientData.from_frame(frame, schema=named, standardise=False)
        np.testing.assert_array_equal(data.inputs, read.inputs.float())
    # Without a schema, they are one column of 0 and 1.
    if not blanks:
        read = read_tables([folder], "ill")
        assert read.columns == ("dose", "flag")
        np.testing.assert_array_equal(read.inputs[:, 1], expected)


def test_truth_values_are_words_if_another_file_has_other_words(tmp_path):
    folder = flags(tmp_path / "sites")
    with (folder / "excel.csv").open("a") as file:
        file.write("1.5,unknown,False\n")
    read = read_tables([folder], "ill")
    assert read.columns == ("dose", "flag_True", "flag_unknown")
    assert read.inputs[:, 1].sum() == 60


@pytest.mark.parametrize("ending", ["parquet", pytest.param("xlsx", marks=pytest.mark.long)])
def test_truth_values_with_blanks_are_equal_in_typed_and_text_files(tmp_path, ending):
    folder = flags(tmp_path / "sites", tuple(WRITTEN))
    schema = describe([folder], "ill").schema
    frame = pd.read_csv(folder / "excel.csv")
    file = tmp_path / f"excel.{ending}"
    (frame.to_parquet if ending == "parquet" else frame.to_excel)(file, index=False)
    text, typed = read_tables([folder / "excel.csv"], schema=schema), read_tables([file], schema=schema)
    np.testing.assert_array_equal(text.inputs, typed.inputs)


def categories(n=96):
    """Return a frame of categories with other orders than their texts, and with values that have no rows."""
    rng = np.random.default_rng(0)
    stage = rng.choice(["low", "mid", "high"], n)
    return pd.DataFrame(
        {
            "site": pd.Categorical(rng.choice([2, 1], n), categories=[3, 2, 1]),
            "stage": pd.Categorical(stage, categories=["none", "low", "mid", "high"]),
            "grade": pd.Categorical(rng.choice([10, 9], n), categories=[10, 9, 8]),
            "smokes": pd.Categorical(rng.random(n) > 0.5, categories=[True, False]),
            "ill": pd.Categorical(np.where(stage == "low", "no", "yes"), categories=["yes", "maybe", "no"]),
        }
    )


@pytest.mark.parametrize("reading", [ReadOptions(), ReadOptions(missing=("?",))])
def test_categories_of_a_file_are_read_as_their_values(tmp_path, reading):
    frame = categories()
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    text, typed = (
        read_tables([tmp_path / f"a.{ending}"], "ill", "site", reading=reading) for ending in ("csv", "parquet")
    )
    assert typed.columns == typed.schema.features == text.columns
    assert typed.schema == text.schema
    assert (typed.class_names, typed.groups) == (text.class_names, text.groups) == (("no", "yes"), text.groups)
    assert torch.equal(typed.inputs, text.inputs)
    assert torch.equal(typed.targets, text.targets)


@pytest.mark.parametrize("target", ["ill", pytest.param("smokes", marks=pytest.mark.long)])
def test_model_of_categories_predicts_as_in_its_run(tmp_path, target):
    frame = categories()
    frame.to_parquet(tmp_path / "a.parquet")
    data = data_spec(data=str(tmp_path / "a.parquet"), target=target, group="site").for_seed(0)
    task = Task(models.linear((len(data.columns),), 2))
    compare({"F": FedAvg(m=2)}, data, task, rounds=20, seeds=1, out=tmp_path / "out", progress=None)
    model = load_model(tmp_path / "out" / "F-seed0" / "model.safetensors")
    assert data.columns == model.schema.features
    with torch.no_grad():
        np.testing.assert_allclose(model.outputs(frame), model.module(data.inputs), atol=1e-5)
    if target == "ill":
        np.testing.assert_array_equal(model.predict(frame), frame["ill"].astype(str))
        assert evaluate(model, frame, group="site").worst.value == 1


def test_blanks_around_words_are_no_part_of_them(tmp_path):
    words = {"sex": ["m ", "f"] * 12, "ill": ["yes ", "no"] * 12, "site": ["a", "b "] * 12}
    frame = pd.DataFrame({"x": range(24), **words})
    frame.to_csv(tmp_path / "a.csv", index=False)
    data = read_tables([tmp_path / "a.csv"], "ill", "site")
    assert data.columns == data.schema.features == ("x", "sex_m")
    assert data.class_names == data.schema.classes == ("no", "yes")
    assert set(data.groups) == {"a", "b"}


def test_data_frame_may_repeat_its_index():
    frame = pd.DataFrame({"site": [*"aabb"] * 6, "x": [str(k % 7) for k in range(24)], "y": [0, 1] * 12})
    frame.loc[3, "x"] = "?"
    twice, reading = pd.concat([frame, frame]), ReadOptions(missing=("?",))
    data, same = (
        ClientData.from_frame(each, group="site", target="y", reading=reading)
        for each in (twice, twice.reset_index(drop=True))
    )
    assert data.columns == ("x", "x missing")
    assert torch.equal(data.inputs, same.inputs)
    assert twice.index.tolist() == [*range(24)] * 2
