"""Test the worst score expected if all clients are equally good."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom
from tests.support.marks import long_beyond

from drfl.assessment.equal_clients import equal_clients


@pytest.mark.parametrize("sizes", [[3], [2, 3], [4, 1, 2]])
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_expected_worst_matches_enumeration(sizes, p):
    mean = 0.0
    for hits in itertools.product(*(range(n + 1) for n in sizes)):
        law = np.prod([binom.pmf(k, n, p) for k, n in zip(hits, sizes, strict=True)])
        mean += law * min(k / n for k, n in zip(hits, sizes, strict=True))
    assert equal_clients(p, np.array(sizes)).worst == pytest.approx(mean, abs=1e-4)


def test_expected_worst_of_thirty_clients_with_twenty_samples():
    drawn = np.random.default_rng(0).binomial(20, 0.949, (20_000, 30)) / 20
    found = equal_clients(0.949, np.full(30, 20))
    assert found.worst == pytest.approx(drawn.min(1).mean(), abs=2e-3)
    assert found.std == pytest.approx(np.sqrt(drawn.var(1).mean()), rel=0.02)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_certain_answers_have_no_noise(p):
    assert equal_clients(p, np.array([1, 7]))[:2] == (p, 0.0)


@pytest.mark.parametrize("p", long_beyond(1, [0.02, 0.5, 0.97, 0.9999]))
def test_many_test_sizes_give_the_product_of_all(p):
    sizes = np.concatenate([np.arange(2, 80), np.geomspace(80, 50_000, 50).round(), [7, 7, 50_000]])
    x = (np.arange(10_000) + 0.5) / 10_000
    exceeds = np.prod([binom.sf(np.floor(x * n), n, p) for n in sizes], axis=0)
    found = equal_clients(p, sizes)
    assert found.worst == pytest.approx(exceeds.mean(), rel=1e-12)
    assert (found.low, found.high) == (np.mean(exceeds > 0.975), np.mean(exceeds > 0.025))
