"""What the report says in words and single numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from drfl.core.run_end import ON_TEST, SET_BACK
from drfl.report.compared import Against, Standing
from drfl.report.content import Card, Paragraph
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
from drfl.report.groups import Group, at_one_seed
from drfl.report.read_run import FailedRun, RunRecord, listed, number, text, worst_first

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
    # At most four digits: nobody reads 0.3333333333333333.
    return [
        (name, re.sub(r"\d+\.\d{5,}", lambda long: f"{float(long[0]):.4g}", clean(value)))
        for name, value in found.items()
        if value not in ("", "?")
    ]


def notices(groups: Sequence[Group], lost: Sequence[str] = ()) -> list[str]:
    """What the reader must know before believing the numbers; empty if all went as planned.

    Args:
        groups: the algorithms.
        lost: those without any result, see :func:`drfl.report.groups.lost_algorithms`.
    """
    most = max(len(group.runs) + len(group.failed) for group in groups)
    own = [f"{group.label}{line}" for group in groups for line in _notices_on(group, most)]
    # Failures and warnings, each once, with the algorithms that they concern.
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
    return [*own, *(f"{algorithm} left no results." for algorithm in lost), *told]


def _notices_on(group: Group, most: int) -> list[str]:
    """Continuations of the algorithm's name, one per thing to know."""
    said = []
    runs = group.runs
    if group.failed:
        hows = listing(sorted({run.how for run in group.failed}))
        said.append(f": {hows}{_seeds(group.failed)}. There is no mean, as one over the other seeds would flatter it.")
    diverged = [run for run in runs if run.diverged]
    if diverged:
        said.append(f" diverged{_seeds(diverged)}: its final metrics are not all finite numbers.")
    if len(runs) + len(group.failed) < most:
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
    if group.stopped_on_test:
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


def _seeds(runs: Sequence[RunRecord | FailedRun]) -> str:
    return f" ({'seed' if len(runs) == 1 else 'seeds'} {listing([clean(run.seed, 24) for run in runs])})"


def cards(groups: Sequence[Group], found: Standing | None) -> list[Card]:
    """The few numbers that matter: of the one algorithm, or the best of several and whose they are.

    Args:
        groups: the algorithms.
        found: what their seeds show.
    """
    if len(groups) > 1:
        best = "Best for the worst client" if found is not None and found.reach else "Worst client, best measured"
        return [
            _best_card(groups, "worst_score", best),
            _best_card(groups, "worst20_score", f"Worst 20{THIN}% of clients, best measured"),
            _best_card(groups, "avg_score", "Average over clients, best measured"),
            _best_card(groups, "std_score", "Std over clients, smallest measured"),
        ]
    group = groups[0]
    bytes_sent = mean(run.ledger("bytes_up") + run.ledger("bytes_down") for run in group.runs)
    own = group.runs[0]
    # With several seeds each run has its own worst client.
    named = len(group.runs) == 1 and own.clients["score"].notna().any()
    who = own.display_names[int(worst_first(own).index[0])] if named else ""
    note = f"{who}{group.note(group.score)}".strip()
    worst = "; ".join(filter(None, (note, _surely(groups, group))))
    return [
        _card("Worst client", group, "worst_score", worst),
        _card(f"Worst 20{THIN}% of clients", group, "worst20_score"),
        _card("Average over clients", group, "avg_score"),
        _card("Std over clients", group, "std_score"),
        Card("Sent, up and down", size(bytes_sent)),
    ]


def _surely(groups: Sequence[Group], group: Group, among: int = 1) -> str:
    """The interval of the true value of an algorithm's worst client, at one seed.

    Args:
        groups: the algorithms.
        group: which of them.
        among: as the best of how many it was chosen: the interval is corrected for that (Bonferroni).
    """
    from drfl.report.assessed import worst_interval  # loads scipy

    run = at_one_seed(groups)[groups.index(group)]
    ends = worst_interval(run, alpha=0.05 / among)
    if ends is None:
        return f"no interval: {ON_TEST}" if run.stopped_on_test else "no interval is known"
    seed = f", seed {clean(run.seed, 24)}" if len(group.runs) > 1 else ""
    best = f", corrected for choosing the best of {among}" if among > 1 else ""
    unit = f"{THIN}%" if run.score.percent else ""
    return (
        f"true value of the worst, whoever it is: {run.score.interval(*ends)}{unit} (95{THIN}% confidence{best}{seed})"
    )


def takeaway(groups: Sequence[Group], found: Standing | None) -> Paragraph | None:
    """Whose worst client measures best, by how much, and how far that reaches; None for fewer than two rivals.

    Args:
        groups: the algorithms.
        found: what their seeds and test rows show.
    """
    if found is None:
        # If all others have failed runs, one algorithm is left without a rival.
        own = [group for group in groups if not group.reference]
        whole = [group for group in own if not group.failed and not any(run.diverged for run in group.runs)]
        if len(whole) != 1 or len(own) < 2 or any(run.stopped_on_test for run in whole[0].runs):
            return None
        failed = listing([group.label for group in own if group is not whole[0]])
        return Paragraph(f"{whole[0].label} alone has no failed run. Ranked last: {failed}.", start="No comparison:")
    from drfl.assessment.scope import POPULATION, Reach
    from drfl.assessment.seeds import T_FROM
    from drfl.assessment.sentences import signed_interval  # loads scipy

    best, score = found.best, found.best.score
    # Compare with FedAvg if it is there: every reader knows it.
    rival = next((one for one in found.against if one.rival.label == "FedAvg"), found.against[0])
    worst = scored(best.finals("worst_score"), score)
    value = f"{worst}{THIN}%" if score.percent else f"{score.words} {worst}"
    own, other, gain = best.note(score), rival.rival.note(score), rival.gain
    ahead = gain.mean
    if not gain.n:  # no seed has the same clients: use the difference of means, signed so that larger is better
        ahead = mean(best.finals("worst_score")) - mean(rival.rival.finals("worst_score"))
        ahead = ahead if score.more_is_better else -ahead
    less = "less" if (ahead < 0) == score.more_is_better else "more"
    value += f"{own}, {score.scale * abs(ahead):.{score.digits}f}{' points' if score.percent else ''} {less} than "
    value += rival.rival.label
    if gain.n >= T_FROM and not math.isnan(gain.low):
        _, ends = signed_interval(score, gain.mean, gain.low, gain.high)
        value += f" (gain of the worst client, 95{THIN}% over seeds: {ends})"
    value += other if other != own else ""
    rest = " ".join([f"{value}.", *_significance(found)])
    rest += f" Ranked last: {listing(found.failed)}." if found.failed else ""
    if found.reach > Reach.NOWHERE:
        scope = POPULATION if found.reach is Reach.POPULATION else found.redrawn.words
        return Paragraph(f"serves the worst client best {scope}: {rest}", start=best.label)
    if found.rivals("better"):
        return Paragraph(f"measures best for the worst client: {rest}", start=best.label)
    start = "No significant difference:" if found.rivals("no difference shown") else "Not decided:"
    return Paragraph(f"{best.label} measures best for the worst client, {rest}", start=start)


def _significance(found: Standing) -> list[str]:
    """Sentences on the algorithms that the best is significantly better than, how far that reaches, and the others."""
    from drfl.assessment.scope import POPULATION, Reach
    from drfl.assessment.seeds import T_FROM  # loads scipy

    everywhere, here = (
        [one for one in found.against if one.reach is reach] for reach in (Reach.POPULATION, Reach.SEEDS)
    )
    equal = found.rivals("no difference shown", "worse")
    few, none = found.rivals("not decided", "one pair only"), found.rivals("no pair")
    many = f" for {found.tests} differences" if found.tests > 1 else ""
    said = []
    if everywhere:
        seeds = span(float(one.gain.n) for one in everywhere)
        said.append(
            f"It is significantly better than {_others(found, everywhere)} {POPULATION}: the interval of the gain adds "
            f"up the errors of the test rows and of {seeds} seeds{many and f', corrected{many}'}."
        )
    if here or equal:
        parts = [f"It is significantly better than {_others(found, here)} {found.redrawn.words}"] if here else []
        if equal:
            parts.append(f"{'the' if parts else 'The'} difference to {_labels(equal)} is not significant")
        seeds = span(float(one.gain.n) for one in (*here, *equal))
        said.append(f"{'; '.join(parts)} (paired t-test over {seeds} seeds{many and f', Holm correction{many}'}).")
    if here:
        known = [one.population for one in here if not math.isnan(one.population)]
        if known:
            score = found.best.score
            low = f"{score.scale * min(known):+.{score.digits}f}{' points' if score.percent else ''}".replace("-", "−")
            said.append(f"Other test rows may turn that round: with their error the gain may be as low as {low}.")
        else:
            said.append(
                "Whether that holds for other test rows is not known: these runs keep no values of single test rows."
            )
    if few:
        n = max(one.gain.n for one in few)
        against = f" against {_labels(few)}" if len(few) < len(found.against) else ""
        said.append(
            f"Not decided{against}: {plural(n, 'seed')} {'is' if n == 1 else 'are'} too few, {T_FROM} are needed."
        )
        if n == 1:
            said.append("On the same test rows, drfl assess RUN RUN compares two runs.")
    if none:
        said.append(f"Not decided against {_labels(none)}: at no seed are the clients the same.")
    return said


def _others(found: Standing, part: Sequence[Against]) -> str:
    """Some of the rivals, or all of them in one word."""
    return "each of the others" if 1 < len(part) == len(found.against) else _labels(part)


def _labels(found: Sequence[Against]) -> str:
    """Whom it is against, the first ones by name."""
    labels = [one.rival.label for one in found]
    return listing(labels if len(labels) <= NAMED + 1 else [*labels[:NAMED], f"{len(labels) - NAMED} more"])


def _best_card(groups: Sequence[Group], metric: str, title: str) -> Card:
    """The best value of a statistic over algorithms with whose it is; references and failed runs take no part."""
    score = groups[0].score
    # A smaller spread is better, whatever the score.
    best = min if metric == "std_score" or not score.more_is_better else max
    # Compare rounded values: scores that look equal share the win.
    means = {group.key: round(score.scale * mean(group.finals(metric)), score.digits) for group in groups}
    rivals = [group for group in groups if math.isfinite(means[group.key]) and not group.reference]
    if not rivals:
        return Card(title, NOTHING)
    top = best(means[group.key] for group in rivals)
    winners = [group for group in rivals if means[group.key] == top]
    note = listing([group.label for group in winners]) + winners[0].note(winners[0].score)
    if metric == "worst_score":
        note += f"; {_surely(groups, winners[0], len(rivals))}"
    return _card(title, winners[0], metric, note)


def _card(title: str, group: Group, metric: str, note: str = "") -> Card:
    value = scored(group.finals(metric), group.score)
    # The card shows the spread in a smaller font.
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
