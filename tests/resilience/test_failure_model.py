"""Test that failures are drawn by seed, round and client, with the requested probabilities."""

from __future__ import annotations

import itertools

import pytest
import torch
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl.resilience import FailureModel

N = 4000


@pytest.mark.parametrize(
    "wrong",
    [
        {"drop": -0.1},
        {"drop": (0.1, 1.5)},
        {"drop": "often"},
        {"crash": 2.0},
        {"outage": float("nan")},
        {"groups": 0},
        {"outage_rounds": 1.5},
        {"slow": 1.1},
        {"slowdown": 0.5},
        {"slowdown": -3.0},
        {"deadline": 0.0},
        {"jitter": -1.0},
        {"duplicate": 1.01},
        {"jitter": 10.5},
        {"jitter": 1e308},
        {"jitter": 10**400},
        {"slowdown": 1e7},
        {"slowdown": 1e308},
        {"deadline": 1e10},
        {"deadline": 10**300},
        {"outage_rounds": 10**6 + 1},
        {"outage_rounds": 2**63},
        {"outage_rounds": 10**400},
    ],
)
def test_impossible_values_are_refused(wrong):
    with refused("out-of-range", None, next(iter(wrong))) as error:
        FailureModel(**wrong)
    assert "\n" not in str(error.value)


def test_values_that_do_not_fit_n_are_refused():
    FailureModel(drop=(0.1, 0.2), groups=2).check(2)
    with refused("count-mismatch", "drop"):
        FailureModel(drop=(0.1, 0.2)).check(3)
    with refused("out-of-range", "groups", "groups=3"):
        FailureModel(groups=3).check(2)


def test_extreme_parameters_give_finite_times():
    n, key = 10_000, Key(0)
    faults = FailureModel(outage=1.0, outage_rounds=10**6, slow=0.5, slowdown=1e6, deadline=1e9, jitter=10)
    z = torch.from_numpy(key.generator().standard_normal(n))
    assert faults.spread is not None
    times = 1000 * faults.pace(n, key) * torch.exp(faults.spread * z - faults.spread**2 / 2)  # as in Stragglers.times
    assert bool(torch.isfinite(times).all())
    assert bool((times > 0).all())
    assert faults.draw_outages(torch.zeros(1, dtype=torch.int64), key).tolist() == [10**6]


@pytest.mark.parametrize("draw", ["draw_dropout", "draw_crashes"])
def test_frequencies_match_the_probabilities(draw):
    name = {"draw_dropout": "drop", "draw_crashes": "crash"}[draw]
    hit = [getattr(FailureModel(**{name: p}), draw)(N, Key(1).fold("round", 1)) for p in (0.0, 0.2, 0.5, 1.0)]
    for p, found in zip((0.0, 0.2, 0.5, 1.0), hit, strict=True):
        assert abs(float(found.double().mean()) - p) <= 4 * (p * (1 - p) / N) ** 0.5
    assert all(bool((more | ~less).all()) for less, more in itertools.pairwise(hit))  # larger p loses the same clients


def test_probability_per_client():
    faults = FailureModel(drop=(0.0, 1.0, 0.3))
    hit = torch.stack([faults.draw_dropout(3, Key(0).fold("round", r)) for r in range(400)]).double().mean(0)
    assert hit[:2].tolist() == [0.0, 1.0]
    assert abs(float(hit[2]) - 0.3) < 4 * (0.21 / 400) ** 0.5


def test_draws_belong_to_seed_round_client_and_purpose():
    faults = FailureModel(drop=0.5, crash=0.5)
    key = Key(1).fold("round", 1)
    assert torch.equal(faults.draw_dropout(N, key), faults.draw_dropout(N, key))
    assert torch.equal(faults.draw_dropout(N, key)[:10], faults.draw_dropout(10, key))
    others = (faults.draw_dropout(N, Key(1).fold("round", 2)), faults.draw_dropout(N, Key(2).fold("round", 1)))
    for other in (*others, faults.draw_crashes(N, key)):
        assert 0.4 < float((faults.draw_dropout(N, key) != other).double().mean()) < 0.6


def test_slow_clients_stay_slow():
    faults = FailureModel(slow=0.3, slowdown=4.0)
    pace = faults.pace(10, Key(5).fold("round", 1))
    assert sorted(pace.tolist()) == [1.0] * 7 + [4.0] * 3
    assert torch.equal(pace, faults.pace(10, Key(5).fold("round", 2, "again", 1)))
    assert len({tuple(faults.pace(10, Key(seed)).tolist()) for seed in range(5)}) > 1
    assert bool((FailureModel(slow=0.6, slowdown=4.0).pace(10, Key(5)) >= pace).all())


def test_outage_begins_lasts_and_ends():
    faults, zero = FailureModel(outage=1.0, groups=2, outage_rounds=3), torch.zeros(2, dtype=torch.int64)
    assert faults.draw_outages(zero, Key(0)).tolist() == [3, 3]
    assert faults.draw_outages(torch.tensor([2, 0]), Key(0)).tolist() == [2, 3]
    assert FailureModel(groups=2, outage_rounds=3).draw_outages(torch.tensor([2, 0]), Key(0)).tolist() == [2, 0]
    some = FailureModel(outage=0.25, groups=N).draw_outages(torch.zeros(N, dtype=torch.int64), Key(3))
    assert abs(float(some.double().mean()) - 0.25) < 4 * (0.1875 / N) ** 0.5


def test_cases_in_which_times_are_drawn():
    assert FailureModel(drop=0.5, crash=0.5, duplicate=0.5).spread is None
    assert FailureModel(slow=0.1).spread == FailureModel(deadline=3.0).spread == 0.5
    assert FailureModel(slow=0.1, jitter=0.0).spread == 0.0
    assert FailureModel(jitter=0.2).spread == 0.2
