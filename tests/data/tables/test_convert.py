"""Test tables as data: one client per group, encoded classes, and errors that name the column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from tests.support.refusals import quotes, refused

from drfl.core.key import Key
from drfl.data import ClientData, ReadOptions


def table(**changes):
    columns = {
        "hospital": ["north", "east"] * 5,
        "age": np.arange(10),
        "dose": np.linspace(0, 1, 10),
        "smoker": [True, False] * 5,
        "ill": ["yes", "no", "no", "yes", "yes"] * 2,
    }
    return pd.DataFrame({**columns, **changes})


def load(frame, **changes):
    return ClientData.from_frame(frame, **{"group": "hospital", "target": "ill", "standardise": False, **changes})


def test_table_becomes_clients():
    data = load(table())
    assert data.names == ("east", "north")
    assert data.classes == ("no", "yes")
    assert data.targets.tolist() == [1, 0, 0, 1, 1] * 2
    assert data.inputs.dtype == torch.float32
    assert data.inputs[3].tolist() == pytest.approx([3, 1 / 3, 0])
    assert data.sizes.tolist() == [4, 4]
    assert all(k % 2 == 1 for part in (data.train, data.test) for k in part[0].tolist())
    assert data.to(dtype=torch.float64).classes == ("no", "yes")
    assert load(table(), features=["dose"], dtype=torch.float64).inputs[1].item() == 1 / 9


def test_order_of_the_index_does_not_matter():
    odd = table().set_index(np.full(10, 7))
    assert torch.equal(load(odd).inputs, load(table()).inputs)


def test_key_determines_the_split():
    first, again, other = (load(table(), key=Key(s)).test for s in (0, 0, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize(
    ("values", "codes", "classes"),
    [
        ([True, False], [1, 0], ("False", "True")),
        ([0, 1], [0, 1], ("0", "1")),
        ([7, -2], [1, 0], ("-2", "7")),
        ([10, 9], [1, 0], ("9", "10")),
        (["b", "a"], [1, 0], ("a", "b")),
    ],
)
@pytest.mark.parametrize("dtype", [None, "category", object])
def test_targets_are_encoded_in_sorted_order(values, codes, classes, dtype):
    data = load(table(ill=pd.Series(values * 5, dtype=dtype)))
    assert data.targets.tolist() == codes * 5
    assert data.targets.dtype == torch.int64
    assert data.classes == classes


def test_truth_values_are_read_from_every_pandas_type():
    answers = [True, False] * 5
    expected = load(table(smoker=answers, ill=answers))
    assert expected.classes == ("False", "True")
    for values in (pd.Series(answers, dtype=object), pd.Series(answers, dtype="boolean")):
        found = load(table(smoker=values, ill=values))
        assert torch.equal(found.inputs, expected.inputs)
        assert torch.equal(found.targets, expected.targets)
        assert found.classes == expected.classes
    texts = load(table(ill=["TRUE", "FALSE", "true", "false", "True"] * 2))
    assert texts.classes == ("False", "True")
    assert texts.targets.tolist() == [1, 0, 1, 0, 1] * 2


@pytest.mark.parametrize("values", [[True, 1, "a", 2.5, "b"], [True, "no", "b", False, "a"]])
def test_mixed_values_are_words_as_in_a_file(values, tmp_path):
    frame = table(kind=pd.Series(values * 2, dtype=object))
    frame.to_csv(tmp_path / "a.csv", index=False)
    found, expected = load(frame), load(pd.read_csv(tmp_path / "a.csv", dtype={"kind": str}))
    assert found.columns == expected.columns
    assert torch.equal(found.inputs, expected.inputs)


@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64"])
def test_float_targets_stay_float(dtype):
    data = load(table(ill=pd.Series(np.arange(10), dtype=dtype)))
    assert data.targets.dtype == torch.float32
    assert data.targets.tolist() == list(range(10))
    assert data.classes is None


def test_nullable_and_numbered_columns_are_accepted():
    frame = table(age=pd.Series(range(10), dtype="Int64"))
    assert load(frame).inputs[:, 0].tolist() == list(range(10))
    frame = table().rename(columns={"age": 0, "dose": 1, "smoker": 2})
    assert load(frame).inputs.shape == (10, 3)
    assert load(frame, features=[0, 1]).columns == ("0", "1")
    assert load(table(), features="age").columns == ("age",)


HOLES = [None, 1.0] + [2.0] * 8


@pytest.mark.parametrize(
    ("changes", "options", "error"),
    [
        ({}, {"target": "il"}, ("unknown-name", "column", "'il'", "'ill'")),
        ({}, {"group": "clinic"}, ("unknown-name", "column", "'clinic'")),
        ({}, {"features": ["age", "dosis"]}, ("unknown-name", "column", "'dosis'", "'dose'")),
        ({}, {"features": ["age", "ill"]}, ("conflicting-options", "ill")),
        ({}, {"features": []}, ("no-features", "features")),
        ({}, {"features": ["age", "hospital"]}, ("conflicting-options", "hospital")),
        ({}, {"group": ["hospital", "age"]}, ("wrong-type", "group", "'hospital'", "'age'")),
        ({}, {"features": ["age", "age"]}, ("duplicate-column", "age")),
        ({"dose": ["1", "2"] * 5}, {}, ("not-a-number", "dose", "astype('category')")),
        ({"dose": ["2020-01-01"] * 10}, {}, ("not-a-number", "dose", "schema")),
        ({"dose": ["low", "Low"] * 5}, {}, ("similar-values", "dose")),
        ({"dose": ["low", None] * 5}, {}, ("missing-values", "dose", "5")),
        ({"dose": [True, None] * 5}, {}, ("missing-values", "dose", "5")),
        ({"dose": pd.date_range("2020", periods=10)}, {}, ("not-a-number", "dose")),
        ({"dose": pd.date_range("2020", periods=10), "age": ["a", "b"] * 5}, {}, ("not-a-number", "dose")),
        ({"dose": np.ones(10) * 1j}, {}, ("not-a-number", "dose")),
        ({"dose": HOLES}, {}, ("missing-values", "dose", "1", "0")),
        ({"age": pd.Series(HOLES, dtype="Int64")}, {}, ("missing-values", "age", "1")),
        ({"dose": [np.inf] * 10}, {}, ("not-finite", "dose", "10")),
        ({"ill": [0] * 10}, {}, ("constant-target", "ill", "'0'")),
        ({"ill": ["no"] * 10}, {}, ("constant-target", "ill", "'no'")),
        ({"ill": ["a", None] * 5}, {}, ("missing-values", "ill", "5", "1")),
        ({"ill": HOLES}, {}, ("missing-values", "ill", "1")),
        ({"ill": pd.Series(["a", 1] * 5, dtype=object)}, {}, ("wrong-type", "ill")),
        ({"hospital": ["a", None] * 5}, {}, ("missing-values", "hospital", "5")),
        ({"ill": ["yes", "no"] * 4 + ["Yes", "no"]}, {}, ("similar-values", "ill", "'Yes'", "'yes'")),
        ({"hospital": ["a", "b"] * 4 + ["A", "b "]}, {}, ("similar-names", "group", "'A'", "'a'")),
        ({"hospital": ["a"] * 9 + ["lonely"]}, {}, ("few-rows", None, "'lonely'", "1")),
        ({"dose": np.full(10, 1e300)}, {}, ("not-finite", "dose", "10")),
        ({"dose": np.linspace(-1e200, 1e200, 10)}, {}, ("not-finite", "dose", "10")),
        ({}, {"test_fraction": 1.5}, ("out-of-range", "test_fraction")),
    ],
)
def test_unusable_tables_are_refused_by_column(changes, options, error):
    with refused(*error) as caught:
        load(table(**changes), **options)
    assert "\n" not in str(caught.value)


def test_classes_and_conditions_of_a_frame_are_checked_as_in_files():
    rng, clients = np.random.default_rng(0), np.repeat(["north", "south", "east", "west"], 80)
    frame = pd.DataFrame({"hospital": clients, "dose": rng.normal(size=320), "crp": rng.normal(30, 5, 320)})
    frame["ill"] = rng.integers(0, 2, 320)
    is_west = frame["hospital"] == "west"
    (notice,) = load(frame.assign(ill=frame["ill"] + is_west)).notices
    assert (notice.code, notice.field) == ("class-at-one-client", "ill")
    assert quotes(notice, "'2'", "west", "'0'")
    with refused("classes-differ", "ill", "'c20'", "west"):
        load(frame.assign(ill=pd.Series(np.where(is_west, "c2", "c")) + frame["ill"].astype(str)))
    frame.loc[is_west, "crp"] *= 100
    (notice,) = load(frame, target="crp > 32").notices
    assert (notice.code, notice.field) == ("unit-mismatch", "crp")
    assert quotes(notice, "west")


def test_repeated_columns_and_empty_tables_are_refused():
    with refused("duplicate-column", "age"):
        load(table().rename(columns={"dose": "age"}))
    with refused("no-rows"):
        load(table().iloc[:0])


def test_one_missing_or_infinite_value_is_counted_in_the_singular():
    for value, counted in ((np.nan, "1 missing value,"), (np.inf, "1 value that is infinite")):
        with refused("missing-values" if np.isnan(value) else "not-finite", "dose") as caught:
            load(table(dose=[value, *range(9)]))
        assert counted in str(caught.value)


def test_missing_values_and_dates_are_read_as_the_message_says():
    frame = table(dose=[np.nan, *range(9)], day=[pd.NaT, *pd.date_range("2020-01-01", periods=9)])
    with refused("missing-values", "dose", "reading=drfl.ReadOptions(missing=('',))"):
        load(frame)
    frame = pd.concat([frame] * 4, ignore_index=True)
    data = load(frame, reading=ReadOptions(missing=("",)), standardise=True, dtype=torch.float64)
    assert data.columns is not None
    columns = dict(zip(data.columns, data.inputs.T, strict=True))
    for name in ("dose", "day"):
        assert columns[name][0] == 0  # the mean
        assert (columns[f"{name} missing"] > 0).nonzero().flatten().tolist() == [0, 10, 20, 30]


def test_levels_of_the_index_are_no_columns():
    schema = load(table()).schema
    for name, options in (
        ("hospital", {}),
        ("ill", {}),
        ("age", {"features": ["age"]}),
        ("age", {"target": "age > 5"}),
    ):
        for frame in (table().set_index(name), table().set_index([name, table().index])):
            with refused("unknown-name", name, "reset_index"):
                load(frame, **options)
            with refused("unknown-name", name, "reset_index"):
                ClientData.from_frame(frame, schema=schema)
            load(frame.reset_index(name), **options)


def test_column_of_clients_or_patients_that_a_schema_needs_is_refused_by_name():
    frame = table(id=[*"abcdeabcde"])
    schema = load(frame, patient="id").schema
    for name in ("hospital", "id"):
        with refused("missing-column", name):
            ClientData.from_frame(frame.drop(columns=name), schema=schema)


def test_levels_of_column_names_are_refused():
    frame = table()
    frame.columns = pd.MultiIndex.from_tuples([("", name) for name in frame])
    with refused("unsupported-data", "frame", "2 levels", "('', 'hospital')"):
        load(frame)


def test_names_of_columns_may_be_numbers():
    frame = table().rename(columns={"age": 1, "dose": None})
    assert load(frame).columns == ("1", "None", "smoker")
    with refused("duplicate-column", "1"):
        load(frame.rename(columns={"smoker": "1"}))
