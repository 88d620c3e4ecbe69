"""What the files of a run say of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w


class AboutRun(NamedTuple):
    """What the files of a run say of it: what it is recognised by, and what reports show.

    Args:
        algorithm: The name of the algorithm, or the reference to the user's class.
        parameters: Its hyperparameters and those of its local solver, as plain values.
        dataset: The name of the data; None if they have none, as data passed in Python.
        model: The name of the model, the reference to the user's, or its class.
        dtype: The type of the model's numbers.
        settings: The other keys of ``config.toml``, as plain values, among them the three before.
        files: SHA-256 of the user's code, by path or class.
    """

    algorithm: str
    parameters: Mapping[str, object]
    dataset: str | None
    model: str
    dtype: str
    settings: Mapping[str, object]
    files: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """What tables and reports call the data."""
        return self.dataset or "own data"

    @property
    def partition(self) -> dict[str, object] | None:
        """The way in which the data were divided, with its parameters; None if they came divided."""
        if "partition" not in self.settings:
            return None
        named = {name: self.settings[name] for name in ("clients", "alpha", "zipf") if name in self.settings}
        return {"name": self.settings["partition"], **named}


def run_toml(run: AboutRun) -> str:
    """The configuration of a run as TOML; `drfl run FILE` repeats a run whose parts all have names."""
    return _toml({**run.settings, "algorithm": run.algorithm}, [run])


def comparison_toml(runs: Sequence[AboutRun]) -> str:
    """The configuration of a comparison as TOML, which names no single algorithm and no seed.

    Args:
        runs: A run of each algorithm.
    """
    return _toml({name: value for name, value in runs[0].settings.items() if name != "seed"}, runs)


def _toml(settings: Mapping[str, object], runs: Sequence[AboutRun]) -> str:
    tables: dict[str, dict[str, object]] = {}
    files: dict[str, str] = {}
    for run in runs:
        # TOML has no null: write None as "full" for batch sizes, and omit it otherwise.
        full = {key: "full" if value is None and "batch" in key else value for key, value in run.parameters.items()}
        tables[run.algorithm] = {key: value for key, value in full.items() if value is not None}
        files |= run.files
    # Sorted: the same run writes the same bytes.
    plain = dict(sorted(settings.items()))
    return tomli_w.dumps({**plain, "algorithms": tables, **({"files": files} if files else {})})
