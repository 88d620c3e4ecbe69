"""The sentences at the head of a result: on which data, how much was run, what is judged, how it was tuned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from drfl.experiments.run.measures import column
from drfl.training.model_selection import TEST
from drfl_papers.plan import Plan
from drfl_papers.tables import plain

RETURNED = {
    "last": "the last iterate",
    "average": "the decaying average of the server's models",
    "best": "the better of the averaged and the last model by its largest training loss",
}
"""The models that runs return, by the names that configurations have."""

JUDGED = {"test": "test rows", "training": "training rows", "validation": "validation rows"}
"""The rows that models are judged on, likewise."""


def sentences(plan: Plan) -> list[str]:
    """The stand-in, the size, the judged model, the participation, the tuning budget, the note."""
    spec, scale = plan.spec, plan.scale
    lines = []
    if scale.stand_in and spec.stand_in is not None:
        text = f"**Stand-in:** {plain(spec.stand_in.why)}"
        lines.append(f"{text} The paper's numbers are on its own data." if spec.values or spec.reached else text)
    lines.append(" ".join([_size(plan), *(_judged(plan) if spec.kind != "distance" else ())]))
    if plan.hyperparameters:
        lines.append(_tuning(plan))
    return [*lines, *([plain(spec.note)] if spec.note else [])]


def _judged(plan: Plan) -> list[str]:
    """What is judged, by what runs stop, and who takes part."""
    targets = dict.fromkeys(str(planned.cell.job.get("until", "")) for planned in plan.cells)
    on_test = [target.removeprefix(TEST) for target in targets if target.startswith(TEST)]
    stopped = f"Runs stop when these rows reach {' or '.join(on_test)}, so they have chosen the last models."
    return [
        f"Judged: {_each(plan, 'returned', RETURNED)}, on the clients' {_each(plan, 'judged_on', JUDGED, 'test')}.",
        *([stopped] if on_test else ()),
        f"{_each(plan, 'clients')} clients; a cohort has {_each(plan, 'cohort')} where a method does not say otherwise "
        "(see participation and cost).",
    ]


def _each(plan: Plan, key: str, words: Mapping[str, str] | None = None, default: object = None) -> str:
    """The values of a key of the jobs, and which settings or methods have which where they differ."""
    by: dict[object, list[tuple[str, str]]] = {}
    for planned in plan.cells:
        place = planned.setting, planned.method
        if place not in (places := by.setdefault(planned.cell.job.get(key, default), [])):
            places.append(place)
    texts = {value: (words or {}).get(str(value), str(value)) for value in by}
    if len(by) == 1:
        return next(iter(texts.values()))
    most = max(by, key=lambda value: len(by[value]))
    others = (f"{texts[value]} for {_who(plan, places)}" for value, places in by.items() if value != most)
    return f"{texts[most]} ({'; '.join(others)})"


def _who(plan: Plan, places: Sequence[tuple[str, str]]) -> str:
    """The settings of these places where they have all methods, else the methods."""
    settings, methods = (list(dict.fromkeys(names)) for names in zip(*places, strict=True))
    names = settings if len(methods) == len(plan.spec.methods) else methods
    return (" and " if len(names) < 3 else "; ").join(names)


def _tuning(plan: Plan) -> str:
    """The budget of each hyperparameter file, and which methods have another origin."""
    budgets: dict[str, list[str]] = {}
    for job, found in plan.hyperparameters.items():
        if found.get("scores") == {}:
            continue  # nothing was searched for
        budgets.setdefault(_budget(found.get("provenance")), []).append(job)
    text = " ".join(f"Tuned on {' and '.join(jobs)}: {budget}." for budget, jobs in budgets.items())
    own = [method.name for method in plan.spec.methods if method.tuned_as is None]
    scores = [table for found in plan.hyperparameters.values() if isinstance(table := found.get("scores"), dict)]
    default = [m.name for m in plan.spec.methods if m.tuned_as and any(m.tuned_as not in table for table in scores)]
    taken = [f"{m.name} by {m.tuned_as}" for m in plan.spec.methods if m.tuned_as not in (None, m.name)]
    if own:
        text += f" Not tuned: {', '.join(own)}."
    if default:
        text += f" Not searched for, with the values of drfl's rules: {', '.join(default)}."
    if taken:
        text += f" With the values tuned for another method: {', '.join(taken)}."
    return f"{text.strip()} `summary.json` says which values they are."


def _budget(provenance: object) -> str:
    if not isinstance(provenance, Mapping):
        return "in a way that the file does not tell"
    found = cast("Mapping[str, object]", provenance)
    seeds, shown = found.get("seeds"), column(str(found.get("metric", "worst_accuracy")))
    number = len(seeds) if isinstance(seeds, Sequence) else seeds
    eta = ", η in multiples of the 1/L̂ of each run" if found.get("relative_step_size") else ""
    of = found.get("trials_of")
    other = f"; the trials are those of {of}, of which the best whose η holds here is taken" if of else ""
    return (
        f"{found.get('trials')} trials of {number} {'seed' if number == 1 else 'seeds'} for each method, "
        f"{found.get('rounds')} rounds, by the {shown.name} on validation rows{eta}{other}"
    )


def _size(plan: Plan) -> str:
    spec = plan.spec
    repeats = (
        "One run a cell, seed 0" if plan.repeats == 1 else f"{plan.repeats} repeats, seeds 0 to {plan.repeats - 1}"
    )
    text = f"{repeats}; {_rounds(plan)}."
    if (plan.repeats, plan.rounds) != (spec.repeats, spec.rounds):
        text += f" The specification asks for {_count(spec.repeats, 'repeat')} of {_count(spec.rounds, 'round')}."
    left = [setting.name for setting in spec.settings if setting.name not in plan.settings]
    return f"{text} Left out: {', '.join(left)}." if left else text


def _rounds(plan: Plan) -> str:
    """Rounds of communication, method by method where they differ."""
    found: dict[int, list[str]] = {}
    for planned in plan.cells:
        rounds = planned.cell.job.get("rounds", plan.rounds)
        names = found.setdefault(rounds if isinstance(rounds, int) else plan.rounds, [])
        if planned.method not in names:
            names.append(planned.method)
    base = plan.rounds if plan.rounds in found else next(iter(found))
    others = "; ".join(f"{rounds} for {' and '.join(names)}" for rounds, names in found.items() if rounds != base)
    return _count(base, "round") + (f" ({others})" if others else "")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
