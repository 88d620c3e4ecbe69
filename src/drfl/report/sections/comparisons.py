"""Compared with what is the worst client served so?"""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.assessment.seeds import T_FROM
from drfl.assessment.sentences import signed_interval
from drfl.report.content import Block, Paragraph, Points, Section, TableBlock
from drfl.report.evidence import Evidence, RowGain
from drfl.report.formatting import NOTHING, UNDEFINED, clean, listing, plural
from drfl.task.measure import Measure, undefined_share

ASKED = "Compared with what?"

SAID = {
    "better": "the worst client is significantly better off with",
    "worse": "the worst client is significantly worse off with",
    "no difference shown": "there is no significant difference for",
    "not decided": "not decided for",
    "failed runs": "not compared, as runs failed, is",
}
"""Verdict → how the answer begins that lists whose it is."""


def compared(evidence: Evidence) -> Section:
    """The section: gains over the first algorithm, over seeds and row by row."""
    last = []
    for gain in (run.over_last for run in evidence.runs if run.over_last is not None):
        value, interval = signed_interval(gain.measure, gain.worst.value, gain.worst.low, gain.worst.high)
        last.append(
            f"The returned model against the last iterate, row by row: {gain.worst.shown}; the worst client's gain is "
            f"{value} ({interval}, {100 * gain.level:g} % confidence){gain.note}."
        )
    blocks: list[Block] = [Points(last)] if last else []
    if len(evidence.groups) < 2:
        of = "one run was given"
        if len(evidence.runs) > 1:
            of = f"its {plural(len(evidence.runs), 'seed')} say how much it varies, not what it gains"
        answer = f"With nothing: there is one algorithm in this report, {_first(evidence)}; {of}."
        return Section("compared", ASKED, answer, [*blocks, Points([REMEDY])])
    if evidence.over_seeds:
        own, rows = evidence.runs[0].record.score, []
        for pair in evidence.over_seeds:
            difference = pair.gain
            few = f" ({plural(difference.n, 'seed')})" if pair.verdict == "not decided" else ""
            value, interval = signed_interval(own, difference.mean, difference.low, difference.high)
            p = f"{difference.p_t:.2g}" if difference.n >= T_FROM and math.isfinite(difference.p_t) else NOTHING
            rows.append([clean(pair.second, 60), f"{pair.verdict}{few}", value, interval, str(difference.n), p])
        caption = f"Against {_first(evidence)}, over seeds: the gain of the worst client's {_points(own)}"
        head = ["Algorithm", "Verdict", "Mean gain", "95 % t-interval", "Seeds", "p, t-test"]
        if any(pair.undefined for pair in evidence.over_seeds):
            head.append(UNDEFINED)
            rows = [[*row, pair.undefined] for row, pair in zip(rows, evidence.over_seeds, strict=True)]
        note = (
            f"Verdict: paired t-test after Holm's correction over the {plural(len(rows), 'row')} of this table and, "
            f"from six seeds on, sign flips; below {T_FROM} seeds none. It holds {evidence.over_seeds[0].scope}; the "
            "comparison row by row holds for other test rows of one pair of models. Rely on a difference that both "
            "find."
        )
        blocks += [TableBlock(caption, head, rows, words=2), Paragraph(note, small=True)]
    if evidence.by_rows:
        blocks += gains_table(evidence.by_rows, f"Against {_first(evidence)}, on the same test rows", GAIN)
    reasons = [Paragraph(f"Not compared row by row: {clean(reason)}.", small=True) for reason in evidence.unpaired]
    blocks += reasons
    return Section("compared", ASKED, _answer(evidence), blocks)


REMEDY = (
    "To compare: run another algorithm on the same data, partition and seeds (drfl compare --algorithms "
    "FedAvg,DualDRDM,LocalOnly --seeds 5 …), and name all its runs in the report, the one to compare with first."
)

GAIN = (
    "Gain: by how much the worst client is better off, whoever it is with either model. Better at, worse at: clients "
    "where that is shown (Holm's correction)."
)


def _first(evidence: Evidence) -> str:
    return clean(evidence.groups[0].label, 60)


def _answer(evidence: Evidence) -> str:
    parts: list[str] = []
    seeds = [row.gain.n for row in evidence.over_seeds if row.verdict != "failed runs"] or [0]
    if evidence.over_seeds and not any(seeds):
        parts.append("not compared over seeds, as runs failed")
    elif max(seeds, default=1) < T_FROM:
        parts.append(f"not decided over seeds ({plural(max(seeds, default=1), 'seed')}, {T_FROM} are needed)")
    else:
        over = plural(seeds[0], "seed") if len(set(seeds)) == 1 else "seeds"
        said = _verdicts([(row.second, row.verdict) for row in evidence.over_seeds])
        parts.append(f"{evidence.over_seeds[0].scope}, over {over}, {said}")
    if evidence.by_rows:
        found = _verdicts([(row.second, row.gain.worst.shown) for row in evidence.by_rows])
        parts.append(f"on the same test rows (seed {clean(evidence.by_rows[0].seed, 24)}), {found}")
    else:
        parts.append("not compared row by row")
    return f"Compared with {_first(evidence)}: {'; '.join(parts)}."


def _verdicts(found: Sequence[tuple[str, str]]) -> str:
    """Whose verdicts are alike, each kind in a clause."""
    said = []
    for verdict, words in SAID.items():
        who = [clean(label, 60) for label, own in found if own == verdict]
        if who:
            said.append(f"{words} {listing(who)}")
    return ", ".join(said)


def _points(own: Measure) -> str:
    return f"{own.words}, in points" if own.percent else own.words


def gains_table(pairs: Sequence[RowGain], caption: str, note: str) -> list[Block]:
    """A row an algorithm: what its worst client gains, and at how many clients a gain or a loss is shown.

    Args:
        pairs: at least one.
        caption: said above.
        note: said below.
    """
    own, level = pairs[0].gain.measure, pairs[0].gain.level
    rows = []
    for pair in pairs:
        gain, worst = pair.gain, pair.gain.worst
        value, interval = signed_interval(gain.measure, worst.value, worst.low, worst.high)
        better, worse = (f"{len(names)} of {len(gain.names)}" for names in (gain.better, gain.worse))
        rows.append([clean(pair.second, 60), worst.shown, value, interval, better, worse])
    head = ["Algorithm", "Verdict", "Gain", f"{100 * level:g} % interval", "Better at", "Worse at"]
    if any(pair.gain.undefined for pair in pairs):
        shares = [undefined_share([len(pair.gain.undefined)], [len(pair.gain.names)]) for pair in pairs]
        head, rows = [*head, UNDEFINED], [[*row, share] for row, share in zip(rows, shares, strict=True)]
    seed = f" (seed {clean(pairs[0].seed, 24)})"
    return [
        TableBlock(f"{caption}{seed}: the gain of the worst client's {_points(own)}", head, rows, words=2),
        Paragraph(note, small=True),
    ]
