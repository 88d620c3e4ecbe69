"""``drfl algorithms`` and ``drfl datasets``."""

from __future__ import annotations

import dataclasses
import inspect
import json

from drfl.algorithms import ALGORITHMS, BASELINES, CLIENT_SIDE, FULL_PARTICIPATION
from drfl.ambiguity import AMBIGUITY_SETS
from drfl.cli import console
from drfl.core.screen import ScreenTable
from drfl.data import describe
from drfl.experiments.config.hyperparameters import LOCAL, SAMPLINGS, Value, defaults_of, has_parameter
from drfl.optim.local_optimizers import LOCAL_OPTIMIZERS
from drfl.optim.schedules import SCHEDULES
from drfl.optim.server_optimizers import SERVER_OPTIMIZERS


def algorithms_command(as_json: bool) -> None:
    """Print every algorithm and baseline with its description and parameters."""
    rows = []
    for name, cls in {**ALGORITHMS, **CLIENT_SIDE, **BASELINES}.items():
        first_paragraph = (inspect.getdoc(cls) or "").split("\n\n", 1)[0]
        rows.append((name, " ".join(first_paragraph.split()), defaults_of(name)))
    if as_json:
        print(json.dumps([{"name": name, "summary": text, "parameters": values} for name, text, values in rows]))
        return
    table = ScreenTable("algorithm", "description", "parameters and defaults", show_lines=True)
    local = {name: value for name, value in rows[0][2].items() if name in LOCAL}
    for name, text, values in rows:
        specific = {k: v for k, v in values.items() if k != "m" and (k not in LOCAL or v != local[k])}
        table.add_row(name, text, _join_values(specific))
    console.out.print(table)
    without = ", ".join(name for name in (*ALGORITHMS, *CLIENT_SIDE, *BASELINES) if not has_parameter(name, "m"))
    console.out.print(f"All algorithms take the parameters of the local solver, {_join_values(local)}.")
    console.out.print(f"All except {without} take the cohort size m: all of up to ten clients, else two thirds")
    everybody = ", ".join(name for name, cls in ALGORITHMS.items() if issubclass(cls, FULL_PARTICIPATION))
    console.out.print(f"({everybody}: all clients).")
    console.out.print(f"sampling: {', '.join(SAMPLINGS)}")
    console.out.print(f"ambiguity: {', '.join(AMBIGUITY_SETS)}; for example cvar:alpha=0.2")
    console.out.print(f"schedule: {', '.join(SCHEDULES)}")
    console.out.print(f"local optimizer: {', '.join(LOCAL_OPTIMIZERS)}")
    console.out.print(f"server optimizer: none, {', '.join(SERVER_OPTIMIZERS)}")
    console.out.print("Set parameters with --param NAME=VALUE, or in a TOML table [algorithms.NAME].", markup=False)


def datasets_command(as_json: bool) -> None:
    """Print every data set with its size and the place of its files."""
    infos = describe()
    if as_json:
        print(json.dumps([dataclasses.asdict(info) for info in infos], default=str))
        return
    table = ScreenTable("data set", "train", "test", "shape", "licence", "files")
    for info in infos:
        counts = ("by edition" if count is None else f"{count:,}" for count in (info.train, info.test))
        table.add_row(info.name, *counts, "×".join(map(str, info.shape)), info.licence, info.found or "not downloaded")
    console.out.print(table)


def _join_values(values: dict[str, Value]) -> str:
    return ", ".join(f"{name}={'none' if value is None else value}" for name, value in values.items())
