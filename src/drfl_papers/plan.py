"""From a specification to the cells that it needs, and back to their records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfl.core.errors import InputError, unknown
from drfl.core.files import read_toml
from drfl.experiments.config.config import load_config
from drfl.experiments.execution import training_cells
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl_papers import saddle_distance
from drfl_papers.specification import DEFAULTS, PAPERS, MethodRow, Specification, SpecSetting, load_job


@dataclass(frozen=True)
class Scale:
    """How much of a specification is run.

    Args:
        quick: its short version.
        repeats: seeds; None = as the specification says.
        rounds: None = as the specification says.
        settings: names of settings; None = all.
        stand_in: whether the stand-in takes the place of the paper's data.
        tuned: folder of hyperparameter files.
        device: torch device of training cells.
    """

    quick: bool = False
    repeats: int | None = None
    rounds: int | None = None
    settings: tuple[str, ...] | None = None
    stand_in: bool = False
    tuned: Path = PAPERS / "tuned"
    device: str = "cpu"


class Planned(NamedTuple):
    """A cell and its place.

    Args:
        setting: name of its setting.
        method: name of its method.
        seed: its repeat.
        cell: what is run.
    """

    setting: str
    method: str
    seed: int
    cell: Cell


@dataclass(frozen=True)
class Plan:
    """A specification at a scale.

    Args:
        spec: what.
        scale: how much of it.
        rounds: of communication, where a method does not have its own number.
        repeats: seeds.
        settings: names of those that are run, in the specification's order.
        hyperparameters: the files of tuned ones, by job.
        cells: what it needs, seed after seed.
    """

    spec: Specification
    scale: Scale
    rounds: int
    repeats: int
    settings: tuple[str, ...]
    hyperparameters: Mapping[str, Mapping[str, object]]
    cells: tuple[Planned, ...]


class Collected(NamedTuple):
    """A plan whose cells are all there.

    Args:
        plan: what was run.
        records: by (setting, method), a record per seed, in order.
    """

    plan: Plan
    records: Mapping[tuple[str, str], Sequence[Record]]


def plan(spec: Specification, scale: Scale) -> Plan:
    """The cells of a specification.

    Raises:
        InputError: no such setting, no stand-in, no hyperparameter file, or a job that is impossible.
    """
    if scale.stand_in and spec.stand_in is None:
        scale = Scale(**{**vars(scale), "stand_in": False})
    # options come first, then the minimum over the specification, the stand-in and the short version
    cuts = [(spec.rounds, spec.repeats)]
    if scale.stand_in and spec.stand_in is not None:
        cuts.append((spec.stand_in.rounds or spec.rounds, spec.stand_in.repeats or spec.repeats))
    if scale.quick:
        cuts.append((spec.quick.rounds, spec.quick.repeats))
    rounds = scale.rounds or min(rounds for rounds, _ in cuts)
    repeats = scale.repeats or min(repeats for _, repeats in cuts)
    settings = _settings(spec, scale)
    tuned = {}
    if any(method.tuned_as is not None for method in spec.methods):
        jobs = dict.fromkeys(base(spec, setting) for setting in settings)
        tuned = {name: hyperparameters(scale.tuned, name) for name in jobs if name is not None}
    cells = [
        Planned(setting.name, method.name, seed, _cell(spec, scale, setting, method, seed, tuned, rounds))
        for seed in range(repeats)
        for setting in settings
        for method in spec.methods
    ]
    return Plan(spec, scale, rounds, repeats, tuple(s.name for s in settings), tuned, tuple(cells))


def collect(plan: Plan, records: Mapping[str, Record]) -> Collected:
    """The records of a plan's cells, by the cells' keys, put in their places."""
    places: dict[tuple[str, str], list[Record]] = {}
    for planned in plan.cells:
        places.setdefault((planned.setting, planned.method), []).append(records[planned.cell.key])
    return Collected(plan, places)


def _settings(spec: Specification, scale: Scale) -> list[SpecSetting]:
    """The settings to run.

    Raises:
        InputError: there is no such setting.
    """
    names = [setting.name for setting in spec.settings]
    chosen = list(scale.settings) if scale.settings is not None else names
    if scale.settings is None and scale.stand_in and spec.stand_in is not None and spec.stand_in.settings is not None:
        chosen = spec.stand_in.settings
    # A name with commas may arrive split at them, as from a list with commas: take the longest match.
    plain, wanted, at = {_plain(name): name for name in names}, set[str](), 0
    while at < len(chosen):
        texts = {end: _plain(",".join(chosen[at:end])) for end in range(len(chosen), at, -1)}
        end = next((end for end, text in texts.items() if text in plain), None)
        if end is None:
            raise unknown("setting", chosen[at], names)
        wanted.add(plain[texts[end]])
        at = end
    return [setting for setting in spec.settings if setting.name in wanted]


def _plain(name: str) -> str:
    """A setting's name as people type it: α may be written alpha, and blanks are left out."""
    for letter, word in (("α", "alpha"), ("σ", "sigma"), ("ρ", "rho"), ("τ", "tau")):
        name = name.replace(letter, word)
    return "".join(name.lower().split())


def hyperparameters(folder: Path, name: str) -> dict[str, object]:
    """A hyperparameter file: its ``provenance`` and a table of parameters by algorithm under ``algorithms``.

    Raises:
        InputError: there is none, it is not valid TOML, or it has no such tables.
    """
    path = folder / f"{name}.toml"
    try:
        found = read_toml(path, remedy=f"make it with 'drfl tune {name}'")
        json.dumps(found)  # the summary quotes it
    except TypeError:
        raise InputError(
            f"{path} has a date or a time, which is no hyperparameter: write it as text",
            code="wrong-type",
            field=str(path),
        ) from None
    tables = found.get("algorithms")
    for algorithm, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: algorithms.{algorithm} is no table of parameters: make it with 'drfl tune {name}'",
                code="wrong-type",
                field=str(path),
            )
    return found


def base(spec: Specification, setting: SpecSetting) -> str | None:
    """The name of a setting's job file; None where the specification has the job's values themselves."""
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
    name, own = base(spec, setting), {} if isinstance(spec.job, str) else spec.job
    # the rounds of an option or of the short version override those of the method
    rounds = rounds if method.rounds is None or scale.rounds is not None or scale.quick else method.rounds
    if spec.kind == "distance":
        return saddle_distance.cell({**own, **setting.job, **method.job}, method, seed, rounds)
    job = {**DEFAULTS, **own} if name is None else load_job(name).chosen(scale.stand_in)
    here = spec.stand_in.settings_job.get(setting.name, {}) if scale.stand_in and spec.stand_in is not None else {}
    chosen: dict[str, object] = {}
    if name is not None and method.tuned_as is not None:
        known = tuned[name].get("algorithms")
        if not isinstance(known, dict) or method.tuned_as not in known:
            raise InputError(
                f"the hyperparameters of {name} have nothing on '{method.tuned_as}': make them with 'drfl tune {name}'",
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
    return Cell("training", training_cells.job_of(config), training_cells.cost_of(config))
