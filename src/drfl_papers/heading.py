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
    size = [_size(plan)]
    if (plan.repeats, plan.rounds) != (spec.repeats, spec.rounds):
        size.append(f"The specification asks for {_count(spec.repeats, 'repeat')} of {_count(spec.rounds, 'round')}.")
    left = [setting.name for setting in spec.settings if setting.name not in plan.settings]
    if left:
        size.append(f"Left out: {', '.join(left)}.")
    if spec.kind != "distance":
        judged = f"{_each(plan, 'returned', RETURNED)}, on the clients' {_each(plan, 'judged_on', JUDGED, 'test')}"
        size.append(f"Judged: {judged}.")
        targets = dict.fromkeys(str(planned.cell.job.get("until", "")) for planned in plan.cells)
        on_test = [target.removeprefix(TEST) for target in targets if target.startswith(TEST)]
        if on_test:
            size.append(f"Runs stop when these rows reach {' or '.join(on_test)}, so they have chosen the last models.")
        size.append(
            f"{_each(plan, 'clients')} clients; a cohort has {_each(plan, 'cohort')} where a method does not say "
            "otherwise (see participation and cost)."
        )
    lines.append(" ".join(size))
    if plan.hyperparameters:
        lines.append(_tuning(plan))
    return [*lines, *([plain(spec.note)] if spec.note else [])]


def _size(plan: Plan) -> str:
    """Repeats and rounds of communication, with the rounds by method if they differ."""
    found: dict[int, list[str]] = {}
    for planned in plan.cells:
        rounds = planned.cell.job.get("rounds", plan.rounds)
        names = found.setdefault(rounds if isinstance(rounds, int) else plan.rounds, [])
        if planned.method not in names:
            names.append(planned.method)
    base = plan.rounds if plan.rounds in found else next(iter(found))
    others = "; ".join(f"{rounds} for {' and '.join(names)}" for rounds, names in found.items() if rounds != base)
    more = f" ({others})" if others else ""
    repeats = (
        f"{plan.repeats} repeats, seeds 0 to {plan.repeats - 1}" if plan.repeats != 1 else "One run a cell, seed 0"
    )
    return f"{repeats}; {_count(base, 'round')}{more}."


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
    others = []
    for value in (value for value in by if value != most):
        settings, methods = (list(dict.fromkeys(names)) for names in zip(*by[value], strict=True))
        # if every method has the value in these places, it belongs to the settings
        names = settings if len(methods) == len(plan.spec.methods) else methods
        others.append(f"{texts[value]} for {(' and ' if len(names) < 3 else '; ').join(names)}")
    return f"{texts[most]} ({'; '.join(others)})"


def _tuning(plan: Plan) -> str:
    """The budget of each hyperparameter file, and which methods have another origin."""
    budgets: dict[str, list[str]] = {}
    for job, found in plan.hyperparameters.items():
        if found.get("scores") == {}:
            continue  # nothing was searched for
        budget = "in a way that the file does not tell"
        provenance = found.get("provenance")
        if isinstance(provenance, Mapping):
            known = cast("Mapping[str, object]", provenance)
            seeds, shown = known.get("seeds"), column(str(known.get("metric", "worst_accuracy")))
            number = len(seeds) if isinstance(seeds, Sequence) else seeds
            eta = ", η in multiples of the 1/L̂ of each run" if known.get("relative_step_size") else ""
            of = known.get("trials_of")
            other = f"; the trials are those of {of}, of which the best whose η holds here is taken" if of else ""
            budget = (
                f"{known.get('trials')} trials of {number} {'seed' if number == 1 else 'seeds'} for each method, "
                f"{known.get('rounds')} rounds, by the {shown.name} on validation rows{eta}{other}"
            )
        budgets.setdefault(budget, []).append(job)
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


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
