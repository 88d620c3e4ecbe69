"""What stands around an algorithm in a run: failures of clients, guards, over-selection, a quorum."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from drfl.core.errors import InputError
from drfl.data import ClientData
from drfl.experiments.config.config import Config
from drfl.experiments.config.guards_and_failures import (
    ProbeAudit,
    ProbeRule,
    aggregator_of,
    failures_of,
    guards_of,
    step_bound_of,
)
from drfl.experiments.config.hyperparameters import Value, takes
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


def over_selection(config: Config, clients: int) -> tuple[dict[str, Value], int | None]:
    """The algorithm's parameters, and how many of its cohort's answers are wanted; None = all.

    Raises:
        InputError: the algorithm has no cohort's size.
    """
    values = config.parameters(config.algorithm, clients)
    if config.over_select is None:
        return values, None
    m = values.get("m")
    if not takes(config.algorithm, "m"):
        raise InputError(
            f"over_select has no effect on {config.algorithm}, which has no cohort of size m: remove it",
            code="unsupported-combination",
            field="over_select",
        )
    if not isinstance(m, int):
        raise InputError(
            f"over_select needs the cohort's size, and {config.algorithm}.m = {m!r}: give cohort a number",
            code="needs-option",
            field="over_select",
        )
    return {**values, "m": min(clients, math.ceil(config.over_select * m))}, m


def wrap_algorithm(
    config: Config,
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
        config: what to run.
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
    for guard in guards_of(config.guards):
        if isinstance(guard, ProbeAudit):
            if data is None:
                raise InputError(
                    f"the guard 'probe' {NEEDS_ROWS}, or take 'peers'", code="unsupported-combination", field="guard"
                )
            probe = ServerProbe.of(data, task, rows=guard.rows, device=config.device)
            guards.append(Audit(probe, guard.factor, guard.slack))
        else:
            guards.append(guard)
    aggregator = aggregator_of(config.aggregator)
    if isinstance(aggregator, ProbeRule):
        if data is None:
            raise InputError(
                f"the aggregator 'probe' {NEEDS_ROWS}, or take 'geometric-median'",
                code="unsupported-combination",
                field="aggregator",
            )
        probe = ServerProbe.of(data, task, rows=aggregator.rows, device=config.device)
        aggregator = ProbeCosine(probe, aggregator.cosine, aggregator.length)
    protected = Protected(
        algorithm,
        norm=config.max_norm,
        guards=tuple(guards),
        names=names or (data.names if data is not None else ()),
        bound=step_bound_of(config.step_bound),
        aggregator=aggregator,
        on_rejection=on_rejection,
    )
    # The casts hide the types of the wrappers' states: no wrapper accepts a union of them.
    algorithm = cast("Algorithm", protected)
    if config.faults is not None:
        algorithm = cast("Algorithm", Faulty(algorithm, failures_of(config.faults)))
    if config.min_replies is not None:
        algorithm = Quorum(algorithm, config.min_replies, "repeat" if config.repeats else "skip", config.repeats or 1)
    return algorithm
