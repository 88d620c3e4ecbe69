"""Data sets of Hugging Face ``datasets``: from the hub by name, or from a folder that ``save_to_disk`` wrote.

The package is an optional dependency, ``drfl[hf]``, and is imported only when needed. No code of a data set is
executed: the package itself refuses loading scripts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch

from drfl.core.errors import InputError, Notice
from drfl.core.packages import require
from drfl.data.dataset import Dataset
from drfl.data.tables.columns import NAME_ROWS, Columns, check_alike, check_blanks, row_names_of, values_of
from drfl.data.tables.condition_columns import condition_notices
from drfl.data.tables.conditions import Condition, text_columns, used_columns
from drfl.data.tables.conform import level_text
from drfl.data.tables.hugging_face_names import hub_name
from drfl.data.tables.levels import label_notices
from drfl.data.tables.npz_arrays import TableRows
from drfl.data.tables.patients import check_spelling, names_in
from drfl.data.tables.propose import propose
from drfl.data.tables.table import Table
from drfl.data.tables.table_files import check_targets_vary, rows_by_schema, rows_of_tables
from drfl.data.tables.targets import check_values, columns_of, encoded

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    from PIL.Image import Image

TEST = ("test", "validation")
"""Splits to test on beside "train", in order of preference."""


GREY, DEEP = ("1", "L", "LA"), ("I;16", "I;16L", "I;16B", "I;16N", "I")
"""Pillow's modes of grey images with at most 8 bits, and with up to 16 bits."""

DEEPEST = 2**16 - 1
"""Largest value of an image."""


class _Split(NamedTuple):
    """One split: images (n, …) of unsigned integers or arrays (n, …) float32, and targets, groups and patients (n,)."""

    inputs: np.ndarray
    targets: dict[str, np.ndarray]
    groups: tuple[str, ...] | None
    patients: list[str] | None


def check_installed(name: str) -> None:
    """Raise InputError unless the package ``datasets`` is installed."""
    message = f"{name} requires the package datasets of Hugging Face. Install it with: pip install 'drfl[hf]'"
    require("datasets", message)


def read_saved(path: Path, columns: Columns) -> Dataset:
    """Read a data set from a folder that ``save_to_disk`` wrote, named after the folder."""
    check_installed(f"the folder {path}")
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:
        raise InputError(f"cannot read {path}: {_line(error)}", code="file-unreadable", field=str(path)) from None
    return from_splits(path.name, str(path), found, columns)


def read_hub(text: str, columns: Columns) -> Dataset:
    """Read a data set from the hub, downloaded into the package's cache unless it is there already."""
    check_installed(f"dataset '{text}'")
    name = hub_name(text)
    import datasets

    try:
        # Before version 4 a data set could have a script, even one in a local folder with that name.
        no_script: dict[str, Any] = (
            {"trust_remote_code": False} if int(datasets.__version__.partition(".")[0]) < 4 else {}
        )
        found = datasets.load_dataset(name.name, name.configuration, revision=name.revision, **no_script)
    except Exception as error:  # from the network, the hub, a builder or a file, of a dozen packages
        raise InputError(
            f"cannot load dataset '{text}' from the hub: {_line(error)}", code="download-failed", field="dataset"
        ) from None
    if not isinstance(found, datasets.DatasetDict | datasets.Dataset):
        raise InputError(
            f"dataset '{text}' is a {type(found).__name__}, which drfl cannot read into memory",
            code="unsupported-data",
            field="dataset",
        )
    return from_splits(text, text, found, columns)


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def from_splits(name: str, place: str, found: datasets.Dataset | datasets.DatasetDict, columns: Columns) -> Dataset:
    """Convert splits to a data set of drfl.

    The split "train" is for training and "test" for testing, or "validation" if there is no "test". From a single
    split, test rows are drawn when the data set is divided. A column of images of 8 or 16 bits becomes (n, channels,
    height, width) in [0, 1]: grey if all images are grey, otherwise with three channels. A column of arrays of one
    shape is used unchanged. Other columns are a table that is read like a file, see
    :func:`drfl.data.tables.table_files.read_tables`.
    """
    schema = columns.schema
    parts = {f"{place}, split '{split}'": rows for split, rows in _splits(place, found).items()}
    compared = tuple[Notice, ...]()
    if schema is None:
        compared = _condition_notices(parts, columns)
        parts = {where: _with_answers(where, rows, columns) for where, rows in parts.items()}
    first = next(iter(parts.values()))
    if schema is None:
        columns.check(place, first.column_names)
    else:
        schema.check_options(columns.targets or None, columns.group, columns.drop, columns.task, columns.patient)
    if len(parts) > 1 and (columns.patient if schema is None else schema.patient) is not None:
        raise InputError(
            f"{next(iter(parts))}: with a patient column drfl divides all rows itself, by patient: save a single split",
            code="unsupported-combination",
            field="patient",
        )
    kind = "table" if schema is not None else _kind(place, first, columns)
    if kind == "table":
        read = _table_rows(parts, columns)
        sizes = list(read.sizes)
        inputs, targets = read.inputs.split(sizes), read.targets.split(sizes)
        owners = None if read.groups is None else tuple(read.groups)
        # Training rows come first. A single split has no others.
        groups = [owners and owners[: sizes[0]], owners and owners[sizes[0] :]]
        classes, class_names, names, notices = read.outputs, read.classes, read.columns, read.notices
        schema, patients = read.schema, read.patients
    else:
        splits = [_read(where, rows, columns, kind) for where, rows in parts.items()]
        arrays, names, notices, patients = [split.inputs for split in splits], None, (), splits[0].patients
        is_image = arrays[0].dtype.kind == "u"
        if is_image and len({array.shape[1] for array in arrays}) > 1:  # grey in one split only
            arrays = [np.repeat(array, 3 // array.shape[1], axis=1) for array in arrays]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise InputError(
                f"{place}: the splits have different input shapes per row, {sorted(shapes)}. Give both the same shape",
                code="wrong-shape",
                field="dataset",
            )
        inputs = [torch.from_numpy(array.astype(np.float32, copy=False)) for array in arrays]
        if is_image:
            # Divide in place, which saves a second array of floats.
            inputs = [x.div_(np.iinfo(array.dtype).max) for x, array in zip(inputs, arrays, strict=True)]
        whole = {name: np.concatenate([split.targets[name] for split in splits]) for name in splits[0].targets}
        if columns.task == "classification":
            known = [split.groups for split in splits if split.groups is not None]
            owners = [group for part in known for group in part] if len(known) == len(splits) else None
            notices = label_notices(whole, owners)
        y, classes, class_names = encoded(whole, columns.task)
        targets, groups = y.split([len(x) for x in inputs]), [split.groups for split in splits]
    everybody = {group for known in groups if known is not None for group in known}
    check_alike(sorted(everybody))
    if patients is not None:
        check_spelling(patients, groups[0])
    return Dataset(
        name, inputs[0], targets[0], inputs[-1], targets[-1], classes, groups[0],
        standardise=names is not None, task=columns.task, columns=names,
        test_groups=groups[1] if len(parts) > 1 else None, class_names=class_names, notices=(*notices, *compared),
        schema=schema, patients=None if patients is None else tuple(patients),
    )  # fmt: skip


def _condition_notices(parts: Mapping[str, datasets.Dataset], columns: Columns) -> tuple[Notice, ...]:
    """Check the columns that conditions among the targets compare, before the answers replace them."""
    place, first = next(iter(parts.items()))
    if all(Condition.of(name, first.column_names, place) is None for name in columns.targets):
        return ()
    tables = [_compared(place, rows, columns) for place, rows in parts.items()]
    group, owners = columns.group, None
    if group is not None and all(group in rows.column_names for rows in parts.values()):
        frames = [cast("pd.DataFrame", rows.select_columns(group).to_pandas()) for rows in parts.values()]
        groups = [_words(frame[group], first.features[group]) for frame in frames]
        owners = [level_text(value) for cells in groups for value in cells]
    return condition_notices(tables, columns.targets, owners)


def _compared(place: str, rows: datasets.Dataset, columns: Columns) -> Table:
    """Return the targets, and the columns of those that are conditions, as a table."""
    used = [name for name in rows.column_names if name in used_columns(columns.targets)]
    frame = cast("pd.DataFrame", rows.select_columns(used).to_pandas())
    frame = frame.assign(**{name: _words(frame[name], rows.features[name]) for name in used})
    return Table(place, frame, row_names_of(place)).prepared(text_columns(columns.targets), columns.reading)


def _with_answers(place: str, rows: datasets.Dataset, columns: Columns) -> datasets.Dataset:
    """Replace the columns of conditions among the targets by the answers."""
    new = [name for name in columns.targets if Condition.of(name, rows.column_names, place) is not None]
    if not new:
        return rows
    table = _compared(place, rows, columns)
    used = [str(name) for name in table.frame]
    table = table.with_answers(columns.targets, (columns.group, columns.patient, *columns.drop))
    rows = rows.remove_columns([name for name in used if name not in table.frame])
    for name in new:
        # NaN, which is not equal to itself, is blank too.
        values = [None if value is None or value != value else value for value in table.frame[name].tolist()]
        rows = rows.add_column(name, values)  # pyright: ignore[reportCallIssue] - the fingerprint is a default
    return rows


def _table_rows(parts: Mapping[str, datasets.Dataset], columns: Columns) -> TableRows:
    """Encode splits as files are encoded. Class numbers are replaced by class names, except in a target of classes.

    Without a schema, given or proposed, classes keep the order of their numbers.
    """
    tables, targets, schema, proposed = list[Table](), [*columns.targets], columns.schema, tuple[Notice, ...]()
    is_proposed = schema is None and bool(columns.reading.missing)
    for place, rows in parts.items():
        frame = cast("pd.DataFrame", rows.to_pandas())
        for name in columns.targets if schema is None else ():
            if _column_kind(rows.features[name]) == "array":  # a label or a number for each position
                check_blanks(frame[[name]], row_names_of(place), NAME_ROWS)
                labels = columns_of(name, _stacked(place, name, frame[name].tolist()))
                at = targets.index(name) if name in targets else None
                frame = frame.drop(columns=name).assign(**labels)
                if at is not None:
                    # The labels take the place of the column that held them.
                    targets[at : at + 1] = labels
            else:
                _check_labelled(place, name, frame[name].to_numpy(), rows.features[name])
        for name in rows.features:
            if name in frame and (schema is not None or is_proposed or name not in columns.targets):
                frame[name] = _words(frame[name], rows.features[name])
        reading = columns.reading if schema is None else columns.reading.with_defaults(schema.reading)
        texts = schema.texts if schema is not None else columns.words if is_proposed else columns.texts
        tables.append(Table.of(place, frame).prepared(texts, reading))
    if is_proposed:
        schema, proposed = propose(
            [table.frame for table in tables], targets, columns.group, columns.drop, columns.task, columns.patient,
            columns.reading,
        )  # fmt: skip
    if schema is not None:
        found = rows_by_schema(tables, schema, files=False, is_proposed=is_proposed)
        check_targets_vary(schema, found.targets)
        return found._replace(notices=(*proposed, *found.notices))
    return rows_of_tables(tables, columns._replace(targets=tuple(targets)), files=False)


def _splits(place: str, found: datasets.Dataset | datasets.DatasetDict) -> Mapping[str, datasets.Dataset]:
    """Return the training split and the test split, or a single split of all rows."""
    import datasets

    if isinstance(found, datasets.Dataset):
        found = datasets.DatasetDict({"train": found})
    known = {str(name): rows for name, rows in found.items()}
    test = next((name for name in TEST if name in known), None)
    if len(known) > 1 and not ("train" in known and test is not None):
        raise InputError(
            f"{place} has the splits {', '.join(known)}, but drfl needs a single split, or 'train' and 'test'",
            code="invalid-splits",
            field="dataset",
        )
    chosen = known if len(known) == 1 else {name: known[name] for name in ("train", str(test))}
    for name, rows in chosen.items():
        if not len(rows):
            raise InputError(f"{place}, split '{name}' has no rows", code="no-rows", field=name)
        if rows.column_names != next(iter(chosen.values())).column_names:
            raise InputError(
                f"{place}: the splits {' and '.join(chosen)} have different columns. Give both the same columns",
                code="columns-differ",
                field="dataset",
            )
    return chosen


def _features(rows: datasets.Dataset, columns: Columns) -> list[str]:
    taken = (*columns.targets, columns.group, columns.patient, *columns.drop)
    return [name for name in rows.column_names if name not in taken]


def _kind(place: str, rows: datasets.Dataset, columns: Columns) -> str:
    """Return the kind of the inputs: "image", "array" or "table"."""
    kinds = {name: _column_kind(rows.features[name]) for name in _features(rows, columns)}
    odd = [name for name, kind in kinds.items() if not kind]
    if odd:
        kind = type(rows.features[odd[0]]).__name__
        raise InputError(
            f"{place}: column '{odd[0]}' has the unsupported type {kind}; expected numbers, words, arrays "
            "or images. Drop it",
            code="not-a-number",
            field=odd[0],
        )
    if not kinds:
        raise InputError(f"{place} has no feature columns", code="no-features", field="dataset")
    wide = [name for name, kind in kinds.items() if kind != "table"]
    if wide and len(kinds) > 1:
        others = ", ".join(name for name in kinds if name != wide[0])
        raise InputError(
            f"{place}: column '{wide[0]}' of {kinds[wide[0]]}s cannot be combined with other columns. Drop {others}",
            code="unsupported-data",
            field=wide[0],
        )
    return kinds[wide[0]] if wide else "table"


def _column_kind(feature: object) -> str:
    import datasets

    if isinstance(feature, datasets.Image):
        return "image"
    if isinstance(feature, datasets.ClassLabel):
        return "table"
    if isinstance(feature, datasets.Value):
        is_cell = feature.dtype.startswith(("int", "uint", "float", "bool", "date", "timestamp"))
        return "table" if is_cell or feature.dtype in ("string", "large_string") else ""
    kinds = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D, datasets.Sequence, list)
    # Newer versions of the package have a class of their own for lists.
    known = (*kinds, getattr(datasets, "List", list))
    return "array" if isinstance(feature, known) else ""


def _read(place: str, rows: datasets.Dataset, columns: Columns, kind: str) -> _Split:
    row_name = row_names_of(place)
    frame = cast("pd.DataFrame", rows.select_columns([*columns.targets, *columns.names]).to_pandas())
    for name in columns.names:
        frame[name] = _words(frame[name], rows.features[name])
    patients = None if columns.patient is None else names_in(frame, columns.patient, row_name)
    # A blank label is unknown.
    known = frame.drop(columns=list(columns.targets)) if columns.task == "multi-label" else frame
    check_blanks(known, row_name, NAME_ROWS)
    targets: dict[str, np.ndarray] = {}
    for name in columns.targets:
        values = values_of(frame[name])
        if _column_kind(rows.features[name]) == "array":  # a label or a number for each position
            values = _stacked(place, name, frame[name].tolist())
        for own, column in columns_of(name, values).items():
            check_values(own, column, columns.task, row_name)
            _check_labelled(place, own, column, rows.features[name])
            targets[own] = column
    groups = None if columns.group is None else tuple(names_in(frame, columns.group, row_name))
    (feature,) = _features(rows, columns)
    if kind == "image":
        return _Split(_pictures(place, rows, feature), targets, groups, patients)
    arrays = cast("pd.DataFrame", rows.select_columns([feature]).to_pandas())
    check_blanks(arrays, row_name)
    return _Split(_stacked(place, feature, arrays[feature].tolist()), targets, groups, patients)


def _words(column: pd.Series, feature: object) -> pd.Series:
    """Replace class numbers by class names, because the numbers have no order."""
    import datasets

    if not isinstance(feature, datasets.ClassLabel):
        return column
    return column.map(dict(enumerate(feature.names)))  # NaN for the number -1, which means "unknown"


def _check_labelled(place: str, name: str, values: np.ndarray, feature: object) -> None:
    import datasets

    if isinstance(feature, datasets.ClassLabel) and (values < 0).any():
        # The package numbers an unknown class −1.
        row = int((values < 0).argmax())
        raise _cell_error(
            place, row, name, f"the target is unknown ({values[row]}). Remove such rows", "missing-values"
        )


def _stacked(place: str, name: str, values: Sequence[object]) -> np.ndarray:
    """Stack arrays of one shape, (n, …) float32."""
    found: list[np.ndarray] = []
    for row, value in enumerate(values):
        try:
            array = np.array(_plain(value), dtype=np.float64)
        except (TypeError, ValueError):
            problem = "expected an array of numbers. Drop the column"
            raise _cell_error(place, row, name, problem, "not-a-number") from None
        if not np.isfinite(array).all():
            raise _cell_error(place, row, name, "blank or infinite values. Fill or drop the column", "missing-values")
        if found and array.shape != found[0].shape:
            problem = f"the shape is {array.shape}, but row 1 has {found[0].shape}. Bring all rows to one shape"
            raise _cell_error(place, row, name, problem, "wrong-shape")
        found.append(array.astype(np.float32))
    return np.stack(found)


def _cell_error(place: str, row: int, name: str, problem: str, code: str) -> InputError:
    return InputError(f"{row_names_of(place)(row)}, column '{name}': {problem}", code=code, field=name)


def _plain(value: object) -> object:
    """Convert nested arrays to nested lists, from which numpy makes one array."""
    return [_plain(part) for part in value] if isinstance(value, list | np.ndarray) else value


def _pictures(place: str, rows: datasets.Dataset, name: str) -> np.ndarray:
    """Return the images, (n, channels, height, width) uint8, or uint16 if one has 16 bits.

    They have one channel if all are grey, otherwise three.
    """
    require("PIL", f"{place}: images require Pillow. Install it with: pip install 'drfl[hf]'", "pillow")
    found: list[Image] = []
    for row in range(len(rows)):
        try:
            picture = rows[row][name]
            if picture is not None:
                # Pillow decodes an image when it is needed, and damage must show here.
                picture.load()
        except Exception as error:
            problem = f"cannot read the image: {_line(error)}"
            raise _cell_error(place, row, name, problem, "damaged-file") from None
        if picture is None:
            raise _cell_error(place, row, name, "the image is missing. Remove such rows", "missing-values")
        if found and picture.size != found[0].size:
            sizes = [f"{w}x{h}" for w, h in (picture.size, found[0].size)]
            problem = f"the image has {sizes[0]} pixels, but row 1 has {sizes[1]}. Resize all images to one size"
            raise _cell_error(place, row, name, problem, "wrong-shape")
        values = np.asarray(picture) if picture.mode == "I" else np.zeros(1)
        if picture.mode == "F" or values.min() < 0 or values.max() > DEEPEST:
            problem = f"the image has values other than whole numbers from 0 to {DEEPEST}. Convert it to 8 or 16 bits"
            raise _cell_error(place, row, name, problem, "unsupported-data")
        found.append(picture)
    grey = all(picture.mode in GREY or picture.mode in DEEP for picture in found)
    # Arrays of integers that numpy made have the mode I, although they may hold 8 bits.
    is_deep = any(p.mode in DEEP and (p.mode != "I" or np.asarray(p).max() > 255) for p in found)
    kind, arrays = np.uint16 if is_deep else np.uint8, list[np.ndarray]()
    for picture in found:
        if picture.mode in DEEP:  # Pillow's conversion would cap values at 255
            array = np.asarray(picture).astype(kind)
        else:
            array = np.asarray(picture.convert("L" if grey else "RGB")).astype(kind) * kind(257 if is_deep else 1)
        is_flat = array.ndim == 2
        arrays.append(np.broadcast_to(array, (1 if grey else 3, *array.shape)) if is_flat else array.transpose(2, 0, 1))
    return np.stack(arrays)
