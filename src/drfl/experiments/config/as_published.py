"""Runs of algorithms as in their papers: the last iterate, no guards, and none of drfl's step size rules."""

from __future__ import annotations

from collections.abc import Mapping

from drfl.core.errors import InputError
from drfl.federation.algorithm import Algorithm

AS_PUBLISHED: Mapping[str, object] = {"returned": "last", "guards": ["none"], "step_bound": 0.0}
"""The settings of such a run that differ from the defaults, as files and options give them."""

LABEL = "as published"
"""The words with which tables mark such runs."""

STEP_SIZES = {
    "lr": "curvature rule",
    "gamma": "adaptive rule",
    "sigma": "adaptive rule",
    "server_lr": "mean update length",
}
"""Step sizes for which None means a rule of drfl's, with that rule."""


def with_published_settings(values: Mapping[str, object]) -> dict[str, object]:
    """Add the settings of a run as published to those that the user gave, if the user asked for it."""
    settings = dict(values)
    if settings.get("as_published") is not True:
        return settings
    for name, published in AS_PUBLISHED.items():
        given, several = settings.get(name), published if isinstance(published, list) else [published]
        if given is not None and given not in (published, several, tuple(several), ()):
            raise InputError(
                f"`as_published` sets `{name}` to {published!r}, but it is {given!r}: remove one of them",
                code="conflicting-options",
                field=name,
            )
        settings[name] = published
    for name in ("aggregator", "max_norm", "select", "patience"):
        if settings.get(name) is not None:
            raise InputError(
                f"`as_published` excludes `{name}`, which the papers do not have: remove one of them",
                code="conflicting-options",
                field=name,
            )
    return settings


def check_step_sizes(algorithm: Algorithm) -> None:
    """Check that the user gave all step sizes, as papers do."""
    for name, rule in STEP_SIZES.items():
        owner = algorithm.local if name == "lr" else algorithm
        if getattr(owner, name, rule) is None:
            raise InputError(
                f"`as_published` needs `{name}` for {type(algorithm).__name__}: drfl would choose it by "
                f"its {rule}, which the paper does not have. Set the paper's value",
                code="needs-option",
                field=name,
            )
