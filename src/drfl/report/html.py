"""The report as one HTML file."""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.report.client_tables import client_table
from drfl.report.compared import standing
from drfl.report.configurations import configurations
from drfl.report.content import Details, Page
from drfl.report.formatting import clean
from drfl.report.groups import group_runs, lost_algorithms
from drfl.report.read_run import FailedRun, RunRecord
from drfl.report.sections import Figures, sections
from drfl.report.side_by_side import side_by_side
from drfl.report.summary_text import cards, facts, headline, lead, notices, takeaway
from drfl.report.tables import ledger_table, runs_table, summary_table, versions_table

if TYPE_CHECKING:
    from jinja2 import Environment


def render(records: Sequence[RunRecord], title: str | None = None, failed: Sequence[FailedRun] = ()) -> str:
    """The report on one run or several, as the text of one HTML file.

    Runs that differ only in their seed are summarised together. The page asks the network for nothing: plotly.js is in
    it, and its content security policy forbids requests and foreign scripts. The same records give the same bytes.

    Args:
        records: the runs, at least one, in the order in which algorithms shall appear.
        title: the heading; by default what was run on what.
        failed: runs beside them that left no results.

    Raises:
        InputError: there is no run, or the runs are judged by different measures.
    """
    if not records:
        raise InputError(
            "a report needs at least one run: give a folder that `drfl run` wrote", code="empty", field="runs"
        )
    groups = group_runs(records, failed)
    for group in groups[1:]:
        if group.measures != groups[0].measures:
            first, other = (", ".join(m.name for m in g.measures) for g in (groups[0], group))
            raise InputError(
                f"the runs measure different things ({first}; {other}): give runs of one kind", code="runs-differ"
            )
    figures, told = Figures(), side_by_side(groups)
    lost = lost_algorithms(groups, failed)
    found = standing(groups, lost)
    page = Page(
        title=clean(title or headline(groups)),
        lead=lead(groups),
        facts=facts(groups),
        notices=notices(groups, lost),
        cards=cards(groups, found),
        takeaway=takeaway(groups, found),
        summary=summary_table(groups) if len(records) > 1 else None,
        legend=groups if len(groups) > 1 else [],
        sections=sections(groups, told, figures),
        details=Details(
            clients=client_table(records[0], told[0][0].found if told else None) if len(records) == 1 else None,
            runs=runs_table(groups),
            ledger=ledger_table(groups),
            configurations=configurations(groups),
            versions=versions_table(groups),
        ),
        drawn=figures.drawn,  # after `sections`, which draws them
    )

    library, library_hash = _plotly()
    script = _resource("page.js")
    return _environment().get_template("report.html.j2").render(
        page=page,
        style=_resource("style.css"),
        script=script,
        # The content security policy allows only scripts with these hashes.
        script_hash=_hash(script),
        library=library,
        library_hash=library_hash,
    )  # fmt: skip


def write_report(
    records: Sequence[RunRecord], path: Path, title: str | None = None, failed: Sequence[FailedRun] = ()
) -> None:
    """Write the report to a file atomically.

    Args:
        records: the runs, at least one.
        path: the file, in a folder that is there; an older one is replaced.
        title: the heading; by default what was run on what.
        failed: runs beside them that left no results.

    Raises:
        InputError: there is no run, or the file cannot be written.
    """
    path = Path(path)
    page = render(records, title, failed)
    if not os.path.isdir(path.parent):  # which is not made: its name may be misspelt
        raise InputError(
            f"cannot write {path}: there is no folder {path.parent}", code="folder-not-found", field=str(path.parent)
        )
    try:
        with atomic_write(path) as file:
            file.write(page.encode())
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", code="cannot-write", field=str(path)) from None


@functools.cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("drfl.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


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
    # No timestamp in the archive: the same runs give the same page.
    return base64.b64encode(gzip.compress(source.encode(), 9, mtime=0)).decode(), _hash(source)
