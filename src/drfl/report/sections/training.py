"""The training: curves over the rounds, and the movement of λ."""

from __future__ import annotations

from collections.abc import Sequence

from drfl.report import figures as draw
from drfl.report.content import Block, Figure, Figures, Heading, Legend, Paragraph, Section
from drfl.report.evidence import Evidence
from drfl.report.formatting import THIN, clean, listing, percent, plural, scientific, score_text
from drfl.report.groups import Group
from drfl.report.tables import certificate_table
from drfl.task.measure import undefined_share

QUESTION = "How did training go?"


def training_section(evidence: Evidence) -> Section:
    """Build the section: score, loss, λ and, if there are certificates, the duality gap over the rounds."""
    groups = evidence.groups
    losses = [
        Figure(draw.curves(groups, column, "Test loss", unit=""), f"{title} over the rounds", heading=title)
        for column, title in (("avg_loss", "Average loss"), ("worst_loss", "Worst client's loss"))
    ]
    score = groups[0].score
    panels = (
        ("avg_score", f"Average {score.words}", f"Test {score.words}"),
        ("worst_score", f"Worst client's {score.words}", f"Test {score.words}"),
        ("std_score", "Std over clients", "Standard deviation"),
    )
    plots = [
        Figure(
            draw.curves(groups, column, axis, score.unit),
            alt_of(f"{title} over the rounds", groups, column),
            heading=title,
        )
        for column, title, axis in panels
    ]
    scale = (
        "The axes fit the later rounds. For the confidence interval of the worst client's final value, see the first "
        "section."
    )
    if max(len(group.runs) for group in groups) > 1:
        scale = "Lines are means over seeds; bands extend from the lowest to the highest seed. " + scale
    blocks = [*legend_of(groups), Heading(f"{score.title} over the rounds")]
    blocks += [Paragraph(scale + undefined_sentence(groups), small=True), Figures(plots), *_mixture(groups)]
    blocks += [Heading("Test loss over the rounds"), Figures(losses)]
    certified = [group for group in groups if group.has_certificate]
    if certified:
        ends = ", ".join(f"{clean(group.label, 60)} {scientific(group.finals('gap'))}" for group in certified)
        alt = f"Duality gap over the rounds, on a logarithmic axis; final: {ends}"
        note = (
            "The distance of (w, λ) from the saddle point, on the clients' training data: the worst case over Λ of "
            "this model, minus a lower bound of the objective of every model under this λ. At 0 both are optimal."
        )
        if not all(run.is_proven for group in certified for run in group.runs):
            note += " If the lower bound is not proven, the gap may be larger; the error grows with the gradient norm."
        if any((group.curve("gap")[1] <= 0).any() for group in certified):
            note += " Gaps of 0, or below 0 by rounding, are not drawn."
        plot = Figures([Figure(draw.gaps(certified), alt)])
        blocks += [Heading("Duality gap"), Paragraph(note, small=True), plot, certificate_table(certified)]
    return Section("training", QUESTION, "", blocks)


def legend_of(groups: Sequence[Group]) -> list[Block]:
    """Return the legend of the lines and marks of several algorithms."""
    return [Legend([(group.key, draw.swatch_of(group), group.label) for group in groups])] if len(groups) > 1 else []


def alt_of(what: str, groups: Sequence[Group], metric: str, name: str = "final") -> str:
    """Describe a figure in words, with each algorithm's final number."""
    score = groups[0].score
    finals = ", ".join(
        f"{clean(group.label, 60)} {score_text(group.finals(metric), score)} {score.unit}".rstrip() + group.note(score)
        for group in groups
    )
    return f"{what}; {name}: {finals}"


def undefined_sentence(groups: Sequence[Group]) -> str:
    """State how many clients are missing from figures of the score because it is undefined; "" if none are."""
    score, runs = groups[0].score, [run for group in groups for run in group.runs]
    share = undefined_share([run.undefined(score) for run in runs], [len(run.clients) for run in runs])
    return f" {share} clients undefined: their {score.words} under the final model is undefined." if share else ""


def _mixture(groups: Sequence[Group]) -> list[Block]:
    """Show how λ moved, for the algorithms that move it."""
    heading = Heading("Mixture weights λ")
    moving = [group for group in groups if not all(draw.is_constant(run) for run in group.runs)]
    still = [group.label for group in groups if group not in moving]
    constant = f"{listing(still)} {'keeps' if len(still) == 1 else 'keep'}"
    if not moving:
        once = all(len(run.lam) == 1 for group in groups for run in group.runs)
        only = "One round was evaluated" if once else f"{constant} λ constant"
        return [heading, Paragraph(f"{only}, so there is no figure.", small=True)]
    spread = Figure(
        draw.effective_clients(groups),
        "Effective number of clients over the rounds",
        heading="Number of clients over which λ is spread",
        caption="1/Σλ²: N if all clients have equal weight, 1 if one client has all the weight.",
    )
    # All heat maps have the same colour scale, and the same rows if the first runs have the same clients.
    names = [group.runs[0].lam.columns[1:].tolist() for group in moving]
    same_clients = all(clients == names[0] for clients in names)
    top = max(draw.largest_weight(group) for group in moving)
    shared = draw.mixture_order(moving) if same_clients else []
    maps = []
    for group in moving:
        run = group.runs[0]
        n, display_names = len(run.clients), dict(zip(run.clients["client"], run.display_names, strict=True))
        order = shared or draw.mixture_order([group])
        caption = "Clients with the largest mean λ" + (
            " over these algorithms" if len(moving) > 1 and same_clients else ""
        )
        caption += " first" if len(order) == n else f" first, {len(order)} of {n}"
        caption += f"; uniform is {percent([1 / n], 2)}{THIN}%."
        if len(group.runs) > 1:
            caption = f"Seed {clean(run.seed, 24)}. {caption}"
        alt = f"Heat map of λ over the rounds for {group.label}, {plural(len(order), 'client')}"
        picture = draw.mixture(group, order, [display_names[name] for name in order], top)
        maps.append(Figure(picture, alt, group.label, caption, draw.swatch_of(group)))
    note = "λ weights the clients' losses in the objective; the dual update moves it towards clients with high loss."
    if still:
        note += f" {constant} it constant."
    return [heading, Paragraph(note, small=True), Figures([spread, *maps])]
