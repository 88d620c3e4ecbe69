"""Ambiguity sets by name, and the texts that describe them, such as ``simplex:floor=0.01``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from drfl.ambiguity.ambiguity_set import AmbiguitySet
from drfl.ambiguity.chi_square import ChiSquare, ChiSquareBall
from drfl.ambiguity.kl import KL, KLBall
from drfl.ambiguity.simplex import Box, CVaR, Simplex
from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.core.registry import call_with, from_text, text_of

KIND = "ambiguity set"
"""The kind of object in messages."""

AMBIGUITY_SETS: dict[str, Callable[..., AmbiguitySet]] = {
    "simplex": Simplex,
    "cvar": CVaR,
    "box": Box,
    "chi-square": ChiSquare,
    "kl": KL,
    "chi-square-ball": ChiSquareBall,
    "kl-ball": KLBall,
}
"""Ambiguity sets by name. A text can only set their numbers; a prior requires Python."""


_OWN_SETS: dict[str, Callable[..., AmbiguitySet]] = {}
"""The users' classes that :func:`parse` has loaded, by the references that name them."""


def parse(text: str) -> AmbiguitySet:
    """Create an ambiguity set from a text of the form ``name:option=number,…``.

    The name is one of :data:`AMBIGUITY_SETS`, in which case does not matter and _ may be written for -, or a user's
    class as ``FILE.py:NAME`` or ``MODULE:NAME``, which is loaded.

    Example:
        >>> parse("simplex"), parse("CVaR:alpha=0.2")
        (Simplex(floor=0.0), CVaR(alpha=0.2))

    Raises:
        InputError: If the name or an option is unknown, or an option is missing, repeated, not a number or out of
            range, or a user's class is not an ambiguity set or fails.
    """
    reference = reference_in(text)
    if reference is None:
        return from_text(KIND, AMBIGUITY_SETS, text)
    make = own_set(reference)
    try:
        return call_with(KIND, text, reference, make, text.strip()[len(reference) + 1 :])
    except InputError:
        raise
    except Exception as error:  # a user's class may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{KIND} '{text}': {reason}", code="user-code-failed", field=KIND) from error


def reference_in(text: object) -> str | None:
    """Return the reference to a user's class in a text for :func:`parse`, without the options; None if it has none."""
    if not isinstance(text, str):
        return None
    head, _, tail = text.strip().rpartition(":")
    reference = head.strip() if "=" in tail else text.strip()
    is_known = reference.partition(":")[0].strip().lower().replace("_", "-") in AMBIGUITY_SETS
    return reference if user_code.is_reference(reference) and not is_known else None


def own_set(reference: str) -> Callable[..., AmbiguitySet]:
    """Load the user's class behind a reference.

    Raises:
        InputError: If it cannot be loaded, or is not the class of an ambiguity set that is a dataclass.
    """
    loaded = user_code.load(KIND, reference)
    problem = ""
    if not isinstance(loaded, type):
        problem = f"is a {type(loaded).__name__}, not a class: pass the class of an ambiguity set"
    elif missing := [name for name in ("project", "worst_case", "contains") if not hasattr(loaded, name)]:
        problem = f"has no method '{missing[0]}': see drfl.AmbiguitySet for the required methods"
    elif not dataclasses.is_dataclass(loaded):
        problem = "is not a dataclass: put @dataclass(frozen=True) before the class"
    if problem:
        raise InputError(f"{KIND} '{reference}' {problem}", code="wrong-type", field=KIND)
    _OWN_SETS[reference] = loaded  # pyright: ignore[reportArgumentType]
    return _OWN_SETS[reference]


def text_of_set(ambiguity: object) -> str:
    """Return the shortest text from which :func:`parse` creates an ambiguity set.

    Raises:
        ValueError: If there is none.
    """
    return text_of({**AMBIGUITY_SETS, **_OWN_SETS}, ambiguity)
