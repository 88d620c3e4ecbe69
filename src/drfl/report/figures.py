"""Figures of a report other than the forest plot: curves over the rounds, clients by rank, and λ as a heat map."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from drfl.report.formatting import clean, count, percent, spread
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, sort_worst_first
from drfl.report.svg import DASHES, SOFT, AxisScale, Picture, element, hint, mark, path

if TYPE_CHECKING:
    import numpy as np


DOTS = 2000  # maximum number of marks in a figure; more would make the page slow and large
POINTS = 300  # maximum number of points of a line; a screen cannot resolve more
HEAT_ROWS, FEWEST_ROWS, ALL_ROWS = (
    40,
    12,
    160,
)  # rows of one heat map: most and fewest, and rows of all heat maps together
HEAT_COLUMNS = 200
HEAT = (0x1F, 0x6F, 0xAE)
FEW_ROUNDS = 15  # up to this many evaluated rounds, every one is marked
MARKED = 5  # number of marked rounds if there are more


class MetricCurve(NamedTuple):
    """A line over the rounds.

    Args:
        group: The algorithm.
        rounds: (R,) Rounds.
        values: (runs, R) Values, NaN if missing.
    """

    group: Group
    rounds: np.ndarray
    values: np.ndarray


def curves(groups: Sequence[Group], column: str, title: str, unit: str = "%") -> str:
    """Draw a metric over the rounds: the mean over seeds as a line, the smallest to the largest value as a band.

    Args:
        groups: The algorithms.
        column: Column of the history.
        title: Title of the y axis, without unit.
        unit: "%" converts fractions to percent; "" leaves the values unchanged.
    """
    import numpy as np

    factor = 100 if unit == "%" else 1
    series = [
        MetricCurve(group, rounds, factor * values) for group in groups for rounds, values in [group.curve(column)]
    ]
    digits = ".1f" if unit == "%" else ".4g"
    if unit != "%":
        # Use a logarithmic axis if losses fall by a large factor.
        known = _finite(series)
        is_log = bool(known.size and known.min() > 0 and known.max() > 5 * known.min())
        return _chart(series, title, digits, log=is_log)
    # Fit the axis to the values after a tenth of the rounds: the steep start would compress the rest.
    later = np.concatenate([values[:, values.shape[1] // 10 :].ravel() for _, _, values in series])
    later = later[np.isfinite(later)]
    ends = None
    if later.size:
        margin = max(0.5, 0.06 * float(np.ptp(later)))
        low, high = float(later.min()) - margin, float(later.max()) + margin
        ends = max(0.0, low), min(100.0, high) if high <= 100.5 else high
    return _chart(series, f"{title} (%)", digits, ends=ends)


def gaps(groups: Sequence[Group]) -> str:
    """Draw the duality gap over the rounds on a logarithmic axis, like `curves`; gaps of 0 or below are omitted."""
    import numpy as np

    curves_of_gaps = [(group, *group.curve("gap")) for group in groups]
    series = [MetricCurve(group, rounds, np.where(gap > 0, gap, np.nan)) for group, rounds, gap in curves_of_gaps]
    return _chart(series, "Duality gap", ".3g", log=bool(_finite(series).size))


def effective_clients(groups: Sequence[Group]) -> str:
    """Draw 1/Σλ² over the rounds, the effective number of clients of the mixture."""
    series = [MetricCurve(group, *group.effective_clients()) for group in groups]
    known = _finite(series)
    ends = (0.0, 1.06 * float(known.max())) if known.size else None
    return _chart(series, "Effective number of clients, 1/Σλ²", ".1f", ends=ends)


def client_scores(groups: Sequence[Group]) -> str:
    """Draw clients from worst to best: a mark per client, and the mean over seeds per rank as a line; see `DOTS`."""
    import numpy as np

    score = groups[0].score
    shown = _with_dots(groups)
    most = DOTS // len(shown)
    # Include all runs, because lines are means over them.
    tested = [run.clients["score"].to_numpy(np.float64) for group in groups for run in group.runs]
    known = score.scale * np.concatenate(tested)
    known = known[np.isfinite(known)]
    picture = Picture(820, 340)
    x = AxisScale(0, max(group.clients for group in groups) + 1, 50, 810)
    y = AxisScale(*_ends(known, top=100.0 if score.percent else math.inf), 295, 28)
    title = f"Test {score.words} (%)" if score.percent else f"Test {score.words}"
    picture.frame(x, y, "Clients, from worst to best", title, whole=True)
    for group, run in shown:
        alone = len(group.runs) == 1
        seed = "" if alone else f", seed {clean(run.seed, 20)}"
        ranks = _ranks(len(run.clients), most)
        columns = ("client", "score", "loss", "samples", "train_samples", "lambda")
        clients = sort_worst_first(run).iloc[ranks]
        dots = []
        for rank, name, value, loss, samples, trained, lam in zip(
            ranks, *(clients[column].tolist() for column in columns), strict=True
        ):
            if math.isfinite(value):
                tooltip = hint(
                    clean(name, 60),
                    f"{group.label}{seed}",
                    f"{score.words} {score.shown(value)}, loss {spread([loss], 3)}",
                    f"{count(samples)} test, {count(trained)} training samples, λ = {percent([lam], 2)} %",
                )
                place = x.at(rank + 1), y.at(score.scale * value)
                # Use smaller marks for many clients, so that they do not hide each other.
                dots.append(mark(group.mark, *place, tooltip, scale=1.3 if len(run.clients) <= 200 else 0.6))
        opacity = 0.9 if alone else 0.4
        picture.draw("g", "".join(dots), data_group=group.key, fill=group.colour, fill_opacity=opacity)
    for group in groups:
        # A mean needs the same ranks in every run, and no failed run.
        if len({len(run.clients) for run in group.runs}) > 1 or len(group.runs) == 1 or group.failed:
            continue
        ranked = score.scale * np.array([sort_worst_first(run)["score"].to_numpy(np.float64) for run in group.runs])
        means = ranked.mean(0)
        places = [
            (x.at(rank + 1), y.at(means[rank])) for rank in _ranks(len(means), most) if math.isfinite(means[rank])
        ]
        if places:
            picture.draw("path", d=path(places), data_group=group.key, **_stroke(group))
    return picture.text


def has_omitted_ranks(groups: Sequence[Group]) -> bool:
    """Check whether `client_scores` has room for only some of the clients of a run."""
    shown = _with_dots(groups)
    return any(len(run.clients) > DOTS // len(shown) for _, run in shown)


def mixture(group: Group, order: Sequence[str], names: Sequence[str], top: float) -> str:
    """Draw λ of the group's first run over the rounds as a heat map, a row per client, with its last value.

    Args:
        group: The algorithm.
        order: Clients to show, first row first.
        names: Their display names.
        top: The λ with the darkest colour.
    """
    run = group.runs[0]
    rounds = run.lam.iloc[:, 0].astype(int)
    # Sample rounds evenly: with all rounds, the page would grow with the length of the run.
    sampled = sorted({round(i * (len(rounds) - 1) / (HEAT_COLUMNS - 1)) for i in range(HEAT_COLUMNS)})
    columns = {name: place for place, name in enumerate(run.lam.columns[1:], start=1)}
    values = run.lam.iloc[sampled, [columns[name] for name in order]].to_numpy(float).T
    row, left, right = 14.0, 130.0, 346.0
    below = 20 + row * len(order)
    picture = Picture(400, below + 42)
    picture.write(right + 4, 13, "last", size=10, opacity=SOFT)
    picture.draw(
        "image", x=left, y=20, width=right - left, height=row * len(order), preserveAspectRatio="none",
        image_rendering="pixelated", href=_png(values / top),
    )  # fmt: skip
    for place, (name, weights) in enumerate(zip(names, values, strict=True)):
        y = 20 + row * (place + 0.75)
        picture.write(left - 6, y, name, width=left - 8, anchor="end", size=10)
        picture.write(right + 4, y, f"{percent([weights[-1]], 2)} %", size=10, opacity=SOFT)
    picture.draw(
        "rect", x=left, y=20, width=right - left, height=row * len(order), fill="none", stroke="currentColor",
        stroke_opacity=0.3,
    )  # fmt: skip
    first, last = int(rounds.iloc[0]), int(rounds.iloc[-1])
    picture.write(left, below + 14, f"round {first}", opacity=SOFT, size=10)
    picture.write(right, below + 14, f"round {last}", anchor="end", opacity=SOFT, size=10)
    # Draw the colour scale, from 0 to the largest λ.
    picture.write(left, below + 34, "λ: 0 %", size=10, opacity=SOFT)
    scale = [[step / 63 for step in range(64)]]
    picture.draw("image", x=left + 36, y=below + 26, width=110, height=8, preserveAspectRatio="none", href=_png(scale))
    picture.write(left + 152, below + 34, f"{percent([top], 2)} %", size=10, opacity=SOFT)
    return picture.text


def mixture_order(groups: Sequence[Group]) -> list[str]:
    """Order the clients in the rows of every heat map by mean λ over rounds and algorithms; see `HEAT_ROWS`.

    The groups' first runs must have the same clients.
    """
    import numpy as np

    firsts = [group.runs[0] for group in groups]
    weights = np.mean([run.lam.iloc[:, 1:].to_numpy(np.float64).mean(0) for run in firsts], axis=0)
    names = firsts[0].lam.columns[1:].tolist()
    most = min(HEAT_ROWS, max(FEWEST_ROWS, ALL_ROWS // len(groups)))
    return [names[i] for i in np.argsort(-weights, kind="stable")[:most]]


def largest_weight(group: Group) -> float:
    """Return the largest λ of the group's first run; above 0."""
    import numpy as np

    return float(np.nanmax(group.runs[0].lam.iloc[:, 1:].to_numpy(np.float64), initial=1e-12))


def is_constant(run: RunRecord) -> bool:
    """Check whether λ is the same after every round."""
    import numpy as np

    lam = run.lam.iloc[:, 1:].to_numpy(np.float64)
    return bool(np.allclose(lam, lam[0], rtol=0, atol=1e-7, equal_nan=True))


def swatch_of(group: Group) -> str:
    """Draw a short piece of the algorithm's line with its mark."""
    picture, dash = Picture(26, 10), DASHES[group.dash] or "none"
    line = element("path", d="M1 5H25", stroke=group.colour, stroke_width=2.5, stroke_dasharray=dash)
    picture.draw("g", line + mark(group.mark, 13, 5), fill=group.colour)
    return picture.text


def _finite(series: Sequence[MetricCurve]) -> np.ndarray:
    import numpy as np

    return np.concatenate([curve.values[np.isfinite(curve.values)] for curve in series])


def _ends(known: np.ndarray, *, top: float = math.inf) -> tuple[float, float]:
    """Return axis ends a little beyond the values; 0 and 1 without values."""
    if not known.size:
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - margin, min(top + margin / 2, high + margin)


def _chart(
    series: Sequence[MetricCurve],
    title: str,
    digits: str,
    *,
    log: bool = False,
    ends: tuple[float, float] | None = None,
) -> str:
    """Draw a line and, with several seeds, a band for each series."""
    import numpy as np

    known = _finite(series)
    if log:
        ends = float(known.min()) / 1.15, float(known.max()) * 1.15
    low, high = _ends(known) if ends is None else ends
    last = max((int(rounds[-1]) for _, rounds, _ in series if len(rounds)), default=0)
    picture = Picture(400, 270)
    x = AxisScale(-0.02 * last, 1.02 * last, 52, 392) if last else AxisScale(-1, 1, 52, 392)
    y = AxisScale(low, high, 225, 28, log)
    picture.frame(x, y, "Round", title, whole=True)
    drawn = []
    for place, (group, rounds, values) in enumerate(series):
        middle = values.mean(0)  # NaN if a seed failed: the mean of the others would flatter the algorithm
        shown = np.flatnonzero(np.isfinite(middle))
        if not shown.size:
            continue
        parts = [hint(f"{group.label}: {middle[shown[-1]]:{digits}} in round {rounds[shown[-1]]}")]
        if len(values) > 1:
            # The outline of the band follows the largest values, then returns along the smallest.
            tops, bottoms = (_thin_out(rounds[shown], end[shown]) for end in (values.max(0), values.min(0)))
            edge = [(x.at(r), y.at(value)) for r, value in (*tops, *reversed(bottoms))]
            parts.append(element("path", d=f"{path(edge)}z", fill_opacity=0.16))
        # Interrupt the line at missing values.
        for part in np.split(shown, np.flatnonzero(np.diff(shown) > 1) + 1):
            points = [(x.at(r), y.at(value)) for r, value in _thin_out(rounds[part], middle[part])]
            parts.append(element("path", d=path(points), **_stroke(group)))
        marked = shown
        if len(shown) > FEW_ROUNDS:
            # Mark different lines at different rounds, so that no mark hides another.
            start = (place % 7 + 0.5) / 7
            marked = [shown[int((step + start) / MARKED * len(shown))] for step in range(MARKED)]
        parts += [mark(group.mark, x.at(rounds[i]), y.at(middle[i])) for i in marked]
        drawn.append(element("g", "".join(parts), data_group=group.key, fill=group.colour))
    picture.window(x, y, drawn)
    return picture.text


def _stroke(group: Group) -> dict[str, str | float]:
    dash = DASHES[group.dash]
    more = {"stroke_dasharray": dash} if dash else {}
    return {"fill": "none", "stroke": group.colour, "stroke_width": 1.8, "stroke_linejoin": "round", **more}


def _thin_out(rounds: np.ndarray, values: np.ndarray) -> list[tuple[float, float]]:
    """Thin out the points of a line: of each short stretch keep the smallest and largest, so that no peak is lost."""
    import numpy as np

    indices = np.arange(len(rounds))
    if len(rounds) > POINTS:
        stretches = np.array_split(indices, POINTS // 2)
        ends = {i for part in stretches for i in (part[values[part].argmin()], part[values[part].argmax()])}
        indices = np.array(sorted({0, len(rounds) - 1, *map(int, ends)}))
    return list(zip(rounds[indices].tolist(), values[indices].tolist(), strict=True))


def _with_dots(groups: Sequence[Group]) -> list[tuple[Group, RunRecord]]:
    """Return the runs whose clients are drawn: all, or each algorithm's first if these would be too many dots."""
    everything = sum(len(run.clients) for group in groups for run in group.runs) <= DOTS
    return [(group, run) for group in groups for run in (group.runs if everything else group.runs[:1])]


def _ranks(n: int, most: int) -> list[int]:
    """Return all ranks 0…n−1, or ``most`` of them at even steps, including both ends."""
    most = max(2, most)
    return list(range(n)) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]


def _png(shares: Sequence[Sequence[float]] | np.ndarray) -> str:
    """Encode a picture in one colour, from transparent at 0 to opaque at 1, as a data URL; NaN is transparent."""
    # A PNG is far smaller than an SVG rectangle per client and round. Writing it by hand needs no imaging package.
    rows = [bytes(round(255 * min(1.0, max(0.0, value))) if value == value else 0 for value in row) for row in shares]
    head = struct.pack(
        ">2I5B", len(rows[0]), len(rows), 8, 3, 0, 0, 0
    )  # colour type 3: indices into a palette of 256 colours
    lines = zlib.compress(b"".join(b"\0" + row for row in rows), 9)
    chunks = (
        (b"IHDR", head),
        (b"PLTE", bytes(HEAT) * 256),
        (b"tRNS", bytes(range(256))),
        (b"IDAT", lines),
        (b"IEND", b""),
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"
