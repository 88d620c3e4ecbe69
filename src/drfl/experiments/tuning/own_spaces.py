"""The user's own search spaces: functions of an Optuna trial."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.experiments.config.hyperparameters import Value, algorithm_class
from drfl.federation.algorithm import Algorithm
from drfl.task.model_checks import place_of

if TYPE_CHECKING:
    import optuna

T = TypeVar("T")

AlgorithmSpace = Callable[["optuna.Trial"], Algorithm]
"""Returns the algorithm of a trial, whose ``suggest_…`` methods it calls."""

OwnSpace = Callable[["optuna.Trial"], Mapping[str, Value]]
"""Returns the parameters that are searched for, by name, from a trial's ``suggest_…`` methods."""


def class_space(cls: type) -> OwnSpace | None:
    """Return the static or class method ``space(trial)`` of a user's algorithm; None if it has none."""
    # Attribute access would turn a static method into a function.
    attribute = inspect.getattr_static(cls, "space", None)
    if attribute is None or not callable(getattr(cls, "space", None)):
        return None
    if not isinstance(attribute, staticmethod | classmethod):
        raise InputError(
            f"{cls.__name__}.space is a method of objects: make it a static method space(trial)",
            code="wrong-type",
            field="space",
        )
    return cast("OwnSpace", getattr(cls, "space"))  # noqa: B009 - of a class that need not have it


def load_space(reference: str) -> OwnSpace:
    """Return the function behind a reference ``FILE.py:NAME``."""
    loaded = user_code.load("space", reference)
    if isinstance(loaded, type) or not callable(loaded):
        raise InputError(
            f"space '{reference}' is a {type(loaded).__name__}: pass a function of an Optuna trial",
            code="wrong-type",
            field="space",
        )
    return cast("OwnSpace", loaded)


def spaces_of(texts: list[str], algorithms: list[str]) -> dict[str, str]:
    """Parse texts ``ALGORITHM=FILE.py:NAME``, or ``FILE.py:NAME`` for one algorithm, to references by algorithm."""
    labels = {text.lower(): name for name in algorithms for text in (user_code.label_of(name), name)}
    spaces: dict[str, str] = {}
    for text in texts:
        label, equals, reference = (part.strip() for part in text.rpartition("="))
        if not user_code.is_reference(reference):
            raise InputError(
                f"--space '{text}' must have the form ALGORITHM=FILE.py:FUNCTION", code="invalid-format", field="space"
            )
        if not equals and len(algorithms) > 1:
            raise InputError(
                f"--space '{text}' names no algorithm: write {user_code.label_of(algorithms[0])}={text}",
                code="invalid-format",
                field="space",
            )
        # Algorithm names are case-insensitive.
        name = labels.get(label.lower()) if equals else algorithms[0]
        if name is None:
            raise InputError(
                f"--space '{text}' is for {label}, which is not tuned: remove it",
                code="unused-option",
                field="space",
            )
        if name in spaces:
            raise InputError(
                f"--space gives {user_code.label_of(name)} two spaces: remove one", code="given-twice", field="space"
            )
        load_space(reference)
        spaces[name] = reference
    return spaces


def space_of(algorithm: str, reference: str | None) -> OwnSpace | None:
    """Return the user's space of an algorithm: the one referred to, else its class's; None if there is none."""
    return class_space(algorithm_class(algorithm)) if reference is None else load_space(reference)


def call_space(name: str, space: Callable[[optuna.Trial], T], trial: optuna.Trial) -> T:
    """Call the user's function.

    Raises:
        InputError: If the function fails, or suggests a value that files cannot hold.
    """
    try:
        result = space(trial)
    except InputError as error:
        raise InputError(f"the space of {name}: {error}", code=error.code, field=error.field) from error
    except Exception as error:
        why = " ".join(str(error).split()) or "no reason given"
        raise InputError(
            f"the function of the space of {name} failed{place_of(error)}: {type(error).__name__}: {why}",
            code="user-code-failed",
            field="space",
        ) from error
    # The store holds plain values only.
    for parameter, value in trial.params.items():
        if not isinstance(value, bool | int | float | str | None):
            raise InputError(
                f"the space of {name} suggests a {type(value).__name__} for {parameter}: suggest a number or a text, "
                "and make the object from it in the space",
                code="wrong-type",
                field=parameter,
            )
    return result


def parameters(name: str, space: OwnSpace, trial: optuna.Trial) -> dict[str, Value]:
    """Return the parameters from a user's space; None becomes the text "none", as in files."""
    values = call_space(name, space, trial)
    if not isinstance(values, Mapping):
        raise InputError(
            f"the space of {name} returned a {type(values).__name__}: return parameters, such as "
            '{"beta": trial.suggest_float("beta", 0, 1)}',
            code="wrong-type",
            field="space",
        )
    for parameter, value in values.items():
        if not isinstance(value, bool | int | float | str | None):
            raise InputError(
                f"the space of {name} returned a {type(value).__name__} for {parameter}: return a number or a text",
                code="wrong-type",
                field=parameter,
            )
    return {parameter: "none" if value is None else value for parameter, value in values.items()}
