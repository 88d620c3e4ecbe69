"""Test states as named tensors."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from drfl.federation.client_table import ClientTable
from drfl.testing import CheckError, state


class Inner(NamedTuple):
    w: Tensor
    losses: Tensor
    rounds: Tensor


class Nested(NamedTuple):
    w: Tensor
    lam: Tensor
    table: Tensor
    inner: Inner | None


def example(inner=True) -> Nested:
    w, lam = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([0.25, 0.75], dtype=torch.float64)
    part = Inner(w, lam, torch.zeros((), dtype=torch.int64)) if inner else None
    return Nested(w, lam, torch.arange(6.0).view(2, 3), part)


def test_leaves_are_named_by_path():
    assert list(state.leaves(example())) == ["w", "lam", "table", "inner.w", "inner.losses", "inner.rounds"]
    assert list(state.leaves(example(inner=False))) == ["w", "lam", "table"]


@pytest.mark.parametrize("foreign", [3, 0.5, "x", [torch.ones(1)], {"a": torch.ones(1)}], ids=repr)
def test_field_that_cannot_be_saved_is_refused(foreign):
    with pytest.raises(CheckError, match="table"):
        state.leaves(example()._replace(table=foreign))


@pytest.mark.parametrize("inner", [True, False])
def test_state_is_read_back_from_a_file(inner):
    before = example(inner)
    after = state.through_a_file(before)
    assert isinstance(after, Nested)
    assert state.bits_differ(before, after) == []
    assert after.w is not before.w
    if inner:
        assert after.inner.w.data_ptr() != after.w.data_ptr()


def test_empty_and_bool_tensors_are_read_back():
    before = example()._replace(table=torch.empty(0, dtype=torch.bool))
    assert state.bits_differ(before, state.through_a_file(before)) == []


def test_copies_share_no_memory():
    before = example()
    after = state.copy_of(before)
    before.w.zero_()
    assert after.w.tolist() == [1.0, -2.0, 0.5]


def test_shapes_of_leaves():
    assert set(state.of_model_shape(example())) == {"w", "table", "inner.w"}
    assert set(state.tables(example(), 2)) == {"table"}
    assert set(state.by_client(example(), 2)) == {"lam", "table", "inner.losses"}
    assert not state.tables(example(), 3)
    assert set(state.by_client(example(), 3)) == {"w", "inner.w"}


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, []),
        ({"w": torch.tensor([1.0, -2.0, 0.5000001])}, ["w"]),
        ({"w": torch.tensor([1.0, -2.0, 0.5]).double()}, ["w"]),
        ({"inner": None}, ["inner.losses", "inner.rounds", "inner.w"]),
        ({"table": torch.full((2, 3), math.nan)}, ["table"]),
    ],
    ids=str,
)
def test_bitwise_comparison(change, differs):
    assert state.bits_differ(example(), example()._replace(**change)) == differs


def test_nan_equals_nan_in_bits_and_distance():
    nan = torch.tensor([1.0, math.nan])
    assert state.gap(nan, nan.clone()) == 0
    assert state.gap(nan, torch.tensor([1.0, 2.0])) == math.inf
    assert state.gap(torch.tensor([math.inf]), torch.tensor([-math.inf])) == math.inf
    assert state.gap(torch.ones(2), torch.ones(3)) == math.inf
    assert state.gap(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5])) == 0.5


def test_distance_is_relative_for_large_entries():
    big = example()._replace(w=torch.tensor([1e6, 0.0, 0.0]))
    moved = big._replace(w=big.w + torch.tensor([0.0, 0.5, 0.0]))
    assert state.far_apart(big, moved, 1e-6) == []
    assert state.far_apart(big, moved, 1e-7) == ["w by 5.0e-01"]


def test_with_mixture_replaces_lambda():
    lam = torch.tensor([1.0, 0.0], dtype=torch.float64)
    assert torch.equal(state.with_mixture(example(), lam).lam, lam)
    without = Inner(torch.ones(3), torch.ones(2), torch.ones(()))
    assert state.with_mixture(without, lam) is without


def tabled(*clients) -> Nested:
    """Return the example with a table of clients' vectors, of which these rows are written."""
    rows = torch.arange(3.0 * len(clients)).view(-1, 3)
    return example()._replace(table=ClientTable.of(2, torch.tensor(clients, dtype=torch.int64), rows))


@pytest.mark.parametrize("change", [state.copy_of, state.through_a_file, lambda s: state.rebuild(s, state.leaves(s))])
@pytest.mark.parametrize("clients", [(), (1,), (1, 0)])
def test_tables_count_as_matrices(change, clients):
    before = tabled(*clients)
    after = change(before)
    assert isinstance(after.table, ClientTable)
    assert state.bits_differ(before, after) == []
    assert state.leaves(before)["table"].shape == (2, 3)
    assert state.tables(before, 2).keys() == {"table"}
    written = before.table.clients.tolist()
    known = [i for i in written if before.table.dense()[i].any()] if change.__name__ == "<lambda>" else written
    assert after.table.clients.tolist() == known


def test_differing_tables_are_detected():
    assert state.bits_differ(tabled(0), tabled(1, 0)) == ["table"]
    assert state.far_apart(tabled(1), tabled(0), 1e-9) == ["table by 2.0e+00"]
