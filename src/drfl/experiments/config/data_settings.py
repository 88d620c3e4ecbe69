"""The data of a configuration, and how they are divided among clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Self

from pydantic import ValidationInfo, field_validator, model_validator

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import DATASETS, PARTITIONS, ClientData, Dataset, Partition, load, make_partition
from drfl.data.datasets.leaf import read_leaf
from drfl.data.features import featurise
from drfl.data.features.images import folder as feature_cache
from drfl.data.features.images import load_images
from drfl.data.features.recipe import COUNT, IMAGENET, Recipe
from drfl.data.partition.natural import Natural, without_small_groups
from drfl.data.tables.columns import Columns
from drfl.data.tables.hugging_face import read_hub, read_saved
from drfl.data.tables.hugging_face_names import hub_name
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table_files import read_tables
from drfl.data.tables.table_paths import changed
from drfl.data.tables.text_form import ReadOptions
from drfl.experiments.config.hyperparameters import canonical
from drfl.experiments.config.latest import Latest
from drfl.experiments.config.own_data import CLASSIFICATION, is_hub, leaf_data, saved_folder, with_data_defaults
from drfl.experiments.config.settings import DataFields
from drfl.experiments.config.strict import StrictSettings, one_or_more


class DataSettings(StrictSettings, DataFields):
    """The clients' data."""

    @model_validator(mode="before")
    @classmethod
    def _data_defaults(cls, values: object) -> object:
        return with_data_defaults(values) if isinstance(values, dict) else values

    @field_validator("dataset")
    @classmethod
    def _known_dataset(cls, value: str, info: ValidationInfo) -> str:
        is_own_data = info.data.get("data") is not None or is_hub(value)
        return value if is_own_data else canonical("dataset", value, DATASETS)

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, value: str) -> str:
        return canonical("partition", value, PARTITIONS)

    _one_or_more = field_validator("drop", "data", "target", "missing", mode="before")(one_or_more)

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        # Called for their errors, so that invalid settings are rejected before any data are loaded.
        self.partition_parameters()
        self.recipe()
        self.reading()
        for name in ("min_rows", "patient"):
            if getattr(self, name) is not None and self.partition != Natural.name:
                raise InputError(
                    f"`{name}` needs clients that the data define (partition 'natural'), not those of "
                    f"partition '{self.partition}': name them with `group`, or remove `{name}`",
                    code="unused-option",
                    field=name,
                )
        return self

    def reading(self) -> ReadOptions:
        """Return how to read the user's files."""
        return ReadOptions(self.delimiter, self.decimal, self.thousands, self.encoding, self.missing or ())

    def recipe(self) -> Recipe | None:
        """Return the features to train on; None for the data themselves."""
        if self.features is None:
            for name in ("backbone", "feature_count", "resize"):
                if getattr(self, name) is not None:
                    raise InputError(
                        f"`{name}` requires `features`: remove it, or add `features = 'entk'`",
                        code="unused-option",
                        field=name,
                    )
            return None
        if self.backbone is None:
            raise InputError(
                f"`features = '{self.features}'` needs `backbone`, such as '{IMAGENET}'",
                code="needs-option",
                field="features",
            )
        if self.data is not None or is_hub(self.dataset):
            raise InputError(
                "features are available for drfl's own data sets only, not for your data: remove `features`",
                code="unsupported-combination",
                field="features",
            )
        if len(DATASETS[self.dataset].info.shape) != 3:
            raise InputError(
                f"features need images, but dataset '{self.dataset}' is a table: remove `features`",
                code="unsupported-data",
                field="features",
            )
        if self.features != "entk" and self.feature_count is not None:
            raise InputError(
                f"`feature_count` has no effect on `features = '{self.features}'`: remove it",
                code="unused-option",
                field="feature_count",
            )
        return Recipe(self.features, self.backbone, self.feature_count or COUNT, self.resize)

    def partition_parameters(self, defaults: bool = False) -> dict[str, int | float]:
        """Return the values of clients, alpha and zipf that are set; with ``defaults`` all that the partition has."""
        options = {"clients": self.clients, "alpha": self.alpha, "zipf": self.zipf}
        values = {name: value for name, value in options.items() if value is not None}
        fields = inspect.signature(PARTITIONS[self.partition]).parameters
        if defaults:
            known = {name: fields[name].default for name in options if name in fields}
            values = {name: value for name, value in known.items() if value is not None} | values
        for name in values:
            if name not in fields:
                raise InputError(
                    f"`{name}` has no effect on partition '{self.partition}': remove it",
                    code="unused-option",
                    field=name,
                )
        return values

    @property
    def description(self) -> dict[str, object]:
        """The settings as files hold them, including the defaults of the partition."""
        return {**self.to_plain(), **self.partition_parameters(defaults=True)}

    @property
    def data_label(self) -> str:
        """The data set's name in folder names, without characters that folder names should not have."""
        name = hub_name(self.dataset).label if is_hub(self.dataset) else self.dataset
        return name.replace(":", "-").replace("/", "-")

    @property
    def key(self) -> DataKey:
        """The key of the loaded data: the settings without the partition, and when their files changed."""
        schema = [] if self.data_schema is None else [Path(self.data_schema)]
        changes = tuple(changed(Path(path)) for path in (*(self.data or ()), *schema))
        return *(getattr(self, name) for name in LOADING_SETTINGS), changes

    def for_seed(self, seed: int) -> ClientData:
        """Return the clients' samples at a seed."""
        dataset = load_latest(self)
        return ClientData.from_dataset(dataset, divide(self, dataset, seed))


PARTITION_SETTINGS = ("partition", "clients", "alpha", "zipf")
"""The settings that define the partition."""

LOADING_SETTINGS = tuple(
    field.name for field in fields(DataFields) if field.name not in (*PARTITION_SETTINGS, "strict")
)
"""The settings that the loaded data depend on."""

DataKey = tuple[object, ...]
"""Their values, and the files' times of change."""


LATEST = Latest[Dataset]()
"""The data that this process loaded last, because consecutive runs mostly share them."""


def load_latest(data: DataSettings) -> Dataset:
    """Return the data, and load them unless they are the ones loaded last."""
    return LATEST.get(data.key, lambda: load_data(data))


def load_data(data: DataSettings, log: Callable[[str], None] | None = None, device: str = "cpu") -> Dataset:
    """Load the data that a run divides among its clients: a data set, or the features that a backbone computes from it.

    Features that were computed before come from drfl's cache.

    ``log`` is called with lines while features are computed on ``device``.
    """
    recipe = data.recipe()
    if data.data is not None or is_hub(data.dataset):
        task = data.task or CLASSIFICATION
        schema = None if data.data_schema is None else TableSchema.read(data.data_schema)
        reading = data.reading()
        columns = Columns(data.target or (), data.group, data.drop or (), task, schema, data.patient, reading)
        saved, leaf = (None, None) if data.data is None else (saved_folder(data.data), leaf_data(data.data))
        if data.data is None:
            dataset = read_hub(data.dataset, columns)
        elif saved is not None:
            dataset = read_saved(saved, columns)
        elif leaf is not None:
            dataset = read_leaf(leaf, task)
        else:
            # A schema's client column may be absent from files that are one client each.
            group = columns.group if schema is None else None
            dataset = read_tables(data.data, columns.targets, group, columns.drop, task, schema, data.patient, reading)
    elif recipe is None:
        dataset = load(data.dataset, data_dir=data.data_dir, group=data.group)
    else:
        images = load_images(data.dataset, data.data_dir)
        dataset = featurise(images, recipe, cache=feature_cache(), log=log, device=device)
    if data.min_rows is not None:
        dataset = without_small_groups(dataset, data.min_rows)
    # New test rows are drawn from all rows, so the test part of the data set joins the others.
    return dataset if data.test_fraction is None else dataset.pooled()


def divide(data: DataSettings, dataset: Dataset, seed: int) -> Partition:
    """Divide data among clients. The result does not depend on features, model or algorithm.

    Only the labels and groups of the data matter.
    """
    method = PARTITIONS[data.partition](**data.partition_parameters())
    return make_partition(dataset, method, Key(seed).fold("partition"), data.test_fraction)
