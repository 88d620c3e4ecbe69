"""The study of a sweep: a configuration whose table ``grid`` and tables ``list`` give several values of settings."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, cast

import tomli_w

from drfl.core import user_code
from drfl.core.errors import InputError, unknown
from drfl.core.user_code import label_of
from drfl.experiments.config.algorithm_settings import COMMON
from drfl.experiments.config.config import GRID, LIST, Config, code_references, config_of, read_file, results_folder
from drfl.experiments.config.hyperparameters import KNOWN, algorithm_name, defaults_of, has_parameter
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.training_cells import cost_of, job_from_config
from drfl.experiments.run.runner import parse_seeds
from drfl.report.groups import NO_EFFECT

MOST_RUNS = 100_000
"""More runs are probably a typing error."""

Changes = Mapping[str, object]
"""The settings of one run that the study varies, by name; parameters of one algorithm as "DRFA.gamma"."""


class SweepRun(NamedTuple):
    """One run of a sweep. The name of its sub-folder depends on everything that determines its result."""

    name: str
    config: Config
    changes: Changes

    @property
    def label(self) -> str:
        """A description for lines on the screen, such as "DRFA, seed 3, alpha = 0.1"."""
        more = (f"{name} = {value}" for name, value in self.changes.items() if name not in ("algorithm", "seed"))
        return ", ".join((label_of(self.config.algorithm), f"seed {self.config.seed}", *more))


class SweepStudy(NamedTuple):
    """The runs of a sweep.

    The sweep resumes from its content. No run occurs twice.
    """

    content: Mapping[str, object]
    runs: tuple[SweepRun, ...]

    @property
    def toml(self) -> str:
        """The study as TOML."""
        return tomli_w.dumps({name: _plain(value) for name, value in self.content.items()})


def read_study(
    study: Path | Mapping[str, object],
    changes: Mapping[str, object],
    *,
    trust: bool = False,
) -> SweepStudy:
    """Return the runs of a study.

    ``changes`` override the settings of the file for all runs.
    """
    if isinstance(study, Path):
        content = read_file(study, code_references(changes), trust=trust)
        folder = results_folder(study)
        if folder is not None and not trust:
            # Code that the lists name is treated like that of an ordinary configuration.
            columns = [
                {name: each}
                for table in _tables(content)
                for name, value in _flat(table).items()
                for each in (value if isinstance(value, list) else [value])
            ]
            references = {name: key for column in columns for name, key in code_references(column).items()}
            user_code.check_received(references, content.get("files"), folder, code_references(changes))
    else:
        content = dict(study)
    for table in _tables(content):
        twice = next((name for name in changes if name in table), None)
        if twice is not None:
            raise InputError(
                f"the study already varies {twice}: set it only in the study", code="given-twice", field=twice
            )
    content |= changes
    content.setdefault("threads", 1)  # runs train side by side
    fixed = {name: value for name, value in content.items() if name not in (GRID, LIST)}
    runs: dict[str, SweepRun] = {}
    unused = set[str]()
    points = list(_points(content))
    own = {str(table["algorithm"]) for table in (fixed, *points) if "algorithm" in table}
    for varied in points:
        config, without_effect = _configure(fixed, varied, own)
        unused |= without_effect
        effective = {name: value for name, value in varied.items() if name not in without_effect}
        job = {key: value for key, value in job_from_config(config).items() if key not in (*NO_EFFECT, "data")}
        digest = Cell("training", job, cost_of(config)).key[:12]
        place = f"{label_of(config.algorithm)}-seed{config.seed}-{digest}"
        runs.setdefault(place, SweepRun(place, config, effective))
    used = {name for run in runs.values() for name in run.changes}
    for name in unused - used:
        raise InputError(
            f"{name} is a parameter of none of the algorithms that run: remove it", code="unused-option", field=name
        )
    # With the digests of the user's code the sweep resumes from its folder without --trust.
    files = {
        path: digest for run in runs.values() for path, digest in run.config.user_files(run.config.algorithm).items()
    }
    return SweepStudy({**content, **({"files": files} if files else {})}, tuple(runs.values()))


def _tables(content: Mapping[str, object]) -> list[dict[str, object]]:
    entries = content.get(LIST)
    return [
        table
        for table in (content.get(GRID), *(entries if isinstance(entries, list) else []))
        if isinstance(table, dict)
    ]


def _points(content: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the varied settings of each run: every entry of ``list`` with every point of ``grid``."""
    grid, entries = content.get(GRID, {}), content.get(LIST, [{}])
    if not isinstance(grid, dict) or not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        raise InputError(
            "a study has a table [grid] with a list of values per setting, and tables [[list]] with one value each",
            code="invalid-format",
            field=GRID,
        )
    columns: dict[str, Sequence[object]] = {}
    for name, value in _flat(grid).items():
        values = parse_seeds(value) if name == "seed" and isinstance(value, str) else value
        if not isinstance(values, list) or not values:
            raise InputError(
                f"grid.{name} = {value!r}: expected a list of values, such as [0.1, 1.0]", code="wrong-type", field=name
            )
        columns[name] = values
    if not columns and GRID not in content and LIST not in content:
        raise InputError(
            "the study varies nothing: add a table [grid] with a list of values per setting, or tables [[list]]",
            code="missing-option",
            field=GRID,
        )
    count = math.prod(map(len, columns.values())) * len(entries)
    if count > MOST_RUNS:
        raise InputError(
            f"the study has {count:,} runs, more than {MOST_RUNS:,}: remove values", code="out-of-range", field=GRID
        )
    # Seeds and algorithms last: consecutive runs share data and model.
    order = sorted(columns, key=lambda name: {"seed": 1, "algorithm": 2}.get(name, 0))
    for entry in cast("list[dict[str, object]]", entries):
        flat = _flat(entry)
        twice = next((name for name in flat if name in columns), None)
        if twice is not None:
            raise InputError(
                f"both grid and list set {twice}: remove it from one of them", code="given-twice", field=twice
            )
        for values in itertools.product(*(columns[name] for name in order)):
            yield {**flat, **dict(zip(order, values, strict=True))}


def _flat(table: Mapping[str, object]) -> dict[str, object]:
    """Write ``DRFA.gamma = …``, which TOML reads as a table, as one name."""
    flat: dict[str, object] = {}
    for name, value in table.items():
        flat |= {f"{name}.{inner}": each for inner, each in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _configure(fixed: Mapping[str, object], varied: Changes, own: Collection[str]) -> tuple[Config, set[str]]:
    """Return the configuration of a run, and the varied parameters that its algorithm does not have.

    ``own`` are the algorithms of all runs.
    """
    settings = {name: value for name, value in varied.items() if name in Config.model_fields}
    default = fixed.get("algorithm", Config.model_fields["algorithm"].default)
    algorithm = algorithm_name(str(settings.get("algorithm", default)))
    table: dict[str, object] = {}
    without_effect: set[str] = set()
    for name, value in varied.items():
        if name in settings:
            if name in COMMON and not has_parameter(algorithm, COMMON[name]):
                without_effect.add(name)
            continue
        owner, dot, parameter = name.rpartition(".")
        if dot and algorithm_name(owner, own) != algorithm:
            without_effect.add(name)
        elif dot or has_parameter(algorithm, parameter):
            table[parameter] = value  # the algorithm rejects a parameter that it does not have
        elif not any(has_parameter(known, parameter) for known in (*KNOWN, *map(algorithm_name, own))):
            raise unknown("setting", name, (*Config.model_fields, *defaults_of(algorithm)))
        else:
            without_effect.add(name)
    overrides = {name: value for name, value in settings.items() if name not in without_effect}
    tables = {"algorithms": {algorithm: table}} if table else {}
    return config_of(fixed, {**overrides, **tables}, own), without_effect


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)
