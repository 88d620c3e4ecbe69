"""Test that the stored rates of false headlines are within their level, and those of the simpler rule are not."""

import pytest

from evidence import false_headlines

ROWS = false_headlines.stored_rows()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(list(row.values())[:5]))
def test_false_headline_rates_stay_below_their_level(row):
    assert int(row["cases"]) >= 2_000
    assert float(row["low_99"]) <= 0.05


def test_simulation_rejects_the_simpler_rule():
    """The simpler rule uses seeds on shared rows, only finished seeds, and runs that test rows stopped."""
    rejected = {(row["rows"], row["what"]) for row in ROWS if float(row["low_99_before"]) > 0.05}
    assert {("shared", "null"), ("redrawn", "null"), ("redrawn", "fails"), ("redrawn", "stops")} <= rejected


def test_every_setting_is_stored():
    stored = [(row["algorithms"], row["seeds"], row["rows"], row["lasting"], row["what"]) for row in ROWS]
    assert stored == [tuple(map(str, setting)) for setting in false_headlines.SETTINGS]
