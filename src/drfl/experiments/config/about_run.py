"""The description of a run in its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tomli_w


class AboutRun(NamedTuple):
    """The description of a run in its files, which identifies the run and appears in reports.

    Args:
        algorithm: The name of the algorithm, or the reference to the user's class.
        parameters: The hyperparameters of the algorithm and its local solver, as plain values.
        dataset: The name of the data set; None for data passed in Python.
        settings: The other keys of ``config.toml`` as plain values, among them the data set, the name, reference or
            class of the model, and its dtype.
        files: SHA-256 of the user's code, by path or class.
    """

    algorithm: str
    parameters: Mapping[str, object]
    dataset: str | None
    settings: Mapping[str, object]
    files: Mapping[str, str] = {}

    @property
    def label(self) -> str:
        """The name of the data in tables and reports."""
        return self.dataset or "own data"

    @property
    def partition(self) -> dict[str, object] | None:
        """The partition with its parameters; None if the data came divided."""
        if "partition" not in self.settings:
            return None
        named = {name: self.settings[name] for name in ("clients", "alpha", "zipf") if name in self.settings}
        return {"name": self.settings["partition"], **named}


def run_toml(run: AboutRun) -> str:
    """Return the configuration of a run as TOML. `drfl run FILE` repeats the run if all its parts have names."""
    return tomli_w.dumps(run_config(run))


def run_config(run: AboutRun) -> dict[str, object]:
    """Return the configuration of a run as plain values."""
    return _config({**run.settings, "algorithm": run.algorithm}, [run])


def comparison_toml(runs: Sequence[AboutRun]) -> str:
    """Return the configuration of a comparison as TOML, without a single algorithm and without a seed.

    ``runs`` has a run of each algorithm.
    """
    return tomli_w.dumps(_config({name: value for name, value in runs[0].settings.items() if name != "seed"}, runs))


def _config(settings: Mapping[str, object], runs: Sequence[AboutRun]) -> dict[str, object]:
    tables: dict[str, dict[str, object]] = {}
    files: dict[str, str] = {}
    for run in runs:
        # TOML has no null. None is written as "full" for batch sizes, and omitted otherwise.
        full = {key: "full" if value is None and "batch" in key else value for key, value in run.parameters.items()}
        tables[run.algorithm] = {key: value for key, value in full.items() if value is not None}
        files |= run.files
    # Sort, so that the same run writes the same bytes.
    plain = dict(sorted(settings.items()))
    return {**plain, "algorithms": tables, **({"files": files} if files else {})}
