"""``drfl reproduce``."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from drfl.cli import console
from drfl.errors import InputError
from drfl.experiments.artifacts import json_text
from drfl.experiments.pool import Done
from drfl.papers import output
from drfl.papers.data_source import Source, Sources
from drfl.papers.execute import check_place, reproduce
from drfl.papers.plan import Collected, Plan, Scale
from drfl.papers.specification import Specification, load_spec, names

RESULTS = Path("experiments/results")
SOURCES: tuple[Source, ...] = ("auto", "original", "stand-in")


def reproduce_command(given: Mapping[str, object]) -> int:
    """List the papers' tables and figures, or run some of them; gives the exit code."""
    quiet = bool(given["as_json"])
    chosen = _chosen(cast("list[str] | None", given["names"]), bool(given["everything"]))
    out = _out(given)
    if not chosen:
        _list(out, quiet)
        return 0
    plans, skipped = _plans(chosen, given, out, quiet)
    written: dict[str, str] = {}

    def keep(collected: Collected, folder: Path) -> None:
        written[collected.plan.spec.name] = str(folder)

    with _progress(quiet) as done:
        reproduce(
            plans,
            out,
            _command(given, out),
            workers=cast("int | None", given["jobs"]) or os.cpu_count() or 1,
            data_dir=cast("Path | None", given["data_dir"]),
            done=done,
            written=keep,
        )
    _report(written, skipped, quiet)
    return 1 if skipped else 0


def _chosen(wanted: Sequence[str] | None, everything: bool) -> list[Specification]:
    if wanted and everything:
        raise InputError("--all takes no names: leave one of them out")
    return [load_spec(name) for name in dict.fromkeys(names() if everything else wanted or [])]


def _out(given: Mapping[str, object]) -> Path:
    """Short results go elsewhere, so that they take the place of no long ones."""
    out = cast("Path | None", given["out"])
    return out if out is not None else RESULTS / "quick" if given["quick"] else RESULTS


def _plans(
    chosen: Sequence[Specification], given: Mapping[str, object], out: Path, quiet: bool
) -> tuple[list[Plan], list[str]]:
    """What can be run; with --all, also the sentences on what cannot."""
    source = str(given["data"]).lower()
    if source not in SOURCES:
        raise InputError(f"--data '{source}' is none of {', '.join(SOURCES)}")
    scale = _scale(given)
    sources = Sources(cast(Source, source), cast("Path | None", given["data_dir"]), console.lines(quiet))
    plans, skipped = [], []
    for spec in chosen:
        try:
            plans.append(sources.plan(spec, scale))
        except InputError as error:
            if not given["everything"]:
                raise
            skipped.append(f"{spec.name}: {error}")
    for plan in plans:
        output.check(plan)
        check_place(plan, out, bool(given["overwrite"]))
    return plans, skipped


def _scale(given: Mapping[str, object]) -> Scale:
    settings, tuned = given["settings"], given["tuned"]
    scale = Scale(
        quick=bool(given["quick"]),
        repeats=cast("int | None", given["repeats"]),
        rounds=cast("int | None", given["rounds"]),
        settings=None if settings is None else tuple(part.strip() for part in str(settings).split(",")),
        device=str(given["device"] or "cpu"),
    )
    return scale if tuned is None else replace(scale, tuned=cast(Path, tuned))


def _command(given: Mapping[str, object], out: Path) -> str:
    """The command in its shortest form, without where files lie on this machine."""
    words = ["drfl", "reproduce", *(["--all"] if given["everything"] else cast("list[str]", given["names"]))]
    if given["quick"]:
        words.append("--quick")
    for name in ("repeats", "rounds", "settings", "device"):
        if given[name] is not None:
            words += [f"--{name}", shlex.quote(str(given[name]))]
    return " ".join([*words, *([] if given["data"] == "auto" else ["--data", str(given["data"])])])


def _list(out: Path, quiet: bool) -> None:
    specs = [load_spec(name) for name in names()]
    found = {spec.name: os.path.isfile(out / spec.name / "table.md") for spec in specs}
    if quiet:
        rows = [{"name": s.name, "paper": s.paper, "title": s.title, "done": found[s.name]} for s in specs]
        print(json_text({"specifications": rows, "directory": str(out)}))
        return
    table = Table("name", "what it is", "title", "done")
    for spec in specs:
        table.add_row(spec.name, escape(spec.paper), escape(spec.title), "yes" if found[spec.name] else "")
    console.out.print(table)
    console.out.print(f"Run some with 'drfl reproduce NAME …', all with --all; results go to {out}.", markup=False)


def _report(written: Mapping[str, str], skipped: Sequence[str], quiet: bool) -> None:
    if quiet:
        print(json_text({"written": written, "skipped": list(skipped)}))
        return
    for folder in written.values():
        table = Path(folder) / "table.md"
        if len(written) == 1:
            console.out.print(table.read_text(encoding="utf-8"), markup=False)
        console.out.print(f"{table}", markup=False)
    for sentence in skipped:
        console.err.print(f"not run: {sentence}", markup=False)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Done], None]]:
    """Shows cells done and time left: a live bar on a terminal, a plain line a cell elsewhere."""
    start = time.monotonic()
    if quiet:
        yield lambda done: None
    elif console.err.is_terminal:
        columns = (TextColumn("cells"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
        with Progress(*columns, console=console.err, transient=True) as bar:
            task = bar.add_task("cells", total=None, left="")

            def live(done: Done) -> None:
                bar.update(task, completed=done.finished, total=done.total, left=_left(done, start))

            yield live
    else:

        def plain(done: Done) -> None:
            if not done.known:
                line = f"[{done.finished}/{done.total}] {_label(done)}; {_left(done, start)}"
                console.err.print(line, markup=False)

        yield plain


def _label(done: Done) -> str:
    job = done.cell.job
    return f"{job.get('algorithm')}, seed {job.get('seed')}: {done.record.get('stopped')}"


def _left(done: Done, start: float) -> str:
    """The time left, by the cost of what was run since the start."""
    if not 0 < done.share < 1:
        return "last files" if done.share else ""
    seconds = (time.monotonic() - start) * (1 - done.share) / done.share
    return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
