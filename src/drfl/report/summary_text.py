"""What the report says in words and single numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from drfl.report.content import Card, Takeaway
from drfl.report.formatting import NOTHING, THIN, clean, count, duration, listing, mean, plural, scored, size
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, listed, number, text, worst_first


def headline(groups: Sequence[Group]) -> str:
    """The default title: "DRFA on digits", "3 algorithms on digits"."""
    names = list(dict.fromkeys(run.algorithm for group in groups for run in group.runs))
    what = names[0] if len(names) == 1 else f"{len(names)} algorithms"
    return f"{what} on {listing(_distinct(groups, 'dataset'))}"


def lead(groups: Sequence[Group]) -> str:
    """One sentence: what was run."""
    runs = sum(len(group.runs) for group in groups)
    rounds = _span(number(run.summary, "rounds") for group in groups for run in group.runs)
    clients = _span(float(len(run.clients)) for group in groups for run in group.runs)
    if runs == 1:
        what = "One run"
    elif len(groups) == 1:
        what = f"{plural(runs, 'run')} of {groups[0].label}"
    else:
        what = f"{plural(runs, 'run')} of {listing([group.label for group in groups])}"
    unit = "round" if rounds == "1" else "rounds"
    return f"{what}: one model trained over {clients} clients in {rounds} {unit}, tested on every client's own data."


def facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """The setting, as terms and descriptions."""
    seconds = [number(run.summary, "wall_seconds") for group in groups for run in group.runs]
    found = {
        "Dataset": listing(_distinct(groups, "dataset")),
        "Partition": listing(_distinct(groups, "partition")),
        "Model": listing(_distinct(groups, "model")),
        "Clients": _span(float(len(run.clients)) for group in groups for run in group.runs),
        "Rounds": _span(number(run.summary, "rounds") for group in groups for run in group.runs),
        "Seeds" if len(_distinct(groups, "seed")) > 1 else "Seed": ", ".join(_distinct(groups, "seed")),
        "Device": listing(_distinct(groups, "device")),
        "Time": duration(sum(seconds)),
    }
    return [(name, clean(value)) for name, value in found.items() if value not in ("", "?")]


def notices(groups: Sequence[Group]) -> list[str]:
    """What the reader must know before believing the numbers; empty if all went as planned."""
    most = max(len(group.runs) for group in groups)
    return [*(f"{group.label}{line}" for group in groups for line in _notices_on(group, most)), *_told(groups)]


def _told(groups: Sequence[Group]) -> list[str]:
    """Failures and warnings of the runs, each once, with all whose they are."""
    found: dict[str, list[tuple[str, RunRecord]]] = {}
    for group in groups:
        for run in group.runs:
            lines = [text(run.summary, "failure")] if run.summary.get("failure") else []
            for line in (*lines, *map(str, listed(run.summary, "warnings"))):
                found.setdefault(line, []).append((group.label, run))
    told = []
    for line, owners in found.items():
        labels = list(dict.fromkeys(label for label, _ in owners))
        runs = list({run.seed: run for _, run in owners}.values())
        told.append(f"{listing(labels)}: {clean(line, 400)}{_seeds(runs)}.")
    return told


def _notices_on(group: Group, most: int) -> list[str]:
    """Continuations of the algorithm's name, one per thing to know."""
    said = []
    runs = group.runs
    diverged = [run for run in runs if run.diverged]
    if diverged:
        said.append(f" diverged{_seeds(diverged)}: its final metrics are not all finite numbers.")
    if len(runs) < most:
        said.append(f" has {plural(len(runs), 'run')} where others have {most}: those missing may have failed.")
    for reason, words in (
        ("interrupted", "was interrupted"),
        ("target", "had reached its target and stopped"),
        ("patience", "had gained nothing on validation rows and stopped"),
    ):
        early = [run for run in runs if text(run.summary, "stopped") == reason]
        if early:
            rounds = _span(number(run.summary, "rounds") for run in early)
            said.append(f" {words} after {rounds} {'round' if rounds == '1' else 'rounds'}{_seeds(early)}.")
    skipping = [run for run in runs if number(run.summary, "skipped_rounds") > 0]
    if skipping:
        skipped = sum(int(number(run.summary, "skipped_rounds")) for run in skipping)
        said.append(f" skipped {plural(skipped, 'round')}, in which no client answered{_seeds(skipping)}.")
    return said


def _seeds(runs: Sequence[RunRecord]) -> str:
    return f" ({'seed' if len(runs) == 1 else 'seeds'} {listing([clean(run.seed, 24) for run in runs])})"


def cards(groups: Sequence[Group]) -> list[Card]:
    """The few numbers that matter: of the one algorithm, or the best of several and whose they are."""
    if len(groups) > 1:
        return [
            _best_card(groups, metric, title)
            for metric, title in (
                ("worst_score", "Best for the worst client"),
                ("worst20_score", f"Best for the worst 20{THIN}%"),
                ("avg_score", "Best on average"),
                ("std_score", "Smallest std over clients"),
            )
        ]
    group = groups[0]
    bytes_sent = mean(run.ledger("bytes_up") + run.ledger("bytes_down") for run in group.runs)
    worst = ""
    if len(group.runs) == 1:
        clients = group.runs[0].clients
        if clients["score"].notna().all():
            worst = clean(worst_first(group.runs[0])["client"].iloc[0], 40)
    return [
        _card("Worst client", group, "worst_score", worst),
        _card(f"Worst 20{THIN}% of clients", group, "worst20_score"),
        _card("Average over clients", group, "avg_score"),
        _card("Std over clients", group, "std_score"),
        Card("Sent, up and down", size(bytes_sent)),
    ]


def takeaway(groups: Sequence[Group]) -> Takeaway | None:
    """Who serves the worst-off client best, by how much, and whether the seeds leave doubt; None for one algorithm."""
    score = groups[0].score
    sign = 1 if score.more_is_better else -1
    means = {group.key: sign * mean(group.finals("worst_score")) for group in groups}
    ranked = sorted((g for g in groups if math.isfinite(means[g.key])), key=lambda g: -means[g.key])
    if len(ranked) < 2:
        return None
    best, rivals = ranked[0], ranked[1:]
    rival = next((group for group in rivals if group.label == "FedAvg"), rivals[0])
    gain = score.scale * (means[best.key] - means[rival.key])
    told = scored(best.finals("worst_score"), score)
    found = f"{told}{THIN}%" if score.percent else f"{score.words} {told}"
    more = f"{gain:.{score.digits}f}{' points' if score.percent else ''} {'more' if sign > 0 else 'less'}"
    rest = f"serves the worst-off client best: {found}, {more} than {rival.label}."
    lowest = min(sign * value for value in best.finals("worst_score"))
    near = [group.label for group in rivals if max(sign * x for x in group.finals("worst_score")) >= lowest]
    if near and len(best.runs) > 1:
        rest += f" Its seeds overlap with those of {listing(near)}."
    elif len(best.runs) == 1:
        rest += " One seed cannot tell luck from merit."
    return Takeaway(best.label, rest)


def _best_card(groups: Sequence[Group], metric: str, title: str) -> Card:
    score = groups[0].score
    best = min if metric == "std_score" or not score.more_is_better else max
    means = {group.key: round(score.scale * mean(group.finals(metric)), score.digits) for group in groups}
    finite = [value for value in means.values() if math.isfinite(value)]
    if not finite:
        return Card(title, NOTHING)
    winners = [group for group in groups if means[group.key] == best(finite)]
    return _card(title, winners[0], metric, listing([group.label for group in winners]))


def _card(title: str, group: Group, metric: str, note: str = "") -> Card:
    """A statistic of the final models' scores."""
    value = scored(group.finals(metric), group.score)
    middle, _, spread = value.partition(" ± ")
    return Card(title, middle, spread, f"{THIN}%" if group.score.percent and value != NOTHING else "", note)


def _distinct(groups: Sequence[Group], name: str) -> list[str]:
    """The summaries' values of a key, each once, tables in one line."""
    found: dict[str, None] = {}
    for group in groups:
        for run in group.runs:
            value = run.summary.get(name)
            if isinstance(value, dict):  # its name, then what is not a fact of its own
                inner = [f"{key} {item}" for key, item in value.items() if key not in (name, "name", "seed", "clients")]
                value = str(value.get("name", value.get(name, ""))) + (f" ({', '.join(inner)})" if inner else "")
            if value is not None:
                found[str(value)] = None
    return list(found)


def _span(values: Iterable[float]) -> str:
    """Equal values as one, others as "50 to 100"; "?" if none is known."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "?"
    low, high = min(known), max(known)
    return count(low) if low == high else f"{count(low)} to {count(high)}"
