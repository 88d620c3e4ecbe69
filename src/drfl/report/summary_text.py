"""What the report says in words and single numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from drfl.report.compared import Against, Standing
from drfl.report.content import Card, Takeaway
from drfl.report.formatting import (
    NOTHING,
    THIN,
    clean,
    duration,
    listing,
    mean,
    plural,
    scored,
    size,
    span,
)
from drfl.report.groups import Group
from drfl.report.read_run import RunRecord, listed, number, text, worst_first
from drfl.report.side_by_side import at_one_seed
from drfl.run_end import ON_TEST, SET_BACK

NAMED = 5
"""Algorithms that a sentence names at most."""


def headline(groups: Sequence[Group]) -> str:
    """The default title: "DRFA on digits", "3 algorithms on digits"."""
    names = list(dict.fromkeys(run.algorithm for group in groups for run in group.runs))
    what = names[0] if len(names) == 1 else f"{len(names)} algorithms"
    return f"{what} on {listing(_distinct(groups, 'dataset'))}"


def lead(groups: Sequence[Group]) -> str:
    """One sentence: what was run."""
    runs = sum(len(group.runs) for group in groups)
    rounds = span(number(run.summary, "rounds") for group in groups for run in group.runs)
    clients = span(float(len(run.clients)) for group in groups for run in group.runs)
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
        "Clients": span(float(len(run.clients)) for group in groups for run in group.runs),
        "Rounds": span(number(run.summary, "rounds") for group in groups for run in group.runs),
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
            rounds = span(number(run.summary, "rounds") for run in early)
            said.append(f" {words} after {rounds} {'round' if rounds == '1' else 'rounds'}{_seeds(early)}.")
    if any(run.stopped_on_test for run in runs):
        said.append(f" has no intervals{_seeds([run for run in runs if run.stopped_on_test])}: {ON_TEST}.")
    said += [  # a run that has a warning of its own is not said twice
        f" was {SET_BACK}{_seeds([run])}: {run.marks.counted}."
        for run in runs
        if run.marks.rollbacks and not run.marks.is_late
    ]
    skipping = [run for run in runs if number(run.summary, "skipped_rounds") > 0]
    if skipping:
        skipped = sum(int(number(run.summary, "skipped_rounds")) for run in skipping)
        said.append(f" skipped {plural(skipped, 'round')}, in which no client answered{_seeds(skipping)}.")
    return said


def _seeds(runs: Sequence[RunRecord]) -> str:
    return f" ({'seed' if len(runs) == 1 else 'seeds'} {listing([clean(run.seed, 24) for run in runs])})"


def cards(groups: Sequence[Group], found: Standing | None) -> list[Card]:
    """The few numbers that matter: of the one algorithm, or the best of several and whose they are.

    Args:
        groups: the algorithms.
        found: what their seeds show.
    """
    if len(groups) > 1:
        best = "Best for the worst client" if found is not None and found.shown else "Worst client, best measured"
        return [
            _best_card(groups, "worst_score", best),
            _best_card(groups, "worst20_score", f"Worst 20{THIN}% of clients, best measured"),
            _best_card(groups, "avg_score", "Average over clients, best measured"),
            _best_card(groups, "std_score", "Std over clients, smallest measured"),
        ]
    group = groups[0]
    bytes_sent = mean(run.ledger("bytes_up") + run.ledger("bytes_down") for run in group.runs)
    own = group.runs[0]
    named = len(group.runs) == 1 and own.clients["score"].notna().any()
    who = clean(worst_first(own)["client"].iloc[0], 40) if named else ""
    note = f"{who}{group.note(group.score)}".strip()
    worst = "; ".join(filter(None, (note, _surely(groups, group))))
    return [
        _card("Worst client", group, "worst_score", worst),
        _card(f"Worst 20{THIN}% of clients", group, "worst20_score"),
        _card("Average over clients", group, "avg_score"),
        _card("Std over clients", group, "std_score"),
        Card("Sent, up and down", size(bytes_sent)),
    ]


def _surely(groups: Sequence[Group], group: Group) -> str:
    """The interval of the true value of an algorithm's worst client, at one seed."""
    from drfl.report.assessed import worst_interval  # loads scipy

    run = at_one_seed(groups)[groups.index(group)]
    ends = worst_interval(run)
    if ends is None:
        return f"no interval: {ON_TEST}" if run.stopped_on_test else "no interval is known"
    seed = f", seed {clean(run.seed, 24)}" if len(group.runs) > 1 else ""
    unit = f"{THIN}%" if run.score.percent else ""
    return f"true value of the worst, whoever it is: {run.score.interval(*ends)}{unit} (95{THIN}% confidence{seed})"


def takeaway(groups: Sequence[Group], found: Standing | None) -> Takeaway | None:
    """Whose worst client measures best, by how much, and against whom that is shown; None for one algorithm.

    Args:
        groups: the algorithms.
        found: what their seeds show.
    """
    if found is None:
        return None
    best, score = found.best, found.best.score
    rival = next((one for one in found.against if one.rival.label == "FedAvg"), found.against[0])
    told = scored(best.finals("worst_score"), score)
    value = f"{told}{THIN}%" if score.percent else f"{score.words} {told}"
    own, other = best.note(score), rival.rival.note(score)
    value += f"{own}, {_gain(found, rival)}{other if other != own else ''}"
    if found.shown:
        return Takeaway(best.label, f"serves the worst-off client best: {value}. {_shown(found)}")
    if found.rivals("better"):
        return Takeaway(best.label, f"serves the worst-off client best as measured: {value}. {_shown(found)}")
    start = "No difference shown:" if found.rivals("no difference shown") else "Not decided:"
    return Takeaway(start, f"{best.label} serves the worst-off client best as measured, {value}. {_shown(found)}")


def _gain(found: Standing, against: Against) -> str:
    """By how much the best is ahead of another, with the interval over seeds where there are enough."""
    from drfl.assessment.seeds import T_FROM
    from drfl.assessment.sentences import signed_interval  # loads scipy

    score, gain, rival = found.best.score, against.gain, against.rival
    ahead = gain.mean if gain.n else _behind(found.best, rival)
    less = (ahead < 0) == score.more_is_better
    text = (
        f"{score.scale * abs(ahead):.{score.digits}f}{' points' if score.percent else ''} {'less' if less else 'more'}"
    )
    if gain.n < T_FROM or math.isnan(gain.low):
        return f"{text} than {rival.label}"
    _, ends = signed_interval(score, gain.mean, gain.low, gain.high)
    return f"{text} than {rival.label} (gain of the worst client, 95{THIN}% over seeds: {ends})"


def _behind(best: Group, rival: Group) -> float:
    """The difference of two means that have no seed with the same clients, turned such that larger is better."""
    difference = mean(best.finals("worst_score")) - mean(rival.finals("worst_score"))
    return difference if best.score.more_is_better else -difference


def _shown(found: Standing) -> str:
    """Against which of the others the seeds decide, and how."""
    better, equal = found.rivals("better"), found.rivals("no difference shown", "worse")
    few, none = found.rivals("not decided", "one pair only"), found.rivals("no pair")
    said = []
    if better or equal:
        told = []
        if better:
            who = "each of the others" if found.shown and len(better) > 1 else _labels(better)
            told.append(f"It is shown to be better than {who}")
        if equal:
            told.append(f"{'no' if told else 'No'} difference to {_labels(equal)} is shown")
        seeds = span(float(one.gain.n) for one in (*better, *equal))
        many = f", Holm's correction for {found.tests} differences" if found.tests > 1 else ""
        said.append(f"{'; '.join(told)} (paired t-test over {seeds} seeds{many}).")
    if few:
        n = max(one.gain.n for one in few)
        against = f"Not decided against {_labels(few)}: " if len(few) < len(found.against) else ""
        seeds = "one seed" if n == 1 else f"{n} seeds"
        text = f"{against}{seeds} cannot tell luck from merit, five can."
        said.append(text[:1].upper() + text[1:])
        if n == 1:
            said.append("On the same test rows, drfl assess RUN RUN compares two runs.")
    if none:
        said.append(f"Not decided against {_labels(none)}: at no seed are the clients the same.")
    return " ".join(said)


def _labels(found: Sequence[Against]) -> str:
    """Whom it is against, the first ones by name."""
    labels = [one.rival.label for one in found]
    return listing(labels if len(labels) <= NAMED + 1 else [*labels[:NAMED], f"{len(labels) - NAMED} more"])


def _best_card(groups: Sequence[Group], metric: str, title: str) -> Card:
    score = groups[0].score
    best = min if metric == "std_score" or not score.more_is_better else max
    means = {group.key: round(score.scale * mean(group.finals(metric)), score.digits) for group in groups}
    finite = [value for value in means.values() if math.isfinite(value)]
    if not finite:
        return Card(title, NOTHING)
    winners = [group for group in groups if means[group.key] == best(finite)]
    note = listing([group.label for group in winners]) + winners[0].note(winners[0].score)
    if metric == "worst_score":
        note += f"; {_surely(groups, winners[0])}"
    return _card(title, winners[0], metric, note)


def _card(title: str, group: Group, metric: str, note: str = "") -> Card:
    """A statistic of the final models' scores."""
    value = scored(group.finals(metric), group.score)
    middle, _, spread = value.partition(" ± ")
    unit = f"{THIN}%" if group.score.percent and value != NOTHING else ""
    return Card(title, middle, spread, unit, note or group.note(group.score).strip())


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
