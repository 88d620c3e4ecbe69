"""An assessment in sentences, none of which claims more than its method allows."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment
from drfl.assessment.sample_size import rows_for_worst
from drfl.core.errors import InputError
from drfl.task.measure import NOTHING, Measure

MAX_NAMED = 5
"""Maximum number of clients that a sentence names."""

DIFFERENCE = 0.05
"""Shortfall of a client for which the required number of test rows is printed."""


def sentences(found: Assessment) -> list[str]:
    """Summarise an assessment, the most important sentence first."""
    measure, unseen = found.measure, found.unseen
    lines = [f"{headline(found)}."]
    if found.undefined:
        lines.append(
            f"{measure.title} is undefined on the test rows of "
            f"{_listed(found.undefined)}: their true {measure.words} is unknown."
        )
    lines += [candidates(found), *equality(found)]

    those, them = ("this one", "it") if unseen.clients == 1 else (f"these {unseen.clients:,}", "all of them")
    start = (
        f"A new client that is exchangeable with {those} has a worse measured {measure.words} than {them} with "
        f"probability at most {_percent(unseen.worse)}"
    )
    if np.isnan(unseen.low):
        lines.append(f"{start}; a bound at {_percent(found.level)} needs {unseen.needed} clients.")
    else:
        side = "at least" if measure.more_is_better else "at most"
        lines.append(
            f"{start}; its measured {measure.words} is {side} {measure.shown(unseen.low)} with probability "
            f"{_percent(unseen.coverage)}."
        )

    if found.equal is None:
        return lines
    rest = float(np.nanmean(found.values))
    try:
        rows = rows_for_worst(rest, DIFFERENCE, len(found.names), alpha=1 - found.level)
    except InputError:  # the average is 0 or 100 %, or too close to either for this difference
        return lines
    low, high = int(found.samples.min()), int(found.samples.max())
    have = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lines.append(
        f"A client that is {100 * DIFFERENCE:g} points below the average of {measure.shown(rest)}{found.note} needs "
        f"{rows:,} test rows to be found significantly worse with probability 80 %; here clients have {have}."
    )
    return lines


def headline(found: Assessment) -> str:
    """Describe the worst client and its confidence interval in one line."""
    i, words, shown = found.order[0], found.measure.words, found.measure.shown
    rows = f"{found.samples[i]:,} test rows"
    if found.patients is not None and found.patients[i] < found.samples[i]:
        patients = int(found.patients[i])
        rows += f" of {patients:,} patient{'s' * (patients > 1)}"
    measured = f"{shown(float(found.values[i]))} on {rows}{found.note}"
    ends = f"between {shown(found.worst.low)} and {shown(found.worst.high)} ({_level(found)})"
    if len(found.names) == 1:
        return f"{found.names[i]} has a measured {words} of {measured}; the true {words} is {ends}"
    return (
        f"{found.names[i]} has the {found.measure.worst_word} measured {words}, {measured}; "
        f"the true {words} of the worst client, whichever it is, is {ends}"
    )


def interval_line(measure: Measure, low: float, high: float, note: str = "") -> str:
    """Format the 95 % interval of the worst client's true value for commands, with a note on undefined clients."""
    ends = f"{measure.interval(low, high)} {measure.unit}".rstrip()
    return f"true {measure.words} of the worst client, whichever it is{note}: {ends} (95 % confidence)"


def candidates(found: Assessment) -> str:
    """Name the clients that could be the worst."""
    names = [found.names[i] for i in found.order if found.candidates[i]]
    n = len(found.names)
    if len(names) == 1 < n:
        return f"{names[0]} is the only client that could be the worst ({_level(found)})."
    if len(names) == n:
        return f"Any of the {n:,} clients could be the worst." if n > 1 else "There is only one client."
    return f"{len(names):,} of {n:,} clients could be the worst ({_level(found)}): {_listed(names)}."


def equality(found: Assessment) -> list[str]:
    """Compare the clients with equally good ones: the expected worst score, whether they differ, and by how much."""
    test, equal, scale = found.homogeneity, found.equal, found.measure.scale
    if test is None:
        return []
    lines, shown = [], found.measure.shown
    if equal is not None:
        ends = f"between {shown(equal.low)} and {shown(equal.high)} in 95 of 100 federations with these test sizes"
        lines.append(
            f"Expected if equal: if all clients were equally good, the worst measured {found.measure.words} would be "
            f"{shown(equal.worst)} on average{found.note}, and {ends}."
        )
    # Bonferroni: double the smaller of the two p-values.
    differ = test.p_spread if np.isnan(test.p_worst) else min(1.0, 2 * min(test.p_spread, test.p_worst))
    verdict = (
        "The clients differ significantly" if differ <= 1 - found.level else "The clients do not differ significantly"
    )
    by = "" if np.isnan(test.p_worst) else f", p = {_p(test.p_worst)} for the worst client"
    how = "exact test" if test.exact else "approximate test"
    lines.append(
        f"{verdict} ({how} that all are equally good: p = {_p(test.p_spread)} for the spread{by}){found.note}."
    )
    if not np.isnan(test.std_true):
        unit = " points" if found.measure.percent else ""
        digits = found.measure.digits
        lines.append(
            f"The standard deviation over clients is {scale * test.std:.{digits}f}{unit} as measured and "
            f"{scale * test.std_true:.{digits}f} without the sampling noise of the test sets{found.note}."
        )
    return lines


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED:,} more"


def _level(assessment: Assessment) -> str:
    return f"{_percent(assessment.level)} confidence"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _p(value: float) -> str:
    return f"{value:.2g}"


def signed_interval(measure: Measure, value: float, low: float, high: float) -> tuple[str, str]:
    """Format a difference and its interval with signs, in points if the measure is a percentage."""

    def signed(number: float) -> str:
        return NOTHING if np.isnan(number) else f"{measure.scale * number:+.{measure.digits}f}".replace("-", "−")

    return signed(value), NOTHING if np.isnan(low) and np.isnan(high) else f"{signed(low)} to {signed(high)}"
