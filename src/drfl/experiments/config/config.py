"""The configuration of a simulation by names, which validates the command's options and the TOML file alike."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import Field, model_validator

from drfl.ambiguity.by_name import reference_in
from drfl.core import user_code
from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError, suggestion
from drfl.core.json_toml import read_json, read_toml
from drfl.data.tables.hugging_face_names import hub_name
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.algorithm_settings import COMMON, AlgorithmSettings
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.config.hyperparameters import algorithm_name, by_algorithm, own_sets, parameters_of
from drfl.experiments.config.own_data import CLASSIFICATION, check_task, is_hub, with_data_defaults, with_loss
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.task_settings import TaskSettings
from drfl.federation.algorithm import Algorithm

MANIFEST = "manifest.json"
"""The file that identifies a folder of results, see :mod:`drfl.experiments.run.manifest`."""


class Config(DataSettings, TaskSettings, AlgorithmSettings, RunSettings):
    """The configuration of a simulation, by names. Equal configurations give equal results on one machine.

    Args:
        files: Digests of the user's Python files, as the file of a finished run has them. They have no effect, see
            :meth:`user_files`.
    """

    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _data_defaults(cls, values: object) -> object:
        # Replaces the inherited validator, which pydantic would call last: a schema may set the task of the loss.
        return with_loss(with_data_defaults(values)) if isinstance(values, dict) else values

    @model_validator(mode="after")
    def _parts_fit(self) -> Config:
        check_task(self.task or CLASSIFICATION, self.partition, self.loss, self.measures)
        self.selection(self.measures)
        return self

    def user_files(self, *algorithms: str) -> dict[str, str]:
        """Return the SHA-256 of each Python file of the user's that the run uses with these algorithms, by path."""
        sets = [reference for name in algorithms for reference in own_sets(name, self.parameters(name))]
        return user_files(*algorithms, *sets, self.model, self.loss, self.score or "", *(self.metrics or ()))

    def about(self, algorithm: Algorithm, clients: int) -> AboutRun:
        """Return the description of the run for its files."""
        plain = {name: value for name, value in self.to_plain().items() if name not in NAMED_SEPARATELY}
        return AboutRun(
            self.algorithm,
            parameters_of(algorithm, clients),
            self.dataset,
            {**plain, **self.partition_parameters(defaults=True)},
            self.user_files(self.algorithm),
        )

    def for_algorithm(self, algorithm: str, seed: int) -> Config:
        """Return the same configuration with another algorithm and seed."""
        return self.model_copy(update={"algorithm": algorithm, "seed": seed})


STUDY_TABLES = GRID, LIST = "grid", "list"
"""The tables of a study, see :mod:`drfl.experiments.sweep.study`."""

NAMED_SEPARATELY = ("algorithm", "algorithms", "files", *COMMON)
"""Keys that other fields of :class:`AboutRun` hold, so they are not among its settings."""


def user_files(*names: str) -> dict[str, str]:
    """Return the SHA-256 of each Python file behind those names that are references to the user's code, by path."""
    digests: dict[str, str] = {}
    for name in filter(user_code.is_reference, names):
        digests |= user_code.digests(name)
    return digests


def load_config(path: Path | None, overrides: Mapping[str, object], *, trust: bool = False) -> Config:
    """Read a configuration from a TOML file, if there is one, and apply the options that override it.

    Args:
        path: The file; None = options only.
        overrides: Options by name. Tables under "algorithms" are merged; other values replace those of the file. A
            common option also overrides the parameter of that name in the file's tables.
        trust: Load code that the file names although the file lies in a folder of results.

    Raises:
        InputError: If the file is missing or not TOML, a key is unknown, or a value is impossible.
    """
    return config_of(read_file(path, code_references(overrides), trust=trust), overrides)


def code_references(values: Mapping[str, object]) -> dict[str, str]:
    """Return the references to code in a configuration, each with the key that holds it. Nothing is imported."""
    named = [(key, values.get(key)) for key in ("algorithm", "model", "loss", "score")]
    metrics, tables = values.get("metrics"), values.get("algorithms")
    named += [("metrics", name) for name in (metrics if isinstance(metrics, list | tuple) else [metrics])]
    named += [("algorithms", name) for name in (tables if isinstance(tables, dict) else ())]
    references = {name: key for key, name in named if isinstance(name, str) and user_code.is_reference(name)}
    # Parameters of algorithms are in tables. The study of a sweep has them as "ambiguity" or "DRFA.ambiguity".
    parameters = [(key, value) for key, value in values.items() if key not in Config.model_fields]
    owners = ((key.rpartition(".")[0], key) for key, _ in parameters)
    references |= {owner: key for owner, key in owners if user_code.is_reference(owner)}
    for name, table in tables.items() if isinstance(tables, dict) else ():
        parameters += [(f"{name}.{key}", value) for key, value in table.items()] if isinstance(table, dict) else []
    # Any of them may be an ambiguity set, because the classes that declare it are not loaded yet.
    sets = ((reference_in(value), key) for key, value in parameters)
    return references | {reference: key for reference, key in sets if reference is not None}


def config_of(file: Mapping[str, object], overrides: Mapping[str, object], algorithms: Collection[str] = ()) -> Config:
    """Return the configuration of a TOML file's content and the options that override it; see :func:`load_config`.

    The algorithms in ``algorithms`` run, too. Their tables may name a user's class without its file.
    """
    values = dict(file)
    tables = values.get("algorithms")
    named = [values.get("algorithm"), overrides.get("algorithm"), *algorithms]
    own = [name for name in named if isinstance(name, str)]
    own += [name for name in (tables if isinstance(tables, dict) else ()) if user_code.is_reference(name)]
    beaten = {parameter for option, parameter in COMMON.items() if option in overrides}
    merged: dict[str, object] = {}
    for name, table in by_algorithm(tables if isinstance(tables, dict) else {}, own).items():
        # An option for all algorithms overrides the file's tables.
        if isinstance(table, dict):
            table = {key: value for key, value in table.items() if key not in beaten}
        merged[name] = table
    changes = overrides.get("algorithms")
    for name, table in (changes if isinstance(changes, dict) else {}).items():
        before = merged.get(full := algorithm_name(name, own))
        merged[full] = {**(before if isinstance(before, dict) else {}), **table}
    if merged:
        values["algorithms"] = merged
    pinned = values.get("dataset")
    values.update({name: value for name, value in overrides.items() if name != "algorithms"})
    if is_hub(pinned) and values["dataset"] == hub_name(str(pinned)).label:  # keep the revision that the file pins
        values["dataset"] = pinned
    for name in values:
        if name in STUDY_TABLES:
            raise InputError(
                f"`{name}` is a table of a study, not an option: pass this file to 'drfl sweep'",
                code="unsupported-file",
                field=name,
            )
        if name not in Config.model_fields:
            # There are too many to list.
            hint = " ".join(filter(None, [suggestion(name, [*Config.model_fields]), "See 'drfl run --help-all'"]))
            raise InputError(f"unknown option '{name}'. {hint}", code="unknown-name", field="option")
    return Config.checked(values)


TABLES = (".csv", ".npz", ".parquet")
"""Suffixes of table files, which the shell passes as arguments if --data is followed by a pattern with a star."""


def read_file(
    path: Path | None, given: Collection[str] = (), *, trust: bool = False, resuming: bool = False
) -> dict[str, object]:
    """Return the content of a TOML file; empty if there is no file.

    A file in a folder of results may come from another person. Code that it names is loaded later only if it passes
    :func:`drfl.core.user_code.check_received` here. A file elsewhere is the user's own, and drfl trusts the code that
    it names.

    Args:
        path: The file.
        given: References that the user has named again.
        trust: Trust all code that the file names.
        resuming: Whether the file is that of a run or comparison to resume, which needs unchanged code.
    """
    if path is None:
        return {}
    if path.suffix.lower() in TABLES:
        raise InputError(
            f"{path} is a table, not a configuration file: give each table its own `data`, or pass their folder",
            code="unsupported-file",
            field=str(path),
        )
    if path.is_dir():
        raise InputError(
            f"{path} is a folder, not a configuration file: pass a folder of tables with `data`",
            code="not-a-file",
            field=str(path),
        )
    values = read_toml(path)
    folder = results_folder(path)
    if folder is not None and not trust:
        user_code.block_folder(folder)
        again = "another `out`" if resuming else None
        user_code.check_received(code_references(values), values.get("files"), folder, given, resuming=again)
    return values


def results_folder(path: Path) -> Path | None:
    """Return the outermost folder of results that contains a file, such as its comparison's; None if there is none."""
    place = path.resolve().parent
    above = place if _is_results(place) else place.parent  # for checkpoint/config.toml
    outermost = None
    while _is_results(above) and above != outermost:
        outermost, above = above, above.parent
    return outermost


def _is_results(folder: Path) -> bool:
    """Return whether a folder has a manifest of drfl; other programs use files of that name, too."""
    try:
        content = read_json(folder / MANIFEST, follow=False) if is_file(folder / MANIFEST) else None
    except InputError:
        return True
    return isinstance(content, dict) and {"kind", "drfl"} <= content.keys()
