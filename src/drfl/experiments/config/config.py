"""A simulation by names: one model that validates the command's options and the TOML file alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from drfl.core import user_code
from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError, unknown
from drfl.core.files import read_json, read_toml
from drfl.data.tables.hugging_face import hub_name
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.algorithm_settings import COMMON, AlgorithmSettings
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.config.hyperparameters import parameters_of
from drfl.experiments.config.own_data import CLASSIFICATION, check_task, is_hub, with_loss
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.strict import input_error
from drfl.experiments.config.task_settings import TaskSettings
from drfl.federation.algorithm import Algorithm

MANIFEST = "manifest.json"
"""The file by which a folder of results is known, see :mod:`drfl.experiments.run.manifest`."""


class Config(DataSettings, TaskSettings, AlgorithmSettings, RunSettings):
    """A simulation by names, except for its seed's effects: equal configurations give equal results on one machine.

    Args:
        files: what a finished run's file says of the user's Python files; has no effect, see :meth:`user_files`.
    """

    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _loss_of_task(cls, values: object) -> object:
        return with_loss(values) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _parts_fit(self) -> Config:
        measures = self.measures()
        check_task(self.task or CLASSIFICATION, self.partition, self.loss, measures)
        self.selection(measures)
        return self

    def user_files(self, *algorithms: str) -> dict[str, str]:
        """SHA-256 of every Python file of the user's behind model, loss, metrics and these algorithms, by path."""
        return user_files(*algorithms, self.model, self.loss, self.score or "", *(self.metrics or ()))

    def about(self, algorithm: Algorithm, clients: int) -> AboutRun:
        """What the run's files say of it.

        Args:
            algorithm: The one that it runs, without wrappers.
            clients: N.
        """
        plain = {name: value for name, value in self.plain().items() if name not in APART}
        return AboutRun(
            self.algorithm,
            parameters_of(algorithm, clients),
            self.dataset,
            self.model,
            self.dtype,
            {**plain, **self.partition_parameters(defaults=True)},
            self.user_files(self.algorithm),
        )

    def for_algorithm(self, algorithm: str, seed: int) -> Config:
        """The same job with another algorithm and seed."""
        return self.model_copy(update={"algorithm": algorithm, "seed": seed})


APART = ("algorithm", "algorithms", "files", *COMMON)
"""Keys of a configuration that are not among the settings of :class:`AboutRun`: its other fields have them."""


def user_files(*names: str) -> dict[str, str]:
    """SHA-256 of the Python files behind those of the names that are references to code of the user's, by path."""
    found: dict[str, str] = {}
    for name in filter(user_code.is_reference, names):
        found |= user_code.digests(name)
    return found


def load_config(path: Path | None, overrides: Mapping[str, object], *, trust: bool = False) -> Config:
    """A configuration from a TOML file (or none) and the options that override it.

    Args:
        path: the file.
        overrides: options by name; tables under "algorithms" are merged, everything else replaces. A common option
            given here beats the parameter of that name in the file's tables too.
        trust: whether code that the file names is loaded though the file lies in a folder of results.

    Raises:
        InputError: the file is missing or not TOML, a key is unknown, or a value is impossible.
    """
    return config_of(read_file(path, references_of(overrides), trust=trust), overrides)


def references_of(values: Mapping[str, object]) -> dict[str, str]:
    """The code that a configuration names, each reference with the key that names it; nothing is imported.

    Args:
        values: keys of a :class:`Config`, of any type.
    """
    named = [(key, values.get(key)) for key in ("algorithm", "model", "loss", "score")]
    metrics, tables = values.get("metrics"), values.get("algorithms")
    named += [("metrics", name) for name in (metrics if isinstance(metrics, list | tuple) else [metrics])]
    named += [("algorithms", name) for name in (tables if isinstance(tables, dict) else ())]
    return {name: key for key, name in named if isinstance(name, str) and user_code.is_reference(name)}


def config_of(file: Mapping[str, object], overrides: Mapping[str, object]) -> Config:
    """A configuration from what a TOML file holds and the options that override it; see :func:`load_config`."""
    values = dict(file)
    tables = values.get("algorithms")
    beaten = {parameter for option, parameter in COMMON.items() if option in overrides}
    merged: dict[str, object] = {}
    for name, table in (tables if isinstance(tables, dict) else {}).items():
        # An option that sets a parameter of all algorithms overrides the file.
        if isinstance(table, dict):
            table = {key: value for key, value in table.items() if key not in beaten}
        merged[name] = table
    changes = overrides.get("algorithms")
    for name, table in (changes if isinstance(changes, dict) else {}).items():
        # Algorithm names are case-insensitive.
        same = next((known for known in merged if known.lower() == name.lower()), name)
        before = merged.get(same)
        merged[same] = {**(before if isinstance(before, dict) else {}), **table}
    if merged:
        values["algorithms"] = merged
    kept = values.get("dataset")
    values.update({name: value for name, value in overrides.items() if name != "algorithms"})
    if is_hub(kept) and values["dataset"] == hub_name(str(kept)).label:  # the revision that the file has pinned stays
        values["dataset"] = kept
    for name in values:
        if name not in Config.model_fields:
            raise unknown("option", name, Config.model_fields)
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise input_error(error) from None


TABLES = (".csv", ".npz", ".parquet")
"""Files that a shell puts in the place of a configuration where a star stands behind --data."""


def read_file(path: Path | None, given: Collection[str] = (), *, trust: bool = False) -> dict[str, object]:
    """What a TOML file holds; nothing where there is none.

    A file in a folder of results may come from somebody else. Code that it names is loaded later only if it passes
    :func:`drfl.core.user_code.check_received` here. A file elsewhere is the user's, and so is what it names.

    Args:
        path: the file.
        given: references that the user has named too.
        trust: whether the user trusts all code that the file names.

    Raises:
        InputError: it is missing or not TOML, or names code that is not trusted.
    """
    if path is None:
        return {}
    if path.suffix.lower() in TABLES:
        raise InputError(
            f"{path} is a table and no configuration: give each table its own --data, or their folder",
            code="unsupported-file",
            field=str(path),
        )
    values = read_toml(path)
    folder = results_folder(path)
    if folder is not None and not trust:
        user_code.keep_out(folder)
        user_code.check_received(references_of(values), values.get("files"), folder, given)
    return values


def results_folder(path: Path) -> Path | None:
    """The outermost folder of results that a file lies in, such as that of its run's comparison; None = in none."""
    place = path.resolve().parent
    above = place if _is_results(place) else place.parent  # of checkpoint/config.toml
    found = None
    while _is_results(above) and above != found:
        found, above = above, above.parent
    return found


def _is_results(folder: Path) -> bool:
    """Whether a folder has a manifest of drfl's; programs of other kinds have files of that name too."""
    try:
        content = read_json(folder / MANIFEST, follow=False) if is_file(folder / MANIFEST) else None
    except InputError:
        return True
    return isinstance(content, dict) and {"kind", "drfl"} <= content.keys()
