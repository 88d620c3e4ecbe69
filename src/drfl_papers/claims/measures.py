"""What a claim is about: a number a seed, read from the stored results of one method in one setting.

A seed at which the run broke off has no number. Rounds to a level that a run never reaches are infinite.
"""

from __future__ import annotations

import math
import re
import statistics
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from drfl.core.errors import InputError
from drfl.experiments.run.measures import Column, column
from drfl.training.history import LEDGER_COLUMNS
from drfl_papers import convergence
from drfl_papers.claims.energy import least_energy_steps
from drfl_papers.claims.results import StoredResults
from drfl_papers.specification import load_spec, names

CHANNEL = re.compile(r"(\d+) dB, (\d+) kHz")
DISTANCE = Column("squared distance", "", 1.0, 3, True)


class Part(BaseModel):
    """A part of the claims' file: it has no keys but its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def shown_as(metric: str) -> Column:
    """How numbers of a metric are shown; differences of percentages are points."""
    if metric == "squared_distance":
        return DISTANCE
    if metric in LEDGER_COLUMNS:
        return Column(metric.replace("_", " "), "", 1.0, 0, True)
    found = column(metric)
    return found._replace(unit="points" if found.unit == "%" else found.unit, digits=1 if found.unit else found.digits)


class _Measure(Part):
    def paper(self, result: str, setting: str, method: str) -> float:
        """The paper's number; NaN where it gives none."""
        return math.nan


class LastModel(_Measure):
    """A metric of the last model.

    Args:
        metric: a column of the file.
        file: "cells.csv", or one with the same columns for models that are compared otherwise, such as
            "equal_gradients.csv".
    """

    of: Literal["last model"]
    metric: str
    file: str = "cells.csv"

    @property
    def name(self) -> str:
        """As files have it."""
        return self.metric if self.file == "cells.csv" else f"{self.metric}, {self.file.removesuffix('.csv')}"

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        return shown_as(self.metric)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """By seed."""
        rows = stored.of(result, self.file, setting, method)
        return {int(row["seed"]): float(row[self.metric]) for row in rows if row.get(self.metric)}

    def paper(self, result: str, setting: str, method: str) -> float:
        """A fraction, as ours."""
        if self.file != "cells.csv" or result not in names():
            return math.nan
        spec = load_spec(result)
        printed = spec.values.get(setting, {}).get(method)
        return printed[spec.metrics.index(self.metric)] / 100 if printed and self.metric in spec.metrics else math.nan


class DuringTraining(_Measure):
    """A metric after so many rounds, or its mean over all rounds that were evaluated but the initial model's.

    Args:
        metric: a column of `curves.csv`.
        round: which; None = the mean.
    """

    of: Literal["during training"]
    metric: str
    round: int | None = Field(None, ge=1)

    @property
    def name(self) -> str:
        """As files have it."""
        return f"{self.metric}, {'mean over rounds' if self.round is None else f'round {self.round}'}"

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        found = shown_as(self.metric)
        when = "mean over the rounds" if self.round is None else f"after {self.round} rounds"
        return found._replace(name=f"{found.name}, {when}")

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """By seed."""
        found: dict[int, list[float]] = {}
        for row in stored.of(result, "curves.csv", setting, method):
            if int(row["round"]) > 0 and self.round in (None, int(row["round"])):
                found.setdefault(int(row["seed"]), []).append(float(row[self.metric]))
        return {seed: statistics.fmean(values) for seed, values in found.items()}


class ToLevel(_Measure):
    """Rounds, or local iterations of a client, until a metric is first at a level where it was evaluated.

    Args:
        metric: a column of `curves.csv` that is to be at least the level, or at most where less is better.
        level: which.
        count: "round", or "iterations".
    """

    of: Literal["to level"]
    metric: str
    level: float
    count: Literal["round", "iterations"] = "round"

    @property
    def name(self) -> str:
        """As files have it."""
        return f"{self.count} at {self.metric} {self.level:g}"

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        of, unit = shown_as(self.metric), "rounds" if self.count == "round" else "iterations"
        percent = " %" if of.scale != 1 else ""
        return Column(f"{unit} to {of.scale * self.level:.4g}{percent} {of.name}", unit, 1.0, 0, True)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """By seed; infinite where it never is."""
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
        small, found = shown_as(self.metric).small, {}
        for row in stored.of(result, "curves.csv", setting, method):
            seed, value = int(row["seed"]), float(row[self.metric])
            found.setdefault(seed, math.inf)
            if value <= self.level if small else value >= self.level:
                found[seed] = min(found[seed], float(row[self.count]))
        return found


class Straightness(_Measure):
    """R² of a straight line through log10 of the squared distance over the rounds: near 1 where it falls linearly."""

    of: Literal["straightness"]

    @property
    def name(self) -> str:
        """As files have it."""
        return "r2"

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        return Column("R²", "", 1.0, 4, False)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """By seed; 0 where there are too few distances for a line."""
        errors: dict[int, list[float]] = {}
        for row in stored.of(result, "curves.csv", setting, method):
            errors.setdefault(int(row["seed"]), []).append(float(row["squared_distance"]))
        rates = {seed: convergence.rate(values) for seed, values in errors.items()}
        return {seed: 0.0 if rate is None or rate.slope >= 0 else rate.r2 for seed, rate in rates.items()}


class LeastEnergySteps(_Measure):
    """τ of the least energy over a channel; settings are channels such as "20 dB, 100 kHz", methods take τ steps.

    Args:
        level: worst accuracy to reach.
    """

    of: Literal["least-energy steps"]
    level: float

    @property
    def name(self) -> str:
        """As files have it."""
        return f"least-energy steps to {self.level:g}"

    @property
    def shown(self) -> Column:
        """How its numbers are shown."""
        return Column("least-energy τ", "steps", 1.0, 0, True)

    def values(self, stored: StoredResults, result: str, setting: str, method: str) -> dict[int, float]:
        """By seed.

        Raises:
            InputError: the setting is no channel.
        """
        channel = CHANNEL.fullmatch(setting)
        if channel is None:
            raise InputError(
                f"{setting!r} is no channel: name it as '20 dB, 100 kHz'", code="invalid-format", field="setting"
            )
        rounds = ToLevel(of="to level", metric="worst_accuracy", level=self.level).values
        return least_energy_steps(stored, result, rounds, float(channel[1]), 1e3 * float(channel[2]))


Measure = Annotated[
    LastModel | DuringTraining | ToLevel | Straightness | LeastEnergySteps, Field(discriminator="of")
]  # fmt: skip
"""Any of them; its `name` tells it from all others."""
