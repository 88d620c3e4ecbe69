"""The records of training cells, read with types: the input of tables and figures."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from drfl.assessment.equal_clients import equal_clients
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.execution.training_cells import rollback_text
from drfl.training.history import ACCURACY_COLUMNS, DIGITS, LEDGER_COLUMNS
from drfl_papers.plan import CollectedRuns

Place = tuple[str, str]
"""Name of a setting, name of a method."""

Runs = Mapping[Place, "Sequence[Run]"]
"""The runs of every place, one per seed."""

NUMBERS = (*ACCURACY_COLUMNS, *LEDGER_COLUMNS)
"""The numbers that a point of a run holds besides its round."""

EQUAL_COLUMNS = ("equal_worst", "equal_std")
"""Column names of the worst accuracy and the standard deviation expected if all clients were equally good."""


@dataclass(frozen=True)
class EvaluatedRound:
    """One evaluated round.

    Args:
        round: Rounds done; 0 is the initial model.
        values: Metrics (accuracies are fractions) and counters by name, see `NUMBERS`.
    """

    round: int
    values: Mapping[str, float]

    @property
    def bytes(self) -> float:
        """Bytes sent so far, both directions."""
        return self.values["bytes_up"] + self.values["bytes_down"]


@dataclass(frozen=True)
class Run:
    """One seed of one method in one setting.

    Args:
        seed: The seed.
        stopped: "rounds", "target", "diverged" or "refused".
        rounds: Rounds done; 0 if the run failed.
        points: The evaluated rounds; empty if the run failed.
        parameters: All parameters of the algorithm.
        samples: (N,) test samples of the clients; empty if the run failed.
        clients: Distinct clients that trained, averaged over the rounds; NaN if the run failed.
        halved: How often the automatic step size was halved.
        set_back: If the model was reset, or an earlier one returned: how many of its rounds count, in words.
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
    def has_ended(self) -> bool:
        """Whether it has results."""
        return bool(self.points)

    @property
    def equal(self) -> Mapping[str, float]:
        """The metrics expected if equal, for the last model's average, see :func:`equally_good`."""
        return equally_good(self.final["avg_accuracy"], self.samples) if self.has_ended and any(self.samples) else {}

    @property
    def final(self) -> Mapping[str, float]:
        """The metrics and counters of the last model."""
        return self.points[-1].values

    @property
    def steps(self) -> int:
        """τ, the local steps per round; 1 if the algorithm has none."""
        return int(self.parameters.get("steps") or 1)


def places(collected: CollectedRuns) -> list[Place]:
    """List every setting with every method, in the specification's order."""
    methods = [method.name for method in collected.plan.spec.methods]
    return [(setting, method) for setting in collected.plan.settings for method in methods]


def seeds(collected: CollectedRuns, place: Place) -> list[int]:
    """List the seeds of a place, in the order of its records."""
    return [p.seed for p in collected.plan.cells if (p.setting, p.method) == place]


def runs(collected: CollectedRuns) -> dict[Place, tuple[Run, ...]]:
    """Read the runs of every place from training cells, in the specification's order."""
    by_place: dict[Place, tuple[Run, ...]] = {}
    for place in places(collected):
        group = []
        for seed, record in zip(seeds(collected, place), collected.records[place], strict=True):
            rows = cast("Sequence[Mapping[str, float]]", record["rows"])
            # A failed run lacks some of these.
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
                set_back=rollback_text(record),
            )
            group.append(run)
        by_place[place] = tuple(group)
    return by_place


def finals(group: Sequence[Run], metric: str) -> dict[int, float]:
    """Return a metric of the last model by seed; empty if a run failed, because the others would flatter the method."""
    return {run.seed: run.final[metric] for run in group} if all(run.has_ended for run in group) else {}


@functools.lru_cache(maxsize=4096)
def equally_good(accuracy: float, samples: tuple[int, ...]) -> Mapping[str, float]:
    """Return the metrics expected from the noise of the test sets alone if all clients were equally good.

    Args:
        accuracy: Accuracy of all clients: the run's average over clients, each counting once.
        samples: (N,) test samples; clients without any do not count.

    Returns:
        Fractions by `EQUAL_COLUMNS`, rounded as in files.
    """
    expected = equal_clients(accuracy, np.array([n for n in samples if n]))
    return {name: round(value, DIGITS) for name, value in zip(EQUAL_COLUMNS, expected[:2], strict=True)}
