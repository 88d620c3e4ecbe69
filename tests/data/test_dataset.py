"""Test that a data set is refused unless all its parts fit together."""

from __future__ import annotations

import pytest
import torch
from tests.support.refusals import refused

from drfl.data import Dataset


def parts(**changes):
    good = {
        "name": "toy",
        "inputs": torch.zeros(4, 2),
        "targets": torch.tensor([0, 1, 2, 0]),
        "test_inputs": torch.zeros(1, 2),
        "test_targets": torch.tensor([2]),
        "classes": 3,
    }
    return {**good, **changes}


def test_valid_data_set_is_unchanged():
    assert Dataset(**parts()).classes == 3


def test_single_pool_can_have_groups_and_columns():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    pool = {"inputs": x, "targets": y, "test_inputs": x, "test_targets": y}
    assert Dataset(**parts(**pool, groups=("a", "b", "a"), standardise=True)).is_one_pool
    assert not Dataset(**parts()).is_one_pool
    with refused("count-mismatch", "groups", "2", "3"):
        Dataset(**parts(**pool, groups=("a", "b")))
    with refused("count-mismatch", "groups", "0", "1"):
        Dataset(**parts(groups=("a", "b", "a", "b")))
    with refused("unused-option", "test_groups"):
        Dataset(**parts(**pool, groups=("a", "b", "a"), test_groups=("a", "b", "a")))
    with refused("count-mismatch", "columns", "1"):
        Dataset(**parts(**pool, columns=("a",)))
    both = Dataset(**parts(groups=("a", "b", "a", "b"), test_groups=("b",))).pooled()
    assert (both.groups, both.test_groups) == (("a", "b", "a", "b", "b"), None)
    images = torch.zeros(3, 1, 2, 2)
    with refused("unsupported-data", "standardise"):
        Dataset(**parts(**{**pool, "inputs": images, "test_inputs": images}, standardise=True))


EMPTY = torch.zeros(0, dtype=torch.int64)
NOT_FINITE = torch.tensor([[0, 0], [0, float("nan")], [float("inf"), 0], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"targets": torch.tensor([0])}, ("wrong-shape", "inputs")),
        ({"test_inputs": torch.zeros(0, 2), "test_targets": EMPTY}, ("no-rows", "test")),
        ({"inputs": torch.zeros(0, 2), "targets": EMPTY}, ("no-rows", "training")),
        ({"inputs": NOT_FINITE}, ("not-finite", None, "2", "8", "(1, 1)")),
        ({"targets": torch.tensor([0, 1, 3, 0])}, ("out-of-range", None, "training labels", "0..2")),
        ({"test_targets": torch.tensor([-1])}, ("out-of-range", None, "test labels", "0..2")),
        ({"test_inputs": torch.zeros(1, 3)}, ("wrong-shape", "test_inputs")),
        ({"inputs": torch.zeros(4, 2, dtype=torch.float64)}, ("wrong-type", "inputs", "float32")),
        ({"targets": torch.zeros(4, dtype=torch.int32)}, ("wrong-type", "inputs", "int64")),
        ({"classes": 0}, ("out-of-range", "classes")),
    ],
)
def test_invalid_data_sets_are_refused_by_name(changes, error):
    with refused(*error):
        Dataset(**parts(**changes))


def test_repr_is_one_line():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    pool = {"inputs": x, "targets": y, "test_inputs": x, "test_targets": y}
    for dataset, quoted in (
        (Dataset(**parts()), ("'toy'", "4 training", "1 test", "(2,)", "3 classes")),
        (Dataset(**parts(**pool, groups=("a", "b", "a"))), ("3 rows", "2 groups")),
    ):
        assert len(repr(dataset)) < 120
        assert all(part in repr(dataset) for part in quoted)
