"""Test the cost of rounds: metering, equation 18, payloads."""

from __future__ import annotations

import pytest
import torch
from tests.papers.energy.jobs import ALGORITHMS, LOCAL, digits
from tests.support.marks import crossed
from tests.support.refusals import refused

from drfl import AFL, DRDM, Key, LocalSGD, ScaffPD, run
from drfl.federation import sampling
from drfl_papers.energy import (
    Channel,
    Cost,
    Meter,
    Metered,
    OverChannel,
    Payload,
    Processor,
    Radio,
    Rayleigh,
    Usage,
    bill,
    cost_of,
    mean_payload,
    payload_of,
    round_seconds,
)

VECTOR = 650 * 4


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_meter_passes_on_and_splits_the_ledger():
    fed, key = digits(), Key(2)
    meter, cohort_ = Meter(fed), torch.tensor([1, 4])
    up = meter.train(cohort_, fed.w0, LOCAL, key, snapshot=2)
    assert torch.equal(up.w, fed.train(cohort_, fed.w0, LOCAL, key, snapshot=2).w)
    f = meter.losses(torch.tensor([4, 6]), fed.w0, key, batch=3)
    assert torch.equal(f.values, fed.losses(torch.tensor([4, 6]), fed.w0, key, batch=3).values)
    meter.gradients(torch.tensor([6]), fed.w0, key, batch=5)
    found = meter.usage()
    assert found.clients.tolist() == [1, 4, 6]
    assert found.steps.tolist() == [2, 2, 0]
    assert found.local_samples.tolist() == [16, 16, 0]
    assert found.samples.tolist() == [16, 16, 5]
    assert found.up.tolist() == [2 * VECTOR, 2 * VECTOR + 8, 8 + VECTOR + 8]
    assert found.down.tolist() == [VECTOR, 2 * VECTOR, 2 * VECTOR]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_metering_changes_nothing_and_sums_to_the_ledger(name):
    log: list[Usage] = []
    plain, metered = (run(a, digits(), rounds=3, seed=1) for a in (ALGORITHMS[name], Metered(ALGORITHMS[name], log)))
    assert torch.equal(plain.state.w, metered.state.w)
    ledger = metered.history.last.ledger
    assert ledger == plain.history.last.ledger
    assert len(log) == 3
    assert sum(float(u.up.sum()) for u in log) == ledger["bytes_up"]
    assert sum(float(u.down.sum()) for u in log) == ledger["bytes_down"]
    assert sum(float(u.samples.sum()) for u in log) == ledger["gradient_evaluations"]


def test_equation_18_by_hand():
    # two clients train twice and once for three steps of ten samples; a third only reports
    rounds = [
        Usage(
            torch.tensor([0, 1]), torch.tensor([3, 3]), vector(30, 30), vector(30, 30), vector(1e6, 1e6), vector(5, 5)
        ),
        Usage(torch.tensor([1, 2]), torch.tensor([3, 0]), vector(30, 0), vector(30, 0), vector(1e6, 8), vector(5, 5)),
    ]
    processor = Processor(1e4, frequency=2e9, capacitance=1e-28)  # 1e4·1e-28·4e18 = 4e-6 J per sample
    channel = Channel(vector(1e6, 2e6, 4e6), vector(0, 0, 0))  # 1, 2 and 4 Mbit/s
    found = bill(rounds, 4, processor, Radio(power=0.5), Channel(vector(1e6, 2e6, 4e6, 1), vector(0, 0, 0, 0)))
    assert found.processing.tolist() == pytest.approx([1.2e-4, 2.4e-4, 0, 0], rel=1e-12)
    assert found.transmission.tolist() == pytest.approx([4.0, 4.0, 0.5 * 64 / 4e6, 0], rel=1e-12)
    assert found.reception.tolist() == [0, 0, 0, 0]
    assert found.total == pytest.approx(8 + 3.6e-4 + 8e-6, rel=1e-12)
    heard = bill(rounds, 3, processor, Radio(power=0.5, receive=1.0), channel)
    assert heard.reception.tolist() == pytest.approx([40e-6, 2 * 20e-6, 10e-6], rel=1e-12)
    assert float(heard.clients[0]) == pytest.approx(4 + 1.2e-4 + 40e-6, rel=1e-12)
    # the slowest sends 8 Mbit at 1 Mbit/s after 30·1e4/2e9 s of work
    assert round_seconds(rounds[0], 3, processor, Radio(), channel) == pytest.approx(8 + 1.5e-4, rel=1e-12)
    assert round_seconds(rounds[0], 3, processor, Radio(receive=1), channel) == pytest.approx(8 + 1.9e-4, rel=1e-12)


def test_measured_joules_replace_cycles():
    usage = Usage(torch.tensor([0]), torch.tensor([3]), vector(35), vector(30), vector(0), vector(0))
    found = bill([usage], 1, Processor(1e9, joules_per_step=0.25), Radio(), Channel.uniform(1, 1e6, 0))
    assert found.total == 0.75


def test_round_without_clients_takes_no_time():
    none = torch.tensor([])
    usage = Usage(none.long(), none.long(), none, none, none, none)
    assert round_seconds(usage, 3, Processor(1), Radio(), Channel.uniform(3, 1, 0)) == 0
    assert mean_payload([usage]) == Payload(0, 0, 0, 0, 0, 0, 0)


def test_payload_of_drdm_is_two_models_and_a_loss():
    everybody = DRDM(m=5, local=LOCAL, sampling=sampling.all_clients)
    fed = digits()
    found = payload_of(everybody, fed)
    # 8 clients train: two models up, model and shift down. 5 clients report: 8 bytes up, the snapshot down.
    assert found.up == 8 * 2 * VECTOR + 5 * 8
    assert found.down == 8 * 2 * VECTOR + 5 * VECTOR
    assert found.participants == 8
    assert found.step_samples == 8 * 8
    assert found.other_samples == 0
    assert (found.longest_up, found.longest_down) == (2 * VECTOR + 8, 3 * VECTOR)
    assert fed.ledger.bytes_up == 0


def test_client_drawn_twice_trains_once():
    found = payload_of(ALGORITHMS["DRDM"], digits(), rounds=20)
    # 6 draws among 8 clients have 8(1 − (7/8)^6) distinct ones on average
    assert found.participants == pytest.approx(8 * (1 - (7 / 8) ** 6), abs=0.5)
    assert found.up == pytest.approx(2 * VECTOR * found.participants + 6 * 8)


def test_payload_counts_gradients_outside_local_steps():
    found = payload_of(ScaffPD(m=4, local=LOCAL, dual_batch=7), digits())
    assert (found.step_samples, found.other_samples) == (4 * 8, 4 * 7)
    assert found.up == 4 * (2 * VECTOR + 8)
    assert payload_of(AFL(local=LocalSGD(steps=1, batch=8)), digits()).participants == 8


@pytest.mark.long
def test_outage_reduces_sending_but_not_computing():
    fading = Rayleigh(Channel.uniform(8, 1e6, 0.0), 1e6)
    alone = payload_of(ALGORITHMS["FedAvg"], digits(), rounds=20)
    faded = payload_of(ALGORITHMS["FedAvg"], digits(), fading, rounds=20)
    assert faded.up / alone.up == pytest.approx(1 - 0.632, abs=0.13)  # 120 draws
    assert (faded.down, faded.step_samples, faded.participants) == (alone.down, alone.step_samples, alone.participants)


PAYLOAD = Payload(
    up=1000, down=3000, participants=4, step_samples=80, other_samples=20, longest_up=250, longest_down=700
)


def test_cost_by_hand():
    processor, link = Processor(1e6, frequency=1e9, capacitance=1e-27), Channel.uniform(1, 1e5, 0.0)
    # 1e6·1e-27·1e18 = 1e-3 J and 1e-3 s per sample; 8000 bits at 1e5 bit/s
    found = cost_of(PAYLOAD, processor, Radio(0.5), link)
    assert found == pytest.approx(Cost(0.08, 0.02 + 0.5 * 0.08, 0.02, 0.005 + 0.02), rel=1e-12)
    heard = cost_of(PAYLOAD, processor, Radio(0.5, receive=2.0), link)
    assert heard == pytest.approx(Cost(0.08, 0.02 + 0.04 + 2 * 0.24, 0.02, 0.005 + 8 * 950 / 1e5), rel=1e-12)
    measured = cost_of(PAYLOAD, Processor(1e6, joules_per_step=3.0), Radio(0.5), link)
    assert measured[:2] == pytest.approx((12.0, 0.04), rel=1e-12)
    assert found.joules(10, 7) == pytest.approx(7 * (10 * 0.08 + 0.06), rel=1e-12)
    assert found.seconds(10, 7) == pytest.approx(7 * (10 * 0.02 + 0.025), rel=1e-12)


@pytest.mark.parametrize(("name", "rate_min"), crossed(["FedAvg", "DRDM", "ScaffPD"], [None, 5e5]))
def test_closed_form_equals_the_cost_of_a_run(name, rate_min):
    channel, log = Channel.uniform(8, 1e6, 3.0), []
    fading = None if rate_min is None else Rayleigh(channel, rate_min)
    link, one = fading or channel, Channel.uniform(1, 1e6, 3.0)
    metered = Metered(ALGORITHMS[name], log)
    run(metered if fading is None else OverChannel(metered, fading), digits(), rounds=5)
    processor, radio = Processor(1e5), Radio(receive=0.3)
    cost = cost_of(mean_payload(log), processor, radio, one if rate_min is None else Rayleigh(one, rate_min))
    assert cost.joules(LOCAL.steps, 5) == pytest.approx(bill(log, 8, processor, radio, link).total, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: Radio(power=-1), "power"),
        (lambda: Radio(receive=float("nan")), "downlink"),
        (lambda: Processor(-1), "cycles_per_sample"),
        (lambda: Processor(1, frequency=0), "frequency"),
        (lambda: Processor(1, capacitance=-1), "capacitance"),
        (lambda: Processor(1, joules_per_step=-1), "joules_per_step"),
        (lambda: payload_of(ALGORITHMS["FedAvg"], digits(), rounds=0), "rounds"),
    ],
)
def test_impossible_values_are_refused(make, part):
    with refused("out-of-range", part):
        make()
