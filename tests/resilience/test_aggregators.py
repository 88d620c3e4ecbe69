"""Test that the rules are those of their papers under equal weights, and limit the influence of attackers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from tests.resilience.federations import fed_of
from tests.support.refusals import refused

from drfl.resilience import (
    CentredClip,
    CoordinateMedian,
    GeometricMedian,
    Krum,
    MedianClip,
    ProbeCosine,
    ServerProbe,
    TrimmedMean,
)

RULES = [MedianClip(), TrimmedMean(4), CoordinateMedian(), GeometricMedian(), Krum(4), Krum(4, used=1), CentredClip()]
IDS = [str(rule) for rule in RULES]
MOVING = [rule for rule in RULES if not isinstance(rule, MedianClip | CentredClip)]
"""Rules that do not depend on the origin."""


def cohort(k=20, d=6, seed=0):
    """Draw honest vectors around a non-zero one."""
    generator = np.random.default_rng(seed)
    return torch.from_numpy(generator.normal(size=(k, d)) + np.arange(d))


def apply(rule, U, centre=None):
    """Return the kept clients and their vectors."""
    kept = rule.keep(U, centre)
    mine = centre if centre is None or centre.dim() == 1 else centre[kept]
    return kept, rule.bound(U[kept], mine)


def mean_of(rule, U):
    return apply(rule, U)[1].mean(0)


def test_trimmed_mean_matches_scipy():
    U = cohort(k=11)
    for f in range(1, 6):
        assert mean_of(TrimmedMean(f), U).numpy() == pytest.approx(stats.trim_mean(U.numpy(), (f + 0.5) / 11))


@pytest.mark.parametrize("k", [3, 4, 11, 12])
def test_coordinate_wise_median_matches_numpy(k):
    U = cohort(k)
    found = apply(CoordinateMedian(), U)[1]
    assert mean_of(CoordinateMedian(), U).numpy() == pytest.approx(np.median(U.numpy(), axis=0))
    assert torch.equal(found[0], found[-1])


@pytest.mark.parametrize("seed", range(3))
def test_geometric_median_minimises_the_sum_of_distances(seed):
    U = cohort(9, 3, seed)
    U[0] += 50
    sums = lambda z: float((U - torch.from_numpy(z)).norm(dim=1).sum())  # noqa: E731
    best = optimize.minimize(sums, U.numpy().mean(0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    assert mean_of(GeometricMedian(), U).numpy() == pytest.approx(best.x, abs=1e-4)


def test_geometric_median_can_be_one_of_the_vectors():
    U = torch.tensor([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert mean_of(GeometricMedian(), U).abs().max() < 1e-6
    assert torch.equal(apply(GeometricMedian(), torch.ones(4, 2))[1], torch.ones(4, 2))


@pytest.mark.parametrize(("f", "keep"), [(1, 1), (2, 1), (2, 0), (3, 5)])
def test_krum_keeps_vectors_with_near_neighbours(f, keep):
    U = cohort(11, 3)
    U[[2, 5]] += 9
    apart = ((U[:, None] - U) ** 2).sum(2)
    scores = [
        min(float(apart[i, list(others)].sum()) for others in itertools.combinations(set(range(11)) - {i}, 11 - f - 2))
        for i in range(11)
    ]
    expected = sorted(np.argsort(scores, kind="stable")[: keep or 11 - f].tolist())
    kept, vectors = apply(Krum(f, keep), U)
    assert kept.nonzero().flatten().tolist() == expected
    assert torch.equal(vectors, U[expected])
    assert not kept[[2, 5]].any() or f < 2


def test_clipping_shortens_to_the_median_length():
    U = cohort()
    lengths, found = U.norm(dim=1), apply(MedianClip(1.5), U)[1]
    assert found.norm(dim=1).tolist() == pytest.approx(lengths.clamp(max=1.5 * lengths.median()).tolist())
    assert torch.nn.functional.cosine_similarity(U, found).tolist() == pytest.approx([1.0] * 20)


def test_centred_clipping_limits_the_distance_from_the_centre():
    U, centre = cohort(), torch.arange(6).double()
    away = (U - centre).norm(dim=1)
    found = apply(CentredClip(0.5), U, centre)[1]
    assert (found - centre).norm(dim=1).tolist() == pytest.approx(away.clamp(max=0.5 * away.median()).tolist())
    assert torch.equal(apply(CentredClip(), U)[1], apply(MedianClip(), U)[1])
    assert CentredClip(momentum=0.3).memory == 0.3
    assert [rule.memory for rule in RULES[:-1]] == [None] * (len(RULES) - 1)


def test_probe_keeps_aligned_updates_and_limits_their_length():
    own = torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0], [0.0, -1.0], [5.0, 0.0]])
    U = torch.tensor([[3.0, 1.0], [1.0, 1.0], [1.0, 0.0], [0.0, -90.0], [0.19, 1.0]])
    rule = ProbeCosine(ServerProbe(fed_of()), 0.2)
    kept, vectors = apply(rule, U, own)
    assert kept.tolist() == [True, True, False, True, False]  # the last one's cosine is 0.187
    assert vectors.norm(dim=1).tolist() == pytest.approx([2, 2**0.5, 2])
    assert torch.allclose(vectors[0], U[0] * 2 / 10**0.5)
    assert rule.min_vectors == 1
    assert not apply(rule, -own, own)[0].any()
    assert not apply(rule, torch.zeros(2, 2), own[:2])[0].any()  # zero updates


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_order_and_scale_of_replies_do_not_matter(rule):
    U, order = cohort(), torch.randperm(20, generator=torch.Generator().manual_seed(1))
    kept, vectors = apply(rule, U)
    again, moved = apply(rule, U[order])
    assert torch.equal(again, kept[order])
    whole, back = torch.zeros(2, 20, 6, dtype=torch.float64)
    whole[kept], back[again] = vectors, moved
    assert torch.allclose(back, whole[order], atol=1e-6)
    assert torch.allclose(apply(rule, 1000 * U)[1], 1000 * vectors, rtol=1e-6)


@pytest.mark.parametrize("rule", MOVING, ids=map(str, MOVING))
def test_origin_does_not_matter(rule):
    U = cohort()
    assert torch.allclose(apply(rule, U + 7)[1], apply(rule, U)[1] + 7, atol=1e-6)


@pytest.mark.parametrize("far", [1e2, 1e6, 1e30])
@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_four_attackers_of_twenty_have_limited_influence(rule, far):
    U = cohort().float()
    U[:4] = far * torch.tensor([1.0, -1, 1, -1, 1, 1])
    kept, vectors = apply(rule, U)
    longest = float(U[4:].norm(dim=1).max())
    assert torch.isfinite(vectors).all()
    assert float(vectors.norm(dim=1).max()) <= 2 * longest
    assert (vectors.mean(0) - U[4:].mean(0)).norm() < (3.5 if isinstance(rule, MedianClip | CentredClip) else 2)
    assert kept[4:].any()
    # weights can be concentrated on one client, like λ
    lam = torch.zeros(len(vectors)).index_fill(0, torch.tensor([0]), 1.0)
    assert (lam @ vectors).norm() <= 2 * longest


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_smallest_cohort_of_each_rule(rule):
    assert rule.min_vectors == {"TrimmedMean": 9, "Krum": 11}.get(type(rule).__name__, 3)
    kept, vectors = apply(rule, cohort(rule.min_vectors))
    assert int(kept.sum()) == len(vectors) >= 1


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (MedianClip, {"factor": 0.0}), (TrimmedMean, {"f": 0}), (Krum, {"f": 0}), (Krum, {"used": -1}),
        (CentredClip, {"factor": -1.0}), (CentredClip, {"momentum": 1.0}), (GeometricMedian, {"iterations": 0}),
        (GeometricMedian, {"tolerance": 0.0}), (ProbeCosine, {"probe": None, "cosine": 1.5}),
        (ProbeCosine, {"probe": None, "length": 0.0}),
    ],
)  # fmt: skip
def test_impossible_numbers_are_refused(rule, values):
    with refused("out-of-range", list(values)[-1]):
        rule(**values)
