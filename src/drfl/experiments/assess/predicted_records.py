"""Predictions of another tool as runs: made beside finished runs, and stored in the folder of a comparison."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save

from drfl.core.atomic_files import is_file
from drfl.core.errors import InputError
from drfl.core.hashing import digest_of
from drfl.core.tensor_files import read_tensors
from drfl.data.row_scores import RowScores
from drfl.engine import Simulation
from drfl.experiments.assess.predictions import predictions_at, tested_predictions
from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.run.artifacts import LARGEST_PATIENT, json_text, sum_columns
from drfl.experiments.run.manifest import PREDICTIONS
from drfl.report import test_rows
from drfl.report.read_run import RunRecord, nested_table
from drfl.training.checkpoint.record import first_fault
from drfl.training.history import LEDGER_COLUMNS, Metrics, others_of

if TYPE_CHECKING:
    import pandas as pd

ABOUT, ROWS = "drfl", "rows."
"""The key of the metadata of the file, and the prefix of the tensors that are scores of rows."""

REMEDY = "run the comparison again with `predictions`"


def predicted_run(record: RunRecord, frame: pd.DataFrame, label: str, *, trust: bool = False) -> RunRecord:
    """Return predictions as a run beside a finished one: tested on the same rows, by the same metrics.

    The run's configuration names the data, which are loaded again. With ``trust``, code that it names may be loaded.

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
    # Predictions belong to rows by number, so other rows would give a plausible but wrong score.
    if job.fed.test_rows_digest() != record.summary.get("test_rows"):
        raise InputError(
            f"the data of {record.label} have changed since it ran, so its test rows are no longer the same",
            code="runs-differ",
            field=record.label,
        )
    return predicted_record(record, frame, label, job.fed)


def predicted_record(record: RunRecord, frame: pd.DataFrame, label: str, fed: Simulation) -> RunRecord:
    """Return predictions as a run without rounds and costs beside a finished one; see :func:`predicted_run`."""
    import pandas as pd

    evaluation, scores = tested_predictions(predictions_at(frame, int(record.seed)), fed)
    score, *others = fed.measures
    columns: dict[str, object] = {
        "score": evaluation.score, "loss": evaluation.loss, "samples": evaluation.samples,
        "train_samples": fed.data.sizes, "lambda": fed.data.shares,
        **{measure.name: values for measure, values in zip(others, evaluation.others, strict=True)},
    }  # fmt: skip
    # Store counts rather than rates, because intervals and tests need them.
    assert evaluation.sums is not None
    columns |= sum_columns(fed.measures, evaluation.sums)
    columns |= {name: record.clients[name] for name in ("patients", LARGEST_PATIENT) if name in record.clients}
    final = {**Metrics.of(evaluation, score).as_dict(score.name), **others_of(evaluation, fed.measures)}
    data = fed.data_digest() or digest_of(fed.data.tensors())
    return _beside(record, label, pd.DataFrame(columns).astype(float), final, scores._replace(data=data))


def _beside(
    record: RunRecord, label: str, clients: pd.DataFrame, final: Mapping[str, object], scores: RowScores
) -> RunRecord:
    """Return a run without rounds and costs beside a finished one.

    ``clients`` has the columns of clients.csv without the names.
    """
    import pandas as pd

    names, seed = record.clients["client"].tolist(), record.summary.get("seed")
    summary = {
        **record.summary, "algorithm": label, "parameters": {}, "reference": True, "predicted": True,
        "own_models": False, "threshold": None,
        "rounds": 0, "rollbacks": 0, "effective_rounds": 0, "last_rollback": 0, "stopped": "rounds", "stopped_on": None,
        "failure": None, "warnings": [], "step_size": None, "selection": None, "averaged": None, "ledger": {},
        "returned": "last", "wall_seconds": 0.0, "final": dict(final),
    }  # fmt: skip
    run = dataclasses.replace(
        record, label=f"{label}-seed{seed}", directory=None, summary=summary,
        clients=pd.DataFrame({"client": names}).join(clients),
        config={**record.config, "algorithm": label, "algorithms": {}}, row_scores=lambda: scores, effective=None,
        lam=pd.DataFrame([[0, *clients["lambda"]]], columns=["round", *names]),
    )  # fmt: skip
    metrics = {field: run.final(field) for field in Metrics._fields}
    unknown = dict.fromkeys((*LEDGER_COLUMNS, "flagged_mass"), math.nan)
    return dataclasses.replace(run, history=pd.DataFrame([{"round": 0, **metrics, **unknown}]))


class _Stored(BaseModel):
    """Predictions at a seed, as the metadata of the file describe them."""

    model_config = ConfigDict(extra="forbid")

    label: str
    seed: int
    data: str
    final: dict[str, float]


class _Document(BaseModel):
    """The metadata of the file."""

    model_config = ConfigDict(extra="forbid")

    predictions: list[_Stored]


def predictions_file(records: Sequence[RunRecord]) -> bytes:
    """Return the content of ``predictions.safetensors``, from which :func:`predicted_in` reads the same runs."""
    about, tensors = list[dict[str, object]](), dict[str, torch.Tensor]()
    for i, record in enumerate(records):
        scores = record.row_scores()
        assert scores is not None
        final = nested_table(record.summary, "final")
        about.append({"label": record.algorithm, "seed": int(record.seed), "data": scores.data, "final": final})
        columns = record.clients.drop(columns="client")
        tensors |= {f"{i}.{name}": torch.tensor(columns[name].to_numpy(float)) for name in columns}
        tensors |= {f"{i}.{ROWS}{name}": values for name, values in test_rows.tensors_of(scores).items()}
    # Copy, because safetensors rejects tensors that share memory.
    return save({name: values.clone() for name, values in tensors.items()}, {ABOUT: json_text({"predictions": about})})


def stored_labels(folder: Path) -> list[str]:
    """Return the names of the predictions that the folder of a comparison stores."""
    return list(dict.fromkeys(part.label for part in _read(folder)[0]))


def predicted_beside(folders: Iterable[Path], runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the predictions that comparisons store, see :func:`predicted_in`."""
    return [
        record
        for place, folder in {folder.resolve(): folder for folder in folders}.items()
        for record in predicted_in(folder, [r for r in runs if r.directory and r.directory.resolve().parent == place])
    ]


def predicted_in(folder: Path, runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the predictions in the folder of a comparison as runs; none for other folders.

    Predictions at seeds without a run are omitted.
    """
    import pandas as pd

    about, tensors = _read(folder)
    # Iterate in reverse, so that the first of several runs at a seed wins.
    firsts, records, path = {run.seed: run for run in reversed(runs)}, list[RunRecord](), folder / PREDICTIONS
    for i, part in enumerate(about):
        run = firsts.get(str(part.seed))
        if run is None:
            continue
        own = {name.removeprefix(f"{i}."): values for name, values in tensors.items() if name.startswith(f"{i}.")}
        rows = {name.removeprefix(ROWS): values for name, values in own.items() if name.startswith(ROWS)}
        columns = {name: values for name, values in own.items() if not name.startswith(ROWS)}
        wanted = {"score", "loss", "samples", "train_samples", "lambda", *(m.name for m in run.measures[1:])}
        sizes = {(values.dtype, values.shape) for values in columns.values()}
        # The file may come from anyone, so a missing column is reported here and not as a crash later.
        if not wanted <= set(columns) or sizes != {(torch.float64, (len(run.clients),))}:
            raise _damaged(path, f"it lacks a column of the clients of '{part.label}'")
        scores = test_rows.checked(rows, part.data, path)
        clients = pd.DataFrame({name: values.numpy() for name, values in columns.items()})
        records.append(_beside(run, part.label, clients, part.final, scores))
    return records


def _read(folder: Path) -> tuple[list[_Stored], dict[str, torch.Tensor]]:
    path = folder / PREDICTIONS
    if not is_file(path):
        return [], {}
    tensors, metadata = read_tensors(path, follow=False, problem="is damaged", remedy=REMEDY)
    try:
        return _Document.model_validate_json(metadata.get(ABOUT, "")).predictions, tensors
    except ValidationError as error:
        raise _damaged(path, first_fault(error)) from None


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path} is damaged: {why}; {REMEDY}", code="damaged-file", field=str(path))
