"""Test which number of local steps needs the least energy."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.refusals import refused

from drfl_papers.energy import (
    Channel,
    Cost,
    LinkConditions,
    Measurement,
    Payload,
    Processor,
    Radio,
    choose,
    cost_of,
    plan,
)
from drfl_papers.energy.output import hertz, to_csv, to_markdown


def runs(table, outage=0.0):
    """Return measurements from {τ: rounds at seeds 0, 1, …}."""
    return [Measurement(tau, seed, t, outage) for tau, ts in table.items() for seed, t in enumerate(ts)]


def test_least_energy_by_hand():
    # J: τ=1: 40·(1+10) = 440; τ=5: 12·(5+10) = 180; τ=20: 9·(20+10) = 270
    order = choose(runs({1: [40, 40], 5: [10, 14], 20: [9, 9]}), Cost(1.0, 10.0, 0.5, 2.0))
    assert [(c.tau, c.rounds, c.joules) for c in order] == [(5, 12, 180), (20, 9, 270), (1, 40, 440)]
    assert order[0].seconds == 12 * (5 * 0.5 + 2)


def test_free_communication_favours_fewest_total_steps():
    assert [c.tau for c in choose(runs({1: [30], 4: [7], 10: [3]}), Cost(1.0, 0.0, 1.0, 0.0))] == [4, 1, 10]


def test_free_computation_favours_fewest_rounds():
    assert [c.tau for c in choose(runs({1: [30], 4: [7], 10: [3]}), Cost(0.0, 1.0, 0.0, 1.0))] == [10, 4, 1]


def test_ties_prefer_fewer_local_steps():
    # 6·(1+2) = 3·(4+2)
    assert [c.tau for c in choose(runs({4: [3], 1: [6]}), Cost(1.0, 2.0, 0.0, 0.0))] == [1, 4]
    assert [c.tau for c in choose(runs({9: [0], 2: [0]}), Cost(1.0, 2.0, 0.0, 0.0))] == [2, 9]


def test_failed_seed_excludes_its_number_of_steps():
    costs = {LinkConditions(0.0, 1e6): Cost(0.0, 1.0, 0.0, 0.0)}
    made = plan(runs({1: [30, 40], 10: [2, None], 20: [None, None]}), costs)
    (cell,) = made.cells
    assert cell.best is not None
    assert (cell.best.tau, cell.runner_up) == (1, None)
    assert made.notes == (
        "τ = 10 is excluded: seed 1 never reached the target",
        "τ = 20 is excluded: seeds 0, 1 never reached the target",
    )


def test_no_plan_if_nothing_reaches_the_target():
    (cell,) = plan(runs({1: [None]}), {LinkConditions(0.0, 1e6): Cost(1.0, 1.0, 1.0, 1.0)}).cells
    assert (cell.best, cell.runner_up) == (None, None)


@pytest.mark.parametrize(
    ("rows", "error"),
    [
        ([], ("no-rows", "measurements")),
        (runs({1: [5]}) + runs({1: [6]}), ("given-twice", "measurements", "1", "0")),
        (runs({1: [5, 6], 3: [5]}), ("missing-values", "measurements", "3", "1")),
    ],
)
def test_incomparable_measurements_are_refused(rows, error):
    with refused(*error):
        plan(rows, {})


def test_cell_uses_the_runs_with_its_outage():
    bad, good = LinkConditions(0.0, 1e6, 1e6), LinkConditions(0.0, 1e6)
    rows = runs({1: [40], 10: [5]}) + runs({1: [40], 10: [None]}, bad.outage)
    cost = Cost(0.0, 1.0, 0.0, 0.0)
    made = plan(rows, {bad: cost, good: cost})
    assert [cell.best.tau if cell.best else None for cell in made.cells] == [1, 10]
    assert made.notes == ("τ = 10 with 63.2 % outage is excluded: seed 0 never reached the target",)


def test_runs_without_outage_are_used_with_a_note():
    bad = LinkConditions(0.0, 1e6, 1e6)
    made = plan(runs({1: [40]}), {bad: Cost(0.0, 1.0, 0.0, 0.0)})
    assert made.cells[0].best is not None
    assert "rounds were measured without outage and are used for channels with up to 63.2 % outage" in made.notes[0]
    other = plan(runs({1: [40]}, 0.5), {bad: Cost(0.0, 1.0, 0.0, 0.0)})
    assert other.cells[0].best is None
    assert "1 kinds of channel have an outage at which nothing was measured" in other.notes[0]


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=6),
    st.integers(0, 50),
    st.lists(st.integers(0, 1000), min_size=2, max_size=6),
)
def test_best_number_of_steps_falls_with_cheaper_communication(drops, a, prices):
    """If T(τ) does not increase, a larger τ that is cheaper at one price of sending is cheaper at all higher prices."""
    rounds = [sum(drops[i:]) + 1 for i in range(len(drops))]
    table = runs({tau: [t] for tau, t in zip((1, 2, 5, 10, 20, 30), rounds, strict=False)})
    best = [choose(table, Cost(float(a), float(b), 0.0, 0.0))[0].tau for b in sorted(prices)]
    assert best == sorted(best)


@given(st.lists(st.integers(1, 100), min_size=2, max_size=6), st.floats(-10, 25), st.floats(1e4, 1e7), st.floats(1, 8))
def test_better_channel_never_needs_more_steps(drops, snr_db, bandwidth, factor):
    """This is the previous test, starting from SNR and bandwidth instead of costs."""
    rounds = [sum(drops[i:]) for i in range(len(drops))]
    table = runs({tau: [t] for tau, t in zip((1, 5, 10, 15, 20, 30), rounds, strict=False)})
    payload, processor = Payload(80_760, 132_600, 15.5, 496, 0, 5_208, 7_800), Processor(2560)

    def best(snr, hertz_):
        cost = cost_of(payload, processor, Radio(), Channel.uniform(1, hertz_, snr))
        return choose(table, cost)[0].tau

    here = best(snr_db, bandwidth)
    assert best(snr_db, bandwidth * factor) <= here
    assert best(snr_db + factor, bandwidth) <= here


def a_plan():
    costs = {LinkConditions(snr, b): Cost(1.0, b, 0.5, 1.0) for b in (1e5, 1.5e6) for snr in (-5.0, 20.0)}
    return plan(runs({1: [40], 5: [10], 9: [None]}), costs)


def test_csv_has_a_row_per_cell():
    rows = list(csv.DictReader(io.StringIO(to_csv(a_plan()))))
    assert [(row["snr_db"], row["bandwidth_hz"]) for row in rows] == [
        ("-5", "100000"), ("20", "100000"), ("-5", "1.5e+06"), ("20", "1.5e+06"),
    ]  # fmt: skip
    assert rows[0]["tau"] == "5"
    assert float(rows[0]["joules"]) == 10 * (5 + 1e5)
    assert rows[0]["runner_up_tau"] == "1"
    assert float(rows[0]["seconds"]) == 35
    empty = list(
        csv.DictReader(io.StringIO(to_csv(plan(runs({1: [None]}), {LinkConditions(0.0, 1e6): Cost(1, 1, 1, 1)}))))
    )
    assert (empty[0]["tau"], empty[0]["joules"], empty[0]["runner_up_joules"]) == ("", "", "")


def test_markdown_has_grid_cells_and_notes():
    lines = to_markdown(a_plan()).splitlines()
    assert "| bandwidth | -5 dB | 20 dB |" in lines
    assert "| 100 kHz | 5 | 5 |" in lines
    assert "| -5 dB | 100 kHz | 0 % | 5 | 1e+06 | 35 | 10 | 1 | 4e+06 |" in lines
    assert lines[-1] == "- τ = 9 is excluded: seed 0 never reached the target"


def test_bandwidths_have_units():
    assert [hertz(x) for x in (12.5, 1e3, 2.5e5, 1e6, 2e10)] == ["12.5 Hz", "1 kHz", "250 kHz", "1 MHz", "20 GHz"]
