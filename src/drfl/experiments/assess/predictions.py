"""Predictions of another tool, assessed like a model on the test rows of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from drfl.core.csv_cells import unescape_formula
from drfl.core.errors import InputError, suggestion
from drfl.data.row_scores import RowScores
from drfl.data.tables.table import Table, text_names
from drfl.data.tables.text_form import DETECT
from drfl.engine import Simulation
from drfl.federation.federation import Evaluation
from drfl.task.metrics import METRICS

if TYPE_CHECKING:
    import pandas as pd

ROW, CLIENT, SEED, PREDICTION, PROBABILITY = "row", "client", "seed", "prediction", "probability"

FORM = "drfl.form"
"""Attribute of a data frame with the form of its text file."""

OF_ANSWERS = ("accuracy", "balanced_accuracy", "f1", "sensitivity", "specificity", "ppv")
"""Metrics that need only predicted classes."""

LEAST = 1e-15
"""Probabilities are clipped to this distance from 0 and 1, because their log-odds must be finite."""


def read_predictions(path: Path) -> pd.DataFrame:
    """Read a table of predictions, see :func:`tested_predictions`."""
    # Predictions can be classes, such as "007". The form of the file tells how to read them if they are numbers.
    table = Table.read(path, (CLIENT, PREDICTION))
    # `drfl predict` escapes names such as "+", which spreadsheets would take for formulas.
    frame = table.frame.assign(**{
        name: [unescape_formula(cell) if isinstance(cell, str) else cell for cell in table.frame[name]]
        for name in table.frame.columns.intersection([CLIENT, PREDICTION])
    })  # fmt: skip
    frame.attrs[FORM] = table.form
    return frame


def predictions_at(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the predictions for the test rows of a seed: those of its rows in a column ``seed``, or all without it."""
    if SEED not in frame.columns:
        return frame
    rows = frame[frame[SEED] == seed]
    if rows.empty:
        raise InputError(f"the column '{SEED}' of the predictions lacks seed {seed}", code="missing-rows", field=SEED)
    return rows


def tested_predictions(frame: pd.DataFrame, fed: Simulation) -> tuple[Evaluation, RowScores]:
    """Test predictions on the clients' test rows, like a model.

    Args:
        frame: A row for each test row, and maybe for others. ``row`` is its number in the data, from 1. ``client``,
            which is optional, is its client and must agree with the data. Then follows ``prediction``, a class or a
            number, or ``probability_CLASS`` for each class in their order, or ``probability`` of the second of two.
        fed: The simulation with the clients.

    Raises:
        InputError: If a column or a test row is missing, a row occurs twice or belongs to another client, or a value is
            not a class, a number or a probability.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise InputError(
            f"expected the result of a run or a data frame of predictions, got {type(frame).__name__}",
            code="wrong-type",
            field="predictions",
        )
    frame = text_names(frame)
    if ROW not in frame.columns:
        hint = suggestion(ROW, list(frame.columns))
        text = f"the predictions have no column '{ROW}' with the number of each row in the data, from 1. {hint}"
        raise InputError(text.rstrip(), code="missing-column", field=ROW)
    numbers = pd.to_numeric(frame[ROW], errors="coerce").to_numpy(dtype=np.float64)
    wrong = ~((numbers >= 1) & (numbers == np.floor(numbers)) & (numbers < 2**53))  # 1.0 is a row too, NaN is not
    if wrong.any():
        value = frame[ROW].iloc[int(wrong.argmax())]
        text = f"'{ROW}' must number the rows of the data from 1, got {value}"
        raise InputError(text, code="invalid-value", field=ROW)
    places: dict[int, int] = {}
    for place, number in enumerate(numbers.astype(int).tolist()):
        if places.setdefault(number - 1, place) != place:
            raise InputError(f"'{ROW}' has {number} twice", code="invalid-value", field=ROW)
    wanted = torch.cat(fed.data.test).tolist()
    lacking = [row for row in wanted if row not in places]
    if lacking:
        raise InputError(
            f"the predictions lack {len(lacking)} of {len(wanted)} test rows, the first is row {lacking[0] + 1}: "
            "predict all rows of the data",
            code="missing-rows",
            field=ROW,
        )
    order = [places[row] for row in wanted]
    frame = frame.iloc[order]
    if CLIENT in frame.columns:
        owners = [name for name, rows in zip(fed.data.names, fed.data.test, strict=True) for _ in range(len(rows))]
        for row, given, own in zip(wanted, frame[CLIENT].astype(str), owners, strict=True):
            if given != own:
                raise InputError(
                    f"row {row + 1} belongs to client '{own}', but the predictions say '{given}'",
                    code="clients-differ",
                    field=CLIENT,
                )
    return fed.tested_outputs(_outputs(frame, fed))


def _outputs(frame: pd.DataFrame, fed: Simulation) -> Tensor:
    """Return outputs (n, …) for which the task's metrics have the same values as for the predictions."""
    names = [name for name in frame.columns if name == PROBABILITY or name.startswith(f"{PROBABILITY}_")]
    targets, classes = fed.data.test_targets, fed.data.classes
    if not targets.is_floating_point():
        count = int(targets.max()) + 1 if classes is None else len(classes)
        if not names:
            known = classes or tuple(map(str, range(count)))
            if PREDICTION not in frame.columns:
                raise _columns(f"'{PREDICTION}' or '{PROBABILITY}_CLASS'")
            for measure in fed.measures:
                if measure.name not in OF_ANSWERS and measure.name in METRICS:
                    raise InputError(
                        f"{measure.words} needs probabilities, but the predictions are classes: add "
                        f"'{PROBABILITY}_CLASS'",
                        code="missing-column",
                        field=PROBABILITY,
                    )
            codes = {name: code for code, name in enumerate(known)}
            answers = [codes.get(str(value).strip(), -1) for value in frame[PREDICTION]]
            if -1 in answers:
                value = frame[PREDICTION].iloc[answers.index(-1)]
                raise InputError(
                    f"the prediction '{value}' is not a class: expected one of {', '.join(known)}",
                    code="invalid-value",
                    field=PREDICTION,
                )
            # The largest output of a one-hot row is the predicted class, which is all that these metrics need.
            return torch.nn.functional.one_hot(torch.tensor(answers), len(known)).double()
        is_single = names == [PROBABILITY] and count == 2
        if classes is not None and not is_single:
            wanted = [f"{PROBABILITY}_{name}" for name in classes]
            if sorted(names) != sorted(wanted):
                raise _columns(f"one column '{PROBABILITY}_CLASS' for each of {', '.join(classes)}")
            names = wanted
        values = _probabilities(frame, names)
        values = np.concatenate([1 - values, values], axis=1) if is_single else values
        if values.shape[1] != count:
            raise _columns(f"{count} probabilities for each row")
        wrong = np.abs(values.sum(1) - 1) > 1e-3
        if wrong.any():
            first = int(wrong.argmax())
            text = f"row {_row(frame, first)}: the sum of its probabilities is {values[first].sum():g}, not 1"
            raise InputError(text, code="out-of-range", field=PROBABILITY)
        return torch.from_numpy(np.log(values.clip(LEAST, 1)))
    width = targets[:1].numel()
    if names:
        values = _probabilities(frame, names)
        odds = torch.from_numpy(np.log(values.clip(LEAST, 1 - LEAST)) - np.log1p(-values.clip(LEAST, 1 - LEAST)))
    else:
        own = [name for name in frame.columns if name == PREDICTION or name.startswith(f"{PREDICTION}_")]
        odds = torch.from_numpy(_numbers(frame, own))
    if odds.shape[1] != width:
        raise _columns(f"{width} columns '{PREDICTION}', or of probabilities")
    return odds


def _numbers(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    import pandas as pd
    from pandas.api.types import is_numeric_dtype

    if not names:
        raise _columns(f"'{PREDICTION}'")
    form, texts = frame.attrs.get(FORM), [name for name in names if not is_numeric_dtype(frame[name])]
    # Without a known form, numbers with a decimal point are plain.
    if (form is not None and form.is_known) or any(pd.to_numeric(frame[n], errors="coerce").hasnans for n in texts):
        written = Table("the predictions", frame[texts], lambda k: f"row {_row(frame, k)}", form)
        frame = pd.concat([frame.drop(columns=texts), written.prepared((), DETECT).frame], axis=1)
    values = np.stack([pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64) for name in names], 1)
    wrong = ~np.isfinite(values)
    if wrong.any():
        row, name = _first(frame, names, wrong)
        text = f"row {row}: '{name}' is missing or not a finite number"
        raise InputError(text, code="not-a-number", field=name)
    return values


def _probabilities(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    values = _numbers(frame, names)
    wrong = (values < 0) | (values > 1)
    if wrong.any():
        row, name = _first(frame, names, wrong)
        text = f"row {row}: '{name}' must be between 0 and 1, got {values[wrong][0]:g}"
        raise InputError(text, code="out-of-range", field=name)
    return values


def _first(frame: pd.DataFrame, names: Sequence[str], wrong: np.ndarray) -> tuple[int, str]:
    """Return the row and the column of the first wrong value."""
    place, column = divmod(int(wrong.argmax()), len(names))
    return _row(frame, place), names[column]


def _row(frame: pd.DataFrame, place: int) -> int:
    return int(float(frame[ROW].iloc[place]))


def _columns(wanted: str) -> InputError:
    return InputError(f"the predictions must have {wanted}", code="missing-column", field=PREDICTION)
