"""Test clients named by the data: every row is used once, no part is empty, and classes keep their proportions."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import ClientData, Natural, split_groups
from drfl.data.partition.natural import client_order
from drfl.data.partition.splitting import split_rows
from drfl.data.tables.propose import propose
from drfl.data.tables.table_files import read_tables


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=60),
    st.floats(0.01, 0.99),
    st.booleans(),
)
def test_each_row_is_in_one_part_of_its_group(rows, fraction, stratified):
    rows = rows * 2  # so that no group has a single row
    groups, y = np.array([g for g, _ in rows]), np.array([c for _, c in rows])
    partition = split_groups(groups, y if stratified else None, Key(0), fraction)
    assert partition.names == tuple(sorted(set(groups)))
    assert sorted(np.concatenate(partition.train + partition.test)) == list(range(len(rows)))
    for name, train, test in zip(partition.names, partition.train, partition.test, strict=True):
        assert set(groups[train]) == set(groups[test]) == {name}
        n = len(train) + len(test)
        assert len(test) == min(max(round(fraction * n), 1), n - 1)
        if stratified:
            quota = len(test) * np.bincount(y[groups == name], minlength=4) / n
            assert (np.abs(np.bincount(y[test], minlength=4) - quota) < 1).all()


def test_split_of_a_group_does_not_depend_on_other_groups():
    y = np.arange(40) % 2
    both = split_groups(np.repeat(["a", "b"], 20), y, Key(0))
    alone = split_groups(np.repeat(["b"], 20), y[20:], Key(0))
    np.testing.assert_array_equal(both.test[1] - 20, alone.test[0])
    assert both == split_groups(np.repeat(["a", "b"], 20), y, Key(0))
    assert both != split_groups(np.repeat(["a", "b"], 20), y, Key(1))


def test_equal_remainders_do_not_favour_the_same_classes():
    y = np.arange(10)
    held = np.concatenate([split_rows(np.arange(10), y, Key(s), 0.2)[1] for s in range(200)])
    assert np.bincount(held, minlength=10).min() > 20


def test_numeric_groups_are_in_numeric_order():
    assert split_groups(np.array([10, 9, 9, 10]), None, Key(0)).names == ("9", "10")


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["10", "9", "1.5", "-2"], ["-2", "1.5", "9", "10"]),
        (["07", "7", "10"], ["07", "7", "10"]),
        (["10", "9", "ward"], ["10", "9", "ward"]),
        (["inf", "10", "9"], ["10", "9", "inf"]),
    ],
)
def test_clients_are_ordered(names, order):
    assert [names[i] for i in client_order(names)] == order


def test_numeric_groups_have_one_order_on_all_routes(tmp_path):
    frame = pd.DataFrame({"ward": np.repeat([10, 2, 1], 10), "x": np.arange(30) % 7, "y": np.arange(30) % 2})
    frame.to_csv(tmp_path / "wards.csv", index=False)
    schema = propose([frame.astype(str)], "y", "ward").schema
    dataset = read_tables([tmp_path / "wards.csv"], "y", "ward")
    routes = {
        "numbers": ClientData.from_frame(frame, group="ward", target="y").names,
        "texts": ClientData.from_frame(frame.astype({"ward": str}), group="ward", target="y").names,
        "schema": ClientData.from_frame(frame, schema=schema).names,
        "file": Natural().divide(dataset, Key(0)).names,
        "some": Natural(clients=2).divide(dataset, Key(0)).names,
    }
    assert routes == {**dict.fromkeys(routes, ("1", "2", "10")), "some": ("1", "2")}


@pytest.mark.parametrize(
    ("groups", "targets", "error"),
    [
        (np.array(["a", "a", "lonely"]), None, ("few-rows", None, "'lonely'", "1")),
        (np.array([]), None, ("wrong-shape", "groups")),
        (np.array([["a", "a"]]), None, ("wrong-shape", "groups")),
        (np.array(["a", "a"]), np.zeros(3), ("wrong-shape", "groups")),
        (np.array([1.0, np.nan]), None, ("missing-values", "groups")),
        (np.array(["a", None], dtype=object), None, ("missing-values", "groups")),
        (np.array(["a", 1], dtype=object), None, ("wrong-type", "groups")),
    ],
)
def test_unusable_groups_are_refused(groups, targets, error):
    with refused(*error):
        split_groups(groups, targets, Key(0))


@pytest.mark.parametrize("fraction", [0, 1, -1, float("nan")])
def test_fraction_that_empties_a_part_is_refused(fraction):
    with refused("out-of-range", "test_fraction"):
        split_groups(np.array(["a", "a"]), None, Key(0), fraction)
