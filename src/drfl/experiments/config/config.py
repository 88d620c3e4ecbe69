"""What a run is: one model that validates the command's options and the TOML file alike."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from drfl.algorithms import EVERYBODY
from drfl.core import user_code
from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError, unknown
from drfl.core.files import read_json, read_toml
from drfl.data import DATASETS, PARTITIONS
from drfl.data.features.recipe import COUNT, IMAGENET, Recipe
from drfl.data.tables.hugging_face import hub_name
from drfl.engine import ENGINES
from drfl.experiments.config.guards_and_failures import aggregator_of, failures_of, guards_of, step_bound_of
from drfl.experiments.config.hyperparameters import Value, algorithm_name, canonical, make, over_defaults, takes
from drfl.experiments.config.learned import make_measures, metric_name
from drfl.experiments.config.own_data import CLASSIFICATION, check_task, completed, is_hub
from drfl.experiments.config.settings import Settings
from drfl.federation.sampling import size
from drfl.task.measure import Rows
from drfl.task.metrics import Metric
from drfl.task.models import LOSSES, MODELS
from drfl.training.model_selection import Best, ModelSelection, Patience, Target

REGISTRIES: dict[str, Mapping[str, object]] = {
    "dataset": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "loss": LOSSES,
    "engine": ENGINES,
}

OWN = ("model", "loss")
"""Of these also what the user has, as ``FILE.py:NAME``."""


MANIFEST = "manifest.json"
"""The file by which a folder of results is known, see :mod:`drfl.experiments.run.manifest`."""

COMMON = {"steps": "steps", "batch": "batch", "lr": "lr", "cohort": "m"}
"""Options that stand for a parameter of every algorithm, and its name there."""


class Config(BaseModel, Settings):
    """A run, except for its seed's effects: equal configurations give equal results on one machine.

    Its settings, with their bounds and defaults, are those of :class:`drfl.experiments.config.settings.Settings`.

    Args:
        algorithms: parameters by algorithm; they override ``cohort``, ``steps``, ``batch`` and ``lr``.
        files: what a finished run's file says of the user's Python files; has no effect, see :meth:`user_files`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    algorithms: dict[str, dict[str, bool | int | float | str]] = Field(default_factory=dict)
    files: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _own_data(cls, values: object) -> object:
        """What follows from the data that are named."""
        return completed(values) if isinstance(values, dict) else values

    @field_validator("algorithm")
    @classmethod
    def _algorithm(cls, value: str) -> str:
        return algorithm_name(value)

    @field_validator(*REGISTRIES)
    @classmethod
    def _known(cls, value: str, info) -> str:  # noqa: ANN001 - pydantic's ValidationInfo
        if info.field_name == "dataset" and (info.data.get("data") is not None or is_hub(value)):
            return value
        if info.field_name in OWN and user_code.is_reference(value):
            user_code.load(info.field_name, value)
            return value.strip()
        return canonical(info.field_name, value, REGISTRIES[info.field_name])

    @field_validator("certificate", mode="before")
    @classmethod
    def _yes_or_no(cls, value: object) -> object:
        return {True: "pooled", False: None}[value] if isinstance(value, bool) else value

    @field_validator("score")
    @classmethod
    def _known_score(cls, value: str | None) -> str | None:
        return None if value is None else metric_name(value)

    @field_validator("metrics")
    @classmethod
    def _known_metrics(cls, values: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if values is None else tuple(metric_name(value) for value in values)

    @field_validator("guards", "drop", "data", "target", "metrics", mode="before")
    @classmethod
    def _one_or_more(cls, value: object) -> object:
        return [value] if isinstance(value, str | Path) else value

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, tables: dict[str, dict[str, Value]]) -> dict[str, dict[str, Value]]:
        names = [algorithm_name(name) for name in tables]
        for name in names:
            if names.count(name) > 1:
                raise InputError(
                    f"the table algorithms.{name} is given twice: keep one",
                    code="given-twice",
                    field=f"algorithms.{name}",
                )
        return dict(zip(names, tables.values(), strict=True))

    @model_validator(mode="after")
    def _parameters_fit(self) -> Config:
        self.partition_parameters()
        self.recipe()
        measures = self.measures()
        check_task(self.task or CLASSIFICATION, self.partition, self.loss, measures)
        self.selection().check()
        guards_of(self.guards)
        aggregator_of(self.aggregator)
        step_bound_of(self.step_bound)
        failures_of(self.faults or {})
        if self.repeats is not None and self.min_replies is None:
            raise InputError(
                "repeats requires min_replies: remove it, or give both",
                code="unused-option",
                field="repeats",
            )
        for name in {self.algorithm, *self.algorithms}:
            make(name, {**self.parameters(name), **({"m": 1} if takes(name, "m") else {})})
        return self

    def recipe(self) -> Recipe | None:
        """The features that the models learn from; None for the data themselves.

        Raises:
            InputError: the backbone is unknown or missing, or an option means nothing without another.
        """
        if self.features is None:
            for name in ("backbone", "feature_count", "resize"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"{name} requires features: remove it, or give features = 'entk'",
                        code="unused-option",
                        field=name,
                    )
            return None
        if self.backbone is None:
            raise InputError(
                f"features = '{self.features}' needs a backbone, for example '{IMAGENET}'",
                code="needs-option",
                field="features",
            )
        if self.data is not None or is_hub(self.dataset):
            raise InputError(
                "features are made of data sets that drfl knows, not of your own: leave them out",
                code="unsupported-combination",
                field="features",
            )
        if len(DATASETS[self.dataset].info.shape) != 3:
            raise InputError(
                f"features are made of images, and dataset '{self.dataset}' is a table: leave them out",
                code="unsupported-data",
                field="features",
            )
        if self.features != "entk" and self.feature_count is not None:
            raise InputError(
                f"feature_count has no effect on features = '{self.features}': remove it",
                code="unused-option",
                field="feature_count",
            )
        return Recipe(self.features, self.backbone, self.feature_count or COUNT, self.resize)

    def partition_parameters(self, defaults: bool = False) -> dict[str, int | float]:
        """Those of clients, alpha and zipf that were given; with ``defaults`` all that the partition has.

        Raises:
            InputError: one of them means nothing to the partition.
        """
        given = {"clients": self.clients, "alpha": self.alpha, "zipf": self.zipf}
        values = {name: value for name, value in given.items() if value is not None}
        fields = inspect.signature(PARTITIONS[self.partition]).parameters
        if defaults:
            known = {name: fields[name].default for name in given if name in fields}
            values = {name: value for name, value in known.items() if value is not None} | values
        for name in values:
            if name not in fields:
                raise InputError(
                    f"{name} has no effect on partition '{self.partition}': remove it",
                    code="unused-option",
                    field=name,
                )
        return values

    def parameters(self, algorithm: str, clients: int | None = None) -> dict[str, Value]:
        """The parameters of an algorithm: its own table over the common ones over its defaults.

        Args:
            algorithm: its name.
            clients: N, where the default cohort is wanted too.
        """
        common = {parameter: getattr(self, option) for option, parameter in COMMON.items()}
        if clients is not None and self.cohort is None:
            common["m"] = clients if algorithm in EVERYBODY else size(None, clients)
        given = {name: value for name, value in common.items() if value is not None and takes(algorithm, name)}
        return over_defaults(algorithm, {**given, **self.algorithms.get(algorithm, {})})

    def user_files(self, algorithms: Sequence[str]) -> dict[str, str]:
        """SHA-256 of every Python file of the user's behind model, loss, metrics and these algorithms, by path."""
        found: dict[str, str] = {}
        for name in (*algorithms, self.model, self.loss, self.score or "", *(self.metrics or ())):
            if user_code.is_reference(name):
                found |= user_code.digests(name)
        return found

    def measures(self) -> tuple[Metric, ...]:
        """What is measured on every client's test rows, the score first.

        Raises:
            InputError: there is no such metric, or two have one name.
        """
        return make_measures(self.score, self.metrics or (), self.loss)

    @property
    def data_label(self) -> str:
        """What folders call the data: the data set's name without what no folder's name should have."""
        name = hub_name(self.dataset).label if is_hub(self.dataset) else self.dataset
        return name.replace(":", "-").replace("/", "-")

    def selection(self) -> ModelSelection:
        """How runs select a model and when they stop.

        Raises:
            InputError: ``until`` is no target, or validation rows are given that nothing goes by.
        """
        score = self.measures()[0]
        best = None if self.select is None else Best(self.select)
        patience = None if self.patience is None else Patience(self.patience, self.select or "worst")
        found = ModelSelection(best, patience, score, Target.parse(self.until, score))
        if self.judged_on == "validation" and found.validates:
            raise InputError(
                "judged_on = 'validation' leaves no rows to select or stop by: remove select, patience and until",
                code="conflicting-options",
                field="judged_on",
            )
        rates = any(measure.rows is Rows.RATE for measure in self.measures())  # whose threshold such rows choose
        if self.validation is not None and self.judged_on != "validation" and not (found.validates or rates):
            raise InputError(
                "validation requires select, patience, an until on validation rows, or a rate such as sensitivity: "
                "remove it, or give one of them",
                code="unused-option",
                field="validation",
            )
        return found

    def for_algorithm(self, algorithm: str, seed: int) -> Config:
        """The same job with another algorithm and seed."""
        return self.model_copy(update={"algorithm": algorithm, "seed": seed})


def table_dir(config: Config) -> str | None:
    """The folder for the server's tables, as :func:`drfl.training.loop.run` takes it."""
    return None if config.table_dir is None else str(config.table_dir)


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


def input_error(error: ValidationError) -> InputError:
    """The first fault that pydantic found, as an error of drfl."""
    first = error.errors()[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return cause
    table, *own = first["loc"][:3]
    if table == "algorithms" and len(own) == 2:
        what = f"{own[0]}.{own[1]} = {first['input']!r}"
        return InputError(
            f"{what} is no single value: give a number, true, false or a text such as 'cvar:alpha=0.2'",
            code="wrong-type",
            field=f"{own[0]}.{own[1]}",
        )
    where = ".".join(str(part) for part in first["loc"][:1])
    reason = first["msg"]
    return InputError(
        f"{where} = {first['input']!r}: {reason[0].lower()}{reason[1:]}", code="invalid-value", field=where
    )
