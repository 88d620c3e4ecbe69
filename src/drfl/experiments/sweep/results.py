"""The results of a sweep: one data frame, a table for each kind of data, files and the report."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.csv_cells import csv_text
from drfl.core.errors import InputError, Notice
from drfl.experiments.compare.comparison_results import Comparison, markdown
from drfl.experiments.compare.outcomes import Outcome
from drfl.experiments.compare.stored_runs import StoredRun, comparison_of, frame_of
from drfl.experiments.config.about_run import run_config
from drfl.experiments.config.algorithm_settings import COMMON
from drfl.experiments.config.config import Config
from drfl.experiments.run.artifacts import json_text, versions
from drfl.experiments.sweep.study import SweepRun, SweepStudy

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class Sweep:
    """The runs of a study.

    Args:
        study: The study.
        runs: The runs that have ended, in the order of the study.
        outcomes: Their outcomes.
        directory: The folder of the runs and the report.
    """

    study: SweepStudy
    runs: tuple[SweepRun, ...]
    outcomes: tuple[Outcome, ...]
    directory: Path

    @property
    def is_complete(self) -> bool:
        """Whether all runs have ended."""
        return len(self.runs) == len(self.study.runs)

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings that differ between runs, apart from the seed."""
        names = dict.fromkeys(name for run in self.study.runs for name in run.changes)
        return tuple(name for name in names if name != "seed")

    @cached_property
    def stored(self) -> list[StoredRun]:
        """The runs that have ended, as their folders hold them."""
        from drfl.report import load_run

        stored = []
        for run, outcome in zip(self.runs, self.outcomes, strict=True):
            folder, config = self.directory / run.name, _config_of(run.config)
            record = None if outcome.failed else load_run(folder)
            stored.append(
                StoredRun(folder, config if record is None else record.config, outcome, record, run.config.algorithm)
            )
        return stored

    def to_frame(self) -> pd.DataFrame:
        """Return a row per run: folder, algorithm, seed, how it ended, metrics, costs and all settings."""
        return frame_of(self.stored)

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """The runs on the same data as a comparison, by the settings that change the data, such as "alpha = 0.1".

        Algorithms are named with the parameters in which their runs differ. Only comparisons with a run that did not
        fail are included.
        """
        groups: dict[str, list[StoredRun]] = {}
        # Runs with different parameters of one algorithm are rivals, but runs on different data cannot be compared.
        for run, stored in zip(self.runs, self.stored, strict=True):
            own = {**stored.parameters, "algorithm": None, "seed": None}
            shared = {n: v for n, v in run.changes.items() if n not in own and "." not in n and n not in COMMON}
            groups.setdefault(", ".join(f"{name} = {value}" for name, value in shared.items()), []).append(stored)
        alive = {name: runs for name, runs in groups.items() if any(run.record is not None for run in runs)}
        return {name: comparison_of(runs) for name, runs in alive.items()}

    def to_markdown(self) -> str:
        """Return the table of table.md: mean ± std over seeds in percent, for each kind of data."""
        parts = [
            f"{f'**{markdown(name)}**' if name else ''}\n\n{each.to_markdown()}"
            for name, each in self.comparisons.items()
        ]
        return "\n".join(parts).lstrip()

    def to_latex(self) -> str:
        """Return the same tables as LaTeX tabulars in the style of booktabs."""
        # A comment ends with its line.
        names = (" ".join(name.split()) for name in self.comparisons)
        pairs = zip(names, self.comparisons.values(), strict=True)
        return "\n".join(f"{f'% {name}' if name else ''}\n{each.to_latex()}".lstrip() for name, each in pairs)

    @property
    def notices(self) -> list[Notice]:
        """The warnings of the comparisons, each once."""
        return list(dict.fromkeys(notice for each in self.comparisons.values() for notice in each.notices))

    def summary(self) -> dict[str, object]:
        """Return the sweep as one object: numbers of runs, the varied settings, and the summary of each comparison."""
        stops = [outcome.stopped for outcome in self.outcomes]
        return {
            "runs": len(self.study.runs),
            "ended": {how: stops.count(how) for how in dict.fromkeys(stops)},
            "varied": list(self.varied),
            "comparisons": {name: each.summary() for name, each in self.comparisons.items()},
            "versions": versions(),
        }

    def __repr__(self) -> str:
        ended = f"{len(self.runs)} of {len(self.study.runs)} runs"
        return f"<Sweep over {', '.join(self.varied) or 'seeds'}: {ended} in {self.directory}>"

    def _repr_html_(self) -> str:
        return "".join(f"<h4>{html.escape(name)}</h4>{each._repr_html_()}" for name, each in self.comparisons.items())


def _config_of(config: Config) -> dict[str, object]:
    """Return the configuration that a run's folder would hold, without a cohort size that depends on the data."""
    given = config.parameters(config.algorithm)
    try:
        sizes = {} if config.min_rows else config.partition_parameters(defaults=True)
        clients = int(sizes["clients"]) if "clients" in sizes else None
        about = config.about(config.build_algorithm(config.algorithm, clients), clients or 1)
    except InputError:  # the settings do not fit together, so the run was refused
        plain = {name: value for name, value in config.to_plain().items() if name not in COMMON}
        parameters = {name: value for name, value in given.items() if value is not None}
        return {**plain, "algorithms": {config.algorithm: parameters}}
    if clients is None and given.get("m") is None:
        about = about._replace(parameters={name: value for name, value in about.parameters.items() if name != "m"})
    return run_config(about)


def write_sweep(sweep: Sweep, folder: Path, former: Sequence[str]) -> None:
    """Write config.toml, summary.json, sweep.csv, outcomes.json, table.md and report.html.

    ``folder`` is temporary: the sweep's own folder holds the finished runs, and its name is the report's title.
    ``former`` are the runs in that folder that the study no longer has.
    """
    from drfl.report import document, write_html

    pairs = list(zip(sweep.runs, sweep.outcomes, strict=True))
    outcomes = [outcome._asdict() for outcome in sweep.outcomes]
    failed = {run.name: _config_of(run.config) for run, outcome in pairs if outcome.failed}
    frame = sweep.to_frame().drop(columns="wall_seconds", errors="ignore")  # the same sweep writes the same bytes
    frame["run"] = [run.name for run, _ in pairs]
    texts = {
        "config.toml": sweep.study.toml,
        "summary.json": json_text(sweep.summary(), indent=2) + "\n",
        "sweep.csv": csv_text(frame.columns, frame.astype(object).where(frame.notna(), "").itertuples(index=False)),
        "outcomes.json": json_text({"outcomes": outcomes, "failed": failed, "former": former}) + "\n",
        "table.md": sweep.to_markdown(),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    records = [stored.record for stored in sweep.stored if stored.record is not None]
    if records:
        lost = [stored.failed for stored in sweep.stored if stored.record is None]
        write_html(document(records, sweep.directory.name, lost), folder / "report.html")
