"""A data set is refused unless everything in it fits together."""

from __future__ import annotations

import pytest
import torch

from drfl.data import Dataset
from drfl.errors import InputError


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


def test_a_good_one_is_kept_as_it_is():
    assert Dataset(**parts()).classes == 3


def test_one_pool_may_have_groups_and_columns_to_standardise():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 2])
    pool = {"inputs": x, "targets": y, "test_inputs": x, "test_targets": y}
    assert Dataset(**parts(**pool, groups=("a", "b", "a"), standardise=True)).one_pool
    assert not Dataset(**parts()).one_pool
    with pytest.raises(InputError, match="2 groups for 3 training rows"):
        Dataset(**parts(**pool, groups=("a", "b")))
    with pytest.raises(InputError, match="0 groups for 1 test rows: give one a row"):
        Dataset(**parts(groups=("a", "b", "a", "b")))
    with pytest.raises(InputError, match="test_groups, and no test part"):
        Dataset(**parts(**pool, groups=("a", "b", "a"), test_groups=("a", "b", "a")))
    with pytest.raises(InputError, match="1 names of columns for inputs"):
        Dataset(**parts(**pool, columns=("a",)))
    both = Dataset(**parts(groups=("a", "b", "a", "b"), test_groups=("b",))).pooled()
    assert (both.groups, both.test_groups) == (("a", "b", "a", "b", "b"), None)
    images = torch.zeros(3, 1, 2, 2)
    with pytest.raises(InputError, match=r"only inputs .* can be standardised"):
        Dataset(**parts(**{**pool, "inputs": images, "test_inputs": images}, standardise=True))


EMPTY = torch.zeros(0, dtype=torch.int64)
NOT_FINITE = torch.tensor([[0, 0], [0, float("nan")], [float("inf"), 0], [0, 0]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"targets": torch.tensor([0])}, "give one label a sample"),
        ({"test_inputs": torch.zeros(0, 2), "test_targets": EMPTY}, "no test samples"),
        ({"inputs": torch.zeros(0, 2), "targets": EMPTY}, "no training samples"),
        ({"inputs": NOT_FINITE}, r"2 of 8 values are NaN or infinite, the first at index \(1, 1\)"),
        ({"targets": torch.tensor([0, 1, 3, 0])}, r"training labels must lie in 0..2"),
        ({"test_targets": torch.tensor([-1])}, r"test labels must lie in 0..2"),
        ({"test_inputs": torch.zeros(1, 3)}, "must be the same"),
        ({"inputs": torch.zeros(4, 2, dtype=torch.float64)}, "must be float32"),
        ({"targets": torch.zeros(4, dtype=torch.int32)}, "labels int64"),
        ({"classes": 0}, "classes must be an integer"),
    ],
)
def test_bad_ones_are_refused_by_name(changes, message):
    with pytest.raises(InputError, match=message):
        Dataset(**parts(**changes))
