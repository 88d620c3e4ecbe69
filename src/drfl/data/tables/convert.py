"""Conversion of users' arrays, torch datasets and data frames to tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice, unknown
from drfl.data.dataset import TaskName
from drfl.data.partition.partition import client_error, client_names
from drfl.data.tables.columns import LARGEST, Columns, check_numbers, frame_row, one_hot, row_names_of
from drfl.data.tables.conform import level_text
from drfl.data.tables.levels import check_levels, level_notices
from drfl.data.tables.patients import names_in
from drfl.data.tables.propose import inferred_schema
from drfl.data.tables.schema import TableSchema
from drfl.data.tables.table import text_names
from drfl.data.tables.targets import check_varies
from drfl.data.tables.text_form import ReadOptions
from drfl.task.input_fields import InputFields, has_fields, tensor_of

if TYPE_CHECKING:
    import pandas as pd


Array = np.ndarray | Tensor
Inputs = Array | Mapping[str, Array] | tuple[Array, ...]
Pair = tuple[Inputs, Array]
Pairs = Mapping[str, Pair] | Iterable[Pair]

WHOLE = (torch.int16, torch.int32, torch.int64)
"""Integer types whose values may be tokens."""

_T = TypeVar("_T")


def clients_by_name(clients: Mapping[str, _T] | Iterable[_T]) -> dict[str, _T]:
    """Return the clients by name; others than a mapping get the names of `client_names`."""
    clients = clients if isinstance(clients, Mapping) else _listed(clients)
    if not clients:
        raise InputError("expected at least one client, got none", code="empty", field="clients")
    if isinstance(clients, Mapping):
        return with_text_names(clients)
    return dict(zip(client_names(len(clients)), clients, strict=True))


def _listed(clients: Iterable[_T]) -> list[_T]:
    """Return the clients of any iterable, such as a generator, as a list."""
    if isinstance(clients, str | bytes) or not isinstance(clients, Iterable):
        raise InputError(
            f"expected a mapping of names to clients, or a list of clients, got an object of type "
            f"{type(clients).__name__}",
            code="wrong-type",
            field="clients",
        )
    return list(clients)


def with_text_names(clients: Mapping[Any, _T]) -> dict[str, _T]:
    """Convert the names of clients to text; two clients must not have the same name then."""
    by_name: dict[str, _T] = {}
    for name, value in clients.items():
        if str(name) in by_name:
            raise InputError(
                f"two clients have the name '{name}'. Give each client its own name, which drfl reads as text",
                code="duplicate-name",
                field=str(name),
            )
        by_name[str(name)] = value
    return by_name


def match_clients(clients: Mapping[str, _T] | Iterable[_T], names: Sequence[str]) -> list[_T]:
    """Return test data in the order of the training data's names."""
    # Without names, test data are in the order of the training data.
    if not isinstance(clients, Mapping):
        clients = _listed(clients)
        if len(clients) != len(names):
            raise InputError(
                f"got {len(names)} clients but test data for {len(clients)}. Pass test data for each client",
                code="count-mismatch",
                field="test",
            )
        return clients
    by_name = clients_by_name(clients)
    if set(by_name) != set(names):
        odd = sorted(set(by_name) ^ set(names))
        raise InputError(
            f"training and test data have different clients: only one of them has '{odd[0]}'",
            code="clients-differ",
            field=odd[0],
        )
    return [by_name[name] for name in names]


def patients_of_rows(
    patients: Mapping[str, Sequence[object]] | Sequence[Sequence[object]], names: Sequence[str], sizes: Sequence[int]
) -> np.ndarray:
    """Return the patient of each row of all clients, one client after the other, as text (n,)."""
    import pandas as pd

    found = list[str]()
    for name, part, size in zip(names, match_clients(patients, names), sizes, strict=True):
        if len(part) != size:
            raise InputError(
                f"client '{name}' has {len(part)} patients for {size} rows. Pass the patient of each row",
                code="count-mismatch",
                field="patients",
            )
        # numpy would make the text "nan" of a blank among texts.
        cells = pd.Series(part.tolist() if isinstance(part, Tensor) else [*part])
        found += names_in(cells.to_frame("patients"), "patients", row_names_of(f"client '{name}'"))
    return np.array(found)


def fields_of_pairs(pairs: Mapping[str, Pair]) -> InputFields | None:
    """Return the fields of the first client's inputs; None if they are one array."""
    name, pair = next(iter(pairs.items()))
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    return InputFields.of(pair[0], _inputs_of(name)) if is_pair and has_fields(pair[0]) else None


def packed(names: Sequence[str], pairs: Sequence[Pair], fields: InputFields | None) -> list[Pair]:
    """Pack the fields of all clients' inputs into rows of numbers; inputs without fields are returned unchanged."""
    if fields is None:
        return list(pairs)
    result = []
    for name, pair in zip(names, pairs, strict=True):
        x, y = pair
        rows = fields.pack(x, _inputs_of(name))
        # A tuple of rows looks like a tuple of fields.
        if len(rows) != len(y):
            raise client_error(
                name,
                f"the inputs have the fields {fields} with {len(rows)} rows, but there are {len(y)} "
                "targets. Pass a list instead of a tuple if each of its entries is a row",
                "wrong-shape",
            )
        result.append((rows, y))
    return result


def _inputs_of(name: str) -> str:
    return f"client '{name}': inputs"


def concatenate(
    names: Sequence[str], pairs: Sequence[Pair], part: str, dtype: torch.dtype | None, *, tokens: bool = True
) -> tuple[Tensor, Tensor]:
    """Concatenate all clients' samples, one client after the other.

    Inputs and floating-point targets get the type; None leaves it unchanged. If ``tokens``, integer inputs become int64
    instead; bytes do not, because they are pixels.

    Returns:
        Inputs (n, ...) and targets (n, ...) with n = Σ n_i; integer targets are int64.
    """
    inputs, targets = [], []
    for name, pair in zip(names, pairs, strict=True):
        x, y = _as_pair(name, pair, part)
        inputs.append(x)
        targets.append(y)
    for what, tensors in (("inputs", inputs), ("targets", targets)):
        first = tensors[0]
        for name, tensor in zip(names, tensors, strict=True):
            if tensor.shape[1:] != first.shape[1:]:
                raise InputError(
                    f"{part} {what} have different shapes per sample: {tuple(first.shape[1:])} at client "
                    f"'{names[0]}', {tuple(tensor.shape[1:])} at client '{name}'",
                    code="wrong-shape",
                    field=name,
                )
            if tensor.is_floating_point() != first.is_floating_point():
                raise InputError(
                    f"{part} {what} have different types: {first.dtype} at client '{names[0]}', "
                    f"{tensor.dtype} at client '{name}'. Convert them to one type; integers with missing "
                    "values become floating-point numbers",
                    code="wrong-type",
                    field=name,
                )
    X, Y = torch.cat(inputs), torch.cat(targets)
    if dtype is not None:
        X = X.to(torch.int64 if tokens and X.dtype in WHOLE else dtype)
    if not Y.is_floating_point():
        Y = Y.to(torch.int64)
    elif dtype is not None:
        Y = Y.to(dtype)
    return X, Y


def named_columns(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the user's data frame with texts as names of columns, which may be numbers.

    Raises:
        InputError: If it is not a data frame of pandas, it has no rows, or its columns have several levels of names.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        kind = f"{type(frame).__module__}.{type(frame).__name__}".removeprefix("builtins.")
        remedy = "Pass its to_pandas()" if hasattr(frame, "to_pandas") else "Read a file with pandas.read_csv"
        text = f"expected a data frame of pandas, got {kind}. {remedy}"
        raise InputError(text, code="wrong-type", field="frame")
    if not len(frame):
        raise InputError("the table has no rows. Each client needs at least two", code="no-rows")
    return text_names(frame)


def listed_names(columns: str | Sequence[object] | None) -> tuple[str, ...] | None:
    """Return the names of one or several columns as texts."""
    return columns if columns is None else (columns,) if isinstance(columns, str) else tuple(map(str, columns))


def check_reading(options: ReadOptions) -> None:
    """Raise InputError if these are not options for reading, or one of them is for files only."""
    if not isinstance(options, ReadOptions):
        raise InputError(
            f"expected options such as drfl.ReadOptions(missing=('?',)), got {options!r:.60}",
            code="wrong-type",
            field="reading",
        )
    for name in ("delimiter", "encoding"):
        if getattr(options, name) is not None:
            raise InputError(f"{name} has no effect on a data frame: remove it", code="unused-option", field=name)


def check_index(frame: pd.DataFrame, names: Sequence[str]) -> None:
    """Raise InputError if one of these columns has no name as text, or is a level of the index."""
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"expected the name of one column, got {name!r}", code="wrong-type", field="group")
        if name not in frame.columns and name in map(str, frame.index.names):
            raise InputError(
                f"'{name}' is a level of the data frame's index, not a column. Call reset_index() first",
                code="unknown-name",
                field=name,
            )


def _as_pair(name: str, pair: Pair, part: str) -> tuple[Tensor, Tensor]:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        kind = type(pair).__name__
        raise client_error(
            name, f"{part} data must be a pair (inputs, targets), got an object of type {kind}", "wrong-type"
        )
    tensors: list[Tensor] = []
    for what, values in zip(("inputs", "targets"), pair, strict=True):
        check_not_ragged(name, f"{part} {what}", values)
        try:
            tensors.append(tensor_of(values))
        except (TypeError, ValueError, RuntimeError) as error:
            problem = f"{part} {what} are not an array of numbers: {error}"
            raise client_error(name, problem, "wrong-type") from error
        # Training would drop the imaginary parts, with a warning at most.
        if tensors[-1].is_complex():
            raise client_error(
                name,
                f"{part} {what} are complex numbers. Pass real numbers, for example the real and "
                "imaginary parts as two columns",
                "wrong-type",
            )
    x, y = tensors
    if x.ndim < 1 or y.ndim < 1 or len(x) != len(y):
        raise client_error(
            name,
            f"{part} inputs of shape {tuple(x.shape)} do not match targets of shape "
            f"{tuple(y.shape)}. Give one target per sample",
            "wrong-shape",
        )
    if not len(x):
        raise client_error(name, f"has no {part} samples. Add some or remove the client", "no-rows", at="")
    return x, y


def check_not_ragged(name: str, what: str, values: object) -> None:
    """Raise InputError for a list of samples of different lengths, such as tokens; the message names the lengths."""
    # For rows of different lengths, numpy makes an array of objects, or fails without naming the lengths.
    if isinstance(values, np.ndarray) and values.dtype == object:
        values = list(values)
    if not isinstance(values, list | tuple):
        return
    samples = [v for v in values if isinstance(v, Sequence | np.ndarray | Tensor) and not isinstance(v, str)]
    lengths = {len(v) for v in samples if getattr(v, "ndim", 1)}
    if len(lengths) > 1:
        raise client_error(
            name,
            f"{what} have different lengths, {min(lengths)} to {max(lengths)}. Pad them "
            "to one length, e.g. with torch.nn.utils.rnn.pad_sequence(…, batch_first=True)",
            "wrong-shape",
        )


def feature_columns(frame: pd.DataFrame, roles: Columns, features: Sequence[str] | None) -> list[str]:
    """Return the feature columns, checked: the ones in `features`, or all except group, patient and target."""
    columns, named = frame.columns.tolist(), [*roles.names, *roles.targets]
    if not roles.targets:
        raise InputError("`target` is missing. Name the column to predict", code="missing-option", field="target")
    for name in (*named, *(features or ())):
        if name not in columns:
            raise unknown("column", name, columns)
    chosen = [name for name in columns if name not in named] if features is None else list(features)
    roles.check_roles()
    for name in chosen:
        if name in (*roles.targets, *roles.names):
            role = "target" if name in roles.targets else "patient" if name == roles.patient else "group"
            raise InputError(
                f"column '{name}' is the {role} and cannot also be a feature. Remove it from features",
                code="conflicting-options",
                field=name,
            )
    if not chosen:
        raise InputError(
            "the table has no feature columns. Name at least one in `features`", code="no-features", field="features"
        )
    for name in (*named, *chosen):
        if columns.count(name) > 1 or chosen.count(name) > 1:
            raise InputError(f"column '{name}' occurs twice. Rename or drop one", code="duplicate-column", field=name)
    return chosen


class FrameRows(NamedTuple):
    """The rows of a data frame without a schema, encoded.

    Args:
        columns: Names of the inputs.
        inputs: (n, p) The features.
        targets: (n,) or (n, k) The targets.
        classes: Names of the classes; None for numbers.
        schema: The meaning of each column.
        notices: Warnings about the words.
    """

    columns: tuple[str, ...]
    inputs: np.ndarray
    targets: np.ndarray
    classes: tuple[str, ...] | None
    schema: TableSchema
    notices: tuple[Notice, ...]


def encode_frame(frame: pd.DataFrame, roles: Columns, features: Sequence[str] | None) -> FrameRows:
    """Encode the rows of a data frame; texts and categories are words, as in a file.

    ``roles`` names the client and the target, and ``features`` the features; None means all other columns.
    """
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    names = feature_columns(frame, roles, features)
    for name in names:
        require_present(frame[name], name, ", or read them as missing values: reading=drfl.ReadOptions(missing=('',))")
    # pandas keeps truth values as objects once a blank cell was among them.
    chosen, (y, classes) = frame[names].infer_objects(), encode_targets(frame, roles.targets)
    words, texts = dict[str, pd.Series](), list[str]()
    for name in names:
        is_category = isinstance(chosen[name].dtype, pd.CategoricalDtype)
        if is_category or (not is_numeric_dtype(chosen[name]) and _has_words(chosen[name])):
            words[name] = chosen[name].astype(object).map(level_text)
            texts += [] if is_category else [name]
            if not is_category and pd.to_numeric(words[name], errors="coerce").notna().all():
                raise InputError(
                    f"column '{name}' holds numbers as text. Convert it with pandas.to_numeric, or to categories with "
                    "astype('category')",
                    code="not-a-number",
                    field=name,
                )
    if others := [name for name in names if name not in words]:
        feature_matrix(chosen, others)  # rejects dates, which would be encoded like words
    chosen, owners = chosen.assign(**words), [*map(str, frame[roles.group])]
    # Numbers in a column of categories are names.
    check_numbers(chosen[texts], frame_row)
    labels = pd.DataFrame({} if classes is None else {roles.targets[0]: np.array(classes, dtype=object)[y]})
    check_levels(pd.concat([chosen[list(words)], labels], axis=1), owners)
    notices = level_notices(chosen[list(words)], labels, owners)
    inputs = one_hot(chosen, "the table")
    names = inputs.columns.tolist()
    # The schema defines how new rows are encoded.
    are_labels = y.ndim == 2 and bool(((y == 0) | (y == 1) | np.isnan(y)).all())
    kind: TaskName = "classification" if classes is not None else "multi-label" if are_labels else "regression"
    schema = inferred_schema(chosen, roles.targets, roles._replace(task=kind), classes)
    return FrameRows(tuple(names), feature_matrix(inputs, names), y, classes, schema, tuple(notices))


def _has_words(column: pd.Series) -> bool:
    """Return whether a column holds texts and truth values, maybe among numbers, which are names then as in a file."""
    from pandas.api.types import infer_dtype

    kind = infer_dtype(column)
    if kind in ("mixed", "mixed-integer"):
        return all(isinstance(value, str | Real | np.bool_) for value in column)
    return kind in ("string", "boolean")


def feature_matrix(
    frame: pd.DataFrame, features: Sequence[str], what: str = "features", *, missing: bool = False
) -> np.ndarray:
    """Return the columns as (n, len(features)) float64; `what` describes them in errors.

    If ``missing``, values may be NaN.
    """
    from pandas.api.types import is_complex_dtype, is_numeric_dtype

    columns = []
    for name in features:
        column = frame[name]
        # pandas counts complex numbers as numeric.
        if isinstance(column.iloc[0], list | np.ndarray):
            raise InputError(
                f"{what.removesuffix('s')} column '{name}' has arrays. Stack them, as in "
                f"numpy.stack(frame['{name}']), and pass the arrays of each client to drfl.ClientData.from_arrays",
                code="not-a-number",
                field=name,
            )
        if not is_numeric_dtype(column) or is_complex_dtype(column):
            raise InputError(
                f"{what.removesuffix('s')} column '{name}' is neither numeric nor text ({column.dtype}). "
                f"Convert it, name other columns in {what}, or pass a schema, which encodes dates",
                code="not-a-number",
                field=name,
            )
        columns.append(numeric(column, name, missing=missing))
    return np.stack(columns, axis=1)


def numeric(column: pd.Series, name: str, *, missing: bool = False) -> np.ndarray:
    """Return a numeric column as (n,) float64."""
    if not missing:
        require_present(column, name)
    # Copy, because the table may change, and pandas may return a read-only view.
    values = column.to_numpy(dtype=np.float64, copy=True)
    bad = np.flatnonzero(np.abs(values) >= LARGEST)
    if len(bad):
        raise InputError(
            f"column '{name}' has {len(bad)} value{'s' * (len(bad) > 1)} that {'are' if len(bad) > 1 else 'is'} "
            f"infinite or beyond {LARGEST:g}, the first in row {bad[0]}. Drop or cap them",
            code="not-finite",
            field=name,
        )
    return values


def require_present(column: pd.Series, name: str, remedy: str = "") -> None:
    """Raise InputError if values of a column are missing; a further remedy ends the message."""
    bad = np.flatnonzero(column.isna().to_numpy(dtype=bool))
    if len(bad):
        raise InputError(
            f"column '{name}' has {len(bad)} missing value{'s' * (len(bad) > 1)}, the first in row {bad[0]}. Drop "
            f"these rows (DataFrame.dropna), or fill them (DataFrame.fillna){remedy}",
            code="missing-values",
            field=name,
        )


def encode_targets(frame: pd.DataFrame, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Encode target columns: floating-point values stay numbers, others become classes in sorted order.

    Several targets are numbers, and may be missing (NaN), such as an unknown label.

    Returns:
        (n,) float64 and None, (n,) int64 and the names of the C classes, or (n, k) float64 and None.
    """
    from pandas.api.types import infer_dtype, is_float_dtype

    if len(names) > 1:
        return feature_matrix(frame, names, "target", missing=True), None
    name = names[0]
    column = frame[name]
    if is_float_dtype(column):
        return numeric(column, name), None
    require_present(column, name)
    if infer_dtype(column) == "string":
        column = column.map(level_text)
    try:
        labels, codes = np.unique(column.to_numpy(dtype=object), return_inverse=True)
    except TypeError:
        raise InputError(
            f"target column '{name}' mixes types. Convert it to strings or numbers", code="wrong-type", field=name
        ) from None
    names = tuple(str(label) for label in labels.tolist())
    check_varies(name, codes, names)
    return codes.astype(np.int64), names
