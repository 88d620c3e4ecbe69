import math

import pytest

from drfl.report import formatting


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1_254_000_000, "1.25 GB"), (math.nan, "–")],
)
def test_size_of_bytes(count, shown):
    assert formatting.size(count).replace(formatting.THIN, " ") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(4.25, "4.25 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_duration_of_seconds(seconds, shown):
    assert formatting.duration(seconds).replace(formatting.THIN, " ") == shown


def test_percent_of_a_share():
    assert formatting.percent([0.5]) == "50.0"
    assert formatting.percent([0.5, 0.6]) == "55.0 ± 7.1"
    assert formatting.percent([0.5, math.nan]) == formatting.percent([]) == "–"


def test_scientific_notation():
    assert formatting.scientific([1.23456e-7]) == "1.235e-07"
    assert formatting.scientific([1.0, 2.0]) == "1.5 ± 0.71"
    assert formatting.scientific([1.0, math.nan]) == formatting.scientific([]) == "–"


def test_clean_removes_control_characters():
    assert formatting.clean("<a>&\"'\n\u202e") == "<a>&\"'  "
    assert formatting.clean("x" * 300, 10) == "x" * 9 + "…"


def test_listing_of_names():
    assert formatting.listing([]) == ""
    assert formatting.listing(["a"]) == "a"
    assert formatting.listing(["a", "b", "c"]) == "a, b and c"
