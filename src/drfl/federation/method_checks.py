"""Errors in a user's client-side method: in the class itself, and in the functions that drfl calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations, isfunction

import torch
from torch import Tensor

from drfl.core.errors import DrflError, InputError, first_line, suggestion
from drfl.task.model_checks import place_of

HOOKS = (
    "loss", "state", "private", "trains", "direction", "prepare", "remember", "message", "message_shapes", "own_model",
    "shared", "merge",
)  # fmt: skip
"""Functions of a client-side method that users override."""

NEAR = 0.8
"""Similarity of two names above which one is taken for a misspelling of the other; "los" and "loss" have 0.86."""


class NamedTensors(dict[str, Tensor]):
    """Tensors by name, with an error that lists the names if one is missing.

    Args:
        place: What the user's code calls them, such as ``"context"``.
        tensors: The tensors.
    """

    def __init__(self, place: str, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.place = place

    def __missing__(self, name: str) -> Tensor:
        raise MissingTensorError(self.place, name, list(self))


class MissingTensorError(KeyError):
    """The user's code asked for a tensor that does not exist. A KeyError, which code may catch to test for a name."""

    def __str__(self) -> str:
        place, name, names = self.args
        hint = suggestion(str(name), names)
        return f"{place} has no tensor '{name}'. {hint}{' ' if hint else ''}It has {', '.join(names) or 'none'}"


@contextmanager
def hook_errors(method: object, hook: str) -> Iterator[None]:
    """Name the method, its function, and the file and line in an error that the user's code raises."""
    try:
        yield
    except (DrflError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        name = type(method).__name__
        reason = str(error) if isinstance(error, MissingTensorError) else first_line(error)
        raise InputError(
            f"{name}.{hook} failed{place_of(error)}: {reason}", code="user-code-failed", field=name
        ) from error


def names_from(method: object, place: str, names: Collection[str]) -> Collection[str]:
    """Return the names that a user's method declares, and reject a text, whose letters would be taken for names.

    Raises:
        InputError: If they are a text, or no collection.
    """
    if isinstance(names, str):
        raise InputError(
            f"{type(method).__name__}.{place} must be a collection of names, got the text '{names}'. Write "
            f"('{names}',).",
            code="wrong-type",
            field=place,
        )
    if not isinstance(names, Iterable):
        raise InputError(
            f"{type(method).__name__}.{place} must be a collection of names, got {names!r:.60}",
            code="wrong-type",
            field=place,
        )
    return names


def tensors_from(method: object, hook: str, value: object) -> dict[str, Tensor]:
    """Return the tensors by name that a user's function has returned.

    Raises:
        InputError: If it has returned something else.
    """
    if not (isinstance(value, Mapping) and all(isinstance(each, Tensor) for each in value.values())):
        raise InputError(
            f"{type(method).__name__}.{hook} must return a dictionary of tensors by name, got {value!r:.60}",
            code="wrong-type",
            field=hook,
        )
    return dict(value)


@cache
def check_class(kind: type) -> None:
    """Check the class of a method for mistakes that would otherwise have no effect, and so remain unnoticed.

    Raises:
        InputError: If a field is annotated in a class that is not a dataclass, if a function almost has the name of one
            of :data:`HOOKS`, or if one of two functions that belong together is missing.
    """
    of_user = [c for c in kind.__mro__ if is_of_user(c)]
    known = {name for c in kind.__mro__ if c not in of_user for name in vars(c)}
    hooks = [name for name in HOOKS if hasattr(kind, name) and not _overrides(kind, name)]
    for c in of_user:
        # With `from __future__ import annotations`, annotations are texts, so compare the texts of all.
        kinds = {name: str(annotation).partition("[")[0] for name, annotation in get_annotations(c).items()}
        fields = [name for name, text in kinds.items() if "ClassVar" not in text]
        if fields and "__dataclass_fields__" not in vars(c):
            raise InputError(
                f"{c.__name__} has the field '{fields[0]}', but is not a dataclass, so the field cannot be set. Put "
                "@dataclass(frozen=True) above the class.",
                code="not-a-dataclass",
                field=fields[0],
            )
        for name in (name for name, value in vars(c).items() if isfunction(value) and name not in known):
            near = [] if name.startswith("_") else get_close_matches(name.casefold(), hooks, 1, NEAR)
            if near:
                raise InputError(
                    f"drfl never calls {c.__name__}.{name}. Did you mean '{near[0]}'? If not, call it '_{name}'.",
                    code="unknown-name",
                    field=name,
                )
    # A method with its own rounds may use messages and the server's tensors as it likes.
    has_own_rounds = not hasattr(kind, "merge") or _overrides(kind, "round") or _overrides(kind, "play")
    pairs = [("message", "message_shapes"), ("message_shapes", "message")]
    pairs += [] if has_own_rounds else [("message", "merge"), ("merge", "shared")]
    uses = {
        "message_shapes": "the shape of each tensor in a message",
        "message": "the tensors that a client sends",
        "merge": "the server's tensors after a round",
        "shared": "the server's tensors before the first round",
    }
    for name, other in pairs:
        if _overrides(kind, name) and not _overrides(kind, other):
            raise InputError(
                f"{kind.__name__} has '{name}' without '{other}', so it has no effect. Add '{other}', which returns "
                f"{uses[other]}.",
                code="incomplete-method",
                field=other,
            )


def is_of_user(c: type) -> bool:
    """Return whether a class is not one of drfl's."""
    return c is not object and c.__module__.partition(".")[0] != "drfl"


def _overrides(kind: type, name: str) -> bool:
    """Return whether a class overrides the default of a function, which is that of the first class that defines it."""
    return sum(name in vars(c) for c in kind.__mro__) > 1
