"""The report's figures. Text from outside is escaped, as plotly reads some HTML tags; no label needs a network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drfl.report.formatting import clean, count, percent, spread
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, worst_first

if TYPE_CHECKING:
    import numpy as np
    import plotly.graph_objects as go


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"
INK, RULE = "#59636e", "#e3e6ea"
HEAT = [[0, "#f6f8fa"], [0.15, "#c9e0f1"], [0.45, "#5aa7d6"], [0.75, "#1f6fae"], [1, "#0b2f57"]]
DOTS = 2000  # markers in one figure; more would make the page slow and large
HEAT_ROWS = 60
HEAT_COLUMNS = 200
FEW_ROUNDS = 15  # up to here every evaluated round is marked


def curves(groups: Sequence[Group], column: str, title: str, unit: str = "%") -> go.Figure:
    """A metric over the rounds: the mean over seeds as a line, the smallest to the largest as a band.

    Args:
        groups: the algorithms.
        column: the column of the history.
        title: of the y axis, without unit.
        unit: "%" turns fractions into percent; "" leaves the values as they are.
    """
    import numpy as np

    scale = 100 if unit == "%" else 1
    figure = empty("Round", f"{title} (%)" if unit == "%" else title)
    series = [(group, rounds, scale * values) for group in groups for rounds, values in [group.curve(column)]]
    _add_lines(figure, series, ".1f" if unit == "%" else ".4g", f"{unit}")

    # Fit the y axis to the later rounds: the steep first ones would squeeze the rest together. Losses get a log axis if
    # they shrink a lot. Percentages get the range of the values after a tenth of the rounds.
    if unit != "%":
        finite = np.concatenate([values[np.isfinite(values)] for _, _, values in series])
        if finite.size and finite.min() > 0 and finite.max() > 5 * finite.min():
            ticks = [m * 10.0**e for e in range(-12, 13) for m in (1, 2, 5)]
            figure.update_yaxes(type="log", tickvals=ticks, ticktext=[f"{tick:g}" for tick in ticks])
        return figure
    later = np.concatenate([values[:, values.shape[1] // 10 :].ravel() for _, _, values in series])
    later = later[np.isfinite(later)]
    if later.size:
        margin = max(0.5, 0.06 * float(np.ptp(later)))
        low, high = float(later.min()) - margin, float(later.max()) + margin
        figure.update_yaxes(range=[max(0.0, low), min(100.0, high) if high <= 100.5 else high])
    return figure


def gaps(groups: Sequence[Group]) -> go.Figure:
    """The duality gap over the rounds on a log axis, as `curves`; what is not above 0 has no place there."""
    import numpy as np

    figure = empty("Round", "Duality gap")
    found = [(group, *group.curve("gap")) for group in groups]
    _add_lines(figure, [(group, rounds, np.where(gap > 0, gap, np.nan)) for group, rounds, gap in found], ".3g", "")
    figure.update_yaxes(type="log", exponentformat="power")
    return figure


def effective_clients(groups: Sequence[Group]) -> go.Figure:
    """1/Σλ² over the rounds: how many clients the mixture is spread over."""
    figure = empty("Round", "Effective number of clients, 1/Σλ²")
    _add_lines(figure, [(group, *group.effective_clients()) for group in groups], ".1f", "")
    figure.update_yaxes(rangemode="tozero")
    return figure


def client_scores(groups: Sequence[Group]) -> go.Figure:
    """Clients from worst to best: a dot per client, and the mean over seeds at each rank as a line; see `DOTS`."""
    import numpy as np

    score = groups[0].score
    figure = empty("Clients, from worst to best", f"Test {score.words} (%)" if score.percent else f"Test {score.words}")
    shown = _with_dots(groups)
    most = DOTS // len(shown)
    for group, run in shown:
        ranks, alone = _ranks(len(run.clients), most), len(group.runs) == 1
        clients = worst_first(run).iloc[ranks]
        seed = "" if alone else f", seed {label(run.seed, 20)}"
        details = zip(
            (label(name, 60) for name in clients["client"]),
            map(count, clients["samples"]),
            map(count, clients["train_samples"]),
            (percent([value], 2) for value in clients["lambda"]),
            (spread([value], 3) for value in clients["loss"]),
            strict=True,
        )
        name = label(group.label, 40)
        dot = 4 if len(clients) > 200 else 7 if alone else 5
        figure.add_scatter(
            x=[rank + 1 for rank in ranks], y=numbers(run.score.scale * clients["score"]), mode="markers",
            marker={"color": group.colour, "size": dot, "opacity": 0.9 if alone else 0.35},
            name=name, legendgroup=group.key, customdata=list(details),
            # Plotly would expand a "%{" in the name.
            hovertemplate=(
                f"<b>%{{customdata[0]}}</b><br>{name.replace('%{', '% {')}{seed}"
                f"<br>{run.score.words} %{{y:.{run.score.digits}f}} {run.score.unit}"
                "<br>loss %{customdata[4]}<br>%{customdata[1]} test, %{customdata[2]} training samples"
                "<br>λ = %{customdata[3]} %<extra></extra>"
            ),
        )  # fmt: skip
    for group in groups:
        # A mean needs the same ranks in every run, and no failed run.
        if len({len(run.clients) for run in group.runs}) > 1 or len(group.runs) == 1 or group.failed:
            continue
        ranked = score.scale * np.array([worst_first(run)["score"].to_numpy(np.float64) for run in group.runs])
        ranks = _ranks(ranked.shape[1], most)
        line = {"color": group.colour, "width": 2, "dash": group.dash}
        figure.add_scatter(
            x=[rank + 1 for rank in ranks], y=numbers(ranked.mean(0)[ranks]), mode="lines", line=line,
            name=label(group.label), legendgroup=group.key, hoverinfo="skip",
        )  # fmt: skip
    # A line shows ranks, which are other clients at each seed: only dots have hover text.
    figure.update_layout(hovermode="closest")
    figure.update_xaxes(range=[0, max(group.clients for group in groups) + 1])
    return figure


def ranks_left_out(groups: Sequence[Group]) -> bool:
    """Whether `client_scores` has room for only some of the clients of a run."""
    shown = _with_dots(groups)
    return any(len(run.clients) > DOTS // len(shown) for _, run in shown)


def mixture(group: Group, order: Sequence[str], top: float, uniform: float) -> go.Figure:
    """λ of the group's first run over the rounds as a heat map, a row per client.

    Args:
        group: the algorithm.
        order: the clients to show, first row first.
        top: the λ that gets the darkest colour.
        uniform: 1/N.
    """
    run = group.runs[0]
    rounds = run.lam.iloc[:, 0].astype(int)
    # Sample rounds evenly: with all of them the page would grow with the length of the run.
    kept = sorted({round(i * (len(rounds) - 1) / (HEAT_COLUMNS - 1)) for i in range(HEAT_COLUMNS)})
    columns = {name: place for place, name in enumerate(run.lam.columns[1:], start=1)}
    values = run.lam.iloc[kept, [columns[name] for name in order]].to_numpy(float).T
    names = [label(name, 24) for name in order]
    figure = empty("Round", "")
    figure.add_heatmap(
        x=rounds.iloc[kept].tolist(), y=list(range(len(order))), z=[numbers(100 * row) for row in values],
        text=[[spread([value / uniform], 2) for value in row] for row in values],
        customdata=[[name] * len(kept) for name in names],
        zmin=0, zmax=100 * top, colorscale=HEAT, name=label(group.label),
        colorbar={"title": {"text": "λ (%)", "side": "top"}, "thickness": 10, "outlinewidth": 0},
        hovertemplate="%{customdata}<br>round %{x}<br>λ = %{z:.2f} %, %{text} × uniform<extra></extra>",
    )  # fmt: skip
    few = len(order) <= 40
    figure.update_layout(height=max(260, 90 + 11 * len(order)) if few else 420)
    figure.update_yaxes(
        autorange="reversed", showgrid=False, ticks="", showticklabels=few, ticktext=names,
        tickvals=list(range(len(order))), tickfont={"size": 9},
        title_text="" if few else "Clients, most weighted first",
    )  # fmt: skip
    figure.update_xaxes(showgrid=False)
    return figure


def mixture_order(groups: Sequence[Group]) -> list[str]:
    """The clients in the rows of every heat map: largest mean λ over rounds and algorithms first, at most HEAT_ROWS.

    The groups' first runs must have the same clients.
    """
    import numpy as np

    firsts = [group.runs[0] for group in groups]
    weights = np.mean([run.lam.iloc[:, 1:].to_numpy(np.float64).mean(0) for run in firsts], axis=0)
    names = firsts[0].lam.columns[1:].tolist()
    return [names[i] for i in np.argsort(-weights, kind="stable")[:HEAT_ROWS]]


def is_constant(run: RunRecord) -> bool:
    """Whether λ is the same after every round."""
    import numpy as np

    lam = run.lam.iloc[:, 1:].to_numpy(np.float64)
    return bool(np.allclose(lam, lam[0], rtol=0, atol=1e-7, equal_nan=True))


def label(value: object, limit: int = 200) -> str:
    """Text from outside as a label: plotly reads some tags and decodes entities, whatever the template escapes."""
    return html.escape(clean(value, limit))


def empty(x: str, y: str) -> go.Figure:
    """An empty figure in the report's style; the page repaints it in the colours of the reader's scheme."""
    import plotly.graph_objects as go

    axis = {
        "gridcolor": RULE, "zeroline": False, "linecolor": RULE, "automargin": True, "title_font_size": 12,
        "ticks": "outside", "ticklen": 4, "tickcolor": "rgba(0,0,0,0)", "nticks": 6,
    }  # fmt: skip
    return go.Figure(
        layout={
            "template": {},
            "font": {"family": FONT, "size": 12, "color": INK},
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 8, "r": 8, "t": 12, "b": 8},
            "height": 320,
            "showlegend": False,
            "hovermode": "x unified",
            "xaxis": axis | {"title": {"text": x, "standoff": 8}, "showgrid": False},
            "yaxis": axis | {"title": {"text": y, "standoff": 8}},
        }
    )


def _add_lines(
    figure: go.Figure, series: Sequence[tuple[Group, np.ndarray, np.ndarray]], digits: str, unit: str
) -> None:
    """A line and, with several seeds, a band for each (group, (R,) rounds, (runs, R) values)."""
    last = max((int(rounds[-1]) for _, rounds, _ in series if len(rounds)), default=0)
    figure.update_xaxes(range=[-0.02 * last, 1.02 * last] if last else [-1, 1])
    # Otherwise plotly labels half rounds.
    if last <= 6:
        figure.update_xaxes(dtick=1)
    for group, rounds, values in series:
        middle = values.mean(0)  # NaN where a seed failed: the others' mean would flatter the algorithm
        shown = (middle == middle).nonzero()[0]
        if len(values) > 1:
            # Forth along the largest values and back along the smallest.
            known, ends = rounds[shown].tolist(), values[:, shown]
            red, green, blue = (int(group.colour[i : i + 2], 16) for i in (1, 3, 5))
            figure.add_scatter(
                x=[*known, *reversed(known)], y=numbers([*ends.max(0), *ends.min(0)[::-1]]),
                mode="lines", line={"width": 0}, fill="toself", fillcolor=f"rgba({red},{green},{blue},0.16)",
                legendgroup=group.key, name=label(group.label, 40), hoverinfo="skip",
            )  # fmt: skip
        extra = f" {unit}".rstrip()
        reach = f" (%{{customdata[0]:{digits}}} to %{{customdata[1]:{digits}}})" if len(values) > 1 else ""
        figure.add_scatter(
            x=rounds.tolist(), y=numbers(middle), name=label(group.label, 40), legendgroup=group.key,
            mode="lines+markers" if len(shown) <= FEW_ROUNDS else "lines",
            line={"color": group.colour, "width": 2, "dash": group.dash}, marker={"size": 6},
            customdata=list(zip(numbers(values.min(0)), numbers(values.max(0)), strict=True)),
            hovertemplate=f"%{{y:{digits}}}{extra}{reach}",
        )  # fmt: skip


def _with_dots(groups: Sequence[Group]) -> list[tuple[Group, RunRecord]]:
    """The runs whose clients are drawn: all, or each algorithm's first where these would be too many dots."""
    everything = sum(len(run.clients) for group in groups for run in group.runs) <= DOTS
    return [(group, run) for group in groups for run in (group.runs if everything else group.runs[:1])]


def _ranks(n: int, most: int) -> list[int]:
    """All ranks 0…n−1, or ``most`` of them (at least both ends) in even steps."""
    most = max(2, most)
    return list(range(n)) if n <= most else [round(i * (n - 1) / (most - 1)) for i in range(most)]


def numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    """Five significant digits are more than a screen shows; null where not finite, which plotly leaves out."""
    import math

    return [float(f"{value:.5g}") if math.isfinite(value) else None for value in map(float, values)]
