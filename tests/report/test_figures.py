"""Test the figures of a report, read back from their shapes and axes."""

import base64
import itertools
import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from drfl.report import figures, svg
from drfl.report.groups import group_runs

NS = "{http://www.w3.org/2000/svg}"


def numbers(text):
    return [float(number) for number in re.findall(r"-?[\d.]+", text)]


def places(path):
    """Return the points of a path."""
    found = numbers(path)
    return list(zip(found[::2], found[1::2], strict=True))


class Drawn:
    """A picture whose coordinates are converted to values of its axes.

    The first and last tick labels of an axis determine its linear or logarithmic scale.
    """

    def __init__(self, text, log=False):
        self.root = ElementTree.fromstring(text)
        self.texts = [(node.text, float(node.get("x")), float(node.get("y"))) for node in self.root.iter(f"{NS}text")]
        ticks = [(text, x, y) for text, x, y in self.texts if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text)]
        lower = max(y for _, _, y in ticks)
        self.x = self.scale([(float(text), x) for text, x, y in ticks if y == lower], False)
        self.y = self.scale([(float(text), y - 4) for text, x, y in ticks if y != lower], log)

    @staticmethod
    def scale(ticks, log):
        (a, first), (b, last) = ticks[0], ticks[-1]
        a, b = (np.log10(a), np.log10(b)) if log else (a, b)

        def value(place):
            found = a + (b - a) * (place - first) / (last - first)
            return 10**found if log else found

        return value

    def group(self, key):
        """Return an algorithm's lines and marks."""
        paths = [path for part in self.root.iter() if part.get("data-group") == key for path in part.iter(f"{NS}path")]
        lines = [path.get("d") for path in paths if path.get("stroke")]
        marks = [tuple(numbers(path.get("transform"))[:2]) for path in paths if path.get("transform")]
        return lines, [(self.x(x), self.y(y)) for x, y in marks]

    def line(self, key):
        """Return the values of an algorithm's line."""
        lines, _ = self.group(key)
        return [(self.x(x), self.y(y)) for line in lines for x, y in places(line)]


def test_line_is_the_mean_over_seeds_with_a_band(record):
    groups = group_runs([record(f"r{seed}", "DRFA", seed, rounds=20) for seed in range(3)])
    picture = figures.curves(groups, "avg_score", "Test accuracy")
    drawn = Drawn(picture)
    rounds, values = groups[0].curve("avg_score")
    line = np.array(drawn.line("g0"))
    assert line[:, 0] == pytest.approx(rounds, abs=0.02)
    assert line[:, 1] == pytest.approx(100 * values.mean(0), abs=0.1)
    (band,) = [node for node in drawn.root.iter(f"{NS}path") if node.get("fill-opacity")]
    edge = np.array([drawn.y(y) for _, y in places(band.get("d"))])
    assert edge[:21] == pytest.approx(100 * values.max(0), abs=0.1)
    assert edge[21:] == pytest.approx(100 * values.min(0)[::-1], abs=0.1)
    assert len(drawn.group("g0")[1]) == figures.MARKED


def test_single_round_is_a_mark(record):
    groups = group_runs([record("a", "DRFA", rounds=0)])
    (mark,) = Drawn(figures.curves(groups, "avg_score", "Test accuracy")).group("g0")[1]
    assert mark == pytest.approx((0, 100 * groups[0].runs[0].history["avg_score"][0]), abs=0.1)


def test_values_that_are_not_finite_are_gaps(record):
    rows = np.array([[r, 0.1 + r / 20, 0.05, 0.02, 0.05, 0.2, 2.3, 2.5, *[0] * 4] for r in range(5)])
    rows[2, 1] = np.nan
    groups = group_runs([record("a", rows=rows, rounds=4)])
    lines, marks = Drawn(figures.curves(groups, "avg_score", "Test accuracy")).group("g0")
    assert [len(places(line)) for line in lines] == [2, 2]
    assert [round(x) for x, _ in marks] == [0, 1, 3, 4]


GAP = [1.0, 0.1, 0.02, 3e-4, 0.0, -1e-9]


def test_non_positive_duality_gap_is_not_drawn(record):
    groups = group_runs([record(f"r{seed}", "DRFA", seed, rounds=5, gap=GAP) for seed in range(2)])
    found = Drawn(figures.gaps(groups), log=True).line("g0")
    assert [value for _, value in found] == pytest.approx(GAP[:4], rel=0.03)


def test_duality_gap_of_several_seeds_is_their_mean(record):
    runs = [record(f"r{seed}", "DRFA", seed, rounds=2, gap=[s, s / 10, s / 100]) for seed, s in enumerate((1.0, 3.0))]
    found = Drawn(figures.gaps(group_runs(runs)), log=True).line("g0")
    assert [value for _, value in found] == pytest.approx([2.0, 0.2, 0.02], rel=0.03)


def test_duality_gap_missing_at_one_seed_is_not_drawn(record):
    runs = [record(f"r{s}", "DRFA", s, rounds=2, gap=gap) for s, gap in enumerate(([1, 0.1, 0.01], [3, np.nan, 0.03]))]
    lines, marks = Drawn(figures.gaps(group_runs(runs)), log=True).group("g0")
    assert [len(places(line)) for line in lines] == [1, 1]
    assert [round(x) for x, _ in marks] == [0, 2]


def test_long_run_keeps_its_peaks(record):
    rows = np.array([[r, 0.5, 0.5, 0.02, 0.05, 0.2, 1.0, 1.0, *[0] * 4] for r in range(5000)])
    rows[2345, 6] = 1.5
    groups = group_runs([record("a", rows=rows, rounds=4999)])
    found = Drawn(figures.curves(groups, "avg_loss", "Test loss", unit="")).line("g0")
    assert len(found) <= figures.POINTS + 2
    assert max(found, key=lambda point: point[1]) == pytest.approx((2345, 1.5), rel=0.01)


@pytest.mark.long
def test_many_clients_are_drawn_at_even_ranks(record):
    """The first and the last rank are included."""
    (group,) = group_runs([record("many", "DRFA", clients=5001, rounds=1)])
    picture = figures.client_scores([group])
    _, marks = Drawn(picture).group("g0")
    assert len(marks) == figures.DOTS
    assert [round(x) for x, _ in (marks[0], marks[-1])] == [1, 5001]
    accuracy = sorted(100 * group.runs[0].clients["score"])
    assert [y for _, y in marks] == pytest.approx([accuracy[round(x) - 1] for x, _ in marks], abs=0.2)
    assert figures.has_omitted_ranks([group])


def test_clients_of_many_runs_come_from_first_seeds(record):
    cells = [("a", "DRFA", 0), ("b", "DRFA", 1), ("c", "FedAvg", 0)]
    groups = group_runs([record(*cell, clients=3000, rounds=1) for cell in cells])
    drawn = Drawn(figures.client_scores(groups))
    lines, marks = drawn.group("g0")
    assert [len(marks), len(drawn.group("g1")[1])] == [figures.DOTS // 2] * 2
    assert [len(places(line)) for line in lines] == [figures.DOTS // 2]


def heat(picture):
    """Return the shares of a heat map, decoded from its PNG."""
    root = ElementTree.fromstring(picture)
    data = base64.b64decode(next(root.iter(f"{NS}image")).get("href").partition(",")[2])
    width, height = struct.unpack(">2I", data[16:24])
    start = data.index(b"IDAT")
    size = struct.unpack(">I", data[start - 4 : start])[0]
    rows = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + size]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return rows[:, 1:] / 255


def test_heat_map_has_a_row_per_client_with_its_last_weight(record):
    (group,) = group_runs([record("a", "DRFA", clients=6, rounds=10)])
    order, lam = figures.mixture_order([group]), group.runs[0].lam
    top = figures.largest_weight(group)
    picture = figures.mixture(group, order, order, top)
    assert heat(picture) == pytest.approx(lam[order].to_numpy().T / top, abs=1 / 400)
    words = [node.text for node in ElementTree.fromstring(picture).iter(f"{NS}text")]
    assert [f"{100 * lam[name].iloc[-1]:.2f} %" for name in order] == words[2:13:2]


@pytest.mark.long
def test_large_heat_map_is_subsampled(record):
    (group,) = group_runs([record("a", "DRFA", clients=1000, rounds=300)])
    order = figures.mixture_order([group])
    shares = heat(figures.mixture(group, order, order, figures.largest_weight(group)))
    assert shares.shape == (figures.HEAT_ROWS, figures.HEAT_COLUMNS)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 100), (0.4, 0.45), (-3e-7, 2e-7), (1e6, 9e6), (99.9, 100.1), (-2, 3), (0, 1e100)]
)
def test_ticks_are_few_round_numbers_within_the_ends(low, high):
    ticks = svg.AxisScale(low, high, 0, 1).ticks()
    assert 2 <= len(ticks) <= 7
    assert low - 1e-9 * abs(low) <= ticks[0][0]
    assert ticks[-1][0] <= high + 1e-9 * abs(high)
    assert len({text for _, text in ticks}) == len(ticks)
    assert all(len(text) < 9 for _, text in ticks)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.9), (1e-9, 1), (3, 4000), (2, 3), (1e-300, 1e300)])
def test_ticks_of_a_logarithmic_axis(low, high):
    ticks = svg.AxisScale(low, high, 0, 1, log=True).ticks()
    assert len(ticks) <= 3 * 7
    assert all(low <= value <= high for value, _ in ticks)
    assert len(ticks) > 1 or high / low < 3


def test_text_is_cut_to_its_width_and_escaped():
    assert svg.fit_text("abc", 2) == "abc"
    assert svg.fit_text("W" * 60, 10).endswith("…")
    assert len(svg.fit_text("北" * 40, 10)) <= 11
    picture = svg.Picture(10, 10)
    picture.write(0, 0, "</text><script>&")
    picture.draw("g", data_group='"><script>')
    assert "<script>" not in picture.text
    root = ElementTree.fromstring(picture.text)
    assert next(root.iter(f"{NS}text")).text == "</text><script>&"


def test_every_style_has_a_mark_and_a_dash(record):
    names = ["FedAvg", "DRFA", "Other", "DualDRDM"]
    for group in group_runs([record(name, name) for name in names]):
        assert group.mark in svg.MARKS
        assert group.dash in svg.DASHES
        assert svg.MARKS[group.mark] in figures.swatch_of(group)
    for one, other in itertools.combinations(svg.MARKS.values(), 2):
        assert one != other
