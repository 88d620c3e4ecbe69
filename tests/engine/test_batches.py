"""Test which samples a client uses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drfl.core.key import Key
from drfl.engine.batches import ClientRows, draw


def rows_of(sizes):
    """Return separate rows of a pool for each client, in descending order."""
    ends = np.cumsum(sizes)
    return [torch.arange(end - 1, end - n - 1, -1) for n, end in zip(sizes, ends, strict=True)]


@given(
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=6),
    steps=st.integers(1, 5),
    batch=st.one_of(st.none(), st.integers(1, 80)),
    seed=st.integers(0, 100),
)
def test_minibatches_are_distinct_rows_of_the_client(sizes, steps, batch, seed):
    rows = rows_of(sizes)
    drawn = draw(ClientRows.of(rows), torch.arange(len(sizes)), steps, batch, Key(seed))
    weights = drawn.weights(torch.zeros(1, dtype=torch.float64))
    for j, own in enumerate(rows):
        count = min(len(own), batch or len(own))
        assert int(drawn.counts[j]) == count
        assert weights[j, :count].tolist() == [1 / count] * count
        assert weights[j, count:].sum() == 0
        for t in range(steps):
            chosen = drawn.step_rows(t)[j]
            assert len(set(chosen[:count].tolist())) == count
            assert set(chosen.tolist()) <= set(own.tolist())


@given(sizes=st.lists(st.integers(1, 50), min_size=2, max_size=5), batch=st.integers(1, 40))
def test_draws_of_a_client_do_not_depend_on_the_cohort(sizes, batch):
    rows, n = rows_of(sizes), len(sizes)
    everybody = draw(ClientRows.of(rows), torch.arange(n), 3, batch, Key(1))
    backwards = draw(ClientRows.of(rows), torch.arange(n).flip(0), 3, batch, Key(1))
    for i in range(n):
        alone = draw(ClientRows.of(rows), torch.tensor([i]), 3, batch, Key(1))
        count = int(alone.counts[0])
        for t in range(3):
            mine = sorted(alone.step_rows(t)[0, :count].tolist())
            assert sorted(everybody.step_rows(t)[i, :count].tolist()) == mine
            assert sorted(backwards.step_rows(t)[n - 1 - i, :count].tolist()) == mine


def test_first_steps_do_not_depend_on_the_number_of_steps():
    rows = ClientRows.of(rows_of((50, 60)))
    few, many = draw(rows, torch.tensor([0, 1]), 2, 8, Key(0)), draw(rows, torch.tensor([0, 1]), 9, 8, Key(0))
    assert torch.equal(few.samples, many.samples[:, :2])


def test_draws_differ_by_client_key_and_step():
    rows = ClientRows.of([torch.arange(500)] * 4)
    a = draw(rows, torch.tensor([0, 1]), 2, 20, Key(0))
    assert not torch.equal(a.samples[0], a.samples[1])
    assert not torch.equal(a.step_rows(0), a.step_rows(1))
    assert not torch.equal(a.samples, draw(rows, torch.tensor([0, 1]), 2, 20, Key(1)).samples)
    assert not torch.equal(a.samples, draw(rows, torch.tensor([2, 3]), 2, 20, Key(0)).samples)


@pytest.mark.parametrize(("n", "batch"), [(7, 1), (7, 3), (7, 6), (40, 32)])
def test_draws_are_uniform_and_independent_over_steps(n, batch):
    """Each sample is in a batch with probability B/n, and each pair with B(B−1)/(n(n−1)); steps are independent."""
    steps = 6000
    index = draw(ClientRows.of([torch.arange(n)]), torch.tensor([0]), steps, batch, Key(8)).samples[0].numpy()
    member = np.zeros((steps, n))
    np.put_along_axis(member, index, 1, axis=1)
    p, q = batch / n, batch * (batch - 1) / (n * (n - 1))

    def agrees(share, expected, trials):
        error = np.sqrt(expected * (1 - expected) / trials)
        assert abs(share - expected) <= 4 * error

    for i in range(n):
        agrees(member[:, i].mean(), p, steps)
    agrees((member[:, 0] * member[:, 1]).mean(), q, steps)
    agrees((member[:, n - 1] * member[:, 2]).mean(), q, steps)
    agrees((member[:-1, 0] * member[1:, 0]).mean(), p**2, (steps - 1) / 2)
    agrees((member[:-1, 1] * member[1:, 2]).mean(), p**2, (steps - 1) / 2)


def test_rows_excludes_padding():
    drawn = draw(ClientRows.of(rows_of((2, 40, 5))), torch.arange(3), 3, 8, Key(0))
    part = drawn.rows(torch.tensor([2, 0]))
    assert part.counts.tolist() == [5, 2]
    assert part.samples.shape == (2, 3, 8)  # the next power of two
    assert torch.equal(part.samples, drawn.samples[[2, 0], :, :8])
    whole = draw(ClientRows.of(rows_of((2, 40, 5))), torch.arange(3), 3, None, Key(0)).rows(torch.tensor([2, 0]))
    assert whole.samples.shape == (2, 1, 5)


def test_full_batches_are_stored_once():
    assert draw(ClientRows.of(rows_of((4, 40))), torch.tensor([0, 1]), 50, None, Key(0)).samples.shape == (2, 1, 40)
    assert draw(ClientRows.of(rows_of((4, 40))), torch.tensor([0, 1]), 50, 64, Key(0)).samples.shape == (2, 1, 40)
