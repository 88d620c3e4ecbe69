"""An assessment in sentences, each of which says no more than its method allows."""

from __future__ import annotations

import numpy as np

from drfl.assessment.clients import Assessment
from drfl.assessment.sample_size import rows_for_worst
from drfl.core.errors import InputError
from drfl.task.measure import NOTHING, Measure

NAMED = 5
"""Clients that a sentence names at most."""

DIFFERENCE = 0.05
"""How much worse a client is for which the test rows needed are told."""


def sentences(found: Assessment) -> list[str]:
    """What may be said, the most important first."""
    measure, unseen = found.measure, found.unseen
    lines = [f"{headline(found)}."]
    if found.undefined:
        lines.append(
            f"{measure.words[:1].upper()}{measure.words[1:]} is undefined on the test rows of "
            f"{_listed(found.undefined)}: their true {measure.words} is unknown."
        )
    lines += [candidates(found), *equality(found)]

    start = (
        f"A client not yet seen, if it is like these {unseen.clients:,}, measures worse than the worst of them with a "
        f"probability of at most {_percent(unseen.worse)}"
    )
    if np.isnan(unseen.low):
        lines.append(f"{start}; a bound that holds with {_percent(found.level)} needs {unseen.needed} clients.")
    else:
        side = "at least" if measure.more_is_better else "at most"
        lines.append(f"{start}; it measures {side} {measure.shown(unseen.low)} with {_percent(unseen.coverage)}.")

    if found.equal is None:
        return lines
    rest = float(np.nanmean(found.values))
    try:
        rows = rows_for_worst(rest, DIFFERENCE, len(found.names), alpha=1 - found.level)
    except InputError:  # the average is at 0 or 100 %, or too near for this difference
        return lines
    low, high = int(found.samples.min()), int(found.samples.max())
    have = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lines.append(
        f"To show, with a probability of 80 %, that a client is {100 * DIFFERENCE:g} points below the average of "
        f"{measure.shown(rest)}{found.note}, it needs {rows:,} test rows; here clients have {have}."
    )
    return lines


def headline(found: Assessment) -> str:
    """Of the worst client, with its interval, in a line."""
    i, words, shown = found.order[0], found.measure.words, found.measure.shown
    return (
        f"{found.names[i]} measures worst, {shown(float(found.values[i]))} on {found.samples[i]:,} test rows"
        f"{found.note}; the true {words} of the worst client, whoever it is, is between {shown(found.worst.low)} and "
        f"{shown(found.worst.high)} ({_level(found)})"
    )


def interval_line(measure: Measure, low: float, high: float, note: str = "") -> str:
    """The interval of the worst client's true value at 95 %, as commands print it, with a note on undefined clients."""
    ends = f"{measure.interval(low, high)} {measure.unit}".rstrip()
    return f"the worst client's true {measure.words}, whoever it is{note}: {ends} (95 % confidence)"


def candidates(found: Assessment) -> str:
    """Who could be the worst."""
    who = [found.names[i] for i in found.order if found.candidates[i]]
    n = len(found.names)
    if len(who) == 1 < n:
        return f"No other client than {who[0]} could be the worst ({_level(found)})."
    if len(who) == n:
        return f"Any of the {n:,} clients could be the worst." if n > 1 else "There is one client."
    return f"{len(who):,} of {n:,} clients could be the worst ({_level(found)}): {_listed(who)}."


def equality(found: Assessment) -> list[str]:
    """What equally good clients would show, whether the clients differ, and by how much."""
    test, equal, scale = found.homogeneity, found.equal, found.measure.scale
    if test is None:
        return []
    lines, shown = [], found.measure.shown
    if equal is not None:
        ends = f"between {shown(equal.low)} and {shown(equal.high)} in 95 of 100 federations with these test sizes"
        lines.append(
            "If all clients were equally good the worst of them would measure "
            f"{shown(equal.worst)} on average{found.note}, and {ends}."
        )
    # Bonferroni: double the smaller of the two p-values.
    differ = test.p_spread if np.isnan(test.p_worst) else min(1.0, 2 * min(test.p_spread, test.p_worst))
    verdict = "The clients differ" if differ <= 1 - found.level else "No difference between the clients is shown"
    by = "" if np.isnan(test.p_worst) else f", by the worst one p = {_p(test.p_worst)}"
    how = "exact test" if test.exact else "approximate test"
    lines.append(f"{verdict} ({how} that all are equally good: by the spread p = {_p(test.p_spread)}{by}){found.note}.")
    if not np.isnan(test.std_true):
        unit = " points" if found.measure.percent else ""
        digits = found.measure.digits
        lines.append(
            f"The standard deviation over clients is {scale * test.std:.{digits}f}{unit} as measured, "
            f"{scale * test.std_true:.{digits}f} with the noise of the test sets taken out{found.note}."
        )
    return lines


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED:,} more"


def _level(found: Assessment) -> str:
    return f"{_percent(found.level)} confidence"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _p(value: float) -> str:
    return f"{value:.2g}"


def signed_interval(measure: Measure, value: float, low: float, high: float) -> tuple[str, str]:
    """A difference and its interval as they are shown, in points where the measure is shown in percent."""

    def text(number: float) -> str:
        return NOTHING if np.isnan(number) else f"{measure.scale * number:+.{measure.digits}f}".replace("-", "−")

    return text(value), NOTHING if np.isnan(low) and np.isnan(high) else f"{text(low)} to {text(high)}"
