"""Test rates, fading and outage."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from tests.support.refusals import refused

from drfl.core.key import Key
from drfl_papers.energy import Channel, LinkConditions, Rayleigh

ONE = torch.ones(1, dtype=torch.float64)


def rayleigh(bandwidth=1e6, snr_db=5.0, rate_min=1e6, n=1):
    return Rayleigh(Channel.uniform(n, bandwidth, snr_db), rate_min)


def test_rate_follows_shannon():
    ratios = torch.tensor([1, 3, 15], dtype=torch.float64)
    channel = Channel(torch.tensor([1e6, 1e6, 2e5]), 10 * torch.log10(ratios))
    assert channel.rates().tolist() == pytest.approx([1e6, 2e6, 8e5], rel=1e-12)
    assert channel.seconds(torch.tensor([1e6, 1e6, 1e6])).tolist() == pytest.approx([1, 0.5, 1.25], rel=1e-12)


def test_very_poor_channel_has_a_positive_rate():
    # log2(1 + x) is x/ln 2 for small x, which rounding 1 + x would lose
    assert float(Channel.uniform(1, 1.0, -200.0).rates()[0]) == pytest.approx(1e-20 / math.log(2), rel=1e-9)


@pytest.mark.parametrize(
    ("bandwidth", "snr", "error"),
    [
        ([0.0], [1.0], ("out-of-range", "bandwidth")),
        ([-1.0], [1.0], ("out-of-range", "bandwidth")),
        ([math.nan], [1.0], ("out-of-range", "bandwidth")),
        ([1.0], [math.inf], ("out-of-range", "snr", "dB")),
        ([1.0], [1e6], ("out-of-range", "snr", "dB")),
        ([1.0, 2.0], [1.0], ("wrong-shape", "bandwidth")),
        ([], [], ("wrong-shape", "bandwidth")),
    ],
)
def test_impossible_channels_are_refused(bandwidth, snr, error):
    with refused(*error):
        Channel(torch.tensor(bandwidth), torch.tensor(snr))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_fading_requires_a_minimum_rate(rate):
    with refused("out-of-range", "rate_min"):
        rayleigh(rate_min=rate)


def test_outage_by_hand():
    # 2^{R/B} − 1 = 1 and SNR = 1: P(g < 1) = 1 − 1/e
    assert float(rayleigh(snr_db=0.0).outage()[0]) == pytest.approx(1 - math.exp(-1), rel=1e-12)
    assert float(rayleigh(rate_min=1e12).outage()[0]) == 1


def test_dropout_frequency_matches_the_closed_form():
    n, rounds = 400, 200
    bandwidth = torch.linspace(5e5, 4e6, n, dtype=torch.float64)
    fading = Rayleigh(Channel(bandwidth, torch.linspace(-3, 12, n, dtype=torch.float64)), 1e6)
    absent = torch.stack([fading.absent(Key(1).fold("round", r)) for r in range(rounds)]).double()
    p = fading.outage()
    assert 0.01 < float(p.min()) < 0.05
    assert float(p.max()) > 0.9
    for part in torch.arange(n).chunk(4):  # each the mean of 20,000 draws
        error = math.sqrt(float((p[part] * (1 - p[part])).sum()) / rounds) / len(part)
        assert abs(float(absent[:, part].mean() - p[part].mean())) < 4 * error


def test_draw_belongs_to_its_round():
    fading, key = rayleigh(n=50), Key(3).fold("round", 1)
    assert torch.equal(fading.gains(key), fading.gains(key))
    assert not torch.equal(fading.gains(key), fading.gains(Key(3).fold("round", 2)))
    assert not torch.equal(fading.gains(key), fading.gains(Key(4).fold("round", 1)))


@pytest.mark.long
@given(
    st.floats(-20, 30),
    st.floats(3, 8),
    st.floats(-6, 1.0),
)
def test_expected_time_equals_the_integral(snr_db, log_bandwidth, log_ratio):
    bandwidth = 10**log_bandwidth
    fading = rayleigh(bandwidth, snr_db, bandwidth * 10**log_ratio)
    low, snr = float(fading.thresholds()[0]), 10 ** (snr_db / 10)
    start, end = math.log(low), math.log(low + 60)

    def integrand(y):  # g = e^y
        gain = math.exp(y)
        return math.exp(low - gain) * gain * math.log(2) / (bandwidth * math.log1p(gain * snr))

    expected, _ = quad(integrand, start, end, epsabs=0, epsrel=1e-10, limit=400)
    assert float(fading.seconds(ONE)[0]) == pytest.approx(expected, rel=1e-6 if low < 1e6 else 1e-3)


def test_expected_time_equals_the_mean_of_draws():
    n = 200_000
    fading = rayleigh(n=n, rate_min=3e5)
    gains = fading.gains(Key(0))
    served = gains[gains >= fading.thresholds()]
    times = math.log(2) / (1e6 * torch.log1p(served * fading.channel.snr[0]))
    error = float(times.std()) / math.sqrt(len(times))
    assert float(rayleigh(rate_min=3e5).seconds(ONE)[0]) == pytest.approx(float(times.mean()), abs=4 * error)


@given(st.floats(-20, 30), st.floats(1, 1e9))
def test_sending_clients_reach_the_minimum_rate(snr_db, rate):
    assert 0 < float(rayleigh(1e6, snr_db, rate).seconds(ONE)[0]) <= (1 + 1e-9) / rate


def test_time_is_finite_at_certain_outage():
    assert float(rayleigh(bandwidth=1.0, rate_min=1e6).seconds(ONE)[0]) == pytest.approx(1e-6)


def test_fading_is_optional():
    assert LinkConditions(0.0, 1e6).outage == 0
    assert LinkConditions(0.0, 1e6).fading(3) is None
    assert LinkConditions(0.0, 1e6, 1e6).outage == 0.632121
    assert float(LinkConditions(0.0, 1e6).link().seconds(ONE)[0]) == pytest.approx(1e-6)
    assert float(LinkConditions(0.0, 1e6, 1e6).link().seconds(ONE)[0]) == float(rayleigh(snr_db=0.0).seconds(ONE)[0])
