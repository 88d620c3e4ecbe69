"""Turn a specification into the cells that it needs, and put their records back in place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfl.ambiguity.by_name import reference_in
from drfl.core.errors import InputError, unknown
from drfl.core.json_toml import read_toml
from drfl.experiments.config.config import load_config
from drfl.experiments.execution import training_cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl_papers import saddle_distance
from drfl_papers.specification import DEFAULTS, PAPERS, MethodRow, Specification, SpecSetting, load_job


@dataclass(frozen=True)
class Scale:
    """How much of a specification to run.

    Args:
        quick: Run its short version.
        repeats: Number of seeds; None for the specification's number.
        rounds: Number of rounds; None for the specification's number.
        settings: Names of settings; None for all.
        stand_in: Whether to use the stand-in instead of the paper's data.
        tuned: Folder of hyperparameter files.
        device: Torch device of training cells.
    """

    quick: bool = False
    repeats: int | None = None
    rounds: int | None = None
    settings: tuple[str, ...] | None = None
    stand_in: bool = False
    tuned: Path = PAPERS / "tuned"
    device: str = "cpu"


class PlannedRun(NamedTuple):
    """A cell and its place."""

    setting: str
    method: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Plan:
    """A specification at a scale.

    Args:
        spec: The specification.
        scale: How much of it to run.
        rounds: Rounds of communication for methods without their own number.
        repeats: Number of seeds.
        settings: Names of the settings to run, in the specification's order.
        hyperparameters: Contents of the hyperparameter files, by job.
        cells: The cells that it needs, seed after seed.
    """

    spec: Specification
    scale: Scale
    rounds: int
    repeats: int
    settings: tuple[str, ...]
    hyperparameters: Mapping[str, Mapping[str, object]]
    cells: tuple[PlannedRun, ...]


class CollectedRuns(NamedTuple):
    """A plan with the records of all its cells: by (setting, method), one per seed, in order."""

    plan: Plan
    records: Mapping[tuple[str, str], Sequence[Record]]


def plan(spec: Specification, scale: Scale) -> Plan:
    """Make the cells of a specification.

    Raises:
        InputError: If a setting, stand-in or hyperparameter file does not exist, or a job is impossible.
    """
    if scale.stand_in and spec.stand_in is None:
        scale = Scale(**{**vars(scale), "stand_in": False})
    # Options come first, then the minimum over the specification, the stand-in and the short version.
    cuts = [(spec.rounds, spec.repeats)]
    if scale.stand_in and spec.stand_in is not None:
        cuts.append((spec.stand_in.rounds or spec.rounds, spec.stand_in.repeats or spec.repeats))
    if scale.quick:
        cuts.append((spec.quick.rounds, spec.quick.repeats))
    rounds = scale.rounds or min(rounds for rounds, _ in cuts)
    repeats = scale.repeats or min(repeats for _, repeats in cuts)
    names = [setting.name for setting in spec.settings]
    chosen = list(scale.settings) if scale.settings is not None else names
    if scale.settings is None and scale.stand_in and spec.stand_in is not None and spec.stand_in.settings is not None:
        chosen = spec.stand_in.settings
    # A name with commas may arrive split at them, as from a list with commas: take the longest match.
    plain, wanted, start = {_plain(name): name for name in names}, set[str](), 0
    while start < len(chosen):
        texts = {end: _plain(",".join(chosen[start:end])) for end in range(len(chosen), start, -1)}
        end = next((end for end, text in texts.items() if text in plain), None)
        if end is None:
            raise unknown("setting", chosen[start], names)
        wanted.add(plain[texts[end]])
        start = end
    settings = [setting for setting in spec.settings if setting.name in wanted]
    tuned = {}
    if any(method.tuned_as is not None for method in spec.methods):
        jobs = dict.fromkeys(base(spec, setting) for setting in settings)
        tuned = {name: hyperparameters(scale.tuned, name) for name in jobs if name is not None}
    cells = [
        PlannedRun(setting.name, method.name, seed, _cell(spec, scale, setting, method, seed, tuned, rounds))
        for seed in range(repeats)
        for setting in settings
        for method in spec.methods
    ]
    return Plan(spec, scale, rounds, repeats, tuple(s.name for s in settings), tuned, tuple(cells))


def collect(plan: Plan, records: Mapping[str, Record]) -> CollectedRuns:
    """Put the records of a plan's cells, given by the cells' keys, in their places."""
    places: dict[tuple[str, str], list[Record]] = {}
    for planned in plan.cells:
        places.setdefault((planned.setting, planned.method), []).append(records[planned.cell.key])
    return CollectedRuns(plan, places)


def _plain(name: str) -> str:
    """Normalise a setting's name as people type it: α may be written alpha, and blanks do not count."""
    for letter, word in (("α", "alpha"), ("σ", "sigma"), ("ρ", "rho"), ("τ", "tau")):
        name = name.replace(letter, word)
    return "".join(name.lower().split())


def hyperparameters(folder: Path, name: str) -> dict[str, object]:
    """Read a hyperparameter file: its ``provenance``, and a table of parameters by algorithm under ``algorithms``.

    Raises:
        InputError: If the file is missing, is not valid TOML, or lacks these tables.
    """
    path = folder / f"{name}.toml"
    try:
        content = read_toml(path, remedy=f"make it with 'drfl tune {name}'")
        json.dumps(content)  # the summary quotes it
    except TypeError:
        raise InputError(
            f"{path}: expected hyperparameters, found a date or a time. Write it as text.",
            code="wrong-type",
            field=str(path),
        ) from None
    tables = content.get("algorithms")
    for algorithm, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: algorithms.{algorithm} must be a table of parameters. Make the file with 'drfl tune {name}'.",
                code="wrong-type",
                field=str(path),
            )
        for parameter, value in table.items():
            # The file may come from another person, so it is read as numbers and names of drfl.
            if reference_in(value) is not None:
                raise InputError(
                    f"{path} names code in {algorithm}.{parameter} = '{value}', which drfl reproduce does not load. "
                    f"Make the file with 'drfl tune {name}'.",
                    code="untrusted-code",
                    field=f"{algorithm}.{parameter}",
                )
    return content


def base(spec: Specification, setting: SpecSetting) -> str | None:
    """Return the name of a setting's job file; None if the specification contains the job's values."""
    return setting.base or (spec.job if isinstance(spec.job, str) else None)


def _cell(
    spec: Specification,
    scale: Scale,
    setting: SpecSetting,
    method: MethodRow,
    seed: int,
    tuned: Mapping[str, Mapping[str, object]],
    rounds: int,
) -> Cell:
    name, inline = base(spec, setting), {} if isinstance(spec.job, str) else spec.job
    # The rounds of an option or of the short version override those of the method.
    rounds = rounds if method.rounds is None or scale.rounds is not None or scale.quick else method.rounds
    if spec.kind == "distance":
        return saddle_distance.cell({**inline, **setting.job, **method.job}, method, seed, rounds)
    job = {**DEFAULTS, **inline} if name is None else load_job(name).chosen(scale.stand_in)
    here = spec.stand_in.settings_job.get(setting.name, {}) if scale.stand_in and spec.stand_in is not None else {}
    chosen: dict[str, object] = {}
    if name is not None and method.tuned_as is not None:
        known = tuned[name].get("algorithms")
        if not isinstance(known, dict) or method.tuned_as not in known:
            raise InputError(
                f"no hyperparameters for '{method.tuned_as}' in the file of {name}. Make them with 'drfl tune {name}'.",
                code="missing-option",
                field=method.tuned_as,
            )
        chosen = known[method.tuned_as]
    values = {
        **job,
        **setting.job,
        **here,
        **method.job,
        "algorithm": method.algorithm,
        "algorithms": {method.algorithm: {**chosen, **method.parameters}},
        "seed": seed,
        "rounds": rounds,
        "evaluate_every": spec.evaluate_every,
        "device": scale.device,
    }
    config = load_config(None, values)
    return Cell("training", training_cells.job_from_config(config), training_cells.cost_of(config))
