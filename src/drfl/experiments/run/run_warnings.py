"""Checks of a run: warnings about its data, and at its end failures to learn and other warnings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from drfl.core.errors import InputError, Notice, listing
from drfl.data import DATASETS, ClientData
from drfl.data.checks import data_warnings
from drfl.data.partition.natural import LEFT_OUT, Natural
from drfl.data.tables.columns import CATEGORIES
from drfl.data.tables.hugging_face_names import hub_name
from drfl.data.warm_start import start_notices
from drfl.engine import Simulation
from drfl.experiments.config.own_data import is_hub
from drfl.experiments.config.ready_run import Running
from drfl.task.measure import undefined_share
from drfl.task.metrics import ACCURACY
from drfl.training.history import undefined_names, undefined_notices
from drfl.training.loop import Result
from drfl.training.run_log import end_notices

MOST_SKIPPED = 0.1
"""The share of rounds that may not count without a warning."""

BY_CLASS = ("one-class", "zipf-dirichlet", "dirichlet-drop")
"""Partitions that give most clients few classes on purpose, where a constant answer is hard to beat."""


SITES = (
    "site", "hospital", "clini[ck]", "cent(?:re|er)", "institut", "ward", "branch", "bank", "school", "region",
    "country", "client", "group", "dataset",
)  # fmt: skip
"""Patterns of names of columns that may name the clients, the likeliest first."""


def warnings_of(job: Running) -> tuple[Notice, ...]:
    """Return the warnings of :func:`drfl.data.checks.data_warnings` on a run's clients, and one on data without a
    revision.

    There are none on a data set that drfl knows and has divided itself, as in the papers. For a deployment, only the
    warnings of its server are known.
    """
    if not isinstance(job.data, ClientData):
        return job.data.notices
    partition = None if job.partition is None else job.partition.recipe.get("partition")
    name, is_named = job.about.dataset, "data" not in job.about.settings
    if is_named and name in DATASETS and partition != "natural":
        return ()
    # The simulation's data exclude rows that no metric counts.
    data = job.fed.data if isinstance(job.fed, Simulation) else job.data
    notices = data_warnings(data, by_class=partition in BY_CLASS)
    if is_named and name is not None and is_hub(name) and not hub_name(name).is_pinned:
        return (
            Notice(
                f"dataset '{name}' has no fixed revision, because the hub did not name the newest one: a resumed or "
                f"repeated run may read other data. Use {hub_name(name).label}@COMMIT",
                "unpinned-data", "dataset",
            ),
            *notices,
        )  # fmt: skip
    if partition not in (None, Natural.name) and "data" in job.about.settings:
        columns = () if job.data.schema is None else job.data.schema.columns
        words = [column.name for column in columns if column.is_feature and 2 <= len(column.levels) <= CATEGORIES]
        # The likeliest name comes first.
        names = [name for pattern in SITES for name in words if re.search(pattern, name, re.IGNORECASE)]
        named = f"'{names[0]}' names them, use `group = '{names[0]}'`" if names else "a column names them, use `group`"
        text = (
            f"no column names the clients, so the rows were divided at random among {job.data.n} simulated clients: "
            f"if {named}"
        )
        return (Notice(text, "random-clients", "group"), *notices)
    return notices


def check_strict(strict: bool | None, notices: Sequence[Notice]) -> None:
    """With ``strict``, treat warnings about data as errors, except those on what the user may have intended.

    These are the list of excluded clients, and a division of the rows at random.
    """
    wrong = [notice for notice in notices if notice.code not in (LEFT_OUT, "random-clients")]
    if strict and wrong:
        count = f"{len(wrong)} warning{'s' * (len(wrong) > 1)}"
        raise InputError(
            f"{count} about the data with `strict`: {'. '.join(wrong)}", code="data-warnings", field="strict"
        )


class EndChecks(NamedTuple):
    """The results of the checks.

    ``failure`` is the reason why the run counts as failed; None if it does not.
    """

    failure: Notice | None = None
    warnings: tuple[Notice, ...] = ()


def end_checks(job: Running, result: Result) -> EndChecks:
    """Check a run that was not interrupted.

    A run without a round gets no failure, and at most the warning about its initial model.
    """
    started = start_notices(job.origin.start)
    if not result.rounds:
        return EndChecks(None, tuple(started))
    ended = end_notices(job.algorithm, job.fed, result)
    failure = next((notice for notice in ended if notice.code == "loss-rose"), None)
    warnings: list[Notice] = [*started]
    if job.fed.untested:
        names = listing(job.fed.untested, "client")
        text = (
            f"{names} did not answer the last test. Results there are missing or those of an earlier model, so the "
            "worst client and its interval may be wrong: test the model again when all sites are available"
        )
        warnings.append(Notice(text, "site-untested", job.fed.untested[0]))
    if result.skipped > MOST_SKIPPED * result.rounds:
        notice = Notice(
            f"{result.skipped} of {result.rounds} rounds did not count, because no client replied, or fewer "
            "than `min_replies`: lower `min_replies`, or set sampling to everybody; a cohort drawn from "
            "λ has few clients if few clients have weight",
            "skipped-rounds",
            "min_replies",
        )
        warnings.append(notice)
    majority, accuracy = job.fed.majority, result.evaluation.score
    by_class = job.partition is not None and job.partition.recipe.get("partition") in BY_CLASS
    if majority is not None and job.fed.measures[0].name == ACCURACY.name and not by_class:
        # Clients with a single class are excluded: every model is right there.
        below = ((accuracy <= majority) & (majority < 1)).nonzero().flatten()
        poor = below[(accuracy - majority)[below].argsort()].tolist()
        served = [f"{job.data.names[i]} ({100 * accuracy[i]:.1f} %, {100 * majority[i]:.1f} % that way)" for i in poor]
        if poor:
            notice = Notice(
                f"the model is not better than the most frequent class at {listing(served, 'client')}",
                "no-better-than-constant",
                job.data.names[poor[0]] if len(poor) == 1 else None,
            )
            warnings.append(notice)
    left_out = () if result.selection is None else result.selection.undefined
    # If model selection excluded every client, the run has already warned.
    if left_out and len(left_out) < job.data.n:
        score, named = job.fed.measures[0], listing([job.data.names[i] for i in left_out], "client")
        notice = Notice(
            f"model selection excludes {undefined_share([len(left_out)], [job.data.n])} clients "
            f"({named}), because {score.words} is undefined on their validation rows: select by loss, or raise "
            "`validation`",
            "undefined-metric",
            "validation",
        )
        warnings.append(notice)
    undefined = undefined_names(result.evaluation, job.fed.measures, job.data.names)
    notices = undefined_notices(job.fed.measures, [undefined], job.data.n)
    return EndChecks(failure, (*warnings, *(notice for notice in ended if notice is not failure), *notices))
