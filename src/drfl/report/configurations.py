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
    import tomli_w

    made = []
    for group in groups:
        run, settings = group.runs[0], ""
        if run.config:
            try:
                settings = tomli_w.dumps(run.config)
            except (TypeError, ValueError):  # a configuration built by hand may hold what TOML cannot
                settings = json.dumps(run.config, indent=2, default=str, ensure_ascii=False)
        made.append(
            Configuration(
                algorithm=group.label,
                seed=clean(run.seed, 24),
                run=clean(run.label),
                command=clean(f"drfl run {shlex.quote(f'{run.label}/config.toml')}", LONGEST),
                settings="\n".join(clean(line, LONGEST) for line in settings.splitlines()),
                seeds=len(group.runs),
            )
        )
    return made
