"""From a specification to the cells that it needs, and back to their records."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfl.errors import InputError, unknown
from drfl.experiments import training_cells
from drfl.experiments.cells import Cell, Record
from drfl.experiments.config import Config, load_config
from drfl.papers import saddle_distance
from drfl.papers.specification import DEFAULTS, PAPERS, Job, MethodRow, Setting, Specification, load_job


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
        hyperparameters: the hyperparameter file's text, None where there is none.
        cells: what it needs, seed after seed.
    """

    spec: Specification
    scale: Scale
    rounds: int
    repeats: int
    settings: tuple[str, ...]
    hyperparameters: Mapping[str, object] | None
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
    rounds, repeats = _size(spec, scale)
    settings = _settings(spec, scale)
    tuned = _hyperparameters(spec, scale)
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


def _size(spec: Specification, scale: Scale) -> tuple[int, int]:
    """Rounds and repeats: those asked for, or the fewest of the specification, the stand-in and the short version."""
    cuts = [(spec.rounds, spec.repeats)]
    if scale.stand_in and spec.stand_in is not None:
        cuts.append((spec.stand_in.rounds or spec.rounds, spec.stand_in.repeats or spec.repeats))
    if scale.quick:
        cuts.append((spec.quick.rounds, spec.quick.repeats))
    return scale.rounds or min(rounds for rounds, _ in cuts), scale.repeats or min(repeats for _, repeats in cuts)


def _settings(spec: Specification, scale: Scale) -> list[Setting]:
    names = [setting.name for setting in spec.settings]
    chosen = list(scale.settings) if scale.settings is not None else names
    if scale.settings is None and scale.stand_in and spec.stand_in is not None and spec.stand_in.settings is not None:
        chosen = spec.stand_in.settings
    plain = {_plain(name): name for name in names}
    for name in chosen:
        if _plain(name) not in plain:
            raise unknown("setting", name, names)
    wanted = {_plain(name) for name in chosen}
    return [setting for setting in spec.settings if _plain(setting.name) in wanted]


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
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        json.dumps(found)  # the summary quotes it
    except OSError:
        raise InputError(f"there are no hyperparameters {path}: make them with 'drfl tune {name}'") from None
    except TypeError:
        raise InputError(f"{path} has a date or a time, which is no hyperparameter: write it as text") from None
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and of deep nesting
        raise InputError(f"{path} is not valid TOML: {error}") from None
    tables = found.get("algorithms")
    for algorithm, table in tables.items() if isinstance(tables, dict) else ():
        if not isinstance(table, dict):
            raise InputError(
                f"{path}: algorithms.{algorithm} is no table of parameters: make it with 'drfl tune {name}'"
            )
    return found


def _hyperparameters(spec: Specification, scale: Scale) -> dict[str, object] | None:
    stand_in = spec.stand_in if scale.stand_in else None
    name = (stand_in.tuned if stand_in is not None else None) or spec.tuned
    return None if name is None else hyperparameters(scale.tuned, name)


def _cell(
    spec: Specification,
    scale: Scale,
    setting: Setting,
    method: MethodRow,
    seed: int,
    tuned: Mapping[str, object] | None,
    rounds: int,
) -> Cell:
    job: Job = dict(spec.job) if isinstance(spec.job, dict) else load_job(spec.job)
    instead, here = {}, {}
    if scale.stand_in and spec.stand_in is not None:
        instead, here = spec.stand_in.job, spec.stand_in.settings_job.get(setting.name, {})
    job = {**job, **instead, **setting.job, **here, **method.job}
    rounds = rounds if method.rounds is None or scale.rounds is not None or scale.quick else method.rounds
    if spec.kind == "distance":
        return saddle_distance.cell(job, method, seed, rounds)
    config = _config(job, method, seed, tuned, rounds, spec.evaluate_every, scale.device)
    return Cell("training", training_cells.job_of(config), training_cells.cost_of(config))


def _config(
    job: Job,
    method: MethodRow,
    seed: int,
    tuned: Mapping[str, object] | None,
    rounds: int,
    evaluate_every: int,
    device: str,
) -> Config:
    chosen = _chosen(tuned, method.algorithm) if tuned is not None and method.tuned else {}
    parameters = {**chosen, **method.parameters}
    values = {
        **DEFAULTS,
        **job,
        "algorithm": method.algorithm,
        "algorithms": {method.algorithm: parameters},
        "seed": seed,
        "rounds": rounds,
        "evaluate_every": evaluate_every,
        "device": device,
    }
    return load_config(None, values)


def _chosen(tuned: Mapping[str, object], algorithm: str) -> dict[str, object]:
    known = tuned.get("algorithms")
    if not isinstance(known, dict) or algorithm not in known:
        raise InputError(f"the hyperparameter file has nothing on {algorithm}: tune it too")
    return known[algorithm]
