"""Tables of algorithms and of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.core.run_end import add_marks, legends
from drfl.report.content import TableBlock, TableCell
from drfl.report.evidence import Evidence
from drfl.report.figures import swatch_of
from drfl.report.formatting import (
    NOTHING,
    THIN,
    UNDEFINED,
    clean,
    count,
    mean,
    scientific,
    score_text,
    size,
    spread,
)
from drfl.report.groups import Group, kinds_of_models, runs_at_one_seed, which_seed
from drfl.report.read_run import RunRecord, nested_table, number, remark_lines, sort_worst_first
from drfl.task.measure import Measure, undefined_share

METRICS = {
    "avg_score": "Average",
    "worst_score": "Worst client",
    "std_score": "Std over clients",
    "worst20_score": f"Worst 20{THIN}%",
}


def summary_table(groups: Sequence[Group]) -> TableBlock:
    """Build a row per algorithm: the score, mean ± std over seeds, the best in bold, other measures, and the costs.

    Each worst client is followed by the interval of its true value at one seed.
    """
    score, *others = groups[0].measures
    kinds = kinds_of_models(groups)
    columns = {(name, score): head for name, head in METRICS.items()}
    columns |= {(f"{statistic}_{m.name}", m): f"{word} {m.words}" for m in others for statistic, word in WORDS.items()}
    head: list[str] = []
    shown: list[Sequence[str | TableCell]] = []
    for (name, measure), title in columns.items():
        head.append(title)
        # Print in bold all values that are displayed as equal to the best, but never a reference.
        means = {g.key: round(measure.scale * mean(g.finals(name)), measure.digits) for g in groups}
        smaller, best = name == "std_score" or not measure.more_is_better, set[str]()
        for kind in kinds if len(groups) > 1 else ():
            rivals = [group for group in kind if math.isfinite(means[group.key]) and not group.untrained]
            # If there are two kinds of models, the only algorithm of its kind is better than nothing.
            if rivals and (len(kinds) == 1 or len(kind) > 1):
                top = (min if smaller else max)(means[group.key] for group in rivals)
                best |= {group.key for group in rivals if means[group.key] == top}
        shown.append([TableCell(score_text(g.finals(name), measure), strong=g.key in best) for g in groups])
        if name.startswith("worst_"):
            head.append(interval_head(groups))
            shown.append([interval_cell(run, measure) for run in runs_at_one_seed(groups)])
            undefined = [group.undefined(measure) for group in groups]
            if any(undefined):
                head.append(UNDEFINED)
                shown.append(undefined)
    rows = [
        [
            TableCell(add_marks(group.label, (run.marks for run in group.runs)), swatch=swatch_of(group)),
            *(cells[i] for cells in shown),
            size(mean(run.ledger("bytes_up") for run in group.runs)),
            size(mean(run.ledger("bytes_down") for run in group.runs)),
            group.seeds,
        ]
        for i, group in enumerate(groups)
    ]
    many = max(len(group.runs) for group in groups) > 1
    best = " of global models and of clients' own models" * (len(kinds) > 1)
    best = f"; best measured value{best} in bold" * (len(groups) > 1)
    caption = (
        f"Test {score.words} of the final model over clients{', in percent' * score.percent}"
        f"{'; mean ± sample standard deviation over seeds' * many}{best}"
        f"; 95{THIN}%: confidence interval for the true value of the worst client, whichever it is"
    )
    caption += common_remarks(runs_at_one_seed(groups))
    notes = legends((group.label, clean(run.seed, 24), run.marks) for group in groups for run in group.runs)
    return TableBlock("; ".join((caption, *notes)), ["Algorithm", *head, "Sent up", "Sent down", "Seeds"], rows)


def common_remarks(runs: Sequence[RunRecord]) -> str:
    """Return the remarks on accuracies and rates that apply to all of these runs, to follow a caption."""
    lines = [remark_lines(run.summary) for run in runs]
    return "".join(f"; {clean(line)}" for line in lines[0] if all(line in run_lines for run_lines in lines))


def interval_head(groups: Sequence[Group]) -> str:
    """Return the title of a column of intervals at one seed."""
    return ", ".join(part for part in (f"95{THIN}%", which_seed(groups)) if part)


def interval_cell(run: RunRecord, measure: Measure) -> str:
    """Format the interval of the worst client's true value; a dash if there is none."""
    from drfl.report.assessed import worst_interval  # this import loads scipy

    ends = worst_interval(run, measure)
    return NOTHING if ends is None else measure.interval(*ends)


WORDS = {"avg": "Average", "worst": "Worst"}
"""Names of the statistics of measures other than the score."""


def certificate_table(groups: Sequence[Group]) -> TableBlock:
    """Build a row per algorithm with both sides of the final duality gap, mean ± std over seeds."""
    rows = [
        [
            TableCell(group.label, swatch=swatch_of(group)),
            *(scientific(group.finals(name)) for name in ("primal", "lower", "gap", "gradient_norm")),
            "yes" if all(run.is_proven for run in group.runs) else "no",
        ]
        for group in groups
    ]
    head = ["Algorithm", "Worst case over Λ", "Lower bound", "Gap", "Gradient norm", "Proven"]
    return TableBlock("Certificate of the final (w, λ), on training data", head, rows)


def runs_table(evidence: Evidence) -> TableBlock:
    """Build a row per run with its end and its worst client, with the interval of the true value."""
    groups, score = evidence.groups, evidence.groups[0].score
    some, unit = any(run.record.undefined(score) for run in evidence.runs), " (%)" if score.percent else ""
    rows: list[list[str]] = []
    for group in groups:
        for record in group.runs:
            run = evidence.of(record)
            place, assessment = int(sort_worst_first(record).index[0]), run.assessment
            could = NOTHING if assessment is None else f"{int(assessment.candidates.sum())} of {len(assessment.names)}"
            rows.append(
                [
                    add_marks(group.label, [record.marks]),
                    clean(record.seed, 24),
                    run.names[place] if math.isfinite(record.final("worst_score")) else NOTHING,
                    f"{count(record.marks.effective_rounds)} of " * bool(record.marks.rollbacks)
                    + count(number(record.summary, "rounds")),
                    score_text([record.final("avg_score")], score),
                    score_text([record.final("worst_score")], score),
                    interval_cell(record, score),
                    could,
                    *([undefined_share([record.undefined(score)], [len(record.clients)])] if some else []),
                    spread([record.final("worst_loss")], 3),
                ]
            )
    head = [
        "Algorithm",
        "Seed",
        "Worst measured",
        "Rounds",
        f"Average{unit}",
        f"Worst{unit}",
        f"95{THIN}%",
        "Could be worst",
    ]
    caption = (
        f"Each model: its {score.words} on average over clients and at the worst client; 95{THIN}%: confidence "
        "interval for the true value of the worst client, whichever it is; and how many clients could be the worst"
    )
    return TableBlock(caption, [*head, *([UNDEFINED] if some else []), "Worst loss"], rows, words=3)


def ledger_table(groups: Sequence[Group]) -> TableBlock:
    """Build a row per run with its costs."""
    rows = [
        [
            clean(run.label),
            size(run.ledger("bytes_up")),
            size(run.ledger("bytes_down")),
            *(count(run.ledger(name)) for name in ("messages", "gradient_evaluations", "loss_evaluations")),
        ]
        for group in groups
        for run in group.runs
    ]
    head = ["Run", "Sent up", "Sent down", "Messages", "Gradient evaluations", "Loss evaluations"]
    return TableBlock("Communication and computation, whole run", head, rows)


def versions_table(groups: Sequence[Group]) -> TableBlock | None:
    """List the versions of the software, several if runs differ; None if no run records them."""
    versions_of: dict[str, list[str]] = {}
    for group in groups:
        for run in group.runs:
            for name, version in nested_table(run.summary, "versions").items():
                seen = versions_of.setdefault(name, [])
                if str(version) not in seen:
                    seen.append(str(version))
    if not versions_of:
        return None
    rows = [[clean(name), clean(", ".join(versions))] for name, versions in versions_of.items()]
    return TableBlock("Versions", ["Software", "Version"], rows, words=2)
