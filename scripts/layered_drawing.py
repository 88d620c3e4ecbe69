"""Draw boxes in rows and arrows between them as an SVG with few crossings, reproducible to the byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, GAP, ROW = 168, 46, 18, 94
"""Width and height of a box, gap between two boxes in a row, and distance between rows."""
LANE = 14
"""Width reserved for an arrow that passes through a row."""
MARGIN = 26
PORT = 16
"""Distance between two arrows at a box."""
STRAIGHT = 6.0
"""Weight of a lane relative to a box when positions are balanced."""
CENTRED = 0.92
"""Factor below 1 that pulls every position towards the middle, relative to its neighbours."""

Arrow = tuple[str, str]


class Box(NamedTuple):
    """A box: its name, a few words below it, and the class of its colour."""

    name: str
    about: str
    colour: str


STYLE = """
  svg { color-scheme: light dark; font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
  .ground { fill: #ffffff; }
  .box { stroke-width: 1.25; }
  .start { fill: #fdf0e1; stroke: #c9862f; }
  .studies { fill: #e9f3e6; stroke: #5f9a52; }
  .core { fill: #e6edfa; stroke: #5277b8; }
  .common { fill: #ededf0; stroke: #84848c; }
  .name { font-size: 15px; font-weight: 600; fill: #16181d; text-anchor: middle; }
  .about { font-size: 11.5px; fill: #454a54; text-anchor: middle; }
  .legend { font-size: 12.5px; fill: #454a54; }
  .arrow { fill: none; stroke: #7a808c; stroke-width: 1.4; }
  .head { fill: #7a808c; }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #1b1e24; }
    .start { fill: #3d2f1c; stroke: #d69a4a; }
    .studies { fill: #233420; stroke: #7fb873; }
    .core { fill: #1f2c44; stroke: #7d9fdb; }
    .common { fill: #303238; stroke: #9a9ca5; }
    .name { fill: #f2f3f5; }
    .about, .legend { fill: #c3c8d1; }
    .arrow { stroke: #949ba8; }
    .head { fill: #949ba8; }
  }
"""
LEGEND = (
    ("start", "what a person starts"),
    ("studies", "studies of runs"),
    ("core", "what a run consists of"),
    ("common", "common ground"),
)


def drawing(title: str, rows: Sequence[Sequence[str]], boxes: Mapping[str, Box], arrows: Sequence[Arrow]) -> str:
    """Draw the SVG.

    Args:
        title: title of the picture, for screen readers.
        rows: names of the boxes in each row, from the top down.
        boxes: by name.
        arrows: from a box of a row to one of a row below.
    """
    lanes, links = _with_lanes(rows, arrows)
    lanes = _ordered(lanes, links)
    at = _placed(lanes, links)
    if sum(at[name] for name in rows[0]) > 0:
        # Put the top row to the left, which a narrow screen shows first.
        at = {name: -x for name, x in at.items()}
    left = min(x - _half(name, boxes) for name, x in at.items()) - MARGIN
    width = max(x + _half(name, boxes) for name, x in at.items()) + MARGIN - left
    x = {name: value - left for name, value in at.items()}
    y = {name: MARGIN + r * ROW for r, row in enumerate(lanes) for name in row}
    height = MARGIN + (len(rows) - 1) * ROW + HEIGHT + 54
    paths = [_path(arrow, x, y, boxes, _ports(arrows, x)) for arrow in arrows]
    drawn = [_box(box, x[name], y[name]) for name, box in boxes.items()]
    said = "; ".join(f"{a} imports {', '.join(b for c, b in arrows if c == a)}" for a in dict(arrows))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
            f"<title>{escape(title)}</title>",
            f"<desc>{escape(said)}.</desc>",
            f"<style>{STYLE}</style>",
            '<rect class="ground" width="100%" height="100%" rx="10"/>',
            *paths,
            *drawn,
            *_legend(height),
            "</svg>",
            "",
        ]
    )


def _half(name: str, boxes: Mapping[str, Box]) -> float:
    return (WIDTH if name in boxes else LANE) / 2


def _lane(arrow: Arrow, row: int) -> str:
    return f"{arrow[0]} > {arrow[1]} @ {row}"


def _is_lane(name: str) -> bool:
    return " @ " in name


def _chain(arrow: Arrow, start: int, end: int) -> list[str]:
    """Return the points of an arrow: its ends, and a lane in each row between them."""
    return [arrow[0], *(_lane(arrow, row) for row in range(start + 1, end)), arrow[1]]


def _with_lanes(rows: Sequence[Sequence[str]], arrows: Sequence[Arrow]) -> tuple[list[list[str]], list[Arrow]]:
    """Return the rows with lanes for the arrows that pass through them, and the links between neighbouring rows."""
    found, links = [list(row) for row in rows], list[Arrow]()
    row_of = {name: r for r, row in enumerate(rows) for name in row}
    for arrow in arrows:
        start, end = row_of[arrow[0]], row_of[arrow[1]]
        chain = _chain(arrow, start, end)
        for r, name in enumerate(chain[1:-1], start + 1):
            found[r].append(name)
        links += pairwise(chain)
    return found, links


def _crossings(upper: Sequence[str], lower: Sequence[str], links: Sequence[Arrow]) -> int:
    a, b = ({name: i for i, name in enumerate(row)} for row in (upper, lower))
    ends = [(a[s], b[t]) for s, t in links if s in a and t in b]
    return sum((s1 - s2) * (t1 - t2) < 0 for (s1, t1), (s2, t2) in combinations(ends, 2))


def _total(rows: Sequence[Sequence[str]], links: Sequence[Arrow]) -> int:
    return sum(_crossings(a, b, links) for a, b in pairwise(rows))


def _ordered(rows: list[list[str]], links: Sequence[Arrow]) -> list[list[str]]:
    """Order each row for few crossings, by the mean position of neighbours and by swapping pairs."""
    best = [list(row) for row in rows]
    for sweep in range(40):
        down = sweep % 2 == 0
        span = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for r in span:
            other = rows[r - 1 if down else r + 1]
            place = {name: i / len(other) for i, name in enumerate(other)}
            own = {name: i / len(rows[r]) for i, name in enumerate(rows[r])}
            rows[r] = sorted(rows[r], key=lambda name: _mean(name, place, links, own[name]))
        if _total(rows, links) < _total(best, links):
            best = [list(row) for row in rows]
    return _exchanged(best, links)


def _mean(
    name: str,
    place: Mapping[str, float],
    links: Sequence[Arrow],
    own: float,
    weights: Mapping[str, float] | None = None,
) -> float:
    """Return the mean position of a name's neighbours in other rows, weighted if there are weights."""
    near = [other for a, b in links for one, other in ((a, b), (b, a)) if one == name and other in place]
    each = [1.0 if weights is None else weights[other] for other in near]
    return sum(w * place[other] for w, other in zip(each, near, strict=True)) / sum(each) if near else own


def _exchanged(rows: list[list[str]], links: Sequence[Arrow]) -> list[list[str]]:
    """Swap two neighbours in a row whenever that removes a crossing."""
    while True:
        before = _total(rows, links)
        for row in rows:
            for i, j in combinations(range(len(row)), 2):
                now = _total(rows, links)
                row[i], row[j] = row[j], row[i]
                if _total(rows, links) >= now:
                    row[i], row[j] = row[j], row[i]
        if _total(rows, links) >= before:
            return rows


def _placed(rows: Sequence[Sequence[str]], links: Sequence[Arrow]) -> dict[str, float]:
    """Return the middle of each box, as close to the mean of its neighbours as the order allows."""
    wide = {name: LANE if _is_lane(name) else WIDTH for row in rows for name in row}
    # Lanes have a larger weight, so that arrows through many rows are straight.
    weights = {name: STRAIGHT if _is_lane(name) else 1.0 for name in wide}
    at: dict[str, float] = {}
    for row in rows:
        for i, name in enumerate(row):
            at[name] = (i - (len(row) - 1) / 2) * (WIDTH + GAP) * 0.9
    for sweep in range(60):
        for row in rows if sweep % 2 else rows[::-1]:
            # Pull positions slightly towards the middle to keep the picture narrow.
            wished = [CENTRED * _mean(name, at, links, at[name], weights) for name in row]
            offsets = [0.0]
            for a, b in pairwise(row):
                offsets.append(offsets[-1] + (wide[a] + wide[b]) / 2 + GAP)
            shifted = [x - offset for x, offset in zip(wished, offsets, strict=True)]
            found = _rising(shifted, [weights[name] for name in row])
            at |= {name: x + offset for name, x, offset in zip(row, found, offsets, strict=True)}
    return at


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the closest ascending numbers: descending neighbours are replaced by their weighted mean."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, count
    for value, weight in zip(values, weights, strict=True):
        pools.append((value, weight, 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (x, v, m), (y, w, n) = pools[-2:]
            pools[-2:] = [((v * x + w * y) / (v + w), v + w, m + n)]
    return [mean for mean, _, count in pools for _ in range(count)]


def _ports(arrows: Sequence[Arrow], x: Mapping[str, float]) -> dict[tuple[Arrow, str], float]:
    """Return where each arrow leaves and reaches its boxes, side by side in the order of their other ends."""
    found: dict[tuple[Arrow, str], float] = {}
    for end in (0, 1):
        for name in {arrow[end] for arrow in arrows}:
            own = sorted((arrow for arrow in arrows if arrow[end] == name), key=lambda arrow: x[arrow[1 - end]])
            for i, arrow in enumerate(own):
                found[arrow, name] = x[name] + (i - (len(own) - 1) / 2) * PORT
    return found


def _path(
    arrow: Arrow, x: Mapping[str, float], y: Mapping[str, float], boxes: Mapping[str, Box],
    ports: Mapping[tuple[Arrow, str], float],
) -> str:  # fmt: skip
    """Draw an arrow with curves between rows; it is vertical in the rows that it passes through."""
    start, end = (round((y[name] - MARGIN) / ROW) for name in arrow)
    chain = _chain(arrow, start, end)
    px, py = ports[arrow, arrow[0]], y[arrow[0]] + HEIGHT
    parts = [f"M{px:.1f} {py:.1f}"]
    for name in chain[1:]:
        last = name == arrow[1]
        qx, qy = (ports[arrow, name], y[name] - 7) if last else (x[name], y[name])
        bend = (qy - py) / 2
        parts.append(f"C{px:.1f} {py + bend:.1f} {qx:.1f} {qy - bend:.1f} {qx:.1f} {qy:.1f}")
        px, py = qx, qy
        if not last:
            py = qy + HEIGHT
            parts.append(f"V{py:.1f}")
    head = f'<path class="head" d="M{px:.1f} {py + 7:.1f}l-4 -8h8z"/>'
    return f'<path class="arrow" d="{"".join(parts)}"/>{head}'


def _box(box: Box, x: float, y: float) -> str:
    return (
        f'<rect class="box {box.colour}" x="{x - WIDTH / 2:.1f}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>'
        f'<text class="name" x="{x:.1f}" y="{y + 20}">{escape(box.name)}</text>'
        f'<text class="about" x="{x:.1f}" y="{y + 36}">{escape(box.about)}</text>'
    )


def _legend(height: int) -> list[str]:
    found, x, y = [], MARGIN, height - 22
    for colour, text in LEGEND:
        found.append(f'<rect class="box {colour}" x="{x}" y="{y - 11}" width="18" height="13" rx="3"/>')
        found.append(f'<text class="legend" x="{x + 25}" y="{y}">{text}</text>')
        x += 45 + round(6.6 * len(text))
    found.append(f'<text class="legend" x="{x + 20}" y="{y}">An arrow leads to what is imported.</text>')
    return found
