"""Helpers to make a wrong variant."""

from __future__ import annotations

from dataclasses import fields


def right(algorithm, base, **changes):
    """Return an algorithm of another class with the same hyperparameters."""
    return base(**{f.name: getattr(algorithm, f.name) for f in fields(base)} | changes)
