"""Test client sampling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.marks import long_except
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.sampling import Cohort

LAM = torch.tensor([0.5, 0.0, 0.2, 0.05, 0.25], dtype=torch.float64)
TRIALS = 3000


def keys():
    return (Key(4).fold(r) for r in range(TRIALS))


def within_four_errors(counts, expected):
    """Assert that counts over TRIALS match these probabilities within four standard errors."""
    share, expected = np.asarray(counts) / TRIALS, np.asarray(expected)
    assert (np.abs(share - expected) <= 4 * np.sqrt(expected * (1 - expected) / TRIALS)).all()


def well_formed(c, n):
    assert c.clients.dtype == torch.int64
    assert c.counts.dtype == torch.float64
    assert c.clients.tolist() == sorted(set(c.clients.tolist()))
    assert c.clients.min() >= 0
    assert c.clients.max() < n


@pytest.mark.long
def test_multiplicities_with_replacement_are_multinomial():
    """Compare means and the probability of being drawn at all."""
    counts, present = np.zeros(5), np.zeros(5)
    for key in keys():
        drawn = sampling.with_replacement(LAM, 3, key)
        well_formed(drawn, 5)
        assert drawn.counts.sum() == 3
        assert (drawn.counts >= 1).all()
        counts[drawn.clients.numpy()] += drawn.counts.numpy()
        present[drawn.clients.numpy()] += 1
    p = LAM.numpy()
    assert (np.abs(counts / TRIALS - 3 * p) <= 4 * np.sqrt(3 * p * (1 - p) / TRIALS)).all()
    within_four_errors(present, 1 - (1 - p) ** 3)


def test_block_sampling_follows_the_law(monkeypatch):
    """Many clients give the same draws as few. Weights of 0 are never drawn, even at the ends of blocks."""
    rng = np.random.default_rng(0)
    p = rng.random(5 * sampling.BLOCK + 7) * (rng.random(5 * sampling.BLOCK + 7) < 0.1)
    p[sampling.BLOCK - 50 : 3 * sampling.BLOCK + 50] = 0
    weights = torch.from_numpy(p)
    whole = [sampling.with_replacement(weights, 20, Key(r)) for r in range(200)]
    monkeypatch.setattr(sampling, "MANY", 0)
    assert all(map(same_cohort, whole, (sampling.with_replacement(weights, 20, Key(r)) for r in range(200))))


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0), 0.5, np.nextafter(0.5, 0.0)])
def test_block_sampling_at_block_ends_draws_valid_clients(uniform):
    """Rounding at the end of a block must lead to a client that can be drawn."""
    weights = np.zeros(3 * sampling.BLOCK)
    weights[[5, sampling.BLOCK - 3, 2 * sampling.BLOCK, 3 * sampling.BLOCK - 9]] = 0.25, 0.25, 0.1, 0.4
    drawn = sampling._from_blocks(weights, np.array([uniform]))
    assert (weights[drawn] > 0).all()


def same_cohort(a, b):
    return torch.equal(a.clients, b.clients) and torch.equal(a.counts, b.counts)


def test_more_draws_than_clients():
    drawn = sampling.with_replacement(torch.tensor([0.5, 0.5]), 9, Key(0))
    assert drawn.counts.sum() == 9


def test_weights_need_not_sum_to_one_exactly():
    third = torch.full((3,), 0.333333, dtype=torch.float32)
    assert sampling.with_replacement(third, 4, Key(0)).counts.sum() == 4
    assert sampling.without_replacement(third, 2, Key(0)).clients.numel() == 2


@pytest.mark.long
def test_pairs_without_replacement_follow_sequential_draws():
    """The first client is drawn by λ, and the second by λ among the others."""
    pairs = dict.fromkeys(itertools.combinations(range(5), 2), 0)
    for key in keys():
        drawn = sampling.without_replacement(LAM, 2, key)
        well_formed(drawn, 5)
        assert drawn.counts.tolist() == [1, 1]
        pairs[tuple(drawn.clients.tolist())] += 1
    p = LAM.numpy()
    within_four_errors(list(pairs.values()), [p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in pairs])


def test_sampling_all_drawable_clients_without_replacement():
    assert sampling.without_replacement(LAM, 4, Key(0)).clients.tolist() == [0, 2, 3, 4]


def test_without_replacement_needs_enough_positive_weights():
    with refused("few-clients", "m", "4", "m=5"):
        sampling.without_replacement(LAM, 5, Key(0))


def test_all_clients_are_sampled():
    drawn = sampling.all_clients(LAM.float(), 2, Key(0))
    well_formed(drawn, 5)
    assert drawn.clients.tolist() == [0, 1, 2, 3, 4]
    torch.testing.assert_close(drawn.weights_of(drawn.clients), LAM, rtol=1e-6, atol=0)


@pytest.mark.long
@pytest.mark.parametrize("m", [1, 3, 5])
def test_uniform_weighted_cohort(m):
    """Clients are drawn uniformly and weighted by λ; a client of weight 0 does not count."""
    present = np.zeros(5)
    for key in keys():
        drawn = sampling.uniform_weighted(LAM.float(), m, key)
        well_formed(drawn, 5)
        assert drawn.clients.tolist() == sampling.uniform(5, m, key).clients.tolist()
        torch.testing.assert_close(drawn.counts, LAM[drawn.clients], rtol=1e-6, atol=0)
        present[drawn.clients.numpy()] += 1
    within_four_errors(present, [m / 5] * 5)


def test_uniform_weighted_uses_only_answering_clients():
    drawn = sampling.uniform_weighted(LAM, 5, Key(0))
    assert drawn.weights_of(torch.tensor([4, 0, 1])).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    one_weight = torch.tensor([0.0, 0.0, 0.0, 1.0])
    alike = [sampling.uniform_weighted(one_weight, 2, key) for key in (Key(r) for r in range(40))]
    shares = {tuple(c.clients.tolist()): tuple(c.weights_of(c.clients).tolist()) for c in alike}
    assert shares[0, 1] == (0.5, 0.5)
    assert shares[1, 3] == (0.0, 1.0)


@pytest.mark.parametrize("m", long_except(["2"], [1, 2, 4]))
def test_uniform_cohort(m):
    present, together = np.zeros(5), 0
    for key in keys():
        drawn = sampling.uniform(5, m, key)
        well_formed(drawn, 5)
        assert drawn.counts.tolist() == [1] * m
        present[drawn.clients.numpy()] += 1
        together += {0, 4} <= set(drawn.clients.tolist())
    within_four_errors(present, [m / 5] * 5)
    within_four_errors([together], [m * (m - 1) / 20])


def test_uniform_cohort_of_all_clients():
    drawn = sampling.uniform(5, 5, Key(0))
    well_formed(drawn, 5)
    assert drawn.clients.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("m", [0, -1, 6])
def test_impossible_sizes_are_refused(m):
    with refused("out-of-range", "m", f"m={m}", "5"):
        sampling.uniform(5, m, Key(0))
    with refused("out-of-range", "m", f"m={m}", "5"):
        sampling.uniform_weighted(LAM, m, Key(0))


EVERY = [sampling.with_replacement, sampling.without_replacement, sampling.all_clients, sampling.uniform_weighted]


@pytest.mark.parametrize("sample", EVERY)
@pytest.mark.parametrize("weights", [[0.5, 0.6, -0.1], [0.0, 0.0, 0.0], [0.5, math.nan, 0.5], [1.0, math.inf, 1.0]])
def test_impossible_weights_are_refused(sample, weights):
    with refused("out-of-range", "weights"):
        sample(torch.tensor(weights), 2, Key(0))


@pytest.mark.parametrize("sample", EVERY)
def test_rounding_errors_below_zero_count_as_zero(sample):
    weights = torch.tensor([0.5, 0.5, -1e-12], dtype=torch.float64)
    drawn = sample(weights, 2, Key(0))
    exact = sample(weights.clamp(min=0), 2, Key(0))
    assert torch.equal(drawn.clients, exact.clients)
    assert torch.equal(drawn.counts, exact.counts)


@pytest.mark.parametrize(("m", "expected"), [(None, 5), (1, 1), (5, 5), (np.int64(3), 3)])
def test_default_cohort_size(m, expected):
    assert sampling.size(m, 5) == expected


@pytest.mark.parametrize("m", [0, -1, 6, 2.0, "3", math.nan, True])
def test_impossible_default_size_is_refused(m):
    with refused("out-of-range", "m", f"m={m!r}", "5"):
        sampling.size(m, 5)


@pytest.mark.parametrize(
    "sampling", [sampling.with_replacement, sampling.without_replacement, sampling.uniform_weighted]
)
def test_key_determines_the_cohort(sampling):
    lam = torch.full((50,), 0.02)
    assert torch.equal(sampling(lam, 5, Key(0)).clients, sampling(lam, 5, Key(0)).clients)
    assert sampling(lam, 5, Key(0)).clients.tolist() != sampling(lam, 5, Key(1)).clients.tolist()


@given(data=st.data())
def test_weights_of_answering_clients(data):
    clients = sorted(data.draw(st.sets(st.integers(0, 30), min_size=1, max_size=8)))
    counts = data.draw(st.lists(st.integers(1, 5), min_size=len(clients), max_size=len(clients)))
    asked = Cohort(torch.tensor(clients), torch.tensor(counts, dtype=torch.float64))
    answered = data.draw(st.permutations(clients))[: data.draw(st.integers(1, len(clients)))]
    count_of = dict(zip(clients, counts, strict=True))
    total = sum(count_of[i] for i in answered)
    expected = [count_of[i] / total for i in answered]
    assert asked.weights_of(torch.tensor(answered)).tolist() == pytest.approx(expected, abs=1e-15)


def test_weights_if_no_client_answers():
    asked = sampling.uniform(5, 3, Key(0))
    assert asked.weights_of(torch.empty(0, dtype=torch.int64)).tolist() == []


def test_weights_if_only_clients_of_weight_zero_answer():
    asked = Cohort(torch.arange(3), torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))
    assert asked.weights_of(torch.tensor([2, 0])).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("answered", [[1], [9], [2, 3], [0, 2]])
def test_answers_from_outside_the_cohort_are_refused(answered):
    asked = Cohort(torch.tensor([2, 4]), torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="not in the cohort"):
        asked.weights_of(torch.tensor(answered))


def test_duplicate_answers_are_refused():
    asked = Cohort(torch.tensor([2, 4]), torch.ones(2, dtype=torch.float64))
    with pytest.raises(ValueError, match="twice"):
        asked.weights_of(torch.tensor([4, 2, 4]))


def test_sampling_with_replacement_matches_numpy():
    """The faster method must not change any draw, for any weights with zeros at the ends."""
    for seed in range(200):
        rng = np.random.default_rng(seed)
        weights = rng.random(rng.integers(1, 60)) * (rng.random() < 0.5)
        weights[rng.integers(len(weights))] = 1.0
        drawn = sampling.with_replacement(torch.from_numpy(weights), 9, Key(seed))
        p = weights / weights.sum()
        clients, counts = np.unique(Key(seed).generator().choice(len(p), size=9, p=p), return_counts=True)
        assert drawn.clients.tolist() == clients.tolist()
        assert drawn.counts.tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (lambda weights, m, key: torch.tensor([0, 1]), "wrong-type"),
        (lambda weights, m, key: Cohort([0, 1], [1.0, 1.0]), "wrong-type"),
        (lambda weights, m, key: Cohort(torch.tensor([0, 5]), torch.ones(2)), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([-1, 0]), torch.ones(2)), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([0, 0]), torch.ones(2)), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([0, 1]), torch.ones(3)), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([0, 1]), torch.tensor([1.0, -1.0])), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([0, 1]), torch.tensor([1.0, math.nan])), "out-of-range"),
        (lambda weights, m, key: Cohort(torch.tensor([], dtype=torch.int64), torch.ones(0)), "out-of-range"),
    ],
)
def test_wrong_cohort_of_a_users_function_is_refused(rule, code):
    with refused(code, "sampling"):
        sampling.draw(rule, LAM, 2, Key(0))


def test_cohort_of_a_users_function_may_have_any_order():
    cohort = sampling.draw(
        lambda weights, m, key: Cohort(torch.tensor([3, 0]), torch.tensor([1.0, 2.0])), LAM, 2, Key(0)
    )
    well_formed(cohort, len(LAM))
    assert cohort.weights_of(torch.tensor([0, 3])).tolist() == [2 / 3, 1 / 3]
