"""The wrappers of an algorithm in a run: failures of clients, guards, over-selection and a quorum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.experiments.config.guards_and_failures import ProbeAudit, ProbeRule
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm, default_cohort
from drfl.resilience import (
    Audit,
    Faulty,
    Guard,
    OverSelection,
    ProbeCosine,
    Protected,
    Quorum,
    Rejection,
    ServerProbe,
)
from drfl.task.task import Task

NEEDS_ROWS = (
    "needs rows like each client's, but the sites' rows stay at the sites: give every site in "
    "server.toml a 'probe' of rows that the server holds"
)
"""Why a probe cannot be used if only the clients have data."""


def add_over_selection(settings: RunSettings, algorithm: Algorithm, clients: int) -> tuple[Algorithm, int | None]:
    """Return the algorithm with an enlarged cohort, and the number of replies to use; None = all."""
    if settings.over_select is None:
        return algorithm, None
    name = type(algorithm).__name__
    if not hasattr(algorithm, "m"):
        raise InputError(
            f"`over_select` has no effect on {name}, which has no cohort of size m: remove it",
            code="unsupported-combination",
            field="over_select",
        )
    fields = cast("Any", algorithm)  # a dataclass, which the protocol cannot express
    m = default_cohort(type(algorithm), clients) if fields.m is None else fields.m
    if not isinstance(m, int):
        raise InputError(
            f"`over_select` needs the cohort's size, but {name}.m = {m!r}: set `cohort` to a number",
            code="needs-option",
            field="over_select",
        )
    return dataclasses.replace(fields, m=min(clients, math.ceil(settings.over_select * m))), m


def wrap_algorithm(
    settings: RunSettings,
    algorithm: Algorithm,
    keep: int | None,
    data: ClientData | None,
    task: Task,
    names: tuple[str, ...] = (),
    on_rejection: Callable[[Rejection], None] | None = None,
) -> Algorithm:
    """Return ``Quorum(Faulty(Protected(OverSelection(algorithm))))``, without the wrappers that the settings do not ask
    for.

    Args:
        settings: The settings of the run.
        algorithm: The algorithm.
        keep: The number of replies to use from a cohort; None = all.
        data: The clients' samples, some of which a probe keeps; None if only the clients have them.
        task: The model and its loss, for the probe.
        names: (N,) The clients' names in the log; empty = those of ``data``, or numbers.
        on_rejection: Called with every reply that is rejected.
    """
    if keep is not None:
        algorithm = OverSelection(algorithm, keep)
    guards: list[Guard] = []
    for guard in settings.guards:
        if isinstance(guard, ProbeAudit):
            if data is None:
                raise InputError(
                    f"the guard 'probe' {NEEDS_ROWS}, or use 'peers'", code="unsupported-combination", field="guard"
                )
            probe = ServerProbe.of(data, task, rows=guard.rows, device=settings.device)
            guards.append(Audit(probe, guard.factor, guard.slack))
        else:
            guards.append(guard)
    aggregator = settings.aggregator
    if isinstance(aggregator, ProbeRule):
        if data is None:
            raise InputError(
                f"the aggregator 'probe' {NEEDS_ROWS}, or use 'geometric-median'",
                code="unsupported-combination",
                field="aggregator",
            )
        probe = ServerProbe.of(data, task, rows=aggregator.rows, device=settings.device)
        aggregator = ProbeCosine(probe, aggregator.cosine, aggregator.length)
    protected = Protected(
        algorithm,
        norm=settings.max_norm,
        guards=tuple(guards),
        names=names or (data.names if data is not None else ()),
        bound=settings.step_bound,
        aggregator=aggregator,
        on_rejection=on_rejection,
    )
    # The casts hide the types of the wrappers' states, because no wrapper accepts a union of them.
    algorithm = cast("Algorithm", protected)
    if settings.faults is not None:
        algorithm = cast("Algorithm", Faulty(algorithm, settings.faults))
    if settings.min_replies is not None:
        how = "repeat" if settings.repeats else "skip"
        algorithm = Quorum(algorithm, settings.min_replies, how, settings.repeats or 1)
    return algorithm
