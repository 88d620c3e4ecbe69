"""Data in the JSON format of LEAF (Caldas et al. 2018, "LEAF: A Benchmark for Federated Settings")."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from drfl.core.errors import InputError
from drfl.core.files import read_bytes
from drfl.core.json_toml import parse_json
from drfl.data.dataset import Dataset, TaskName
from drfl.data.datasets.shakespeare import VOCABULARY
from drfl.data.tables.columns import row_names_of
from drfl.data.tables.hugging_face_names import is_saved
from drfl.data.tables.table_paths import is_table_file
from drfl.data.tables.targets import check_values, columns_of, encoded

KEYS = ("users", "num_samples", "user_data")
"""The keys of a file. "hierarchies", the groups of the users, is ignored."""

PLACES = {character: k for k, character in enumerate(VOCABULARY)}
"""The token of each character."""


class _Rows(NamedTuple):
    """The rows of one user: inputs (n, …) float32, or int64 tokens of texts, and targets (n, …)."""

    user: str
    place: str
    inputs: np.ndarray
    targets: np.ndarray


def leaf_files(path: Path) -> tuple[list[Path], list[Path]] | None:
    """List the JSON files of the training part, or of all rows, and of the test part; None if the data are not LEAF's.

    The data are a file, a folder of them without tables, or a folder with the subfolders ``train`` and ``test``.
    """
    if path.suffix == ".json" and os.path.isfile(path):  # unlike pathlib's, False for a name that is too long
        return [path], []
    if not os.path.isdir(path) or is_saved(path) or any(map(is_table_file, path.iterdir())):
        return None
    train, test = (sorted((path / part).glob("*.json")) for part in ("train", "test"))
    found = (train, test) if train else (sorted(path.glob("*.json")), [])
    return found if found[0] else None


def read_leaf(path: Path, task: TaskName = "classification") -> Dataset:
    """Read data in LEAF's format. The groups are the users.

    If there are the subfolders ``train`` and ``test``, this split is that of the data set. Otherwise test rows are
    drawn when the data set is divided.

    Inputs are arrays of numbers of one shape; or texts of one length whose targets are the next character, as in LEAF's
    Shakespeare data. Their characters are tokens, positions in ``drfl.data.datasets.shakespeare.VOCABULARY``.
    """
    files = leaf_files(path)
    if files is None:
        raise InputError(f"{path} has no JSON files in LEAF's format", code="file-not-found", field=str(path))
    parts = [_users(part) for part in files if part]
    everybody = [rows for part in parts for rows in part]
    for rows in everybody:
        if rows.inputs.shape[1:] != everybody[0].inputs.shape[1:] or rows.inputs.dtype != everybody[0].inputs.dtype:
            problem = (
                f"inputs have shape {rows.inputs.shape[1:]}, but those of user '{everybody[0].user}' have "
                f"{everybody[0].inputs.shape[1:]}. Give all rows the same shape"
            )
            raise _user_error(rows.user, rows.place, problem, "wrong-shape")
    is_text = everybody[0].inputs.dtype == np.int64
    targets = [columns_of("y", rows.targets) for rows in everybody]
    for rows, columns in zip(everybody, targets, strict=True):
        if columns.keys() != targets[0].keys():
            problem = f"targets do not have the shape of those of user '{everybody[0].user}'"
            raise _user_error(rows.user, rows.place, problem, "wrong-shape")
        for name, values in columns.items():
            check_values(name, values, task, row_names_of(rows.place))
    if is_text:
        y, outputs, classes = torch.from_numpy(np.concatenate([rows.targets for rows in everybody])), len(PLACES), None
        if task != "classification":
            raise InputError(f"{path} holds texts, so task must be classification", code="wrong-task", field="task")
    else:
        whole = {name: np.concatenate([columns[name] for columns in targets]) for name in targets[0]}
        y, outputs, classes = encoded(whole, task)
    inputs = [torch.from_numpy(np.concatenate([rows.inputs for rows in part])) for part in parts]
    ys = y.split([len(x) for x in inputs])
    groups = [tuple(rows.user for rows in part for _ in range(len(rows.targets))) for part in parts]
    return Dataset(
        path.stem, inputs[0], ys[0], inputs[-1], ys[-1], outputs, groups[0],
        standardise=inputs[0].ndim == 2 and not is_text, task=task, class_names=classes,
        test_groups=groups[1] if len(parts) > 1 else None,
    )  # fmt: skip


def _users(files: Sequence[Path]) -> list[_Rows]:
    """Return the rows of the users that have any."""
    seen, found = dict[str, Path](), list[_Rows]()
    for path in files:
        content = parse_json(read_bytes(path, limit=None), path)
        if not isinstance(content, dict) or any(key not in content for key in KEYS):
            lacking = next((key for key in KEYS if not isinstance(content, dict) or key not in content), KEYS[0])
            raise InputError(
                f"{path} is not in LEAF's format: it has no '{lacking}'. A file has {', '.join(KEYS)}",
                code="unsupported-file",
                field=lacking,
            )
        users, counts, data = (content[key] for key in KEYS)
        for key, fits in (
            ("users", isinstance(users, list) and all(isinstance(user, str) for user in users)),
            ("num_samples", isinstance(counts, list) and all(type(count) is int for count in counts)),
            ("user_data", isinstance(data, dict)),
        ):
            if not fits:
                raise InputError(f"{path}: '{key}' has the wrong type", code="wrong-type", field=key)
        if len(users) != len(counts):
            raise InputError(
                f"{path} has {len(users)} users, but num_samples has {len(counts)} numbers",
                code="count-mismatch",
                field="num_samples",
            )
        for user, count in zip(users, counts, strict=True):
            # A second entry would replace the rows of the first.
            if user in seen:
                raise InputError(
                    f"user '{user}' is in {seen[user]} and in {path}, or twice in one file: give each user once",
                    code="duplicate-name",
                    field=user,
                )
            seen[user] = path
            rows = _rows(user, f"{path}, user '{user}'", data.get(user), count)
            if len(rows.targets):  # a user without rows cannot be a client
                found.append(rows)
    if not found:
        raise InputError(f"{files[0].parent} has no user with rows", code="no-rows", field=str(files[0].parent))
    return found


def _rows(user: str, place: str, data: object, count: int) -> _Rows:
    x, y = (data.get("x"), data.get("y")) if isinstance(data, dict) else (None, None)
    if not isinstance(x, list) or not isinstance(y, list):
        raise _user_error(user, place, "'user_data' has no lists 'x' and 'y' of this user", "missing-column")
    if not len(x) == len(y) == count:
        problem = f"there are {len(x)} inputs and {len(y)} targets, but num_samples says {count}"
        raise _user_error(user, place, problem, "count-mismatch")
    if x and all(isinstance(text, str) for text in x):
        for row, (text, following) in enumerate(zip(x, y, strict=True)):
            if len(text) != len(x[0]) or not isinstance(following, str) or len(following) != 1:
                problem = (
                    "drfl reads texts of one length whose target is the next character, as in LEAF's Shakespeare data; "
                    f"found '{text[:40]}' with the target {following!r:.40}"
                )
                raise _user_error(user, row_names_of(place)(row), problem, "unsupported-data")
        # As in drfl's own Shakespeare data, except that other characters become blanks, which keeps the length.
        texts = [f"{text}{following}" for text, following in zip(x, y, strict=True)]
        blank = PLACES[" "]
        tokens = np.array([[PLACES.get(character, blank) for character in text] for text in texts], dtype=np.int64)
        return _Rows(user, place, tokens[:, :-1], tokens[:, -1])
    inputs = _numbers(user, place, "x", x).astype(np.float32)
    words = bool(y) and all(isinstance(word, str) for word in y)
    return _Rows(user, place, inputs, np.array(y, dtype=object) if words else _numbers(user, place, "y", y))


def _numbers(user: str, place: str, key: str, values: list[object]) -> np.ndarray:
    """Return numbers (n, …) of one shape: int64 if all are whole, or float64."""
    try:
        found = np.array(values)
    except ValueError:
        found = np.array([], dtype=object)
    # True and 1 are one class.
    if found.dtype.kind == "b":
        found = found.astype(np.int64)
    if found.dtype.kind in "iuf" and np.isfinite(found).all():
        return found
    # Find the row at fault, which numpy does not name.
    shapes: list[tuple[int, ...]] = []
    for row, value in enumerate(values):
        try:
            array = np.array(value, dtype=np.float64)
        except (TypeError, ValueError, OverflowError):
            array = np.array(np.nan)
        shapes.append(array.shape)
        if not np.isfinite(array).all() or array.shape != shapes[0]:
            problem = f"'{key}' must hold finite numbers of one shape, found {value!r:.60}"
            raise _user_error(user, row_names_of(place)(row), problem, "not-a-number")
    raise _user_error(user, place, f"'{key}' mixes types", "wrong-type")


def _user_error(user: str, place: str, problem: str, code: str) -> InputError:
    return InputError(f"{place}: {problem}", code=code, field=user)
