"""The model of a configuration, its loss and its metrics, by name."""

from __future__ import annotations

from functools import cached_property

from pydantic import ValidationInfo, field_validator

from drfl.core import user_code
from drfl.experiments.config.hyperparameters import canonical
from drfl.experiments.config.learned import make_measures, metric_name
from drfl.experiments.config.settings import TaskFields
from drfl.experiments.config.strict import StrictSettings, one_or_more
from drfl.task.metrics import Metric
from drfl.task.models import LOSSES, MODELS


class TaskSettings(StrictSettings, TaskFields):
    """The model, the loss and the metrics, each by name or as ``FILE.py:NAME``."""

    @field_validator("model", "loss")
    @classmethod
    def _known_name(cls, value: str, info: ValidationInfo) -> str:
        kind = str(info.field_name)
        if not user_code.is_reference(value):
            return canonical(kind, value, MODELS if kind == "model" else LOSSES)
        user_code.load(kind, value)
        return value.strip()

    @field_validator("score")
    @classmethod
    def _known_score(cls, value: str | None) -> str | None:
        return None if value is None else metric_name(value)

    _one_or_more_metrics = field_validator("metrics", mode="before")(one_or_more)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if values is None else tuple(metric_name(value) for value in values)

    @cached_property
    def measures(self) -> tuple[Metric, ...]:
        """The metrics that are measured on every client's test rows, the score first."""
        return make_measures(self.score, self.metrics or (), self.loss)
