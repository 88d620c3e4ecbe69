"""The configuration of each algorithm, and the command that repeats its run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from drfl.report.content import Configuration
from drfl.report.formatting import clean
from drfl.report.groups import Group

LONGEST = 2000
"""Characters of a line."""


def configurations(groups: Sequence[Group]) -> list[Configuration]:
    """The configuration of each algorithm's first run, and how to repeat it."""
    return [
        Configuration(
            algorithm=group.label,
            seed=clean(run.seed, 24),
            run=clean(run.label),
            command=clean(f"drfl run {shlex.quote(f'{run.label}/config.toml')}", LONGEST),
            settings=_lines(run.config) if run.config else "",
            seeds=len(group.runs),
        )
        for group in groups
        for run in group.runs[:1]
    ]


def _lines(config: dict[str, object]) -> str:
    """The configuration as TOML; as JSON if it was built by hand and holds what TOML cannot."""
    import tomli_w

    try:
        lines = tomli_w.dumps(config)
    except (TypeError, ValueError):
        lines = json.dumps(config, indent=2, default=str, ensure_ascii=False)
    return "\n".join(clean(line, LONGEST) for line in lines.splitlines())
