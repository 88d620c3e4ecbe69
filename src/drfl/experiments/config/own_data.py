"""The user's own data in a configuration: which options go with them, and what they make the default of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.data import DATASETS
from drfl.data.dataset import TaskName
from drfl.data.partition.natural import WITHOUT_CLASSES, by_class
from drfl.data.tables.columns import check_roles
from drfl.data.tables.hugging_face import PREFIX, check_installed, folder_name, hub_name, is_saved, pinned
from drfl.data.tables.table_files import files_of, label_of_files
from drfl.data.tables.targets import check_count
from drfl.task.metrics import METRICS, OF_CLASSES, Metric

CLASSIFICATION: TaskName = "classification"
"""The task where none is named."""

LOSSES_OF: Mapping[TaskName, tuple[str, ...]] = {
    "classification": ("cross-entropy", "squared"),
    "regression": ("mse", "mae", "huber"),
    "multi-label": ("binary-cross-entropy",),
}
"""Task → the losses by name that suit it, the default first."""

OF_NUMBERS = frozenset(METRICS[name].function for name in ("mae", "rmse", "r2"))
"""The metrics that compare numbers with numbers."""

OWN_DATA = ("target", "group", "drop", "task")
"""Settings of the user's own data alone, but for the group of a data set whose rows can be grouped in several ways."""


def with_data_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """The settings with what follows from the data that they name: data that name their own clients are divided so.

    Raises:
        InputError: An option is missing, or one has no effect.
    """
    found, dataset = dict(values), values.get("dataset")
    folder = folder_name(str(dataset)) if is_hub(dataset) else None
    if folder is not None:  # dataset = "hf:FOLDER" names local data
        if found.get("data") is not None:
            raise InputError(
                f"give either data or dataset '{dataset}', a folder: leave one out",
                code="conflicting-options",
                field="data",
            )
        del found["dataset"]
        found["data"] = [str(folder)]
    task = found.get("task") or CLASSIFICATION
    free = "zipf-dirichlet" if task == CLASSIFICATION else "iid"
    if found.get("data") is not None:
        paths = paths_of(found["data"])
        found["dataset"] = _label(found, paths)
        # If there are several files, each one is a client.
        groups = found.get("group") is not None or (saved_folder(paths) is None and len(files_of(paths)) > 1)
        _default(found, "partition", "natural" if groups else free)
    elif is_hub(found.get("dataset")):
        _check_hub(found)
        found["dataset"] = pinned(str(found["dataset"]))  # so that a rerun or resume reads the same data
        _default(found, "partition", "natural" if found.get("group") is not None else free)
    else:
        spec = DATASETS.get(str(found.get("dataset")).lower().replace("_", "-"))
        groups = spec is not None and bool(spec.groupings)
        for name in OWN_DATA:
            if found.get(name) is not None and not (groups and name == "group"):
                raise InputError(
                    f"{name} requires data: remove it, or give data, the files",
                    code="unused-option",
                    field=name,
                )
        if spec is not None:
            spec.grouped(None if found.get("group") is None else str(found["group"]))
            _default(found, "partition", spec.info.partition)
    return found


def with_loss(values: Mapping[str, object]) -> dict[str, object]:
    """The settings with the loss and the score of their task, unless others are asked for."""
    found, task = dict(values), values.get("task") or CLASSIFICATION
    losses = next((losses for known, losses in LOSSES_OF.items() if known == task), ())
    if losses:  # an unknown task is refused later
        _default(found, "loss", losses[0])
        # What a loss of the user's own measures is not known.
        if task == "regression" and user_code.is_reference(str(found["loss"])):
            _default(found, "score", "rmse")
    return found


def _default(values: dict[str, object], name: str, value: object) -> None:
    if values.get(name) is None:
        values[name] = value


def paths_of(value: object) -> list[Path]:
    """The paths of the setting ``data``, one or several."""
    return [Path(str(path)) for path in (value if isinstance(value, list | tuple) else [value])]


def names_of(value: object) -> tuple[str, ...]:
    """The names of a setting that takes one or several."""
    return tuple(map(str, value)) if isinstance(value, list | tuple) else (str(value),)


def is_hub(dataset: object) -> bool:
    """Whether the name of a data set is one of Hugging Face's hub."""
    return isinstance(dataset, str) and dataset.startswith(PREFIX)


def saved_folder(paths: Sequence[Path]) -> Path | None:
    """The folder that ``save_to_disk`` of Hugging Face wrote, where the user's data are one.

    Raises:
        InputError: there are others beside it.
    """
    saved = next((path for path in paths if is_saved(path)), None)
    if saved is not None and len(paths) > 1:
        raise InputError(
            f"the folder {saved} is a saved data set, which stands alone: leave the others out of data",
            code="conflicting-options",
            field="data",
        )
    return saved


def _check_hub(values: Mapping[str, object]) -> None:
    name = str(values["dataset"])
    hub_name(name)
    check_installed(f"dataset '{name}'")
    if not values.get("target"):
        raise InputError(
            f"dataset '{name}' needs target, the column of the classes", code="missing-option", field="target"
        )
    if values.get("data_dir") is not None:
        raise InputError(
            f"data_dir has no effect on dataset '{name}': remove it", code="unused-option", field="data_dir"
        )
    _check_roles(values, may_have_columns=True)


def _label(values: Mapping[str, object], paths: Sequence[Path]) -> str:
    """What the user's own data are called, in place of a data set's name.

    Raises:
        InputError: they are not there, an option is missing, or one means nothing.
    """
    if not paths:
        raise InputError("data names no file: give at least one", code="empty", field="data")
    saved, label = saved_folder(paths), values.get("dataset")
    # In a saved folder or in arrays, one column may hold several targets per row.
    if saved is None:
        arrays = any(path.suffix.lower() == ".npz" for path in files_of(paths))
    else:
        check_installed(f"the folder {saved}")
        arrays = True
    if not values.get("target"):
        raise InputError("data needs target, the column of the classes", code="missing-option", field="target")
    # a finished run's file has both
    if label is not None and label != label_of_files(paths):
        raise InputError(
            "give either data, your own files, or dataset, one that drfl knows: leave one out",
            code="conflicting-options",
            field="data",
        )
    if values.get("data_dir") is not None:
        raise InputError(
            "data_dir has no effect on data, which names the files: remove it",
            code="unused-option",
            field="data_dir",
        )
    _check_roles(values, may_have_columns=arrays)
    return label_of_files(paths)


def _check_roles(values: Mapping[str, object], may_have_columns: bool) -> None:
    """What can be said of the columns before they are read; ``may_have_columns``: one target may be several columns."""
    targets, group, task = names_of(values["target"]), values.get("group"), values.get("task") or CLASSIFICATION
    check_roles(targets, None if group is None else str(group), names_of(values.get("drop") or ()))
    for known in LOSSES_OF:
        if known == task and not (may_have_columns and task == "multi-label"):
            check_count(known, len(targets))


def check_task(task: TaskName, partition: str, loss: str, measures: Sequence[Metric]) -> None:
    """Make sure that partition, loss and metrics suit what the targets are.

    Raises:
        InputError: names the one that does not.
    """
    if task != CLASSIFICATION and partition not in WITHOUT_CLASSES:
        raise InputError(by_class(partition, task), code="wrong-task", field="partition")
    # The task that a user's loss is for is unknown.
    if not user_code.is_reference(loss) and loss not in LOSSES_OF[task]:
        home = next(known for known, losses in LOSSES_OF.items() if loss in losses)
        raise InputError(
            f"loss '{loss}' is for {home}, and task is '{task}': take {' or '.join(LOSSES_OF[task])}, or give task = "
            f"'{home}' with data of your own",
            code="wrong-task",
            field="loss",
        )
    wrong, home = (OF_CLASSES, "classes") if task == "regression" else (OF_NUMBERS, "numbers")
    for metric in measures:
        if metric.function in wrong:
            raise InputError(
                f"metric '{metric.name}' is of {home}, and task is '{task}': take another as score",
                code="wrong-task",
                field="score",
            )
