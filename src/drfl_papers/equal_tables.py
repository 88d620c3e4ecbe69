"""Tables of the metrics expected if all clients were equally good, beside the measured ones."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean

from drfl.core.run_end import failures_text
from drfl.experiments.run.measures import column
from drfl.task.measure import NOTHING
from drfl_papers.plan import Plan
from drfl_papers.records import Runs
from drfl_papers.tables import ResultTable, TableEntry, sentence

ASKED = {
    "worst_accuracy": ("equal_worst", {"worst_accuracy", "worst20_accuracy"}),
    "std_accuracy": ("equal_std", {"std_accuracy"}),
}
"""By metric: the value expected if equal, and the metrics of a specification that request its table."""

NOTE = (
    "Expected if equal: the mean that the noise of these test sets alone would give if all clients were as good as the "
    "average over clients. The measured value is in brackets. A measured worst accuracy near the expected one, or not "
    "below it, is no evidence of a difference between clients."
)


def tables(plan: Plan, found: Runs) -> tuple[ResultTable, ...]:
    """Make tables for the worst accuracy and the standard deviation: methods down, settings across, a note at the end.

    An entry is marked if the measured mean, as printed, is no worse than expected if equal. There is no table if the
    numbers of test samples are not known.
    """
    if not any(run.equal for group in found.values() for run in group):
        return ()
    tables_made = []
    for metric, (name, by) in ASKED.items():
        if not by & set(plan.spec.metrics):
            continue
        shown = column(metric)
        rows = []
        for method in plan.spec.methods:
            texts = [method.name]
            for group in (found[setting, method.name] for setting in plan.settings):
                known = [run for run in group if run.equal]
                how = failures_text([run.stopped for run in group])
                if how or not known:
                    texts.append(how or NOTHING)
                    continue
                equal = shown.text(fmean(run.equal[name] for run in known))
                measured = shown.text(fmean(run.final[metric] for run in known))
                # Compare the rounded numbers, so that numbers printed as equal count as equal.
                if shown.small:
                    mark = "" if float(measured) > float(equal) else ", not above"
                else:
                    mark = "" if float(measured) < float(equal) else ", not below"
                texts.append(f"{equal} ({measured}{mark})")
            rows.append(tuple(map(TableEntry, texts)))
        title = f"{sentence(shown.name)} expected if equal, {shown.unit}"
        tables_made.append(ResultTable(title, ("method", *plan.settings), tuple(rows)))
    return (*tables_made[:-1], *(replace(last, notes=(NOTE,)) for last in tables_made[-1:]))
