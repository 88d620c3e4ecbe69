"""``drfl assess``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.clients import auc_interval_of
from drfl.assessment.sentences import sentences, signed_interval
from drfl.cli import console
from drfl.cli.options import AssessOptions
from drfl.core.run_end import has_ended
from drfl.core.screen import Table
from drfl.experiments.assess.assess_runs import assess_run
from drfl.experiments.compare.comparison_results import UNDEFINED
from drfl.experiments.run.artifacts import json_text
from drfl.experiments.run.manifest import failed_in, interruption, runs_in
from drfl.report.read_run import constant_line, threshold_line
from drfl.report.run_gains import AssessedRun, OverSeeds, PairedRuns, nothing_said, over_last, over_seeds, paired
from drfl.task.measure import NOTHING, PLAIN, Rows, undefined_share

MOST = 30
"""Clients in a table of a simulation."""


def assess_command(options: AssessOptions) -> int:
    """Read the runs, print what may be said of them; gives the exit code."""
    folders = [folder for path in options.runs for folder in runs_in(path)]
    failed = [run for path in options.runs for run in failed_in(path)]
    for notice in filter(None, map(interruption, options.runs)):
        console.warn(notice)
    auc_interval = auc_interval_of(options.auc_interval)
    runs = [assess_run(folder, options.measure, options.level, auc_interval) for folder in folders]
    (pairs, unpaired), seeds = paired(runs), over_seeds(runs, {run.algorithm for run in failed})
    if options.as_json:
        print(json_text({**_content(runs, pairs, unpaired, seeds), "failed": [run._asdict() for run in failed]}))
        return 0
    if len(runs) == 1:
        _print_one(runs[0])
    else:
        _print_several(runs, pairs, unpaired, seeds)
    for run in failed:
        console.out.print(f"{run.algorithm}, seed {run.seed}: {run.how}, no results", markup=False)
    return 0


def _print_one(run: AssessedRun) -> None:
    found = run.assessment
    if found is None:
        console.out.print(nothing_said(run), markup=False)
        return
    table = Table(title=f"{run.record.label}: {found.measure.words}", title_justify="left")
    for head, flush in (("client", "left"), ("test rows", "right"), (found.measure.words, "right")):
        table.add_column(head, justify=flush)  # pyright: ignore[reportArgumentType]
    table.add_column(f"{_percent(found.level)} interval", justify="right")
    table.add_column("could be the worst")
    most = run.record.most_shown(MOST)
    for i in found.order[:most]:  # the worst first
        if math.isnan(found.values[i]):
            cells = (NOTHING, NOTHING, "not known")
        else:
            low, high = found.measure.shown(float(found.low[i])), found.measure.shown(float(found.high[i]))
            could = "yes" if found.candidates[i] else ""
            cells = (found.measure.shown(float(found.values[i])), f"{low} – {high}", could)
        table.add_row(found.names[i], f"{found.samples[i]:,}", *cells)
    if len(found.names) > most:
        table.caption = f"and {len(found.names) - most:,} more clients; --json has all"
    console.out.print(table)
    for line in (*_beside(run), *sentences(found)):
        console.out.print(line, markup=False)
    console.out.print(f"Intervals: {found.method}, simultaneous over the clients (Bonferroni).", markup=False)
    gain = over_last(run)
    if gain is not None:
        value, interval = signed_interval(gain.measure, gain.worst.value, gain.worst.low, gain.worst.high)
        console.out.print(
            f"The returned model against the last iterate, row by row: {gain.worst.shown}, the worst client's gain "
            f"{value} ({interval}, {_percent(gain.level)} confidence){gain.note}.",
            markup=False,
        )


def _beside(run: AssessedRun) -> list[str]:
    """What an accuracy or a rate has to be read with."""
    found, own = run.assessment, run.record.summary
    line = None
    if found is not None and found.measure.name == PLAIN.name:
        line = constant_line(own)
    elif found is not None and found.measure.rows is Rows.RATE:
        line = threshold_line(own)
    return [] if line is None else [f"{line[:1].upper()}{line[1:]}."]


def _print_several(
    runs: Sequence[AssessedRun], pairs: Sequence[PairedRuns], unpaired: Sequence[str], seeds: Sequence[OverSeeds]
) -> None:
    known = [(run, run.assessment) for run in runs if run.assessment is not None]
    if known:
        own, some = known[0][1].measure, any(found.undefined for _, found in known)
        table = Table(title=f"The worst client's {own.words}", title_justify="left")
        truly = f"truly, {_percent(known[0][1].level)}"
        heads = ("run", "measured worst", own.unit or "value", truly, "could be worst", *([UNDEFINED] if some else []))
        for head in heads:
            words = head in ("run", "measured worst")
            table.add_column(head, justify="left" if words else "right", no_wrap=some and head in ("run", UNDEFINED))
        for run, found in known:
            i = found.order[0]
            ends = own.interval(found.worst.low, found.worst.high)
            who = f"{found.candidates.sum()} of {len(found.names)}"
            left_out = [undefined_share([len(found.undefined)], [len(found.names)])] if some else []
            worst = f"{found.names[i]} ({found.samples[i]:,} rows)"
            table.add_row(run.record.label, worst, own.number(found.values[i]), ends, who, *left_out)
        console.out.print(table)
    for run in runs:
        if run.assessment is None:
            console.out.print(nothing_said(run), markup=False)
    for line in dict.fromkeys(line for run in runs for line in _beside(run)):
        console.out.print(line, markup=False)
    _print_gains(runs, pairs, unpaired, seeds)


def _print_gains(
    runs: Sequence[AssessedRun], pairs: Sequence[PairedRuns], unpaired: Sequence[str], seeds: Sequence[OverSeeds]
) -> None:
    """Print how the runs compare with the first, on the same test rows and over seeds."""
    if pairs:
        first, measure = pairs[0].first.record, pairs[0].gain.measure
        level, some = pairs[0].gain.level, any(pair.gain.undefined for pair in pairs)
        title = f"Against {first.algorithm}, seed {first.seed}, row by row: the worst client's {measure.words}"
        table = Table(title=title, title_justify="left")
        heads = ("algorithm", "gain", f"{_percent(level)} interval", "verdict", "better at", "worse at")
        for head in (*heads, *([UNDEFINED] if some else [])):
            table.add_column(head, justify="left" if head in ("algorithm", "verdict") else "right")
        for pair in pairs:
            worst, gain = pair.gain.worst, pair.gain
            value, interval = signed_interval(measure, worst.value, worst.low, worst.high)
            shown = (f"{len(names)} of {len(gain.names)}" for names in (gain.better, gain.worse))
            left_out = [undefined_share([len(gain.undefined)], [len(gain.names)])] if some else []
            table.add_row(pair.second.record.algorithm, value, interval, worst.shown, *shown, *left_out)
        console.out.print(table)
        console.out.print(
            "gain: of the worst client, whoever it is with either; better at, worse at: clients where that is shown "
            "(Holm)",
            markup=False,
        )
    for reason in unpaired:
        console.out.print(f"not compared row by row: {reason}", markup=False)
    if seeds:
        measure = next(run.assessment.measure for run in runs if run.assessment is not None)
        title = f"Against {seeds[0].first} over seeds: the worst client's {measure.words}"
        table = Table(title=title, title_justify="left")
        some = any(row.undefined for row in seeds)
        for head in ("algorithm", "mean gain", "95 % t-interval", "seeds", "verdict", *([UNDEFINED] if some else [])):
            table.add_column(head, justify="left" if head in ("algorithm", "verdict") else "right")
        for row in seeds:
            value, interval = signed_interval(measure, row.gain.mean, row.gain.low, row.gain.high)
            left_out = [row.undefined] if some else []
            table.add_row(row.second, value, interval, str(row.gain.n), row.verdict, *left_out)
        console.out.print(table)
        few = "; not decided: five seeds are needed" if any(row.verdict == "not decided" for row in seeds) else ""
        console.out.print(
            f"Verdicts over seeds hold {seeds[0].scope}, the comparison row by row for other test rows of one pair of "
            f"models: rely on a difference that both find{few}.",
            markup=False,
        )


def _percent(level: float) -> str:
    return f"{100 * level:g} %"


def _content(
    runs: Sequence[AssessedRun], pairs: Sequence[PairedRuns], unpaired: Sequence[str], seeds: Sequence[OverSeeds]
) -> dict[str, object]:
    assessed = []
    for run in runs:
        found = run.assessment
        named: dict[str, object] = {
            "run": run.record.label,
            "algorithm": run.record.algorithm,
            "seed": run.record.seed,
            "interrupted": not has_ended(run.record.summary),
        }
        if found is None:
            assessed.append({**named, "assessment": None, "reason": nothing_said(run)})
            continue
        could_be_worst = [name for name, could in zip(found.names, found.candidates, strict=True) if could]
        assessed.append(
            {
                **named,
                "measure": found.measure.name,
                "level": found.level,
                "method": found.method,
                "worst": {"client": found.names[found.order[0]], **found.worst._asdict()},
                "could_be_worst": could_be_worst,
                "undefined": found.undefined,
                "equal": None if found.equal is None else found.equal._asdict(),
                "homogeneity": None if found.homogeneity is None else found.homogeneity._asdict(),
                "unseen": found.unseen._asdict(),
                "sentences": [*_beside(run), *sentences(found)],
                "clients": found.to_frame().to_dict("records"),
            }
        )
    return {
        "runs": assessed,
        "paired": [
            {
                "first": pair.first.record.label,
                "second": pair.second.record.label,
                "worst": {**pair.gain.worst._asdict(), "verdict": pair.gain.worst.shown},
                "undefined": pair.gain.undefined,
                "clients": pair.gain.to_frame().to_dict("records"),
            }
            for pair in pairs
        ],
        "unpaired": list(unpaired),
        "seeds": [
            {
                "first": row.first,
                "second": row.second,
                **row.gain._asdict(),
                "verdict": row.verdict,
                "undefined": row.undefined,
                "scope": row.scope,
            }
            for row in seeds
        ],
    }
