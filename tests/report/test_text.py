import math

import pytest

from drfl.report import tables


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_600, "1 MB"), (1_254_000_000, "1.25 GB"), (math.nan, "–")],
)
def test_size(count, shown):
    assert tables.size(count).replace(tables.THIN, " ") == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), [(4.25, "4.25 s"), (59.9, "59.9 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_duration(seconds, shown):
    assert tables.duration(seconds).replace(tables.THIN, " ") == shown


def test_percent():
    assert tables.percent([0.5]) == "50.0"
    assert tables.percent([0.5, 0.6]) == "55.0 ± 7.1"
    assert tables.percent([0.5, math.nan]) == tables.percent([]) == "–"


def test_scientific():
    assert tables.scientific([1.23456e-7]) == "1.235e-07"
    assert tables.scientific([1.0, 2.0]) == "1.5 ± 0.71"
    assert tables.scientific([1.0, math.nan]) == tables.scientific([]) == "–"


def test_esc():
    assert tables.esc("<a>&\"'\n\u202e") == "&lt;a&gt;&amp;&quot;&#x27;  "
    assert tables.esc("x" * 300, 10) == "x" * 9 + "…"


def test_listing():
    assert tables.listing([]) == ""
    assert tables.listing(["a"]) == "a"
    assert tables.listing(["a", "b", "c"]) == "a, b and c"
