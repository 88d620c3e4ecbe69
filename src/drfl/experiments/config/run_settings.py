"""The settings of a run that do not depend on its data, task and algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from pydantic import (
    FieldSerializationInfo,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from drfl.core.errors import InputError
from drfl.core.short_repr import stable_repr
from drfl.engine import ENGINES, Auto, Engine
from drfl.experiments.config.as_published import with_published_settings
from drfl.experiments.config.guards_and_failures import (
    ProbeAudit,
    ProbeRule,
    aggregator_of,
    aggregator_text,
    failures_of,
    failures_table,
    guard_texts,
    guards_of,
    step_bound_of,
    step_bound_text,
    wrong_type_error,
)
from drfl.experiments.config.hyperparameters import canonical
from drfl.experiments.config.settings import RunFields
from drfl.experiments.config.strict import StrictSettings
from drfl.resilience import Aggregator, FailureModel, Guard, StepBound
from drfl.task.measure import Measure, Rows
from drfl.training.model_selection import ModelSelection


def engine_of(given: object) -> Engine:
    """Return an engine from its name or as it is."""
    if isinstance(given, str):
        return ENGINES[canonical("engine", given, ENGINES)]()
    if isinstance(given, type) or not callable(getattr(given, "train", None)):
        raise wrong_type_error("engine", given, "drfl.Stacked()", "stacked")
    return cast("Engine", given)


def engine_text(engine: Engine) -> str:
    """Return the name that :func:`engine_of` makes the engine from, or the ``repr`` if it has other options."""
    named = (name for name, make in ENGINES.items() if engine == make())
    return next(named, stable_repr(engine))


OBJECTS: Mapping[str, Callable[[object], object]] = {
    "guards": guards_of,
    "step_bound": step_bound_of,
    "aggregator": aggregator_of,
    "faults": failures_of,
    "engine": engine_of,
}
"""Functions that make the settings that are objects, from texts or objects."""

TEXTS: Mapping[str, Callable[..., object]] = {
    "guards": guard_texts,
    "step_bound": step_bound_text,
    "aggregator": aggregator_text,
    "faults": failures_table,
    "engine": engine_text,
}
"""Functions that make texts of these settings."""


class RunSettings(StrictSettings, RunFields):
    """The settings of a run beside its data, task and algorithm, with rules and engine as objects.

    Bounds, defaults and explanations are in :class:`drfl.experiments.config.settings.RunFields`.

    Args:
        guards: Checks of reported losses, or texts such as "clip:bound=3".
        step_bound: The bound on the length of updates, or its factor; 0 for no bound.
        aggregator: The robust aggregation rule for models and gradients, or a text such as "krum:f=2".
        faults: How clients fail, or a text such as "drop=0.3", or a mapping such as ``{"drop": 0.3}``.
        engine: The engine that computes the clients' work, or its name.
    """

    new_folder: ClassVar[str] = "give another `out`"
    """How a message asks for another folder of results."""

    # RunFields declares these fields for the texts of files and options. After validation they are objects.
    if TYPE_CHECKING:
        guards: tuple[Guard | ProbeAudit, ...] = ()
        step_bound: StepBound | None = None
        aggregator: Aggregator | ProbeRule | None = None
        faults: FailureModel | None = None
        engine: Engine = Auto()

    @model_validator(mode="before")
    @classmethod
    def _published(cls, values: object) -> object:
        return with_published_settings(values) if isinstance(values, dict) else values

    @field_validator("guards", "step_bound", "aggregator", "faults", "engine", mode="plain")
    @classmethod
    def _object(cls, value: object, info: ValidationInfo) -> object:
        return OBJECTS[str(info.field_name)](value)

    @field_serializer("guards", "step_bound", "aggregator", "faults", "engine", when_used="json")
    def _text(self, value: Any, info: FieldSerializationInfo) -> object:  # noqa: ANN401 - of one of five types
        return TEXTS[info.field_name](value)

    @field_validator("certificate", mode="before")
    @classmethod
    def _yes_or_no(cls, value: object) -> object:
        return {True: "pooled", False: None}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _has_required(self) -> Self:
        for name, needed in (("repeats", "min_replies"), ("keep_weights", "init_from")):
            if getattr(self, name) and getattr(self, needed) is None:
                raise InputError(
                    f"`{name}` requires `{needed}`: remove it, or set both", code="unused-option", field=name
                )
        return self

    def selection(self, measures: Sequence[Measure]) -> ModelSelection:
        """Return how the run selects a model and when it stops."""
        chosen = ModelSelection.parse(measures[0], self.select, self.patience, self.until)
        if self.judged_on == "validation" and chosen.validates:
            raise InputError(
                "`judged_on = 'validation'` leaves no rows for selection and stopping: remove `select`, "
                "`patience` and `until`",
                code="conflicting-options",
                field="judged_on",
            )
        rates = any(measure.rows is Rows.RATE for measure in measures)  # validation rows choose their threshold
        if self.validation is not None and self.judged_on != "validation" and not (chosen.validates or rates):
            raise InputError(
                "`validation` requires `select`, `patience`, an `until` on validation rows, or a rate "
                "such as sensitivity: remove it, or set one of them",
                code="unused-option",
                field="validation",
            )
        return chosen

    @property
    def tables(self) -> str | None:
        """The folder of the server's client tables, as :func:`drfl.run` takes it."""
        return None if self.table_dir is None else str(self.table_dir)
