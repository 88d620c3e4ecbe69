"""Tables of what clients that are all equally good would show, beside what was measured."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from drfl.experiments.run.measures import column
from drfl.task.measure import NOTHING
from drfl_papers.plan import Plan
from drfl_papers.records import Runs, fate
from drfl_papers.tables import ResultTable, TableEntry, sentence

ASKED = {
    "worst_accuracy": ("equal_worst", {"worst_accuracy", "worst20_accuracy"}),
    "std_accuracy": ("equal_std", {"std_accuracy"}),
}
"""By metric: what equally good clients would show of it, and the metrics of a specification that ask for the table."""

NOTE = (
    "What the noise of these test sets alone would show, as a mean, if all clients were as good as the average over "
    "clients, and in brackets what was measured. A measured worst accuracy near it, or not below it, shows no "
    "difference between clients."
)


def tables(plan: Plan, found: Runs) -> tuple[ResultTable, ...]:
    """Of the worst accuracy and of the standard deviation: the methods down, the settings across, a note at the end.

    A measured mean that is no worse than that of equally good clients, to the digit shown, says so. None where the
    clients' test samples are not known.
    """
    if not any(run.equal for group in found.values() for run in group):
        return ()
    made = []
    for metric, (name, by) in ASKED.items():
        if not by & set(plan.spec.metrics):
            continue
        shown = column(metric)
        rows = []
        for method in plan.spec.methods:
            texts = [method.name]
            for group in (found[setting, method.name] for setting in plan.settings):
                known = [run for run in group if run.equal]
                how = fate([run.stopped for run in group])
                if how or not known:
                    texts.append(how or NOTHING)
                    continue
                equal = shown.text(fmean(run.equal[name] for run in known))
                measured = shown.text(fmean(run.final[metric] for run in known))
                # compare the rounded numbers, so that numbers shown as equal count as equal
                if shown.small:
                    mark = "" if float(measured) > float(equal) else ", not above"
                else:
                    mark = "" if float(measured) < float(equal) else ", not below"
                texts.append(f"{equal} ({measured}{mark})")
            rows.append(tuple(map(TableEntry, texts)))
        title = f"{sentence(shown.name)} of equally good clients, {shown.unit}"
        made.append(ResultTable(title, ("method", *plan.settings), tuple(rows)))
    return (*made[:-1], *(replace(last, notes=(NOTE,)) for last in made[-1:]))
