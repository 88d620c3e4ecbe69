"""What stands around an algorithm in a run: faults of clients, protection, over-sampling, a quorum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from pydantic import TypeAdapter, ValidationError

from drfl.algorithm import Algorithm
from drfl.data import ClientData
from drfl.errors import InputError, unknown
from drfl.experiments.config import Config
from drfl.experiments.parameters import Value, takes
from drfl.faults import Faults, Faulty
from drfl.named import named
from drfl.participation import OverSampled, Quorum
from drfl.protection import Audit, Clip, Guard, PeerAudit, Probe, Protected, RobustClip, Trim
from drfl.task import Task

PLAIN: Mapping[str, Callable[..., Guard]] = {"robust": RobustClip, "clip": Clip, "trim": Trim, "peers": PeerAudit}


@dataclass(frozen=True)
class ProbeAudit:
    """Stands for an :class:`drfl.protection.Audit` by rows of the clients' own data, which only a run has.

    Args:
        rows: of each client.
        factor: see Audit.
        slack: see Audit.
    """

    rows: int = 16
    factor: float = 2.0
    slack: float = 1.0


KNOWN: Mapping[str, Callable[..., Guard | ProbeAudit]] = {**PLAIN, "probe": ProbeAudit}
"""Guards by name."""


def guards_of(texts: tuple[str, ...] | None) -> tuple[Guard | ProbeAudit, ...]:
    """Guards from texts such as "clip:bound=3"; None = the wide default, "none" = none.

    Raises:
        InputError: see :func:`drfl.named.named`.
    """
    if texts is None:
        return (RobustClip(),)
    if [text.strip().lower() for text in texts] == ["none"]:
        return ()
    return tuple(named("guard", KNOWN, text) for text in texts)


def faults_of(table: Mapping[str, float]) -> Faults:
    """Faults from their numbers by name.

    Raises:
        InputError: a name is unknown, or a value out of range.
    """
    known = [field.name for field in fields(Faults)]
    for name in table:
        if name not in known:
            raise unknown("fault", name, known)
    try:
        return TypeAdapter(Faults).validate_python(dict(table))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"faults: {where}{': ' if where else ''}{first.get('ctx', {}).get('error', first['msg'])}"
        ) from None


def oversampled(config: Config, clients: int) -> tuple[dict[str, Value], int | None]:
    """The algorithm's parameters, and how many of its cohort's answers are wanted; None = all.

    Raises:
        InputError: the algorithm has no cohort's size.
    """
    values = config.parameters(config.algorithm, clients)
    if config.oversample is None:
        return values, None
    m = values.get("m")
    if not takes(config.algorithm, "m") or not isinstance(m, int):
        raise InputError(f"oversample means nothing to {config.algorithm}, which has no cohort of size m: leave it out")
    return {**values, "m": min(clients, math.ceil(config.oversample * m))}, m


def surrounded(
    config: Config,
    algorithm: Algorithm,
    keep: int | None,
    data: ClientData | None,
    task: Task,
    names: tuple[str, ...] = (),
) -> Algorithm:
    """The algorithm as a run has it: ``Quorum(Faulty(Protected(OverSampled(algorithm))))``, less what is not asked for.

    Args:
        config: what to run.
        algorithm: the algorithm.
        keep: how many answers of a cohort are wanted; None = all.
        data: the clients' samples, for a guard that keeps some of them; None where only the clients have them.
        task: the model and its loss, for the same.
        names: (N,) what the log calls the clients; empty = by their numbers.

    Raises:
        InputError: a number is out of range.
    """
    if keep is not None:
        algorithm = OverSampled(algorithm, keep)
    guards = tuple(_at(guard, data, task, config.device) for guard in guards_of(config.guards))
    protected = Protected(algorithm, norm=config.max_norm, guards=guards, names=names)
    return _called_off(_failing(protected, config), config)


def _failing(algorithm: Algorithm, config: Config) -> Algorithm:
    return algorithm if config.faults is None else Faulty(algorithm, faults_of(config.faults))


def _called_off(algorithm: Algorithm, config: Config) -> Algorithm:
    if config.min_replies is None:
        return algorithm
    return Quorum(algorithm, config.min_replies, "repeat" if config.repeats else "skip", config.repeats or 1)


def _at(guard: Guard | ProbeAudit, data: ClientData | None, task: Task, device: str) -> Guard:
    if not isinstance(guard, ProbeAudit):
        return guard
    if data is None:
        raise InputError("the guard 'probe' needs rows of the clients, which stay at the sites here: take 'peers'")
    return Audit(Probe.of(data, task, rows=guard.rows, device=device), guard.factor, guard.slack)
