"""Test keys: named, reproducible, independent random streams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl.core.key import Key

labels = st.one_of(st.text(max_size=5), st.integers(0, 2**64 - 1))
paths = st.lists(labels, max_size=4).map(tuple)
seeds = st.integers(0, 2**64 - 1)


def numbers(key):
    return key.generator().random(4).tolist()


@given(seed=seeds, path=paths)
def test_same_path_gives_the_same_numbers(seed, path):
    step_by_step = Key(seed)
    for label in path:
        step_by_step = step_by_step.fold(label)
    assert step_by_step == Key(seed).fold(*path)
    assert numbers(step_by_step) == numbers(Key(seed).fold(*path))


@given(seed=seeds, a=paths, b=paths)
def test_distinct_paths_give_distinct_numbers(seed, a, b):
    assert (numbers(Key(seed).fold(*a)) == numbers(Key(seed).fold(*b))) == (a == b)


@given(a=seeds, b=seeds, path=paths)
def test_distinct_seeds_give_distinct_numbers(a, b, path):
    assert (numbers(Key(a).fold(*path)) == numbers(Key(b).fold(*path))) == (a == b)


ALIKE = [("ab",), ("a", "b"), ("b", "a"), (), ("",), (0,), (0, 0), ("0",), (1,), ("1",), (2**32,), (1, 0), (0, 1)]
ALIKE += [(2**32 + 1,), (2**63,), (2**64 - 1,), ("client", 1), ("client", "1"), ("client1",), (1, 2), (12,)]


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64])
def test_seeds_of_numpy_are_numbers(kind):
    assert Key(kind(5)) == Key(5)
    assert numbers(Key(kind(5)).fold("a")) == numbers(Key(5).fold("a"))


def test_similar_paths_give_different_streams():
    drawn = {path: tuple(numbers(Key(0).fold(*path))) for path in ALIKE}
    assert len(set(drawn.values())) == len(ALIKE)


def test_seeds_with_common_words_give_different_streams():
    seeds = (0, 1, 2**32, 2**32 + 1, 2**64 - 1)
    assert len({tuple(numbers(Key(seed))) for seed in seeds}) == len(seeds)


def test_stream_matches_stored_numbers():
    """If the derivation of keys changes, past runs are no longer reproducible."""
    key = Key(0).fold("round", 3, "client", 7)
    digest = np.random.Generator(np.random.Philox(np.random.SeedSequence(0, spawn_key=key.path))).random(2)
    assert key.generator().random(2).tolist() == digest.tolist()
    assert [Key(0).fold("D").integer(0, 999), key.integer(0, 999)] == [486, 900]


def test_order_of_use_does_not_matter():
    keys = [Key(5).fold("client", i) for i in range(4)]
    forwards = [numbers(key) for key in keys]
    backwards = [numbers(key) for key in reversed(keys)]
    assert forwards == backwards[::-1]
    generator = keys[0].generator()
    generator.random(100)
    assert numbers(keys[0]) == forwards[0]


def test_streams_are_uncorrelated():
    draws = np.stack([Key(0).fold("client", i).generator().random(4000) for i in range(6)])
    correlation = np.corrcoef(draws)
    for i, j in itertools.combinations(range(6), 2):
        assert abs(correlation[i, j]) < 4 / np.sqrt(4000)


def test_integer_includes_both_ends():
    drawn = [Key(0).fold(i).integer(3, 6) for i in range(400)]
    assert set(drawn) == {3, 4, 5, 6}
    counts = np.bincount(drawn)[3:]
    assert (np.abs(counts - 100) < 4 * np.sqrt(400 * 0.25 * 0.75)).all()
    assert Key(0).integer(2, 2) == 2


def test_numpy_integers_are_accepted():
    assert numbers(Key(0).fold(np.int64(7))) == numbers(Key(0).fold(7))
    assert numbers(Key(np.int64(3))) == numbers(Key(3))


def test_torch_scope_seeds_torch_and_restores_its_state():
    torch_before = torch.random.get_rng_state()
    with Key(1).torch_scope():
        first = torch.randn(3)
    assert torch.equal(torch_before, torch.random.get_rng_state())
    with Key(1).torch_scope():
        again = torch.randn(3)
    with Key(2).torch_scope():
        other = torch.randn(3)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_torch_scope_restores_after_an_error():
    before = torch.random.get_rng_state()
    with pytest.raises(KeyError), Key(1).torch_scope():
        raise KeyError
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5])
def test_bad_seed_is_refused(seed):
    with refused("out-of-range", "seed"):
        Key(seed)


@pytest.mark.parametrize("label", [-1, 2**64, 0.5])
def test_bad_label_is_refused(label):
    with refused("wrong-type", "label"):
        Key(0).fold(label)


def test_keys_are_hashable_values():
    assert Key(1).fold("a") == Key(1).fold("a")
    assert len({Key(1).fold("a"), Key(1).fold("a"), Key(1)}) == 2
