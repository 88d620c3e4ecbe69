"""The user's own data in a configuration: which options they need, and which defaults follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.data import DATASETS
from drfl.data.dataset import TaskName
from drfl.data.datasets.leaf import leaf_files
from drfl.data.partition.natural import WITHOUT_CLASSES, needs_classes_message
from drfl.data.tables.columns import Columns
from drfl.data.tables.hugging_face import check_installed
from drfl.data.tables.hugging_face_names import PREFIX, folder_name, hub_name, is_saved, pin_revision
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table_paths import files_of, is_arrays, label_of_files
from drfl.data.tables.targets import check_count
from drfl.task.metrics import METRICS, Metric, is_of_classes

CLASSIFICATION: TaskName = "classification"
"""The default task."""

LOSSES_OF: Mapping[TaskName, tuple[str, ...]] = {
    "classification": ("cross-entropy", "squared"),
    "regression": ("mse", "mae", "huber"),
    "multi-label": ("binary-cross-entropy",),
}
"""The losses that suit each task, by name, the default first."""

OF_NUMBERS = frozenset(METRICS[name].function for name in ("mae", "rmse", "r2"))
"""Metrics that compare numbers with numbers."""

OWN_DATA = (
    "target", "group", "drop", "task", "patient", "data_schema",
    "delimiter", "decimal", "thousands", "encoding", "missing",
)  # fmt: skip
"""Settings for the user's own data only. Exception: group, for a data set whose rows can be grouped in several ways."""


def with_data_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Add defaults that follow from the data, such as the natural partition for data that name their clients."""
    settings, dataset = dict(values), values.get("dataset")
    folder = folder_name(str(dataset)) if is_hub(dataset) else None
    if folder is not None:  # dataset = "hf:FOLDER" names local data
        if settings.get("data") is not None:
            raise InputError(
                f"dataset '{dataset}' is a folder, but `data` is set too: remove one of them",
                code="conflicting-options",
                field="data",
            )
        del settings["dataset"]
        settings["data"] = [str(folder)]
    if settings.get("data_schema") is not None and (
        settings.get("data") is not None or is_hub(settings.get("dataset"))
    ):
        schema = TableSchema.read(str(settings["data_schema"]))
        target, group, task, patient = (settings.get(name) for name in ("target", "group", "task", "patient"))
        schema.check_options(
            None if target is None else names_of(target),
            None if group is None else str(group),
            names_of(settings.get("drop") or ()),
            None if task is None else str(task),
            None if patient is None else str(patient),
        )
        settings |= {"target": [column.name for column in schema.targets], "task": schema.task}
        settings |= {} if schema.client is None else {"group": schema.client}
    task = settings.get("task") or CLASSIFICATION
    free = "zipf-dirichlet" if task == CLASSIFICATION else "iid"
    if settings.get("data") is not None:
        given = settings["data"]
        paths = [Path(str(path)) for path in (given if isinstance(given, list | tuple) else [given])]
        settings["dataset"] = _label(settings, paths)
        # If there are several files, each one is a client.
        groups = (
            settings.get("group") is not None
            or leaf_data(paths) is not None
            or (saved_folder(paths) is None and len(files_of(paths)) > 1)
        )
        _default(settings, "partition", "natural" if groups else free)
    elif is_hub(settings.get("dataset")):
        name = str(settings["dataset"])
        hub_name(name)  # raises an error if the name is not valid
        check_installed(f"dataset '{name}'")
        if not settings.get("target"):
            raise InputError(
                f"dataset '{name}' needs `target`, the column with the classes", code="missing-option", field="target"
            )
        if settings.get("data_dir") is not None:
            raise InputError(
                f"`data_dir` has no effect on dataset '{name}': remove it", code="unused-option", field="data_dir"
            )
        _check_roles(settings, may_have_columns=True)
        settings["dataset"] = pin_revision(name)  # so that reruns and resumed runs read the same data
        _default(settings, "partition", "natural" if settings.get("group") is not None else free)
    else:
        spec = DATASETS.get(str(settings.get("dataset")).lower().replace("_", "-"))
        groups = spec is not None and bool(spec.groupings)
        for name in OWN_DATA:
            if settings.get(name) is not None and not (groups and name == "group"):
                raise InputError(
                    f"`{name}` requires your own data: remove it, or pass the files with `data`",
                    code="unused-option",
                    field=name,
                )
        if spec is not None:
            spec.reader(None if settings.get("group") is None else str(settings["group"]))
            _default(settings, "partition", spec.info.partition)
    return settings


def with_loss(values: Mapping[str, object]) -> dict[str, object]:
    """Add the default loss and score of the task."""
    settings, task = dict(values), values.get("task") or CLASSIFICATION
    losses = next((losses for known, losses in LOSSES_OF.items() if known == task), ())
    if losses:  # an unknown task raises an error later
        _default(settings, "loss", losses[0])
        # It is not known what a user's loss measures.
        if task == "regression" and user_code.is_reference(str(settings["loss"])):
            _default(settings, "score", "rmse")
    return settings


def _default(values: dict[str, object], name: str, value: object) -> None:
    if values.get(name) is None:
        values[name] = value


def names_of(value: object) -> tuple[str, ...]:
    """Return the names of a setting that takes one or several."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def is_hub(dataset: object) -> bool:
    """Return whether a data set's name refers to Hugging Face's hub."""
    return isinstance(dataset, str) and dataset.startswith(PREFIX)


def data_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that hold the user's data."""
    saved, leaf = saved_folder(paths), leaf_data(paths)
    if saved is not None:
        return sorted(path for path in saved.rglob("*") if path.is_file())
    files = None if leaf is None else leaf_files(leaf)
    if files is not None:
        return [*files[0], *files[1]]
    return [file for path in files_of(paths) for file in (sorted(path.glob("*.npy")) if path.is_dir() else [path])]


def leaf_data(paths: Sequence[Path]) -> Path | None:
    """Return the file or folder in LEAF's format, if the user's data are one."""
    leaf = next((path for path in paths if leaf_files(path) is not None), None)
    if leaf is not None and len(paths) > 1:
        raise InputError(
            f"`data`: {leaf} in LEAF's format cannot be combined with other paths: put its files in one folder",
            code="conflicting-options",
            field="data",
        )
    return leaf


def saved_folder(paths: Sequence[Path]) -> Path | None:
    """Return the folder that ``save_to_disk`` of Hugging Face wrote, if the user's data are one."""
    saved = next((path for path in paths if is_saved(path)), None)
    if saved is not None and len(paths) > 1:
        raise InputError(
            f"`data`: the saved data set {saved} cannot be combined with other paths: remove them",
            code="conflicting-options",
            field="data",
        )
    return saved


def _label(values: Mapping[str, object], paths: Sequence[Path]) -> str:
    """Return the label of the user's own data, in place of a data set's name."""
    if not paths:
        raise InputError("`data` is empty: pass at least one file", code="empty", field="data")
    saved, leaf, label = saved_folder(paths), leaf_data(paths), values.get("dataset")
    # In a saved folder or in arrays, one column may hold several targets per row.
    if leaf is not None:
        for name in OWN_DATA:
            if values.get(name) is not None and name != "task":
                raise InputError(
                    f"`{name}` has no effect on data in LEAF's format, which name inputs, targets and users: remove it",
                    code="unused-option",
                    field=name,
                )
        arrays = True
    elif saved is None:
        arrays = any(map(is_arrays, files_of(paths)))
    else:
        check_installed(f"the folder {saved}")
        arrays = True
    if leaf is None and not values.get("target"):
        raise InputError("`data` needs `target`, the column with the classes", code="missing-option", field="target")
    # The file of a finished run has both.
    if label is not None and label != label_of_files(paths):
        raise InputError(
            "`data` (your files) and `dataset` (a data set of drfl) are both set: remove one of them",
            code="conflicting-options",
            field="data",
        )
    if values.get("data_dir") is not None:
        raise InputError(
            "`data_dir` has no effect on your own data: remove it",
            code="unused-option",
            field="data_dir",
        )
    if leaf is None:
        _check_roles(values, may_have_columns=arrays)
    return label_of_files(paths)


def _check_roles(values: Mapping[str, object], may_have_columns: bool) -> None:
    """Check column names before the data are read. With ``may_have_columns`` a target may have several columns."""
    targets, group, task = names_of(values["target"]), values.get("group"), values.get("task") or CLASSIFICATION
    patient = values.get("patient")
    Columns(
        tuple(targets),
        None if group is None else str(group),
        tuple(names_of(values.get("drop") or ())),
        patient=None if patient is None else str(patient),
    ).check_roles()
    for known in LOSSES_OF:
        if known == task and not (may_have_columns and task == "multi-label"):
            check_count(known, len(targets))


def check_task(task: TaskName, partition: str, loss: str, measures: Sequence[Metric]) -> None:
    """Check that partition, loss and metrics suit the task."""
    if task != CLASSIFICATION and partition not in WITHOUT_CLASSES:
        raise InputError(needs_classes_message(partition, task), code="wrong-task", field="partition")
    # It is not known which task a user's loss is for.
    if not user_code.is_reference(loss) and loss not in LOSSES_OF[task]:
        home = next(known for known, losses in LOSSES_OF.items() if loss in losses)
        raise InputError(
            f"loss '{loss}' is for {home}, but the task is '{task}': use {' or '.join(LOSSES_OF[task])}, "
            f"or `task = '{home}'` with your own data",
            code="wrong-task",
            field="loss",
        )
    home = "classes" if task == "regression" else "numbers"
    for metric in measures:
        if is_of_classes(metric.function) if task == "regression" else metric.function in OF_NUMBERS:
            raise InputError(
                f"metric '{metric.name}' is for {home}, but the task is '{task}': choose another `score`",
                code="wrong-task",
                field="score",
            )
