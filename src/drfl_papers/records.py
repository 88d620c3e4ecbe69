"""The records of training cells, read with types: what the tables and figures are made from."""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from drfl.assessment.equal_clients import equal_clients
from drfl.core.run_end import BROKEN
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.execution.training_cells import set_back
from drfl.training.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS
from drfl_papers.plan import Collected

Place = tuple[str, str]
"""Name of a setting, name of a method."""

Runs = Mapping[Place, "Sequence[Run]"]
"""The runs of every place, a seed each."""

NUMBERS = (*ACCURACY_COLUMNS, *LEDGER_COLUMNS)
"""What a point of a run holds beside its round."""

EQUAL_COLUMNS = ("equal_worst", "equal_std")
"""What files call the worst accuracy and the standard deviation that equally good clients would show."""


@dataclass(frozen=True)
class EvaluatedRound:
    """One evaluated round.

    Args:
        round: rounds done; 0 is the initial model.
        values: metrics (accuracies are fractions) and counters by name, see `NUMBERS`.
    """

    round: int
    values: Mapping[str, float]

    @property
    def bytes(self) -> float:
        """Bytes sent so far, both ways."""
        return self.values["bytes_up"] + self.values["bytes_down"]


@dataclass(frozen=True)
class Run:
    """One seed of one method in one setting.

    Args:
        seed: which.
        stopped: "rounds", "target", "diverged" or "refused".
        rounds: rounds done; 0 where it broke off.
        points: the evaluated rounds; none where it broke off.
        parameters: of the algorithm, all of them.
        samples: (N,) test samples of the clients; none where the run broke off.
        clients: distinct ones that trained, the mean over the rounds; NaN where the run broke off.
        halved: how often the step size that it found was.
        set_back: how many of its rounds count, in words, if the model was set back to the initial one.
    """

    seed: int
    stopped: str
    rounds: int
    points: tuple[EvaluatedRound, ...]
    parameters: Mapping[str, Value]
    samples: tuple[int, ...] = ()
    clients: float = math.nan
    halved: int = 0
    set_back: str = ""

    @property
    def ended(self) -> bool:
        """Whether it has results."""
        return bool(self.points)

    @property
    def equal(self) -> Mapping[str, float]:
        """What equally good clients would show in place of the last model's, see :func:`equally_good`."""
        return equally_good(self.final["avg_accuracy"], self.samples) if self.ended and any(self.samples) else {}

    @property
    def final(self) -> Mapping[str, float]:
        """Metrics and counters of the last model."""
        return self.points[-1].values

    @property
    def steps(self) -> int:
        """τ, local steps a round; 1 where the algorithm has none."""
        return int(self.parameters.get("steps") or 1)


def places(collected: Collected) -> list[Place]:
    """Every setting with every method, in the specification's order."""
    methods = [method.name for method in collected.plan.spec.methods]
    return [(setting, method) for setting in collected.plan.settings for method in methods]


def seeds(collected: Collected, place: Place) -> list[int]:
    """The seeds of a place, in the order of its records."""
    return [p.seed for p in collected.plan.cells if (p.setting, p.method) == place]


def runs(collected: Collected) -> dict[Place, tuple[Run, ...]]:
    """The runs of every place, in the specification's order; only of training cells."""
    found: dict[Place, tuple[Run, ...]] = {}
    for place in places(collected):
        group = []
        for seed, record in zip(seeds(collected, place), collected.records[place], strict=True):
            rows = cast("Sequence[Mapping[str, float]]", record["rows"])
            # a run that broke off lacks some of these
            rounds, halved = (int(cast(int, record.get(name, 0))) for name in ("rounds", "halved"))
            run = Run(
                seed,
                stopped=str(record["stopped"]),
                rounds=rounds,
                points=tuple(EvaluatedRound(int(row["round"]), {n: float(row[n]) for n in NUMBERS}) for row in rows),
                parameters=cast("Mapping[str, Value]", record["parameters"]),
                samples=tuple(cast("Sequence[int]", record.get("samples", ()))),
                clients=float(cast(float, record.get("clients_per_round", math.nan))),
                halved=halved,
                set_back=set_back(record),
            )
            group.append(run)
        found[place] = tuple(group)
    return found


def finals(group: Sequence[Run], metric: str) -> dict[int, float]:
    """A metric of the last model by seed; none if a run failed, as the other seeds would flatter the method."""
    return {run.seed: run.final[metric] for run in group} if all(run.ended for run in group) else {}


def fate(stops: Sequence[str]) -> str:
    """How the runs of a place failed: "2 of 10 diverged", or "diverged" if all did; "" if none did."""
    ends = collections.Counter(stop for stop in stops if stop in BROKEN)
    return ", ".join(how if n == len(stops) else f"{n} of {len(stops)} {how}" for how, n in sorted(ends.items()))


@functools.lru_cache(maxsize=4096)
def equally_good(accuracy: float, samples: tuple[int, ...]) -> Mapping[str, float]:
    """What clients would show by the noise of their test sets alone, if all were as good; by `EQUAL_COLUMNS`.

    Args:
        accuracy: of all clients: the run's average over clients, each counting once.
        samples: (N,) test samples; clients without any have no say.

    Returns:
        Fractions as files have them, rounded.
    """
    found = equal_clients(accuracy, np.array([n for n in samples if n]))
    return {name: round(value, DIGITS) for name, value in zip(EQUAL_COLUMNS, found[:2], strict=True)}
