"""The algorithms of a configuration, by name, with their hyperparameters."""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from drfl.experiments.config.hyperparameters import (
    Value,
    algorithm_class,
    algorithm_name,
    by_algorithm,
    has_parameter,
    make_algorithm,
    with_defaults,
)
from drfl.experiments.config.settings import AlgorithmFields
from drfl.experiments.config.strict import StrictSettings
from drfl.federation.algorithm import Algorithm, default_cohort

COMMON = {"steps": "steps", "batch": "batch", "lr": "lr", "cohort": "m"}
"""Options that set a parameter of every algorithm, with the parameter's name."""


class AlgorithmSettings(StrictSettings, AlgorithmFields):
    """The algorithm of a run, and hyperparameters of this and other algorithms.

    Args:
        algorithms: Parameters by algorithm. They override ``cohort``, ``steps``, ``batch`` and ``lr``.
    """

    algorithms: dict[str, dict[str, bool | int | float | str]] = Field(default_factory=dict)

    @field_validator("algorithm")
    @classmethod
    def _known_algorithm(cls, value: str) -> str:
        return algorithm_name(value)

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(
        cls, tables: dict[str, dict[str, Value]], info: ValidationInfo
    ) -> dict[str, dict[str, Value]]:
        return by_algorithm(tables, [info.data["algorithm"]] if "algorithm" in info.data else [])

    @model_validator(mode="after")
    def _parameters_fit(self) -> Self:
        for name in {self.algorithm, *self.algorithms}:
            self.build_algorithm(name, None)
        return self

    def build_algorithm(self, algorithm: str, clients: int | None) -> Algorithm:
        """Return an algorithm with its hyperparameters. The same hyperparameters give the same object.

        Args:
            algorithm: The name of the algorithm.
            clients: N; None if it is not known yet. Then a user's class whose cohort has no default size gets a cohort
                of one.
        """
        values = self.parameters(algorithm)
        if has_parameter(algorithm, "m") and "m" not in values:
            values["m"] = 1 if clients is None else default_cohort(algorithm_class(algorithm), clients)
        return make_algorithm(algorithm, values)

    def parameters(self, algorithm: str) -> dict[str, Value]:
        """Return an algorithm's parameters: its own table, then the common options, then the defaults."""
        common = {parameter: getattr(self, option) for option, parameter in COMMON.items()}
        explicit = {
            name: value for name, value in common.items() if value is not None and has_parameter(algorithm, name)
        }
        return with_defaults(algorithm, {**explicit, **self.algorithms.get(algorithm, {})})
