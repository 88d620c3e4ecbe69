"""The report's sentences and key numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from drfl.core.run_end import ON_TEST, RESET
from drfl.report.compared import Ranking, RivalComparison, rank_algorithms
from drfl.report.content import Card, Paragraph
from drfl.report.formatting import (
    NOTHING,
    THIN,
    clean,
    duration,
    listing,
    mean,
    plural,
    score_text,
    size,
    span,
)
from drfl.report.groups import Group, kinds_of_models, runs_at_one_seed
from drfl.report.read_run import FailedRun, RunRecord, nested_list, number, sort_worst_first, text

NAMED = 5
"""Maximum number of algorithms that a sentence names."""


def headline(groups: Sequence[Group]) -> str:
    """Return the default title, such as "DRFA on digits" or "3 algorithms on digits"."""
    names = list(dict.fromkeys(run.algorithm for group in groups for run in group.runs))
    algorithms = names[0] if len(names) == 1 else f"{len(names)} algorithms"
    return f"{algorithms} on {listing(_distinct(groups, 'dataset'))}"


def lead(groups: Sequence[Group]) -> str:
    """Describe the runs in one sentence."""
    runs = sum(len(group.runs) for group in groups)
    rounds = span(number(run.summary, "rounds") for group in groups for run in group.runs)
    clients = span(float(len(run.clients)) for group in groups for run in group.runs)
    if runs == 1:
        subject = "One run"
    elif len(groups) == 1:
        subject = f"{plural(runs, 'run')} of {groups[0].label}"
    else:
        subject = f"{plural(runs, 'run')} of {listing([group.label for group in groups])}"
    unit = "round" if rounds == "1" else "rounds"
    setting = f"trained over {clients} clients in {rounds} {unit}"
    own = [group.label for group in groups if group.is_personal]
    if len(own) == len(groups):
        return f"{subject}: models {setting}; each client is tested with its own model."
    more = f"; with {listing(own)}, each client has its own" * bool(own)
    return f"{subject}: one model {setting}, tested on every client's data{more}."


def facts(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Describe the setting as terms and descriptions."""
    seconds = [number(run.summary, "wall_seconds") for group in groups for run in group.runs]
    values = {
        "Dataset": listing(_distinct(groups, "dataset")),
        "Partition": listing(_distinct(groups, "partition")),
        "Model": listing(_distinct(groups, "model")),
        "Clients": span(float(len(run.clients)) for group in groups for run in group.runs),
        "Rounds": span(number(run.summary, "rounds") for group in groups for run in group.runs),
        "Seeds" if len(_distinct(groups, "seed")) > 1 else "Seed": ", ".join(_distinct(groups, "seed")),
        "Device": listing(_distinct(groups, "device")),
        "Time": duration(sum(seconds)),
    }
    # Print at most four significant digits: 0.3333333333333333 is hard to read.
    return [
        (name, re.sub(r"\d+\.\d{5,}", lambda long: f"{float(long[0]):.4g}", clean(value)))
        for name, value in values.items()
        if value not in ("", "?")
    ]


def notices(groups: Sequence[Group], lost: Sequence[str] = ()) -> list[str]:
    """List the warnings to read before relying on the numbers; empty if there are none."""
    most = max(len(group.runs) + len(group.failed) for group in groups)
    group_lines: list[str] = []
    for group in groups:
        lines, runs = list[str](), group.runs  # continuations of the group's name
        if group.failed:
            hows = listing(sorted({run.how for run in group.failed}))
            lines.append(
                f": {hows}{_seeds(group.failed)}. No mean is given, because a mean over the other seeds would flatter "
                "it."
            )
        diverged = [run for run in runs if run.has_diverged]
        if diverged:
            lines.append(f" diverged{_seeds(diverged)}: some final metrics are not finite numbers.")
        if len(runs) + len(group.failed) < most:
            lines.append(f" has {plural(len(runs), 'run')} and others have {most}: the missing runs may have failed.")
        for reason, words in (
            ("interrupted", "was interrupted"),
            ("target", "reached its target and stopped"),
            ("patience", "no longer improved on validation rows and stopped"),
        ):
            stopped = [run for run in runs if text(run.summary, "stopped") == reason]
            if stopped:
                rounds = span(number(run.summary, "rounds") for run in stopped)
                lines.append(f" {words} after {rounds} {'round' if rounds == '1' else 'rounds'}{_seeds(stopped)}.")
        if group.stopped_on_test:
            lines.append(f" has no intervals{_seeds([run for run in runs if run.stopped_on_test])}: {ON_TEST}.")
        lines += [  # a late roll-back has a separate warning, so it is not repeated here
            f" was {RESET}{_seeds([run])}: {run.marks.rounds_text}."
            for run in runs
            if run.marks.rollbacks and not run.marks.is_late
        ]
        skipping = [run for run in runs if number(run.summary, "skipped_rounds") > 0]
        if skipping:
            skipped = sum(int(number(run.summary, "skipped_rounds")) for run in skipping)
            lines.append(f" skipped {plural(skipped, 'round')} in which no client replied{_seeds(skipping)}.")
        group_lines += [f"{group.label}{line}" for line in lines]
    # Print each failure and warning once, with the algorithms that it concerns.
    runs_by_line: dict[str, list[tuple[str, RunRecord]]] = {}
    for group in groups:
        for run in group.runs:
            lines = [text(run.summary, "failure")] if run.summary.get("failure") else []
            for line in (*lines, *map(str, nested_list(run.summary, "warnings"))):
                runs_by_line.setdefault(line, []).append((group.label, run))
    run_lines = []
    for line, owners in runs_by_line.items():
        labels = list(dict.fromkeys(label for label, _ in owners))
        runs = list({run.seed: run for _, run in owners}.values())
        run_lines.append(f"{listing(labels)}: {clean(line, 400)}{_seeds(runs)}.")
    return [*group_lines, *(f"{algorithm} left no results." for algorithm in lost), *run_lines]


def _seeds(runs: Sequence[RunRecord | FailedRun]) -> str:
    return f" ({'seed' if len(runs) == 1 else 'seeds'} {listing([clean(run.seed, 24) for run in runs])})"


def cards(groups: Sequence[Group], ranking: Ranking | None) -> list[Card]:
    """Return the key numbers: of the only algorithm, or the best of several with the algorithm's name."""
    if len(groups) > 1:
        best = "Best for the worst client" if ranking is not None and ranking.reach else "Worst client, best measured"
        return [
            _best_card(groups, "worst_score", best),
            _best_card(groups, "worst20_score", f"Worst 20{THIN}% of clients, best measured"),
            _best_card(groups, "avg_score", "Average over clients, best measured"),
            _best_card(groups, "std_score", "Std over clients, smallest measured"),
        ]
    group = groups[0]
    bytes_sent = mean(run.ledger("bytes_up") + run.ledger("bytes_down") for run in group.runs)
    first = group.runs[0]
    # With several seeds each run has a different worst client.
    named = len(group.runs) == 1 and first.clients["score"].notna().any()
    worst_name = first.display_names[int(sort_worst_first(first).index[0])] if named else ""
    note = f"{worst_name}{group.note(group.score)}".strip()
    worst = "; ".join(filter(None, (note, _surely(groups, group))))
    return [
        _card("Worst client", group, "worst_score", worst),
        _card(f"Worst 20{THIN}% of clients", group, "worst20_score"),
        _card("Average over clients", group, "avg_score"),
        _card("Std over clients", group, "std_score"),
        Card("Sent up and down", size(bytes_sent)),
    ]


def _surely(groups: Sequence[Group], group: Group, among: int = 1) -> str:
    """Format the interval of the true value of an algorithm's worst client, at one seed.

    Args:
        groups: The algorithms.
        group: The algorithm.
        among: Number of algorithms of which it was selected as the best; the interval is corrected for that
            (Bonferroni).
    """
    from drfl.report.assessed import worst_interval  # this import loads scipy

    run = runs_at_one_seed(groups)[groups.index(group)]
    ends = worst_interval(run, alpha=0.05 / among)
    if ends is None:
        return f"no interval: {ON_TEST}" if run.stopped_on_test else "no interval is known"
    seed = f", seed {clean(run.seed, 24)}" if len(group.runs) > 1 else ""
    best = f", corrected for choosing the best of {among}" if among > 1 else ""
    unit = f"{THIN}%" if run.score.percent else ""
    return (
        f"true value of the worst client, whichever it is: {run.score.interval(*ends)}{unit} "
        f"(95{THIN}% confidence{best}{seed})"
    )


def takeaways(groups: Sequence[Group], lost: Sequence[str] = ()) -> list[Paragraph]:
    """Return the sentences of :func:`takeaway`, one for each kind of models: global ones, and clients' own ones."""
    kinds = kinds_of_models(groups)
    if len(kinds) < 2:
        sentence = takeaway(groups, rank_algorithms(groups, lost)) if groups else None
        return [] if sentence is None else [sentence]
    shared, own = kinds
    verb = "has" if len(shared) == 1 else "have"
    start = "Two kinds of models:"
    text = (
        f"{listing([group.label for group in shared])} {verb} one model for all clients; with "
        f"{listing([group.label for group in own])}, each client is tested with its own model. Only algorithms of one "
        "kind are ranked."
    )
    lines = [Paragraph(text, start=start)]
    for kind, name, failed in ((shared, "One model for all clients.", lost), (own, "Own models.", ())):
        sentence = takeaway(kind, rank_algorithms(kind, failed))
        if sentence is not None:
            lines.append(Paragraph(sentence.text, start=f"{name} {sentence.start}"))
    return lines


def takeaway(groups: Sequence[Group], ranking: Ranking | None) -> Paragraph | None:
    """Name the algorithm whose worst client scores best, with its lead and the scope; None if it has no rival."""
    if ranking is None:
        # If all others have runs that failed or returned the initial model, one algorithm remains without a rival.
        competitors = [group for group in groups if not group.is_reference]
        working = [g for g in competitors if not g.failed and not any(run.has_diverged for run in g.runs)]
        whole = [group for group in working if not group.untrained]
        if len(whole) != 1 or len(competitors) < 2 or any(run.stopped_on_test for run in whole[0].runs):
            return None
        others = [group for group in competitors if group is not whole[0]]
        last = listing([f"{g.label} (untrained: {g.untrained})" if g in working else g.label for g in others])
        reason = "run that failed or returned the initial model" if len(working) > 1 else "failed run"
        return Paragraph(f"only {whole[0].label} has no {reason}. Ranked last: {last}.", start="No comparison:")
    from drfl.assessment.scope import POPULATION, Reach
    from drfl.assessment.seeds import T_FROM
    from drfl.assessment.sentences import signed_interval  # this import loads scipy

    best, score = ranking.best, ranking.best.score
    # Compare with FedAvg if it is among them, because every reader knows it.
    rival = next(
        (comparison for comparison in ranking.comparisons if comparison.rival.label == "FedAvg"), ranking.comparisons[0]
    )
    worst = score_text(best.finals("worst_score"), score)
    value = f"{worst}{THIN}%" if score.percent else f"{score.words} {worst}"
    note, rival_note, gain = best.note(score), rival.rival.note(score), rival.gain
    ahead = gain.mean
    if not gain.n:  # no seed has the same clients: use the difference of means, signed so that larger is better
        ahead = mean(best.finals("worst_score")) - mean(rival.rival.finals("worst_score"))
        ahead = ahead if score.more_is_better else -ahead
    less = "less" if (ahead < 0) == score.more_is_better else "more"
    lead = f"{score.scale * abs(ahead):.{score.digits}f}{' points' if score.percent else ''} {less} than"
    value += f"{note}, {lead if ahead else 'equal to'} {rival.rival.label}"
    if gain.n >= T_FROM and not math.isnan(gain.low):
        _, ends = signed_interval(score, gain.mean, gain.low, gain.high)
        alone = ", of this pair alone" if ranking.tests > 1 else ""  # the verdict corrects for all differences
        value += f" (95{THIN}% confidence interval of the worst client's gain over seeds{alone}: {ends})"
    value += rival_note if rival_note != note else ""
    rest = " ".join([f"{value}.", *_significance(ranking)])
    rest += f" Ranked last: {listing(ranking.last)}." if ranking.last else ""
    if ranking.reach > Reach.NOWHERE:
        scope = POPULATION if ranking.reach is Reach.POPULATION else ranking.redrawn.words
        return Paragraph(f"serves the worst client best {scope}: {rest}", start=best.label)
    if ranking.rivals("better"):
        return Paragraph(f"scores best at the worst client in these runs: {rest}", start=best.label)
    start = "No significant difference:" if ranking.rivals("not significant") else "Not decided:"
    return Paragraph(f"{best.label} scores best at the worst client in these runs, {rest}", start=start)


def _significance(ranking: Ranking) -> list[str]:
    """Name the algorithms that the best is significantly better than, with the scope, and report on the others."""
    from drfl.assessment.scope import POPULATION, Reach
    from drfl.assessment.seeds import T_FROM  # this import loads scipy

    everywhere, here = (
        [comparison for comparison in ranking.comparisons if comparison.reach is reach]
        for reach in (Reach.POPULATION, Reach.SEEDS)
    )
    equal = ranking.rivals("not significant", "worse")
    few, unpaired = ranking.rivals("not decided", "one pair only"), ranking.rivals("no pair")
    many = f" for {ranking.tests} differences" if ranking.tests > 1 else ""
    lines = []
    if everywhere:
        seeds = span(float(comparison.gain.n) for comparison in everywhere)
        lines.append(
            f"It is significantly better than {_others(ranking, everywhere)} {POPULATION}: the interval of the gain "
            f"includes the errors of the test rows and of {seeds} seeds{many and f', corrected{many}'}."
        )
    if here or equal:
        parts = [f"It is significantly better than {_others(ranking, here)} {ranking.redrawn.words}"] if here else []
        if equal:
            parts.append(f"{'the' if parts else 'The'} difference from {_labels(equal)} is not significant")
        seeds = span(float(comparison.gain.n) for comparison in (*here, *equal))
        lines.append(f"{'; '.join(parts)} (paired t-test over {seeds} seeds{many and f', Holm correction{many}'}).")
    if here:
        known = [comparison.population for comparison in here if not math.isnan(comparison.population)]
        if known:
            score = ranking.best.score
            low = f"{score.scale * min(known):+.{score.digits}f}{' points' if score.percent else ''}".replace("-", "−")
            lines.append(
                f"Other test rows may reverse this: with their sampling error, the gain may be as low as {low}."
            )
        else:
            lines.append(
                "It is unknown whether this holds for other test rows: these runs store no values of single test rows."
            )
    if few:
        n = max(comparison.gain.n for comparison in few)
        subject = f"For {_labels(few)}, " if len(few) < len(ranking.comparisons) else ""
        lines.append(
            f"{subject}{plural(n, 'seed')} {'is' if n == 1 else 'are'} too few for a verdict; {T_FROM} are needed."
        )
        if n == 1:
            lines.append("To compare two runs on the same test rows, use drfl assess RUN RUN.")
    if unpaired:
        lines.append(f"There is no comparison with {_labels(unpaired)}: the clients are not the same at any seed.")
    return lines


def _others(ranking: Ranking, part: Sequence[RivalComparison]) -> str:
    """Name some of the rivals, or all of them in one phrase."""
    return "each of the others" if 1 < len(part) == len(ranking.comparisons) else _labels(part)


def _labels(rivals: Sequence[RivalComparison]) -> str:
    """Name the rivals, only the first ones if there are many."""
    labels = [comparison.rival.label for comparison in rivals]
    return listing(labels if len(labels) <= NAMED + 1 else [*labels[:NAMED], f"{len(labels) - NAMED} more"])


def _best_card(groups: Sequence[Group], metric: str, title: str) -> Card:
    """Show the best value of a statistic with its algorithm; references, failed and untrained runs do not compete."""
    score = groups[0].score
    # A smaller spread is better for every score.
    best = min if metric == "std_score" or not score.more_is_better else max
    # Compare rounded values, so that algorithms with the same displayed score tie.
    means = {group.key: round(score.scale * mean(group.finals(metric)), score.digits) for group in groups}
    competitors = [group for group in groups if not group.is_reference and not group.untrained]
    rivals = [group for group in competitors if math.isfinite(means[group.key])]
    if not rivals:
        return Card(title, NOTHING)
    top = best(means[group.key] for group in rivals)
    winners = [group for group in rivals if means[group.key] == top]
    note = listing([group.label for group in winners]) + winners[0].note(winners[0].score)
    if metric == "worst_score":
        note += f"; {_surely(groups, winners[0], len(rivals))}"
    return _card(title, winners[0], metric, note)


def _card(title: str, group: Group, metric: str, note: str = "") -> Card:
    value = score_text(group.finals(metric), group.score)
    # The card shows the spread in a smaller font, so separate it.
    middle, _, spread = value.partition(" ± ")
    unit = f"{THIN}%" if group.score.percent and value != NOTHING else ""
    return Card(title, middle, spread, unit, note or group.note(group.score).strip())


def _distinct(groups: Sequence[Group], name: str) -> list[str]:
    """Collect the distinct values of a key in the summaries, tables as one line."""
    values: dict[str, None] = {}
    for group in groups:
        for run in group.runs:
            value = run.summary.get(name)
            if isinstance(value, dict):  # its name, then the entries that are not separate facts
                inner = [f"{key} {item}" for key, item in value.items() if key not in (name, "name", "seed", "clients")]
                value = str(value.get("name", value.get(name, ""))) + (f" ({', '.join(inner)})" if inner else "")
            if value is not None:
                values[str(value)] = None
    return list(values)
