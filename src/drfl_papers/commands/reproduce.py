"""``drfl reproduce``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from drfl.cli import console, signals
from drfl.core.errors import InputError
from drfl.core.files import read_text
from drfl.core.screen import ScreenTable
from drfl.experiments.execution.executor import workers_of_options
from drfl.experiments.run.artifacts import json_text
from drfl_papers import energy_map, output
from drfl_papers.commands.options import ReproduceOptions
from drfl_papers.data_source import Source, Sources
from drfl_papers.execute import check_place, reproduce
from drfl_papers.plan import CollectedRuns, Plan, Scale
from drfl_papers.specification import Specification, load_spec, names

RESULTS = Path("runs/papers")
SOURCES: Mapping[str, Source] = {"auto": "auto", "original": "original", "stand-in": "stand-in"}


def reproduce_command(options: ReproduceOptions) -> int:
    """List the papers' tables and figures, or run some of them; return the exit code."""
    quiet = options.as_json
    if options.names and options.everything:
        raise InputError("--all takes no names. Remove --all or the names.", code="conflicting-options", field="all")
    known = names()
    chosen = [load_spec(name) for name in dict.fromkeys(known if options.everything else options.names or [])]
    # Short results go to another folder, so that they do not replace long ones.
    out = options.out or (RESULTS / "quick" if options.quick else RESULTS)
    if not chosen:
        specs = [load_spec(name) for name in known]
        finished = {spec.name: os.path.isfile(out / spec.name / "table.md") for spec in specs}
        if quiet:
            rows = [{"name": s.name, "paper": s.paper, "title": s.title, "done": finished[s.name]} for s in specs]
            print(json_text({"specifications": rows, "directory": str(out)}))
            return 0
        table = ScreenTable("name", "paper", "title", "done")
        for spec in specs:
            table.add_row(spec.name, spec.paper, spec.title, "yes" if finished[spec.name] else "")
        console.out.print(table)
        console.out.print(f"Run some with 'drfl reproduce NAME …', all with --all. Results go to {out}.", markup=False)
        return 0
    with signals.end_at_once():  # nothing to tidy up yet
        workers = workers_of_options(options.jobs, options.ray, os.cpu_count() or 1)
        plans, skipped = _plans(chosen, options, out)
    # The command in its shortest form, without paths of this machine.
    words = ["drfl", "reproduce", *(["--all"] if options.everything else options.names or [])]
    if options.quick:
        words.append("--quick")
    sizes = {"repeats": options.repeats, "rounds": options.rounds, "settings": options.only, "device": options.device}
    for name, value in sizes.items():
        if value is not None:
            words += [f"--{name}", shlex.quote(str(value))]
    if options.data != "auto":
        words += ["--data", options.data]
    written: dict[str, str] = {}

    def keep(collected: CollectedRuns, folder: Path) -> None:
        written[collected.plan.spec.name] = str(folder)

    with console.interruptible("now: finished cells are stored") as watch, console.progress_of_jobs(quiet) as show:
        reproduce(
            plans,
            out,
            " ".join(words),
            workers=workers,
            data_dir=options.data_dir,
            done=lambda cell: show(cell.finished, cell.total, cell.line, cell.share),
            written=keep,
            watch=watch,
        )
    if quiet:
        print(json_text({"written": written, "skipped": skipped}))
        return 1 if skipped else 0
    for folder in written.values():
        table = Path(folder) / "table.md"
        if len(written) == 1:
            for line in read_text(table).splitlines():
                console.out.print(line)
        console.out.print(f"{table}", markup=False)
    for sentence in skipped:
        console.err.print(f"not run: {sentence}", markup=False)
    return 1 if skipped else 0


def _plans(chosen: Sequence[Specification], options: ReproduceOptions, out: Path) -> tuple[list[Plan], list[str]]:
    """Make the plans that can run and, with --all, the sentences about those that cannot."""
    if (source := SOURCES.get(options.data.lower())) is None:
        raise InputError(
            f"--data must be one of {', '.join(SOURCES)}, got '{options.data}'", code="unknown-name", field="data"
        )
    for spec in chosen:
        output.check(spec)
    scale = Scale(
        quick=options.quick,
        repeats=options.repeats,
        rounds=options.rounds,
        settings=None if options.only is None else tuple(part.strip() for part in options.only.split(",")),
        device=options.device or "cpu",
    )
    if options.tuned is not None:
        scale = replace(scale, tuned=options.tuned)
    sources = Sources(source, options.data_dir, console.lines(options.as_json))
    plans, skipped = [], []
    for spec in chosen:
        try:
            plans.append(sources.plan(spec, scale))
        except InputError as error:
            if not options.everything:
                raise
            skipped.append(f"{spec.name}: {error}")
    for plan in plans:
        if plan.spec.kind == "energy":
            energy_map.check(plan)
        check_place(plan, out, options.overwrite)
    return plans, skipped
