"""The result of a run, where its folder is on this machine."""

from __future__ import annotations

import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from drfl.deploy.folder import Folder
from drfl.errors import InputError

CHECKPOINTS = "checkpoint"
"""Where they lie in a run's folder."""

COLUMNS = (
    ("average %", "avg_accuracy", 100.0, ".1f"),
    ("worst %", "worst_accuracy", 100.0, ".1f"),
    ("std", "std_accuracy", 100.0, ".1f"),
    ("worst 20 %", "worst20_accuracy", 100.0, ".1f"),
    ("avg loss", "avg_loss", 1.0, ".3f"),
    ("worst loss", "worst_loss", 1.0, ".3f"),
)
"""Heading, name in summary.json, factor and form."""


def print_result(folder: Folder) -> None:
    """Print the run's final figures as ``drfl run`` does; nothing where its folder lies on another machine."""
    try:
        path = folder.summary()
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, InputError):
        return
    final = summary.get("final") if isinstance(summary, dict) else None
    if not isinstance(final, dict):
        return
    title = f"{summary.get('algorithm')}, {summary.get('clients')} sites, {summary.get('rounds')} rounds"
    table = Table(title=escape(title), title_justify="left")
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right")
    table.add_row(*(_shown(final.get(name), factor, form) for _, name, factor, form in COLUMNS))
    out = Console(highlight=False)
    out.print(table)
    out.print(f"folder: {path.parent}", markup=False, soft_wrap=True)


def can_go_on(folder: Folder) -> bool:
    """Whether a run that did not end has left checkpoints to go on from, on this machine."""
    try:
        return any((folder.summary().parent / CHECKPOINTS).glob("round-*"))
    except (OSError, InputError):
        return False


def _shown(value: object, factor: float, form: str) -> str:
    return format(factor * value, form) if isinstance(value, int | float) else "–"
