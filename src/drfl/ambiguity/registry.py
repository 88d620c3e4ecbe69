"""Ambiguity sets by the names that configurations use, as in ``simplex:floor=0.01``."""

from __future__ import annotations

from collections.abc import Callable

from drfl.ambiguity.base import AmbiguitySet
from drfl.ambiguity.chi_square import ChiSquare, ChiSquareBall
from drfl.ambiguity.kl import KL, KLBall
from drfl.ambiguity.simplex import Box, CVaR, Simplex
from drfl.core.registry import named

AMBIGUITY_SETS: dict[str, Callable[..., AmbiguitySet]] = {
    "simplex": Simplex,
    "cvar": CVaR,
    "box": Box,
    "chi-square": ChiSquare,
    "kl": KL,
    "chi-square-ball": ChiSquareBall,
    "kl-ball": KLBall,
}
"""Ambiguity sets by name. Their options are their numbers; a prior can be given in Python only."""


def parse(text: str) -> AmbiguitySet:
    """The set that a text of the form ``name:option=number,…`` stands for; case does not matter, nor - for _.

    Example:
        >>> parse("simplex"), parse("CVaR:alpha=0.2")
        (Simplex(floor=0.0), CVaR(alpha=0.2))

    Raises:
        InputError: If there is no such set, an option is unknown, missing, given twice or no number, or out of range.
    """
    return named("ambiguity set", AMBIGUITY_SETS, text)
