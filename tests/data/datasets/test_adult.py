"""Test Adult: UCI's two files, unpacked or in adult.zip, and a one-line error for other files."""

from __future__ import annotations

import io
import zipfile

import pytest
import torch
from tests.data.conftest import write_files
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import ClientData, Natural, describe, load, make_partition
from drfl.data.datasets import adult, catalogue
from drfl.data.tables.conform import encode_features
from drfl.data.tables.table import Table
from drfl.experiments.config.config import load_config

# Rows of the published files (CC BY 4.0, Becker and Kohavi 1996, https://doi.org/10.24432/C5XW20).
TRAIN = """\
39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K
38, Private, 215646, HS-grad, 9, Divorced, Handlers-cleaners, Not-in-family, White, Male, 0, 0, 40, United-States, <=50K
28, Private, 338409, Bachelors, 13, Married-civ-spouse, Prof-specialty, Wife, Black, Female, 0, 0, 40, Cuba, <=50K
40, Private, 121772, Assoc-voc, 11, Married-civ-spouse, Craft-repair, Husband, Asian-Pac-Islander, Male, 0, 0, 40, ?, >50K
40, Private, 193524, Doctorate, 16, Married-civ-spouse, Prof-specialty, Husband, White, Male, 0, 0, 60, United-States, >50K
54, ?, 180211, Some-college, 10, Married-civ-spouse, ?, Husband, Asian-Pac-Islander, Male, 0, 0, 60, South, >50K
43, Federal-gov, 410867, Doctorate, 16, Never-married, Prof-specialty, Not-in-family, White, Female, 0, 0, 50, United-States, >50K

"""  # noqa: E501 - as published
TEST = """\
|1x3 Cross validator
25, Private, 226802, 11th, 7, Never-married, Machine-op-inspct, Own-child, Black, Male, 0, 0, 40, United-States, <=50K.
28, Local-gov, 336951, Assoc-acdm, 12, Married-civ-spouse, Protective-serv, Husband, White, Male, 0, 0, 40, United-States, >50K.
40, Private, 85019, Doctorate, 16, Married-civ-spouse, Prof-specialty, Husband, Asian-Pac-Islander, Male, 0, 0, 45, ?, >50K.
48, Federal-gov, 42972, Doctorate, 16, Married-civ-spouse, Prof-specialty, Wife, White, Female, 0, 0, 40, United-States, >50K.

"""  # noqa: E501 - as published
FILES = {"adult.data": TRAIN.encode(), "adult.test": TEST.encode()}


@pytest.fixture
def few(monkeypatch):
    """Reduce the expected numbers of rows to those above."""
    monkeypatch.setattr(adult, "PARTS", {"adult.data": 7, "adult.test": 4})


def column(data, part, name):
    return getattr(data, part)[:, data.columns.index(name)].tolist()


def test_both_parts_match_the_source_and_share_their_encoding(tmp_path, few):
    data = load("Adult", data_dir=write_files(tmp_path, FILES))
    assert data.targets.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test_targets.tolist() == [0, 1, 1, 1]
    assert column(data, "inputs", "age") == [39, 38, 28, 40, 40, 54, 43]
    assert column(data, "test_inputs", "hours-per-week") == [40, 40, 45, 40]
    # A blank in the source counts as a value. Here it is the first of its column, which has no input.
    assert column(data, "inputs", "workclass_Private") == [0, 1, 1, 1, 1, 0, 0]
    assert column(data, "test_inputs", "sex_Male") == [1, 1, 1, 0]
    assert data.inputs.shape[1] == data.test_inputs.shape[1] == len(data.columns)
    assert not any(name.startswith(("fnlwgt", "education_", "native", "income")) for name in data.columns)


def test_default_clients_are_those_of_afl(tmp_path, few):
    data = load("adult", data_dir=write_files(tmp_path, FILES))
    partition = make_partition(data, Natural(), Key(0))
    assert partition.names == ("doctorate", "others")
    assert [rows.tolist() for rows in (partition.train[0], partition.test[0])] == [[4, 6], [2, 3]]
    clients = ClientData.from_dataset(data, partition)
    assert clients.inputs.dtype == torch.float32
    assert clients.inputs.mean(0).abs().max() < 1e-6


@pytest.mark.parametrize("group", adult.GROUPS)
def test_any_categorical_column_can_name_the_clients(tmp_path, few, group):
    data = load("adult", data_dir=write_files(tmp_path, FILES), group=group)
    words = [line.split(", ") for line in TRAIN.split("\n") if line]
    if group != adult.DOCTORATE:
        assert list(data.groups or ()) == [cells[adult.COLUMNS.index(group)] for cells in words]
    assert not any(name.startswith(f"{group}_") for name in data.columns)


def test_adult_zip_is_read_without_unpacking(tmp_path, few):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in {"Index": b"hello", **FILES}.items():
            archive.writestr(name, content)
    write_files(tmp_path, {"adult.zip": out.getvalue(), **FILES})
    packed, loose = (load("adult", data_dir=place) for place in (tmp_path / "adult.zip", tmp_path))
    assert torch.equal(packed.inputs, loose.inputs)
    assert torch.equal(packed.test_targets, loose.test_targets)


def changed(part, old, new):
    return {**FILES, part: FILES[part].replace(old.encode(), new.encode(), 1)}


@pytest.mark.parametrize(
    ("files", "error"),
    [
        (changed("adult.data", TRAIN[: TRAIN.index("\n") + 1], ""), ("damaged-file", None, "adult.data", "6", "7")),
        (changed("adult.data", ", Male", ""), ("damaged-file", None, "adult.data", "14", "15")),
        (changed("adult.test", "25,", "x,"), ("damaged-file", None, "adult.test", "2", "'x'")),
        (changed("adult.test", ">50K.", "50K."), ("damaged-file", None, "adult.test", "3", "'50K'", "<=50K", ">50K")),
        ({"adult.data": FILES["adult.data"]}, ("dataset-not-found", "data_dir", "adult.test")),
    ],
)
def test_changed_files_are_one_line_errors(tmp_path, few, files, error):
    with refused(*error) as caught:
        load("adult", data_dir=write_files(tmp_path, files))
    assert "\n" not in str(caught.value)


def test_other_table_is_not_mistaken_for_adult_zip(tmp_path):
    write_files(tmp_path, {"adult.csv": b"age,income\n"})
    with refused("wrong-dataset", str(tmp_path / "adult.csv"), "adult.zip"):
        load("adult", data_dir=tmp_path / "adult.csv")


def test_groups_by_name_in_python_and_in_configurations():
    with refused("unknown-name", "group", "'sex'"):
        load("adult", group="sexx")
    with refused("missing-groups", "group", "'digits'"):
        load("digits", group="sex")
    config = load_config(None, {"dataset": "adult", "group": "sex"})
    assert (config.partition, config.group) == ("natural", "sex")
    with refused("unknown-name", "group", "'adult'"):
        load_config(None, {"dataset": "adult", "group": "age"})


def test_files_are_cached_and_described_shape_covers_all_rows(bare_machine):
    write_files(bare_machine / ".cache/drfl/adult", FILES)
    (info,) = (info for info in describe() if info.name == "adult")
    assert info.found is not None
    assert (info.train, info.test) == tuple(adult.PARTS.values())
    assert set(catalogue.DATASETS["adult"].groupings) == set(adult.GROUPS)


@pytest.mark.parametrize("group", [pytest.param("doctorate", marks=pytest.mark.long), "race"])
def test_schema_encodes_the_published_columns_like_the_inputs(tmp_path, few, group):
    data = load("adult", data_dir=write_files(tmp_path, FILES), group=group)
    lines = [line.rstrip(".") for line in (TRAIN + TEST).splitlines() if "," in line]
    (tmp_path / "adult.csv").write_text("\n".join([",".join(adult.COLUMNS), *lines]) + "\n")
    schema = data.schema
    assert schema is not None
    table = Table.whole(tmp_path / "adult.csv", schema)
    assert schema.features == data.columns
    assert schema.client == (None if group == "doctorate" else group)
    found = encode_features(schema.columns, table)
    assert found.tolist() == torch.cat([data.inputs, data.test_inputs]).tolist()
    whole = Table.whole(tmp_path / "adult.csv", None, ["income"]).frame
    assert whole["income"].str.strip().isin(adult.INCOMES).all()
