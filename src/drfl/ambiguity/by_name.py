"""Ambiguity sets by name, and the texts that describe them, such as ``simplex:floor=0.01``."""

from __future__ import annotations

from collections.abc import Callable

from drfl.ambiguity.ambiguity_set import AmbiguitySet
from drfl.ambiguity.chi_square import ChiSquare, ChiSquareBall
from drfl.ambiguity.kl import KL, KLBall
from drfl.ambiguity.simplex import Box, CVaR, Simplex
from drfl.core.registry import from_text

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


def parse(text: str) -> AmbiguitySet:
    """Create an ambiguity set from a text of the form ``name:option=number,…``.

    Case does not matter, and _ may be written for -.

    Example:
        >>> parse("simplex"), parse("CVaR:alpha=0.2")
        (Simplex(floor=0.0), CVaR(alpha=0.2))

    Raises:
        InputError: If the name or an option is unknown, or an option is missing, repeated, not a number or out of
            range.
    """
    return from_text("ambiguity set", AMBIGUITY_SETS, text)
