"""How did training go? Curves over the rounds, and how λ moved."""

from __future__ import annotations

from collections.abc import Sequence

from drfl.report import figures as draw
from drfl.report.content import Block, Figure, Figures, Heading, Legend, Paragraph, Section
from drfl.report.evidence import Evidence
from drfl.report.formatting import THIN, clean, listing, percent, plural, scientific, scored
from drfl.report.groups import Group
from drfl.report.tables import certificate_table
from drfl.task.measure import undefined_share

ASKED = "How did training go?"


def training(evidence: Evidence) -> Section:
    """The section: score, loss, λ and, where certificates were asked for, the duality gap over the rounds."""
    groups = evidence.groups
    certified = [group for group in groups if group.certified]
    blocks = [*legend_of(groups), *_curves(groups), *_mixture(groups), *_losses(groups)]
    blocks += _certificate(certified) if certified else []
    return Section("training", ASKED, "", blocks)


def legend_of(groups: Sequence[Group]) -> list[Block]:
    """Whose the lines and marks of several algorithms are."""
    return [Legend([(group.key, draw.swatch_of(group), group.label) for group in groups])] if len(groups) > 1 else []


def alt_of(what: str, groups: Sequence[Group], metric: str, name: str = "final") -> str:
    """A figure in words: what it shows, and each algorithm's final number."""
    score = groups[0].score
    ends = ", ".join(
        f"{clean(group.label, 60)} {scored(group.finals(metric), score)} {score.unit}".rstrip() + group.note(score)
        for group in groups
    )
    return f"{what}; {name}: {ends}"


def undefined_sentence(groups: Sequence[Group]) -> str:
    """A sentence on clients that figures of the score leave out; "" if there are none."""
    score, runs = groups[0].score, [run for group in groups for run in group.runs]
    share = undefined_share([run.undefined(score) for run in runs], [len(run.clients) for run in runs])
    return f" {share} clients undefined: they have no {score.words} under the final model." if share else ""


def _curves(groups: Sequence[Group]) -> list[Block]:
    """Average, worst and std of the score over the rounds."""
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
    note = (
        "The axes are fitted to the later rounds. The first section says how far the worst client's last values may be "
        "from the truth."
    )
    if max(len(group.runs) for group in groups) > 1:
        note = "Lines are means over seeds, bands reach from the lowest to the highest seed. " + note
    title = f"{score.words[:1].upper()}{score.words[1:]} over the rounds"
    return [Heading(title), Paragraph(note + undefined_sentence(groups), small=True), Figures(plots)]


def _losses(groups: Sequence[Group]) -> list[Block]:
    """Average and worst loss over the rounds."""
    panels = (("avg_loss", "Average loss"), ("worst_loss", "Worst client's loss"))
    plots = [
        Figure(draw.curves(groups, column, "Test loss", unit=""), f"{title} over the rounds", heading=title)
        for column, title in panels
    ]
    return [Heading("Test loss over the rounds"), Figures(plots)]


def _mixture(groups: Sequence[Group]) -> list[Block]:
    """How λ moved, for the algorithms that move it."""
    heading = Heading("The mixture λ")
    moving = [group for group in groups if not all(draw.is_constant(run) for run in group.runs)]
    still = [group.label for group in groups if group not in moving]
    constant = f"{listing(still)} {'keeps' if len(still) == 1 else 'keep'}"
    if not moving:
        once = all(len(run.lam) == 1 for group in groups for run in group.runs)
        only = "One round was evaluated" if once else f"{constant} λ constant"
        return [heading, Paragraph(f"{only}: there is nothing to draw.", small=True)]
    spread = Figure(
        draw.effective_clients(groups),
        "Effective number of clients over the rounds",
        heading="How many clients λ is spread over",
        caption="1/Σλ²: N when all weigh the same, 1 when one client has all the weight.",
    )
    # All maps share the colour scale. They share the rows too if the first runs have the same clients.
    names = [group.runs[0].lam.columns[1:].tolist() for group in moving]
    alike = all(own == names[0] for own in names)
    top = max(draw.largest_weight(group) for group in moving)
    shared = draw.mixture_order(moving) if alike else []
    maps = []
    for group in moving:
        run = group.runs[0]
        n, known = len(run.clients), dict(zip(run.clients["client"], run.display_names, strict=True))
        order = shared or draw.mixture_order([group])
        caption = "Clients with the largest mean λ" + (" over these algorithms" if len(moving) > 1 and alike else "")
        caption += " first" if len(order) == n else f" first, {len(order)} of {n}"
        caption += f"; uniform is {percent([1 / n], 2)}{THIN}%."
        if len(group.runs) > 1:
            caption = f"Seed {clean(run.seed, 24)}. {caption}"
        alt = f"Heat map of λ over the rounds for {group.label}, {plural(len(order), 'client')}"
        picture = draw.mixture(group, order, [known[name] for name in order], top)
        maps.append(Figure(picture, alt, group.label, caption, draw.swatch_of(group)))
    note = "λ weighs the clients' losses in the objective; the dual step moves it towards clients with high loss."
    if still:
        note += f" {constant} it constant."
    return [heading, Paragraph(note, small=True), Figures([spread, *maps])]


def _certificate(groups: Sequence[Group]) -> list[Block]:
    """The duality gap over the rounds and its two sides at the end, of those that have certificates."""
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
    plot = Figures([Figure(draw.gaps(groups), alt)])
    return [Heading("Duality gap"), Paragraph(note, small=True), plot, certificate_table(groups)]
