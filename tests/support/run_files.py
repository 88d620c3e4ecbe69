"""Read files of results without wall times and times of day."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

ALWAYS_DIFFERENT = ("timing.csv", "traffic.json", "study.db")

_DURATION = re.compile(r"(\d+\s(h|min)\s)?\d+(\.\d+)?(e-\d+)?\s(s|min)\b")
"""A duration in the format of :func:`drfl.report.formatting.duration`."""

_DIGEST = re.compile(r"(timing\.csv|summary\.json|traffic\.json|delivery\.json)(</td><td><code>SHA-256 )[0-9a-f]{64}")
"""Digests of files with times, as a report shows them."""


def results_in(folder: Path) -> dict[str, bytes]:
    """Return the bytes of each file by name without wall times, which interruptions must not change."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.name in ALWAYS_DIFFERENT or name.startswith(".cells/"):
            continue
        data = path.read_bytes()
        if path.name == "summary.json":
            data = re.sub(rb'"wall_seconds": [0-9.e-]+', b"", data)
        elif path.name == "delivery.json":
            data = re.sub(rb'"signed": "[^"]+"', b"", data)
        elif path.name == "report.html":
            data = _DIGEST.sub("", _DURATION.sub("", data.decode())).encode()
        found[name] = data
    return found


def different(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> list[str]:
    """Return the names of files that differ or are missing on one side."""
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))
