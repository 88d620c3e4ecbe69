"""Gains of the worst client over the first algorithm, over seeds and row by row."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.seeds import FAILED, T_FROM, UNTRAINED
from drfl.assessment.sentences import signed_interval
from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence
from drfl.report.formatting import NOTHING, UNDEFINED, clean, listing, plural
from drfl.report.run_gains import PairedRuns
from drfl.task.measure import Measure, undefined_share

QUESTION = "Compared with what?"

VERDICT_PHRASES = {
    "better": "the worst client is significantly better with",
    "worse": "the worst client is significantly worse with",
    "not significant": "there is no significant difference for",
    "not decided": "not decided for",
    FAILED: "not compared because of failed runs:",
    UNTRAINED: "not compared because runs returned the initial model:",
}
"""Phrase of the answer for each verdict, followed by the names of the algorithms."""


def comparisons_section(evidence: Evidence) -> Section:
    """Build the section: gains over the first algorithm, over seeds and row by row."""
    # This compares two models of one run, so it is shown for a single algorithm too.
    last = []
    for gain in (run.gain_over_last for run in evidence.runs if run.gain_over_last is not None):
        value, interval = signed_interval(gain.measure, gain.worst.value, gain.worst.low, gain.worst.high)
        last.append(
            f"The returned model compared with the last iterate, row by row: {gain.worst.shown}; the worst client's "
            f"gain is {value} ({interval}, {100 * gain.level:g} % confidence){gain.note}."
        )
    blocks: list[Block] = [Points(last)] if last else []
    if len(evidence.groups) < 2:
        extent = "it has one run"
        if len(evidence.runs) > 1:
            extent = f"its {plural(len(evidence.runs), 'seed')} show how much it varies, not what it gains"
        answer = f"Nothing: {_first(evidence)} is the only algorithm in this report; {extent}."
        return Section("compared", QUESTION, answer, [*blocks, Points([REMEDY])])
    if evidence.over_seeds:
        measure, rows = evidence.runs[0].record.score, []
        for pair in evidence.over_seeds:
            difference = pair.gain
            few = f" ({plural(difference.n, 'seed')})" if pair.verdict == "not decided" else ""
            value, interval = signed_interval(measure, difference.mean, difference.low, difference.high)
            p = f"{difference.p_t:.2g}" if difference.n >= T_FROM and math.isfinite(difference.p_t) else NOTHING
            rows.append([clean(pair.second, 60), f"{pair.verdict}{few}", value, interval, str(difference.n), p])
        caption = f"Compared with {_first(evidence)}, over seeds: gain of the worst client's {_points(measure)}"
        head = ["Algorithm", "Verdict", "Mean gain", "95 % t-interval", "Seeds", "p, t-test"]
        if any(pair.undefined for pair in evidence.over_seeds):
            head.append(UNDEFINED)
            rows = [[*row, pair.undefined] for row, pair in zip(rows, evidence.over_seeds, strict=True)]
        note = (
            f"Verdict: paired t-test with Holm's correction over the {plural(len(rows), 'row')} of this table and, "
            f"from six seeds on, sign flips; fewer than {T_FROM} seeds give no verdict. It holds "
            f"{evidence.over_seeds[0].scope}. The comparison row by row holds for other test rows, but only for one "
            "pair of models. Rely on a difference if both find it."
        )
        blocks += [TableBlock(caption, head, rows, words=2), Paragraph(note, small=True)]
    if evidence.by_rows:
        blocks += gains_table(evidence.by_rows, f"Compared with {_first(evidence)}, on the same test rows", GAIN)
    reasons = [
        Paragraph(f"Not compared row by row: {clean(reason)}.", small=True) for reason in evidence.unpaired_reasons
    ]
    blocks += reasons
    parts: list[str] = []
    seeds = [row.gain.n for row in evidence.over_seeds if row.verdict not in (FAILED, UNTRAINED)] or [0]
    if evidence.over_seeds and not any(seeds):
        reasons = {row.verdict for row in evidence.over_seeds}
        why = "failed runs" if reasons == {FAILED} else "runs that failed or returned the initial model"
        parts.append(f"not compared over seeds because of {why}")
    elif max(seeds) < T_FROM:
        parts.append(f"not decided over seeds ({plural(max(seeds), 'seed')}, {T_FROM} are needed)")
    else:
        over = plural(seeds[0], "seed") if len(set(seeds)) == 1 else "seeds"
        verdicts = _verdicts([(row.second, row.verdict) for row in evidence.over_seeds])
        parts.append(f"{evidence.over_seeds[0].scope}, over {over}, {verdicts}")
    if evidence.by_rows:
        by_rows = _verdicts([(pair.second.record.algorithm, pair.gain.worst.shown) for pair in evidence.by_rows])
        parts.append(f"on the same test rows (seed {clean(evidence.by_rows[0].first.record.seed, 24)}), {by_rows}")
    else:
        parts.append("not compared row by row")
    answer = f"Compared with {_first(evidence)}: {'; '.join(parts)}."
    return Section("compared", QUESTION, answer, blocks)


REMEDY = (
    "To compare, run another algorithm on the same data, partition and seeds (drfl compare --algorithms "
    "FedAvg,DualDRDM,LocalOnly --seeds 5 …), and pass all runs to drfl report, those of the baseline first."
)

GAIN = (
    "Gain: how much better the worst client is, whichever it is with either model. Better at, worse at: number of "
    "clients with a significant gain or loss (Holm's correction)."
)


def _first(evidence: Evidence) -> str:
    return clean(evidence.groups[0].label, 60)


def _verdicts(verdicts: Sequence[tuple[str, str]]) -> str:
    """Group the algorithms by verdict, one clause per verdict."""
    clauses = []
    for verdict, words in VERDICT_PHRASES.items():
        labels = [clean(label, 60) for label, label_verdict in verdicts if label_verdict == verdict]
        if labels:
            clauses.append(f"{words} {listing(labels)}")
    return ", ".join(clauses)


def _points(measure: Measure) -> str:
    return f"{measure.words}, in points" if measure.percent else measure.words


def gains_table(pairs: Sequence[PairedRuns], caption: str, note: str) -> list[Block]:
    """Build a row per algorithm: the gain of its worst client, and how many clients gain or lose significantly."""
    measure, level = pairs[0].gain.measure, pairs[0].gain.level
    rows = []
    for pair in pairs:
        gain, worst = pair.gain, pair.gain.worst
        value, interval = signed_interval(gain.measure, worst.value, worst.low, worst.high)
        better, worse = (f"{len(names)} of {len(gain.names)}" for names in (gain.better, gain.worse))
        rows.append([clean(pair.second.record.algorithm, 60), worst.shown, value, interval, better, worse])
    head = ["Algorithm", "Verdict", "Gain", f"{100 * level:g} % interval", "Better at", "Worse at"]
    if any(pair.gain.undefined for pair in pairs):
        shares = [undefined_share([len(pair.gain.undefined)], [len(pair.gain.names)]) for pair in pairs]
        head, rows = [*head, UNDEFINED], [[*row, share] for row, share in zip(rows, shares, strict=True)]
    seed = f" (seed {clean(pairs[0].first.record.seed, 24)})"
    return [
        TableBlock(f"{caption}{seed}: gain of the worst client's {_points(measure)}", head, rows, words=2),
        Paragraph(note, small=True),
    ]
