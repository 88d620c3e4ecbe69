"""``drfl assess``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.clients import Assessment, auc_interval_of
from drfl.assessment.sentences import sentences, signed_interval
from drfl.cli import console
from drfl.cli.options import AssessOptions
from drfl.core.run_end import OWN_MODELS, has_ended
from drfl.core.screen import ScreenTable
from drfl.experiments.assess.assess_runs import assess_run
from drfl.experiments.assess.predicted_records import predicted_beside, predicted_run
from drfl.experiments.compare.comparison_results import UNDEFINED
from drfl.experiments.compare.predicted import check_names, read_all
from drfl.experiments.run.artifacts import json_text
from drfl.report.groups import group_runs
from drfl.report.read_run import constant_line, threshold_line
from drfl.report.run_gains import (
    AssessedRun,
    PairedRuns,
    SeedComparison,
    assess_record,
    compare_over_seeds,
    gain_over_last,
    named_runs,
    no_assessment,
    pair_runs,
)
from drfl.task.measure import NOTHING, PLAIN, Rows, undefined_share

MOST = 30
"""Clients in a table of a simulation."""


def assess_command(options: AssessOptions) -> int:
    """Assess runs, print intervals and comparisons, and return the exit code."""
    folders, failed = console.runs_to_read(options.runs)
    auc_interval = auc_interval_of(options.auc_interval)
    runs = [assess_run(folder, options.measure, options.level, auc_interval) for folder in folders]
    # Other tools' predictions count as runs: stored ones, and the given ones at each seed of the first configuration.
    given = read_all(options.predictions or ())
    check_names(given, {run.record.algorithm for run in runs} | {run.algorithm for run in failed})
    stored = predicted_beside(options.runs, [run.record for run in runs])
    records = [record for record in stored if record.algorithm not in given]
    first = next(group.runs for group in group_runs([run.record for run in runs]) if runs[0].record in group.runs)
    for name, frame in given.items():
        records += [predicted_run(record, frame, name, trust=options.trust) for record in first]  # loads the data
    measure = None if options.measure is None else runs[0].measure
    runs += [assess_record(record, measure, options.level, auc_interval=auc_interval) for record in records]
    groups = group_runs([run.record for run in runs], failed)
    runs = named_runs(runs, {id(record): group.name for group in groups for record in group.runs})
    (pairs, unpaired), seeds = pair_runs(runs), compare_over_seeds(runs, {g.name for g in groups if g.failed})
    if options.as_json:
        lost = [{"algorithm": run.algorithm, "seed": run.seed, "how": run.how} for run in failed]
        print(json_text({**_content(runs, pairs, unpaired, seeds), "failed": lost}))
        return 0
    if len(runs) > 1:
        _print_several(runs, pairs, unpaired, seeds)
    elif (assessment := runs[0].assessment) is None:
        console.out.print(no_assessment(runs[0]), markup=False)
    else:
        record = runs[0].record
        title = f"{record.label}: {assessment.measure.words}"
        print_assessment(assessment, title, record.display_limit(MOST), _beside(runs[0]))
        gain = gain_over_last(runs[0])
        if gain is not None:
            value, interval = signed_interval(gain.measure, gain.worst.value, gain.worst.low, gain.worst.high)
            console.out.print(
                f"Returned model compared with the last iterate, row by row: {gain.worst.shown}; gain of the worst "
                f"client {value} ({interval}, {_percent(gain.level)} confidence){gain.note}.",
                markup=False,
            )
    own = list(dict.fromkeys(run.record.algorithm for run in runs if run.record.is_personal))
    if own:
        console.out.print(f"{', '.join(own)}: {OWN_MODELS}", markup=False)
    for run in failed:
        console.out.print(f"{run.algorithm}, seed {run.seed}: {run.how}, no results", markup=False)
    return 0


def print_assessment(assessment: Assessment, title: str, most: int, beside: Sequence[str]) -> None:
    """Print the scores of the ``most`` worst clients with their intervals, and what follows from them.

    ``beside`` are sentences that put the scores in context.
    """
    measure = assessment.measure
    table = ScreenTable(
        "client", "test rows", measure.words, f"{_percent(assessment.level)} interval", "could be the worst",
        title=title, text=("client", "could be the worst"),
    )  # fmt: skip
    for i in assessment.order[:most]:  # the worst first
        if math.isnan(assessment.values[i]):
            cells = (NOTHING, NOTHING, "unknown")
        else:
            low, high = measure.shown(float(assessment.low[i])), measure.shown(float(assessment.high[i]))
            could = "yes" if assessment.candidates[i] else ""
            cells = (measure.shown(float(assessment.values[i])), f"{low} – {high}", could)
        table.add_row(assessment.names[i], f"{assessment.samples[i]:,}", *cells)
    if len(assessment.names) > most:
        table.caption = f"and {len(assessment.names) - most:,} more clients; --json lists all"
    console.out.print(table)
    for line in (*beside, *sentences(assessment)):
        console.out.print(line, markup=False)
    console.out.print(f"Intervals: {assessment.method}, simultaneous over the clients (Bonferroni).", markup=False)


def _beside(run: AssessedRun) -> list[str]:
    """Return the sentence that puts an accuracy or a rate in context."""
    assessment, summary = run.assessment, run.record.summary
    line = None
    if assessment is not None and assessment.measure.name == PLAIN.name:
        line = constant_line(summary)
    elif assessment is not None and assessment.measure.rows is Rows.RATE:
        line = threshold_line(summary)
    return [] if line is None else [f"{line[:1].upper()}{line[1:]}."]


def _print_several(
    runs: Sequence[AssessedRun], pairs: Sequence[PairedRuns], unpaired: Sequence[str], seeds: Sequence[SeedComparison]
) -> None:
    known = [(run, run.assessment) for run in runs if run.assessment is not None]
    if known:
        measure, level = known[0][1].measure, f"{_percent(known[0][1].level)} interval"
        undefined = [UNDEFINED] if any(assessment.undefined for _, assessment in known) else []
        table = ScreenTable(
            "run", "measured worst", measure.unit or "value", level, "could be worst", *undefined,
            title=f"The worst client's {measure.words}", text=("run", "measured worst"),
            no_wrap=("run", UNDEFINED) if undefined else (),
        )  # fmt: skip
        for run, assessment in known:
            i, n = assessment.order[0], len(assessment.names)
            interval = measure.interval(assessment.worst.low, assessment.worst.high)
            candidates = f"{assessment.candidates.sum()} of {n}"
            share = [undefined_share([len(assessment.undefined)], [n])] if undefined else []
            worst = f"{assessment.names[i]} ({assessment.samples[i]:,} rows)"
            value = measure.number(assessment.values[i])
            table.add_row(run.record.label, worst, value, interval, candidates, *share)
        console.out.print(table)
    for run in runs:
        if run.assessment is None:
            console.out.print(no_assessment(run), markup=False)
    for line in dict.fromkeys(line for run in runs for line in _beside(run)):
        console.out.print(line, markup=False)
    if pairs:
        first, measure = pairs[0].first.record, pairs[0].gain.measure
        undefined = [UNDEFINED] if any(pair.gain.undefined for pair in pairs) else []
        level = f"{_percent(pairs[0].gain.level)} interval"
        table = ScreenTable(
            "algorithm", "gain", level, "verdict", "better at", "worse at", *undefined, text=("algorithm", "verdict"),
            title=f"Compared with {first.algorithm}, seed {first.seed}, row by row: the worst client's {measure.words}",
        )  # fmt: skip
        for pair in pairs:
            worst, gain = pair.gain.worst, pair.gain
            value, interval = signed_interval(measure, worst.value, worst.low, worst.high)
            counts = (f"{len(names)} of {len(gain.names)}" for names in (gain.better, gain.worse))
            share = [undefined_share([len(gain.undefined)], [len(gain.names)])] if undefined else []
            table.add_row(pair.second.record.algorithm, value, interval, worst.shown, *counts, *share)
        console.out.print(table)
        console.out.print(
            "gain: difference in the score of the worst client, which need not be the same client in both runs; better "
            "at, worse at: clients with a statistically significant difference (Holm)",
            markup=False,
        )
    for reason in unpaired:
        console.out.print(f"not compared row by row: {reason}", markup=False)
    if seeds:
        measure = next(run.assessment.measure for run in runs if run.assessment is not None)
        undefined = [UNDEFINED] if any(row.undefined for row in seeds) else []
        table = ScreenTable(
            "algorithm", "mean gain", "95 % t-interval", "seeds", "verdict", *undefined, text=("algorithm", "verdict"),
            title=f"Compared with {seeds[0].first} over seeds: the worst client's {measure.words}",
        )  # fmt: skip
        for row in seeds:
            value, interval = signed_interval(measure, row.gain.mean, row.gain.low, row.gain.high)
            share = [row.undefined] if undefined else []
            table.add_row(row.second, value, interval, str(row.gain.n), row.verdict, *share)
        console.out.print(table)
        few = " A verdict needs at least five seeds." if any(row.verdict == "not decided" for row in seeds) else ""
        console.out.print(
            f"The verdicts over seeds are valid {seeds[0].scope}. The comparison row by row is valid for other test "
            f"rows of these two models. Rely on a difference only if both show it.{few}",
            markup=False,
        )


def content_of(assessment: Assessment, beside: Sequence[str]) -> dict[str, object]:
    """Return an assessment as plain values; ``beside`` are sentences that put it in context."""
    candidates = [name for name, could in zip(assessment.names, assessment.candidates, strict=True) if could]
    return {
        "measure": assessment.measure.name,
        "level": assessment.level,
        "method": assessment.method,
        "worst": {"client": assessment.names[assessment.order[0]], **assessment.worst._asdict()},
        "could_be_worst": candidates,
        "undefined": assessment.undefined,
        "equal": None if assessment.equal is None else assessment.equal._asdict(),
        "homogeneity": None if assessment.homogeneity is None else assessment.homogeneity._asdict(),
        "unseen": assessment.unseen._asdict(),
        "sentences": [*beside, *sentences(assessment)],
        "clients": assessment.to_frame().to_dict("records"),
    }


def _percent(level: float) -> str:
    return f"{100 * level:g} %"


def _content(
    runs: Sequence[AssessedRun], pairs: Sequence[PairedRuns], unpaired: Sequence[str], seeds: Sequence[SeedComparison]
) -> dict[str, object]:
    assessed = []
    for run in runs:
        assessment = run.assessment
        named: dict[str, object] = {
            "run": run.record.label,
            "algorithm": run.record.algorithm,
            "seed": run.record.seed,
            "own_models": run.record.is_personal,
            "interrupted": not has_ended(run.record.summary),
        }
        if assessment is None:
            assessed.append({**named, "assessment": None, "reason": no_assessment(run)})
            continue
        assessed.append({**named, **content_of(assessment, _beside(run))})
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
