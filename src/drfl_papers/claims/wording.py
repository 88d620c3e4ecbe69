"""The numbers that decide a claim, in words: means, intervals, pairs and settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from drfl.experiments.run.measures import MetricColumn, signed_text
from drfl_papers.claims.findings import OPPOSITE, SIGNIFICANT, UNDECIDED, EverySeed, Finding, Lead

T = TypeVar("T")
MOST_PLACES = 3
"""Maximum number of places that a statement about every seed lists one by one if all of them agree."""


def describe(found: Sequence[Finding], along: bool) -> str:
    """Describe all findings of a claim in one line.

    Args:
        found: At least one finding.
        along: Whether the findings follow a trend, from the second place of each to the first.
    """

    def pair(lead: Lead, several: bool) -> str:
        if not along:
            return f"{lead.first.method} − {lead.second.method}" if several else lead.second.method
        if lead.first.method != lead.second.method:
            return f"{lead.second.method} → {lead.first.method}"
        return f"{lead.first.method}, " * several + f"{lead.second.setting} → {lead.first.setting}"

    parts = []
    for findings in _groups(found, lambda f: f.metric).values():
        leads = [f for f in findings if isinstance(f, Lead)]
        if leads:
            several = len({lead.first.method for lead in leads}) > 1
            pairs = _groups(leads, partial(pair, several=several))
            text = "; ".join(f"{name} {_over_settings(group)}" for name, group in pairs.items())
        else:
            text = _every([f for f in findings if isinstance(f, EverySeed)])
        shown = findings[0].display
        unit = ", points" if shown.unit == "points" else ""
        parts.append(f"{shown.name[0].upper()}{shown.name[1:]}{unit}: {text}")
    counts = sorted({len(f.leads if isinstance(f, Lead) else f.values) for f in found})
    seeds = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    settings = {(f.first if isinstance(f, Lead) else f.place)[:2] for f in found}
    prefix = f"{len(settings)} settings, " if len(settings) > 1 else ""
    return ". ".join([*parts, f"{prefix}{seeds} {'seed' if seeds == '1' else 'seeds'}"])


def _over_settings(leads: Sequence[Lead]) -> str:
    """Describe one comparison in all its settings: extreme means and interval ends, and how many are significant."""
    parts = []
    finite = [lead for lead in leads if lead.leads and not lead.by_signs]
    signs = [lead for lead in leads if lead.by_signs]
    if finite:
        shown = finite[0].display
        text = _ends([lead.tests.mean for lead in finite], shown)
        known = [lead for lead in finite if not math.isnan(lead.tests.low)]
        if known:
            low, high = min(lead.tests.low for lead in known), max(lead.tests.high for lead in known)
            text += (
                f" [{signed_text(shown.scale * low, shown.digits)}, {signed_text(shown.scale * high, shown.digits)}]"
            )
        parts.append(text)
    if signs:
        # Some seed never reached the level, so its lead is infinite and has no mean. Only signs can be counted.
        wins, losses, n = (sum(each) for each in zip(*((x.wins, x.losses, len(x.leads)) for x in signs), strict=True))
        p = f", p = {signs[0].tests.p_t:.2g}" if len(signs) == 1 else ""
        parts.append(f"ahead at {wins} and behind at {losses} of {n} seeds{p}")
    notes = []
    papers = [lead.paper for lead in leads if lead.leads and not math.isnan(lead.paper)]
    if papers:
        notes.append(f"paper {_ends(papers, leads[0].display)}")
    outcomes = [lead.outcome for lead in leads]
    if outcomes.count(UNDECIDED) < len(leads):
        opposite, undecided = outcomes.count(OPPOSITE), outcomes.count(UNDECIDED)
        counts = [f"{SIGNIFICANT} in {outcomes.count(SIGNIFICANT)} of {len(leads)}"]
        counts += [f"opposite in {opposite}"] * bool(opposite) + [f"not decided in {undecided}"] * bool(undecided)
        notes.append(", ".join(counts) if len(leads) > 1 else outcomes[0])
    beside = f" ({'; '.join(notes)})" if notes else ""
    return (" and ".join(parts) or "no pair") + beside


def _ends(values: Sequence[float], shown: MetricColumn) -> str:
    """Format the smallest and the largest value as leads."""
    texts = [signed_text(shown.scale * value, shown.digits) for value in (min(values), max(values))]
    return " to ".join(dict.fromkeys(texts))


def _every(statements: Sequence[EverySeed]) -> str:
    # A long list of equal statements would hide that they hold without exception.
    if len(statements) > MOST_PLACES and all(f.agree == len(f.values) > 0 for f in statements):
        values = [value for f in statements for value in f.values]
        places = f"all {len(statements)} combinations of setting and method"
        return f"every seed in {places} ({_values(values, statements[0].display)})"
    methods, settings = (len({f.place[k] for f in statements}) > 1 for k in (2, 1))
    texts = []
    for f in statements:
        name = ", ".join([f.place.method] * methods + [f.place.setting] * settings)
        count = "no seed"
        if f.values:
            low, high = f.share
            share = (
                f"; 95 % interval of the share {100 * low:.0f} to {100 * high:.0f} %" if f.outcome != UNDECIDED else ""
            )
            count = f"{f.agree} of {len(f.values)} seeds ({_values(f.values, f.display)}{share})"
        texts.append(f"{name} {count}".strip())
    return "; ".join(texts)


def _values(values: Sequence[float], shown: MetricColumn) -> str:
    texts = (
        "never" if math.isinf(value) else f"{shown.scale * value:.{shown.digits}f}"
        for value in (min(values), max(values))
    )
    return " to ".join(dict.fromkeys(texts))


def _groups(items: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    """Group items by key, in the order in which the keys first appear."""
    groups: dict[str, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
