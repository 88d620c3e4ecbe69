"""The sentences at the head of a result: data, size, evaluated model and tuning."""

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
"""The models that runs return, by their names in configurations."""

JUDGED = {"test": "test rows", "training": "training rows", "validation": "validation rows"}
"""The rows that models are evaluated on, by their names in configurations."""


def sentences(plan: Plan) -> list[str]:
    """Write about the stand-in, the size, the evaluated model, the participation, the tuning budget, and the note."""
    spec, scale = plan.spec, plan.scale
    lines = []
    if scale.stand_in and spec.stand_in is not None:
        text = f"**Stand-in:** {plain(spec.stand_in.why)}"
        lines.append(f"{text} The paper's numbers are for its own data." if spec.values or spec.reached else text)
    by_rounds: dict[int, list[str]] = {}
    for planned in plan.cells:
        rounds = planned.cell.job.get("rounds", plan.rounds)
        names = by_rounds.setdefault(rounds if isinstance(rounds, int) else plan.rounds, [])
        if planned.method not in names:
            names.append(planned.method)
    base = plan.rounds if plan.rounds in by_rounds else next(iter(by_rounds))
    others = "; ".join(f"{rounds} for {' and '.join(names)}" for rounds, names in by_rounds.items() if rounds != base)
    more = f" ({others})" if others else ""
    repeats = (
        f"{plan.repeats} repeats, seeds 0 to {plan.repeats - 1}" if plan.repeats != 1 else "One run per cell, seed 0"
    )
    size = [f"{repeats}; {_count(base, 'round')}{more}."]
    if (plan.repeats, plan.rounds) != (spec.repeats, spec.rounds):
        size.append(f"The specification asks for {_count(spec.repeats, 'repeat')} of {_count(spec.rounds, 'round')}.")
    missing = [setting.name for setting in spec.settings if setting.name not in plan.settings]
    if missing:
        size.append(f"Not run: {', '.join(missing)}.")
    if spec.kind != "distance":
        judged = f"{_each(plan, 'returned', RETURNED)}, on the clients' {_each(plan, 'judged_on', JUDGED, 'test')}"
        size.append(f"Evaluated: {judged}.")
        targets = dict.fromkeys(str(planned.cell.job.get("until", "")) for planned in plan.cells)
        on_test = [target.removeprefix(TEST) for target in targets if target.startswith(TEST)]
        if on_test:
            size.append(
                f"Runs stop when these rows reach {' or '.join(on_test)}, so the last models were selected on them."
            )
        size.append(
            f"{_each(plan, 'clients')} clients; a cohort has {_each(plan, 'cohort')} unless a method says otherwise "
            "(see participation and cost)."
        )
    lines.append(" ".join(size))
    if plan.hyperparameters:
        lines.append(_tuning(plan))
    return [*lines, *([plain(spec.note)] if spec.note else [])]


def _each(plan: Plan, key: str, words: Mapping[str, str] | None = None, default: object = None) -> str:
    """Describe the values of a key of the jobs, with the settings or methods that have each if they differ."""
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
        # If every method has the value in these places, it belongs to the settings.
        names = settings if len(methods) == len(plan.spec.methods) else methods
        others.append(f"{texts[value]} for {(' and ' if len(names) < 3 else '; ').join(names)}")
    return f"{texts[most]} ({'; '.join(others)})"


def _tuning(plan: Plan) -> str:
    """Describe the budget of each hyperparameter file, and name the methods with values of another origin."""
    budgets: dict[str, list[str]] = {}
    for job, file in plan.hyperparameters.items():
        if file.get("scores") == {}:
            continue  # nothing was searched for
        budget = "with an unknown budget"
        provenance = file.get("provenance")
        if isinstance(provenance, Mapping):
            known = cast("Mapping[str, object]", provenance)
            seeds, shown = known.get("seeds"), column(str(known.get("metric", "worst_accuracy")))
            number = len(seeds) if isinstance(seeds, Sequence) else seeds
            eta = ", η in multiples of the 1/L̂ of each run" if known.get("relative_step_size") else ""
            of = known.get("trials_of")
            other = f"; the trials are those of {of}; the best one without a halved η here was chosen" if of else ""
            budget = (
                f"{known.get('trials')} trials of {number} {'seed' if number == 1 else 'seeds'} for each method, "
                f"{known.get('rounds')} rounds, by the {shown.name} on validation rows{eta}{other}"
            )
        budgets.setdefault(budget, []).append(job)
    text = " ".join(f"Tuned on {' and '.join(jobs)}: {budget}." for budget, jobs in budgets.items())
    not_tuned = [method.name for method in plan.spec.methods if method.tuned_as is None]
    scores = [table for file in plan.hyperparameters.values() if isinstance(table := file.get("scores"), dict)]
    default = [m.name for m in plan.spec.methods if m.tuned_as and any(m.tuned_as not in table for table in scores)]
    borrowed = [f"{m.name} from {m.tuned_as}" for m in plan.spec.methods if m.tuned_as not in (None, m.name)]
    if not_tuned:
        text += f" Not tuned: {', '.join(not_tuned)}."
    if default:
        text += f" No search, values from drfl's rules: {', '.join(default)}."
    if borrowed:
        text += f" With values tuned for another method: {', '.join(borrowed)}."
    return f"{text.strip()} `summary.json` has the values."


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
