"""Measures: the number per seed that a claim is about, read from the stored results of a method in a setting.

A seed whose run failed has no number. Rounds to a level that a run never reaches are infinite.
"""

from __future__ import annotations

import math
import re
import statistics
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from drfl.core.errors import InputError
from drfl.experiments.run.measures import MetricColumn, column
from drfl.training.history import LEDGER_COLUMNS
from drfl_papers import convergence
from drfl_papers.claims.energy import least_energy_steps
from drfl_papers.claims.results import StoredResults
from drfl_papers.specification import Specification, load_spec, names

CHANNEL = re.compile(r"(\d+) dB, (\d+) kHz")
DISTANCE = MetricColumn("squared distance", "", 1.0, 3, True)


class Part(BaseModel):
    """A part of the claims file; unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def display_of(metric: str) -> MetricColumn:
    """Return how numbers of a metric are displayed; differences of percentages are points."""
    if metric == "squared_distance":
        return DISTANCE
    if metric in LEDGER_COLUMNS:
        return MetricColumn(metric.replace("_", " "), "", 1.0, 0, True)
    display = column(metric)
    return display._replace(
        unit="points" if display.unit == "%" else display.unit, digits=1 if display.unit else display.digits
    )


@cache
def _specification(result: str) -> Specification | None:
    """Return the specification of a result, which hundreds of comparisons share; None if it has none."""
    return load_spec(result) if result in names() else None


class _Measure(Part):
    def paper(self, result: str, setting: str, method: str) -> float:
        """Return the paper's number; NaN if the paper gives none."""
        return math.nan


class LastModel(_Measure):
    """A metric of the last model.

    Args:
        metric: A column of the file.
        file: "cells.csv", or a file with the same columns for models at another point of the run, such as
            "equal_gradients.csv".
    """

    of: Literal["last model"]
    metric: str
    file: str = "cells.csv"

    @property
    def name(self) -> str:
        """The name used in files."""
        return self.metric if self.file == "cells.csv" else f"{self.metric}, {self.file.removesuffix('.csv')}"

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        return display_of(self.metric)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """Return the values by seed."""
        rows = stored.of(result, self.file, setting, method)
        return {int(row["seed"]): float(row[self.metric]) for row in rows if row.get(self.metric)}

    def paper(self, result: str, setting: str, method: str) -> float:
        """Return the paper's number as a fraction, as ours; NaN if the paper gives none."""
        spec = _specification(result) if self.file == "cells.csv" else None
        if spec is None:
            return math.nan
        printed = spec.values.get(setting, {}).get(method)
        return printed[spec.metrics.index(self.metric)] / 100 if printed and self.metric in spec.metrics else math.nan


class DuringTraining(_Measure):
    """A metric after a number of rounds, or its mean over all evaluated rounds except the initial model's.

    Args:
        metric: A column of `curves.csv`.
        round: The round; None for the mean.
    """

    of: Literal["during training"]
    metric: str
    round: int | None = Field(None, ge=1)

    @property
    def name(self) -> str:
        """The name used in files."""
        return f"{self.metric}, {'mean over rounds' if self.round is None else f'round {self.round}'}"

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        display = display_of(self.metric)
        when = "mean over the rounds" if self.round is None else f"after {self.round} rounds"
        return display._replace(name=f"{display.name}, {when}")

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """Return the values by seed."""
        by_seed: dict[int, list[float]] = {}
        for row in stored.of(result, "curves.csv", setting, method):
            if int(row["round"]) > 0 and self.round in (None, int(row["round"])):
                by_seed.setdefault(int(row["seed"]), []).append(float(row[self.metric]))
        return {seed: statistics.fmean(values) for seed, values in by_seed.items()}


class ToLevel(_Measure):
    """Rounds, or local iterations of a client, until an evaluated metric first reaches a level.

    Args:
        metric: A column of `curves.csv`. It must be at least the level, or at most the level if less is better.
        level: The level.
        count: "round" or "iterations".
    """

    of: Literal["to level"]
    metric: str
    level: float
    count: Literal["round", "iterations"] = "round"

    @property
    def name(self) -> str:
        """The name used in files."""
        return f"{self.count} at {self.metric} {self.level:g}"

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        of, unit = display_of(self.metric), "rounds" if self.count == "round" else "iterations"
        percent = " %" if of.scale != 1 else ""
        return MetricColumn(f"{unit} to {of.scale * self.level:.4g}{percent} {of.name}", unit, 1.0, 0, True)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """Return the count by seed; infinite if the level is never reached."""
        broken = stored.broken(result, setting, method)
        known = [
            row
            for row in stored.of(result, "reached.csv", setting, method)
            if row["metric"] == self.metric and float(row["target"]) == self.level
        ]
        if known:
            return {
                int(row["seed"]): float(row[self.count]) if row[self.count] else math.inf
                for row in known
                if int(row["seed"]) not in broken
            }
        # The specification has no such target: find in the curves when the metric first reached the level.
        small, counts = display_of(self.metric).small, {}
        for row in stored.of(result, "curves.csv", setting, method):
            seed, value = int(row["seed"]), float(row[self.metric])
            counts.setdefault(seed, math.inf)
            if value <= self.level if small else value >= self.level:
                counts[seed] = min(counts[seed], float(row[self.count]))
        return counts


class Straightness(_Measure):
    """R² of a line fitted to log10 of the squared distance over the rounds; near 1 if convergence is linear."""

    of: Literal["straightness"]

    @property
    def name(self) -> str:
        """The name used in files."""
        return "r2"

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        return MetricColumn("R²", "", 1.0, 4, False)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """Return R² by seed; 0 if there are too few distances for a line, or if it does not fall."""
        errors: dict[int, list[float]] = {}
        for row in stored.of(result, "curves.csv", setting, method):
            errors.setdefault(int(row["seed"]), []).append(float(row["squared_distance"]))
        rates = {seed: convergence.rate(values) for seed, values in errors.items()}
        return {seed: 0.0 if rate is None or rate.slope >= 0 else rate.r2 for seed, rate in rates.items()}


class LeastEnergySteps(_Measure):
    """The τ with the least energy over a channel.

    Settings are channels such as "20 dB, 100 kHz"; methods differ in τ.
    """

    of: Literal["least-energy steps"]
    level: float

    @property
    def name(self) -> str:
        """The name used in files."""
        return f"least-energy steps to {self.level:g}"

    @property
    def display(self) -> MetricColumn:
        """How its numbers are displayed."""
        return MetricColumn("least-energy τ", "steps", 1.0, 0, True)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """Return τ by seed.

        Raises:
            InputError: If the setting is not the name of a channel.
        """
        channel = CHANNEL.fullmatch(setting)
        if channel is None:
            raise InputError(
                f"expected a channel such as '20 dB, 100 kHz', got {setting!r}", code="invalid-format", field="setting"
            )
        rounds = ToLevel(of="to level", metric="worst_accuracy", level=self.level).values
        return least_energy_steps(stored, result, rounds, float(channel[1]), 1e3 * float(channel[2]))


Measure = Annotated[
    LastModel | DuringTraining | ToLevel | Straightness | LeastEnergySteps, Field(discriminator="of")
]  # fmt: skip
"""Any measure, discriminated by its key `of`."""
