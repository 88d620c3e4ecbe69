"""The report as one HTML file."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from drfl.errors import InputError
from drfl.report import figures as draw
from drfl.report.groups import Group, group_runs
from drfl.report.read_run import RunRecord
from drfl.report.summary_text import cards, facts, headline, lead, notices, takeaway
from drfl.report.tables import (
    THIN,
    certificate_table,
    client_table,
    configurations,
    esc,
    ledger_table,
    listing,
    percent,
    plural,
    runs_table,
    scientific,
    summary_table,
    swatch,
    versions_table,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go


class Figures:
    """The figures of a page, drawn by its script into the elements that `add` returns.

    Attributes:
        drawn: plotly's data and layout by the element's id, as plain JSON values.
    """

    def __init__(self) -> None:
        self.drawn: dict[str, object] = {}

    def add(self, figure: go.Figure, alt: str, heading: str = "", caption: str = "") -> str:
        """Keep a figure and give the element for it; ``alt``, ``heading`` and ``caption`` are HTML already."""
        name = f"figure-{len(self.drawn) + 1}"
        self.drawn[name] = json.loads(figure.to_json(engine="json") or "{}")
        height = figure.layout["height"]
        return (
            f"<figure>{f'<h3>{heading}</h3>' if heading else ''}"
            f'<div class="plot" id="{name}" role="img" aria-label="{alt}" style="height:{height}px"></div>'
            f"{f'<figcaption>{caption}</figcaption>' if caption else ''}</figure>"
        )


def legend(groups: Sequence[Group]) -> str:
    """A button per algorithm that shows or hides it in every figure."""
    buttons = "".join(
        f'<button type="button" data-group="{group.key}" aria-pressed="true">{swatch(group)}{esc(group.label)}</button>'
        for group in groups
    )
    return f'<div class="legend" role="group" aria-label="Algorithms shown in the figures">{buttons}</div>'


def curves(groups: Sequence[Group], figures: Figures) -> dict[str, str]:
    """Average, worst and std of accuracy over the rounds."""
    panels = (
        ("avg_accuracy", "Average accuracy", "Test accuracy"),
        ("worst_accuracy", "Worst client's accuracy", "Test accuracy"),
        ("std_accuracy", "Std over clients", "Standard deviation"),
    )
    plots = [
        figures.add(draw.curves(groups, column, axis), _alt(f"{title} over the rounds", groups, column), heading=title)
        for column, title, axis in panels
    ]
    note = "The axes are fitted to the later rounds; double-click for all, drag to zoom in."
    if max(len(group.runs) for group in groups) > 1:
        note = "Lines are means over seeds, bands reach from the lowest to the highest seed. " + note
    return {"curves": "\n".join(plots), "curves_note": note}


def losses(groups: Sequence[Group], figures: Figures) -> str:
    """Average and worst loss over the rounds."""
    panels = (("avg_loss", "Average loss"), ("worst_loss", "Worst client's loss"))
    return "\n".join(
        figures.add(draw.curves(groups, column, "Test loss", unit=""), f"{title} over the rounds", heading=title)
        for column, title in panels
    )


def clients(groups: Sequence[Group], figures: Figures) -> dict[str, str]:
    """The final accuracy of every client."""
    alt = _alt("Clients' final test accuracy, from worst to best", groups, "worst_accuracy", "worst client")
    note = "Each dot is a client under the final model; point at one for its name, samples and λ."
    if max(len(group.runs) for group in groups) > 1:
        note += " Lines are means over seeds at each rank, where the rank is not the same client in every seed."
    if draw.ranks_left_out(groups):
        note += " The clients are too many for the page: dots stand at even steps of the rank, the worst and the best"
        note += " among them; clients.csv has them all."
    if len(groups) > 1:
        note += " Equal service for all is a flat line."
    return {"clients": figures.add(draw.client_accuracies(groups), alt), "clients_note": note}


def mixture(groups: Sequence[Group], figures: Figures) -> dict[str, str]:
    """How λ moved, for the algorithms that move it."""
    moving = [group for group in groups if not all(draw.is_constant(run) for run in group.runs)]
    still = [esc(group.label) for group in groups if group not in moving]
    if not moving:
        only = (
            "One round was evaluated"
            if all(len(run.lam) == 1 for g in groups for run in g.runs)
            else (f"{listing(still)} {'keeps' if len(still) == 1 else 'keep'} λ constant")
        )
        return {"mixture": "", "mixture_note": f"{only}: there is nothing to draw."}
    spread = figures.add(
        draw.effective_clients(groups),
        "Effective number of clients over the rounds",
        heading="How many clients λ is spread over",
        caption="1/Σλ²: N when all weigh the same, 1 when one client has all the weight.",
    )
    note = "λ weighs the clients' losses in the objective; the dual step moves it towards clients with high loss."
    if still:
        note += f" {listing(still)} {'keeps' if len(still) == 1 else 'keep'} it constant."
    return {"mixture": f'<div class="grid two">{spread}\n{_heat_maps(moving, figures)}</div>', "mixture_note": note}


def _heat_maps(groups: Sequence[Group], figures: Figures) -> str:
    """A map per algorithm, with the same rows and colours wherever their first runs have the same clients."""
    names = [group.runs[0].lam.columns[1:].tolist() for group in groups]
    alike = all(own == names[0] for own in names)
    top = max(float(group.runs[0].lam.iloc[:, 1:].to_numpy(float).max()) for group in groups)
    shared = draw.mixture_order(groups) if alike else []
    plots = []
    for group, own in zip(groups, names, strict=True):
        order = shared or draw.mixture_order([group])
        caption = "Clients with the largest mean λ" + (" over these algorithms" if len(groups) > 1 and alike else "")
        caption += " first" if len(order) == len(own) else f" first, {len(order)} of {len(own)}"
        caption += f"; uniform is {percent([1 / len(own)], 2)}{THIN}%."
        if len(group.runs) > 1:
            caption = f"Seed {esc(group.runs[0].seed, 24)}. {caption}"
        alt = f"Heat map of λ over the rounds for {esc(group.label)}, {plural(len(order), 'client')}"
        figure = draw.mixture(group, order, top, 1 / len(own))
        plots.append(figures.add(figure, alt, f"{swatch(group)}{esc(group.label)}", caption))
    return "\n".join(plots)


def certificate(groups: Sequence[Group], figures: Figures) -> str:
    """The duality gap over the rounds and its two sides at the end; empty where nobody asked for it."""
    if not groups:
        return ""
    ends = ", ".join(f"{esc(group.label, 60)} {scientific(group.finals('gap'))}" for group in groups)
    alt = f"Duality gap over the rounds, on a logarithmic axis; final: {ends}"
    plot = figures.add(draw.gaps(groups), alt)
    note = (
        "How far (w, λ) is from the saddle point, on the clients' training data: the worst case over Λ of this model, "
        "minus what no model can beat under this λ. At 0 both are optimal."
    )
    if not all(run.proven for group in groups for run in group.runs):
        note += " Where the lower bound is not proven, the gap may be larger, the more so the larger the gradient norm."
    if any((group.curve("gap")[1] <= 0).any() for group in groups):
        note += " A gap of 0 or, by rounding, below has no place in the figure."
    return (
        f'<section aria-labelledby="certificate">\n<h2 id="certificate">Duality gap</h2>\n<p>{note}</p>\n'
        f"{plot}\n{certificate_table(groups)}\n</section>"
    )


def details(groups: Sequence[Group]) -> str:
    """What a reader opens when they want to know exactly."""
    only = [run for group in groups for run in group.runs]
    parts = {
        "All clients": client_table(only[0]) if len(only) == 1 else "",
        "Runs and seeds": runs_table(groups),
        "Ledger: communication and computation": ledger_table(groups),
        "Configuration and how to repeat it": configurations(groups),
        "Versions": versions_table(groups),
    }
    return "\n".join(
        f'<details class="tall"><summary>{title}</summary>\n{body}\n</details>' for title, body in parts.items() if body
    )


def _alt(what: str, groups: Sequence[Group], metric: str, name: str = "final") -> str:
    """The figure in words: what it shows, and each algorithm's final number."""
    ends = ", ".join(f"{esc(group.label, 60)} {percent(group.finals(metric))} %" for group in groups)
    return f"{what}; {name}: {ends}"


# Plotly styles its elements itself and exports images by way of data and blob addresses.
POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)


def render(records: Sequence[RunRecord], title: str | None = None) -> str:
    """The report on one run or several, as the text of one HTML file.

    Runs that differ only in their seed are summarised together. The page asks the network for nothing: plotly.js is in
    it, and its content security policy forbids requests and foreign scripts. The same records give the same bytes.

    Args:
        records: the runs, at least one, in the order in which algorithms shall appear.
        title: the heading; by default what was run on what.

    Raises:
        InputError: there is no run.
    """
    if not records:
        raise InputError("a report needs at least one run: give a folder that `drfl run` wrote")
    groups = group_runs(records)
    figures = Figures()
    library, library_hash = _plotly()
    script = _resource("page.js")
    fields = {
        "title": esc(title or headline(groups)),
        "lead": lead(groups),
        "facts": facts(groups),
        "notices": notices(groups),
        "cards": cards(groups),
        "takeaway": takeaway(groups),
        "summary": summary_table(groups) if len(records) > 1 else "",
        "legend": legend(groups) if len(groups) > 1 else "",
        **curves(groups, figures),
        **clients(groups, figures),
        **mixture(groups, figures),
        "losses": losses(groups, figures),
        "certificate": certificate([group for group in groups if group.certified], figures),
        "details": details(groups),
        "style": _resource("style.css"),
        "script": script,
        "library": library,
        "policy": POLICY.format(scripts=f"'{_hash(script)}' '{library_hash}'"),
    }
    # Last, when every section has added its own. A "<" could end the element that holds the JSON.
    fields["figures"] = json.dumps(figures.drawn).replace("<", "\\u003c")
    return Template(_resource("template.html")).substitute(fields)


def write_report(records: Sequence[RunRecord], path: Path, title: str | None = None) -> None:
    """Write the report to a file atomically.

    Args:
        records: the runs, at least one.
        path: the file; an older one is replaced.
        title: the heading; by default what was run on what.

    Raises:
        InputError: there is no run, or the file cannot be written.
    """
    path = Path(path)
    page = render(records, title)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(page)
        os.chmod(name, 0o644)  # mkstemp lets only the owner read
        os.replace(name, path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    finally:
        Path(name).unlink(missing_ok=True)


def _resource(name: str) -> str:
    return resources.files("drfl.report").joinpath(name).read_text(encoding="utf-8").strip()


def _hash(script: str) -> str:
    """What a content security policy calls a script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


@functools.cache
def _plotly() -> tuple[str, str]:
    """plotly.js, gzipped in base64 (2 MB in place of 4.8 MB), and the hash of its text."""
    from plotly.offline import get_plotlyjs

    source = get_plotlyjs()
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode(), _hash(source)
