"""Tables: one client a group, classes encoded, and each fault named by its column."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from drfl.data import ClientData
from drfl.errors import InputError
from drfl.key import Key


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


def test_a_table_becomes_clients():
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


def test_the_order_of_rows_in_the_index_does_not_matter():
    odd = table().set_index(np.full(10, 7))
    assert torch.equal(load(odd).inputs, load(table()).inputs)


def test_the_key_decides_the_split():
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


@pytest.mark.parametrize("dtype", ["float64", "float32", "Float64"])
def test_float_targets_stay_float(dtype):
    data = load(table(ill=pd.Series(np.arange(10), dtype=dtype)))
    assert data.targets.dtype == torch.float32
    assert data.targets.tolist() == list(range(10))
    assert data.classes is None


def test_nullable_and_numbered_columns_work():
    frame = table(age=pd.Series(range(10), dtype="Int64"))
    assert load(frame).inputs[:, 0].tolist() == list(range(10))
    frame = table().rename(columns={"age": 0, "dose": 1, "smoker": 2})
    assert load(frame).inputs.shape == (10, 3)


HOLES = [None, 1.0] + [2.0] * 8


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"target": "il"}, "unknown column 'il': did you mean 'ill'"),
        ({}, {"group": "clinic"}, "unknown column 'clinic'"),
        ({}, {"features": ["age", "dosis"]}, "unknown column 'dosis': did you mean 'dose'"),
        ({}, {"features": ["age", "ill"]}, "'ill' is the target and cannot be a feature"),
        ({}, {"features": []}, "no feature column"),
        ({}, {"features": ["age", "age"]}, "column 'age' is there twice"),
        ({"dose": ["low", "high"] * 5}, {}, "feature column 'dose' is not numeric .*get_dummies"),
        ({"dose": pd.date_range("2020", periods=10)}, {}, "feature column 'dose' is not numeric"),
        ({"dose": np.ones(10) * 1j}, {}, "feature column 'dose' is not numeric"),
        ({"dose": HOLES}, {}, "column 'dose' has 1 missing values, the first in row 0: .*dropna.*fillna"),
        ({"age": pd.Series(HOLES, dtype="Int64")}, {}, "column 'age' has 1 missing values"),
        ({"dose": [np.inf] * 10}, {}, "column 'dose' is infinite in 10 rows"),
        ({"ill": ["a", None] * 5}, {}, "column 'ill' has 5 missing values, the first in row 1"),
        ({"ill": HOLES}, {}, "column 'ill' has 1 missing values"),
        ({"ill": pd.Series(["a", 1] * 5, dtype=object)}, {}, "target column 'ill' mixes types"),
        ({"hospital": ["a", None] * 5}, {}, "column 'hospital' has 5 missing values"),
        ({"hospital": ["a"] * 9 + ["lonely"]}, {}, "group 'lonely' has 1 row"),
        ({"dose": np.full(10, 1e300)}, {}, "training inputs must be finite"),
        ({}, {"test_fraction": 1.5}, "test_fraction must lie"),
    ],
)
def test_unusable_tables_are_refused_by_column(changes, options, message):
    with pytest.raises(InputError, match=message) as caught:
        load(table(**changes), **options)
    assert "\n" not in str(caught.value)


def test_repeated_columns_and_empty_tables_are_refused():
    with pytest.raises(InputError, match="column 'age' is there twice"):
        load(table().rename(columns={"dose": "age"}))
    with pytest.raises(InputError, match="has no rows"):
        load(table().iloc[:0])
