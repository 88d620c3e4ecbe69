"""Predictions of another tool, assessed like a model on the test rows of a simulation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.files import read_csv
from drfl.core.hashing import digest_of
from drfl.data.row_scores import RowScores
from drfl.engine import Simulation
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import LARGEST_PATIENT, sum_columns
from drfl.federation.federation import Evaluation
from drfl.report.read_run import RunRecord
from drfl.task.metrics import METRICS
from drfl.training.history import LEDGER_COLUMNS, Metrics, others_of

if TYPE_CHECKING:
    import pandas as pd

ROW, CLIENT, SEED, PREDICTION, PROBABILITY = "row", "client", "seed", "prediction", "probability"

OF_ANSWERS = ("accuracy", "balanced_accuracy", "f1", "sensitivity", "specificity", "ppv")
"""Metrics that need only predicted classes."""

LEAST = 1e-15
"""Probabilities are kept this far from 0 and 1, as their log-odds must be finite."""


def read_predictions(path: Path) -> pd.DataFrame:
    """Read a CSV file of predictions, see :func:`tested_predictions`."""
    return read_csv(path, dtype={CLIENT: str, PREDICTION: str}, keep_default_na=False)


def predictions_at(frame: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Return the predictions for the test rows of a seed: those of its rows in a column ``seed``, or all without it.

    Raises:
        InputError: If the column has no such seed.
    """
    if SEED not in frame.columns:
        return frame
    rows = frame[frame[SEED] == seed]
    if rows.empty:
        raise InputError(f"the column '{SEED}' of the predictions lacks seed {seed}", code="missing-rows", field=SEED)
    return rows


def tested_predictions(frame: pd.DataFrame, fed: Simulation) -> tuple[Evaluation, RowScores]:
    """Test predictions on the clients' test rows, like a model.

    Args:
        frame: A row for each test row, and maybe for others. ``row`` is its number in the data, from 1. ``client`` is
            its client, if the column is there; it is compared with that of the data. Then ``prediction``, a class or a
            number, or ``probability_CLASS`` for each class in their order, or ``probability`` of the second of two.
        fed: The simulation with the clients.

    Raises:
        InputError: If a column or a test row is missing, a row is there twice or belongs to another client, or a value
            is not a class, a number or a probability.
    """
    frame = frame.rename(columns=str)
    if ROW not in frame.columns:
        raise InputError(f"the predictions have no column '{ROW}'", code="missing-column", field=ROW)
    numbers = np.asarray(frame[ROW])
    if numbers.dtype.kind not in "iu" or (numbers < 1).any() or len(set(numbers.tolist())) < len(numbers):
        raise InputError(f"'{ROW}' must number the rows of the data from 1, each once", code="invalid-value", field=ROW)
    places = {number - 1: place for place, number in enumerate(numbers.tolist())}
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
    """Return outputs (n, …) of which the task's metrics compute what they compute of the predictions."""
    names = [name for name in frame.columns if name == PROBABILITY or name.startswith(f"{PROBABILITY}_")]
    targets, classes = fed.data.test_targets, fed.data.classes
    if not targets.is_floating_point():
        count = int(targets.max()) + 1 if classes is None else len(classes)
        if not names:
            return _of_classes(frame, fed, classes or tuple(map(str, range(count))))
        values = _probabilities(frame, names)
        if names == [PROBABILITY] and count == 2:
            values = np.concatenate([1 - values, values], axis=1)
        elif classes is not None and names != [f"{PROBABILITY}_{name}" for name in classes]:
            raise _columns(f"one column '{PROBABILITY}_CLASS' for each of {', '.join(classes)}, in this order")
        if values.shape[1] != count or (np.abs(values.sum(1) - 1) > 1e-3).any():
            raise _columns(f"{count} probabilities for each row, whose sum is 1")
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


def _of_classes(frame: pd.DataFrame, fed: Simulation, classes: Sequence[str]) -> Tensor:
    if PREDICTION not in frame.columns:
        raise _columns(f"'{PREDICTION}' or '{PROBABILITY}_CLASS'")
    for measure in fed.measures:
        if measure.name not in OF_ANSWERS and measure.name in METRICS:
            raise InputError(
                f"{measure.words} needs probabilities, but the predictions are classes: give '{PROBABILITY}_CLASS'",
                code="missing-column",
                field=PROBABILITY,
            )
    codes = {name: code for code, name in enumerate(classes)}
    answers = [codes.get(str(value).strip(), -1) for value in frame[PREDICTION]]
    if -1 in answers:
        value = frame[PREDICTION].iloc[answers.index(-1)]
        raise InputError(
            f"the prediction '{value}' is not a class: expected one of {', '.join(classes)}",
            code="invalid-value",
            field=PREDICTION,
        )
    return torch.nn.functional.one_hot(torch.tensor(answers), len(classes)).double()


def _numbers(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    import pandas as pd

    if not names:
        raise _columns(f"'{PREDICTION}'")
    values = np.stack([pd.to_numeric(frame[name], errors="coerce").to_numpy(dtype=np.float64) for name in names], 1)
    if not np.isfinite(values).all():
        raise InputError("a prediction is missing or not a finite number", code="not-a-number", field=names[0])
    return values


def _probabilities(frame: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    values = _numbers(frame, names)
    if (values < 0).any() or (values > 1).any():
        raise InputError("a probability is not between 0 and 1", code="out-of-range", field=names[0])
    return values


def _columns(wanted: str) -> InputError:
    return InputError(f"the predictions must have {wanted}", code="missing-column", field=PREDICTION)


def predicted_run(record: RunRecord, frame: pd.DataFrame, label: str, *, trust: bool = False) -> RunRecord:
    """Return predictions as a run beside a finished one: tested on the same rows, by the same metrics.

    Args:
        record: The finished run. Its configuration names the data, which are loaded again.
        frame: See :func:`tested_predictions` and :func:`predictions_at`.
        label: Name of the predictions in tables.
        trust: Whether code that the folder names may be loaded.

    Raises:
        InputError: If the folder does not name its data, or they have changed; see also :func:`tested_predictions`.
    """
    folder = record.directory
    if folder is None or "dataset" not in record.config:
        raise InputError(
            f"{record.label} does not name its data: use drfl.assess and drfl.assess_gain in Python",
            code="missing-results",
            field=record.label,
        )
    job = build(load_config(folder / "config.toml", {}, trust=trust))
    if job.fed.test_rows_digest() != record.summary.get("test_rows"):
        raise InputError(
            f"the data of {record.label} have changed since it ran, so its test rows are others",
            code="runs-differ",
            field=record.label,
        )
    return predicted_record(record, frame, label, job.fed)


def predicted_record(record: RunRecord, frame: pd.DataFrame, label: str, fed: Simulation) -> RunRecord:
    """Return predictions as a run without rounds and costs beside a finished one; see :func:`predicted_run`.

    Args:
        record: The finished run.
        frame: See there.
        label: See there.
        fed: The clients of the run.
    """
    import pandas as pd

    seed = record.summary.get("seed")
    evaluation, scores = tested_predictions(predictions_at(frame, int(str(seed))), fed)
    score, *others = fed.measures
    shares = fed.data.shares
    columns: dict[str, object] = {
        "client": fed.data.names, "score": evaluation.score, "loss": evaluation.loss, "samples": evaluation.samples,
        "train_samples": fed.data.sizes, "lambda": shares,
        **{measure.name: values for measure, values in zip(others, evaluation.others, strict=True)},
    }  # fmt: skip
    assert evaluation.sums is not None
    columns |= {name: [*map(float, values)] for name, values in sum_columns(fed.measures, evaluation.sums).items()}
    columns |= {name: record.clients[name] for name in ("patients", LARGEST_PATIENT) if name in record.clients}
    metrics, unknown = Metrics.of(evaluation, score), dict.fromkeys((*LEDGER_COLUMNS, "flagged_mass"), math.nan)
    summary = {
        **record.summary, "algorithm": label, "parameters": {}, "reference": True, "predicted": True,
        "own_models": False, "threshold": None,
        "rounds": 0, "rollbacks": 0, "effective_rounds": 0, "last_rollback": 0, "stopped": "rounds", "stopped_on": None,
        "failure": None, "warnings": [], "step_size": None, "selection": None, "averaged": None, "ledger": {},
        "returned": "last", "wall_seconds": 0.0,
        "final": {**metrics.as_dict(score.name), **others_of(evaluation, fed.measures)},
    }  # fmt: skip
    data = fed.data_digest() or digest_of(fed.data.tensors())
    return dataclasses.replace(
        record, label=f"{label}-seed{seed}", directory=None, summary=summary, clients=pd.DataFrame(columns),
        config={**record.config, "algorithm": label, "algorithms": {}}, row_scores=lambda: scores._replace(data=data),
        history=pd.DataFrame([{"round": 0, **metrics._asdict(), **unknown}]), effective=None,
        lam=pd.DataFrame([[0, *shares.tolist()]], columns=["round", *fed.data.names]),
    )  # fmt: skip
