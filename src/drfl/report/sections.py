"""The sections of figures: what each shows, and what is said of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drfl.report import figures as draw
from drfl.report.client_tables import by_client_tables
from drfl.report.content import Figure, Section
from drfl.report.forest import forest, in_words, legend, shown_rows
from drfl.report.formatting import THIN, clean, listing, percent, plural, scientific, scored
from drfl.report.groups import Group
from drfl.report.side_by_side import Told, at_one_seed
from drfl.report.tables import certificate_table
from drfl.task.measure import undefined_share

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Figures:
    """The figures of a page, each with a name of its own.

    Attributes:
        drawn: plotly's data and layout by name, as plain JSON values.
    """

    def __init__(self) -> None:
        self.drawn: dict[str, object] = {}

    def add(
        self, drawing: go.Figure, alt: str, heading: str = "", caption: str = "", line: Group | None = None
    ) -> Figure:
        """Keep a drawing and give the figure for it; the rest as in `Figure`."""
        name = f"figure-{len(self.drawn) + 1}"
        self.drawn[name] = json.loads(drawing.to_json(engine="json") or "{}")
        return Figure(name, alt, drawing.layout["height"], heading, caption, line)


def sections(groups: Sequence[Group], told: Sequence[Sequence[Told]], figures: Figures) -> list[Section]:
    """All of them, in the order of the page.

    Args:
        groups: the algorithms.
        told: what may be said of them, see :func:`drfl.report.side_by_side.side_by_side`.
        figures: to which all are added.
    """
    certified = [group for group in groups if group.certified]
    return [
        curves(groups, figures),
        clients(groups, figures),
        sure(groups, told, figures),
        mixture(groups, figures),
        losses(groups, figures),
        *([certificate(certified, figures)] if certified else []),
    ]


def curves(groups: Sequence[Group], figures: Figures) -> Section:
    """Average, worst and std of the score over the rounds."""
    score = groups[0].score
    panels = (
        ("avg_score", f"Average {score.words}", f"Test {score.words}"),
        ("worst_score", f"Worst client's {score.words}", f"Test {score.words}"),
        ("std_score", "Std over clients", "Standard deviation"),
    )
    plots = [
        figures.add(
            draw.curves(groups, column, axis, score.unit),
            _alt(f"{title} over the rounds", groups, column),
            heading=title,
        )
        for column, title, axis in panels
    ]
    note = (
        "The axes are fitted to the later rounds; double-click for all, drag to zoom in. How far the worst client's "
        "last values may be from the truth stands under How sure."
    )
    if max(len(group.runs) for group in groups) > 1:
        note = "Lines are means over seeds, bands reach from the lowest to the highest seed. " + note
    note += _undefined(groups)
    return Section(
        "curves", f"{score.words[:1].upper()}{score.words[1:]} over the rounds", plots, note, columns="three"
    )


def losses(groups: Sequence[Group], figures: Figures) -> Section:
    """Average and worst loss over the rounds."""
    panels = (("avg_loss", "Average loss"), ("worst_loss", "Worst client's loss"))
    plots = [
        figures.add(draw.curves(groups, column, "Test loss", unit=""), f"{title} over the rounds", heading=title)
        for column, title in panels
    ]
    return Section("losses", "Test loss over the rounds", plots, columns="two")


def clients(groups: Sequence[Group], figures: Figures) -> Section:
    """The final score of every client."""
    alt = _alt(
        f"Clients' final test {groups[0].score.words}, from worst to best", groups, "worst_score", "worst client"
    )
    note = "Each dot is a client under the final model; point at one for its name, samples and λ."
    if max(len(group.runs) for group in groups) > 1:
        note += " Lines are means over seeds at each rank, where the rank is not the same client in every seed."
    if draw.ranks_left_out(groups):
        note += " The clients are too many for the page: dots stand at even steps of the rank, the worst and the best"
        note += " among them; clients.csv has them all."
    if len(groups) > 1:
        note += " Equal service for all is a flat line."
    note += _undefined(groups)
    plot = figures.add(draw.client_scores(groups), alt)
    return Section("clients", "Clients", [plot], note)


def _undefined(groups: Sequence[Group]) -> str:
    """A sentence on clients that figures of the score leave out; "" if there are none."""
    score, runs = groups[0].score, [run for group in groups for run in group.runs]
    share = undefined_share([run.undefined(score) for run in runs], [len(run.clients) for run in runs])
    return f" {share} clients undefined: they have no {score.words} under the final model." if share else ""


def sure(groups: Sequence[Group], told: Sequence[Sequence[Told]], figures: Figures) -> Section:
    """Every client with its interval, and what may be said of the worst one."""
    tables = by_client_tables(groups)
    if not told:
        from drfl.report.assessed import why_nothing  # loads scipy

        return Section("sure", "How sure", [], why_nothing(at_one_seed(groups)[0]), tables=tables)
    plots = []
    for alike in told:
        rows = shown_rows(alike)
        plots.append(figures.add(forest(alike, rows), in_words(alike), caption=legend(alike, rows)))
    note = (
        "A dot is what a client's test rows show, a bar where its true value lies, with 95 % confidence that this "
        f"holds for all clients{' of an algorithm' * (len(groups) > 1)} together ({told[0][0].found.method})."
    )
    if len(groups) > 1:
        note += " Overlapping bars may hide a difference: drfl assess RUN RUN compares two runs row by row."
    else:
        from drfl.assessment.sentences import candidates, equality  # loads scipy

        own = told[0][0]
        found = dataclasses.replace(own.found, names=tuple(clean(name, 40) for name in own.found.names))
        note += "" if len(own.group.runs) == 1 else f" Of seed {clean(own.run.seed, 24)}:"
        note += f" {' '.join([candidates(found), *equality(found)])}"
    return Section("sure", "How sure", plots, note, tables=tables)


def mixture(groups: Sequence[Group], figures: Figures) -> Section:
    """How λ moved, for the algorithms that move it."""
    title = "The mixture λ"
    moving = [group for group in groups if not all(draw.is_constant(run) for run in group.runs)]
    still = [group.label for group in groups if group not in moving]
    constant = f"{listing(still)} {'keeps' if len(still) == 1 else 'keep'}"
    if not moving:
        once = all(len(run.lam) == 1 for group in groups for run in group.runs)
        only = "One round was evaluated" if once else f"{constant} λ constant"
        return Section("mixture", title, [], f"{only}: there is nothing to draw.")
    spread = figures.add(
        draw.effective_clients(groups),
        "Effective number of clients over the rounds",
        heading="How many clients λ is spread over",
        caption="1/Σλ²: N when all weigh the same, 1 when one client has all the weight.",
    )
    # All maps share the colour scale. They share the rows too if the first runs have the same clients.
    names = [group.runs[0].lam.columns[1:].tolist() for group in moving]
    alike = all(own == names[0] for own in names)
    top = max(float(group.runs[0].lam.iloc[:, 1:].to_numpy(float).max()) for group in moving)
    shared = draw.mixture_order(moving) if alike else []
    maps = []
    for group in moving:
        n = len(group.runs[0].clients)
        order = shared or draw.mixture_order([group])
        caption = "Clients with the largest mean λ" + (" over these algorithms" if len(moving) > 1 and alike else "")
        caption += " first" if len(order) == n else f" first, {len(order)} of {n}"
        caption += f"; uniform is {percent([1 / n], 2)}{THIN}%."
        if len(group.runs) > 1:
            caption = f"Seed {clean(group.runs[0].seed, 24)}. {caption}"
        alt = f"Heat map of λ over the rounds for {group.label}, {plural(len(order), 'client')}"
        maps.append(figures.add(draw.mixture(group, order, top, 1 / n), alt, group.label, caption, group))
    note = "λ weighs the clients' losses in the objective; the dual step moves it towards clients with high loss."
    if still:
        note += f" {constant} it constant."
    return Section("mixture", title, [spread, *maps], note, columns="two")


def certificate(groups: Sequence[Group], figures: Figures) -> Section:
    """The duality gap over the rounds and its two sides at the end.

    Args:
        groups: those that have certificates.
        figures: to which the gaps' are added.
    """
    ends = ", ".join(f"{clean(group.label, 60)} {scientific(group.finals('gap'))}" for group in groups)
    alt = f"Duality gap over the rounds, on a logarithmic axis; final: {ends}"
    note = (
        "How far (w, λ) is from the saddle point, on the clients' training data: the worst case over Λ of this model, "
        "minus what no model can beat under this λ. At 0 both are optimal."
    )
    if not all(run.proven for group in groups for run in group.runs):
        note += " Where the lower bound is not proven, the gap may be larger, the more so the larger the gradient norm."
    if any((group.curve("gap")[1] <= 0).any() for group in groups):
        note += " A gap of 0 or, by rounding, below has no place in the figure."
    plot = figures.add(draw.gaps(groups), alt)
    return Section("certificate", "Duality gap", [plot], note, tables=[certificate_table(groups)])


def _alt(what: str, groups: Sequence[Group], metric: str, name: str = "final") -> str:
    """The figure in words: what it shows, and each algorithm's final number."""
    score = groups[0].score
    ends = ", ".join(
        f"{clean(group.label, 60)} {scored(group.finals(metric), score)} {score.unit}".rstrip() + group.note(score)
        for group in groups
    )
    return f"{what}; {name}: {ends}"
