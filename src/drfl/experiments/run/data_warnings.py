"""Warnings about the data of a run, unless drfl has divided a known data set."""

from __future__ import annotations

from drfl.core.errors import Notice
from drfl.data import DATASETS, ClientData
from drfl.data.checks import data_warnings
from drfl.data.tables.hugging_face import hub_name
from drfl.engine import Simulation
from drfl.experiments.config.own_data import is_hub
from drfl.experiments.config.ready_run import Running
from drfl.experiments.run.end_checks import BY_CLASS


def warnings_of(job: Running) -> tuple[Notice, ...]:
    """Return the warnings of :func:`drfl.data.checks.data_warnings` on a run's clients, and one on data without a
    revision.

    There are none on a data set that drfl knows and has divided itself, as in the papers, and on a deployment, as only
    its sites know their rows.
    """
    if not isinstance(job.data, ClientData):
        return ()
    partition = None if job.partition is None else job.partition.recipe.get("partition")
    name, is_named = job.about.dataset, "data" not in job.about.settings
    if is_named and name in DATASETS and partition != "natural":
        return ()
    # The simulation's data exclude rows that no metric counts.
    data = job.fed.data if isinstance(job.fed, Simulation) else job.data
    notices = data_warnings(data, by_class=partition in BY_CLASS)
    if is_named and name is not None and is_hub(name) and not hub_name(name).pinned:
        return (
            Notice(
                f"dataset '{name}' has no fixed revision, as the hub did not name the newest one: a resumed or "
                f"repeated run may read other data. Use {hub_name(name).label}@COMMIT",
                "unpinned-data", "dataset",
            ),
            *notices,
        )  # fmt: skip
    return notices
