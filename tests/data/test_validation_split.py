"""Test that validation rows come from each client's training rows, and depend on nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.data import ClientData
from drfl.data.validation_split import held_out_training, training_as_test


def clients(sizes, classes=3, seed=0):
    rng = torch.Generator().manual_seed(seed)
    pairs = {
        f"client-{i}": (torch.randn(n, 2, generator=rng), torch.randint(classes, (n,), generator=rng))
        for i, n in enumerate(sizes)
    }
    return ClientData.from_arrays(pairs, {name: (x[:1] + 100, y[:1]) for name, (x, y) in pairs.items()})


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**32),
)
def test_training_and_validation_rows_are_the_old_training_rows(sizes, fraction, seed):
    data = clients(sizes)
    split = held_out_training(data, fraction, Key(seed))
    assert split.names == data.names
    assert split.test_inputs is split.inputs is data.inputs
    assert split.test_targets is split.targets is data.targets
    for n, rows, kept, held in zip(sizes, data.train, split.train, split.test, strict=True):
        if n == 1:
            assert kept.tolist() == held.tolist() == rows.tolist()
            continue
        assert sorted(kept.tolist() + held.tolist()) == rows.tolist()
        assert len(held) == min(max(round(fraction * n), 1), n - 1)


def test_validation_keeps_class_shares():
    y = torch.arange(40) % 4
    data = ClientData.from_arrays([(torch.randn(40, 2), y)], [(torch.randn(4, 2), y[:4])])
    split = held_out_training(data, 0.25, Key(3))
    assert len(split.test[0]) == 10
    assert max(abs(y[split.test[0]].bincount() - 2.5)) <= 0.5


def test_split_of_a_client_depends_on_its_name_and_rows():
    both, one = clients([20, 30]), clients([20])
    split = held_out_training(both, 0.3, Key(1))
    assert split.test[0].tolist() == held_out_training(one, 0.3, Key(1)).test[0].tolist()
    assert split.test[0].tolist() != held_out_training(both, 0.3, Key(2)).test[0].tolist()


def test_regression_targets_are_split_too():
    pairs = [(torch.randn(10, 2), torch.randn(10))]
    split = held_out_training(ClientData.from_arrays(pairs, pairs), 0.2, Key(0))
    assert [len(split.train[0]), len(split.test[0])] == [8, 2]


@pytest.mark.parametrize("fraction", [0, 1, -0.1, float("nan")])
def test_impossible_fractions_are_refused(fraction):
    with refused("out-of-range", "validation"):
        held_out_training(clients([5]), fraction, Key(0))


@pytest.mark.parametrize("validated", [False, True])
def test_training_curves_exclude_validation_rows(validated):
    """The curves do not use the rows by which a model is selected either."""
    data = clients([20, 1, 30])
    data = data.with_validation(0.3) if validated else data
    tested = training_as_test(data)
    assert tested.test_inputs is tested.inputs is data.inputs
    assert tested.test_targets is tested.targets is data.targets
    assert tested.test == tested.train == data.train
    assert tested.validation is data.validation
