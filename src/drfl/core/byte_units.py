"""Decimal units of bytes, as for disks and downloads."""

from __future__ import annotations

import math

UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB")


def byte_unit(count: float) -> tuple[float, str]:
    """Return the unit in which a number of bytes is easy to read: its size in bytes, and its name."""
    power = min(int(math.log10(max(count, 1)) // 3), len(UNITS) - 1)
    return 1000.0**power, UNITS[power]
