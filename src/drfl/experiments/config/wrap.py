"""What stands around an algorithm in a run: failures of clients, guards, over-selection, a quorum."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, cast

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.experiments.config.guards_and_failures import ProbeAudit, ProbeRule
from drfl.experiments.config.hyperparameters import default_cohort
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm
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
    "needs rows that stand for each client's, and these stay at the sites here: give every site in server.toml a "
    "'probe' of rows that the server holds"
)
"""Why there is no probe where only the clients have data."""


def over_selected(settings: RunSettings, algorithm: Algorithm, clients: int) -> tuple[Algorithm, int | None]:
    """The algorithm with the cohort that is contacted, and how many of its replies are wanted; None = all.

    Args:
        settings: Of the run.
        algorithm: The algorithm.
        clients: N.

    Raises:
        InputError: The algorithm has no size of a cohort.
    """
    if settings.over_select is None:
        return algorithm, None
    name = type(algorithm).__name__
    if not hasattr(algorithm, "m"):
        raise InputError(
            f"over_select has no effect on {name}, which has no cohort of size m: remove it",
            code="unsupported-combination",
            field="over_select",
        )
    thing = cast("Any", algorithm)  # a dataclass, which the protocol cannot say
    m = default_cohort(type(algorithm), clients) if thing.m is None else thing.m
    if not isinstance(m, int):
        raise InputError(
            f"over_select needs the cohort's size, and {name}.m = {m!r}: give cohort a number",
            code="needs-option",
            field="over_select",
        )
    return dataclasses.replace(thing, m=min(clients, math.ceil(settings.over_select * m))), m


def wrap_algorithm(
    settings: RunSettings,
    algorithm: Algorithm,
    keep: int | None,
    data: ClientData | None,
    task: Task,
    names: tuple[str, ...] = (),
    on_rejection: Callable[[Rejection], None] | None = None,
) -> Algorithm:
    """The algorithm as a run has it: ``Quorum(Faulty(Protected(OverSelection(algorithm))))``, less what is not asked
    for.

    Args:
        settings: of the run.
        algorithm: the algorithm.
        keep: how many answers of a cohort are wanted; None = all.
        data: samples of the clients, for a probe that keeps some of them; None where only the clients have them.
        task: the model and its loss, for the same.
        names: (N,) what the log calls the clients; empty = those of ``data``, or by their numbers.
        on_rejection: called with every reply that is rejected; None = nobody is.

    Raises:
        InputError: a number is out of range.
    """
    if keep is not None:
        algorithm = OverSelection(algorithm, keep)
    guards: list[Guard] = []
    for guard in settings.guards:
        if isinstance(guard, ProbeAudit):
            if data is None:
                raise InputError(
                    f"the guard 'probe' {NEEDS_ROWS}, or take 'peers'", code="unsupported-combination", field="guard"
                )
            probe = ServerProbe.of(data, task, rows=guard.rows, device=settings.device)
            guards.append(Audit(probe, guard.factor, guard.slack))
        else:
            guards.append(guard)
    aggregator = settings.aggregator
    if isinstance(aggregator, ProbeRule):
        if data is None:
            raise InputError(
                f"the aggregator 'probe' {NEEDS_ROWS}, or take 'geometric-median'",
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
    # The casts hide the types of the wrappers' states: no wrapper accepts a union of them.
    algorithm = cast("Algorithm", protected)
    if settings.faults is not None:
        algorithm = cast("Algorithm", Faulty(algorithm, settings.faults))
    if settings.min_replies is not None:
        how = "repeat" if settings.repeats else "skip"
        algorithm = Quorum(algorithm, settings.min_replies, how, settings.repeats or 1)
    return algorithm
