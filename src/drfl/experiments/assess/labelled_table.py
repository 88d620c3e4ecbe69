"""Test a trained model on new rows with targets, client by client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from drfl.assessment.assess_evaluation import assess_evaluation
from drfl.assessment.clients import Assessment, AucInterval
from drfl.core.errors import InputError, Notice, unknown
from drfl.data import ClientData
from drfl.data.model import Model, personal_outputs
from drfl.data.prediction_table import unit_notices
from drfl.data.tables.columns import frame_row
from drfl.data.tables.conditions import used_columns
from drfl.data.tables.conform import encode, target_tensor
from drfl.data.tables.patients import numbered
from drfl.data.tables.table import Table, plain_columns, text_names
from drfl.data.tables.table_files import client_of_rows, patients_of_tables
from drfl.data.tables.table_paths import files_of, name_of
from drfl.data.tables.text_form import DETECT, ReadOptions
from drfl.engine import Loop, Simulation
from drfl.task.measure import Rows
from drfl.task.metrics import METRICS
from drfl.task.task import Task

if TYPE_CHECKING:
    import pandas as pd

LOSSES = {
    "classification": nn.CrossEntropyLoss, "multi-label": nn.BCEWithLogitsLoss, "regression": nn.MSELoss,
}  # fmt: skip


class GivenOutputs(nn.Module):
    """A model whose inputs are its outputs. The parameter is needed, because a model without any cannot be tested."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the inputs."""
        return self.one * x


def evaluate_tables(
    model: Model,
    tables: pd.DataFrame | str | Path | Sequence[str | Path],
    *,
    group: str | None,
    measure: str | None,
    level: float,
    auc_interval: AucInterval,
    own: Mapping[str, Mapping[str, Tensor]] = MappingProxyType({}),
    reading: ReadOptions = DETECT,
    warn: Callable[[Notice], None] = lambda _: None,
) -> Assessment:
    """Test a model on all rows of tables; see :func:`drfl.evaluate`.

    ``own`` has the weights of clients' personal models, and ``reading`` defines how to read files. ``warn`` gets a
    notice if a column of a client is far from the training rows.
    """
    schema = model.schema
    if schema is None:
        raise InputError(
            "the model file has no schema, so drfl does not know the target's column. In Python, make "
            "drfl.ClientData from the new rows, and pass predictions for them to drfl.assess",
            code="needs-schema",
            field="model",
        )
    if isinstance(tables, str | Path | Sequence):
        paths = files_of([Path(path) for path in ([tables] if isinstance(tables, str | Path) else tables)])
        read = [Table.whole(path, schema, () if group is None else (group,), reading) for path in paths]
    else:
        whole = Table("the table", plain_columns(text_names(tables)), frame_row)
        read = [whole.prepared((*schema.texts, *([] if group is None else [group])), schema.reading)]
    for table in read:
        if group is not None and group not in table.frame.columns:
            place = f"in {table.place} for `group`"
            raise unknown("column", group, list(table.frame.columns), field="group", place=place)
    named = all(schema.client in table.frame.columns for table in read)
    if group is None and named:
        group = schema.client
    owners = client_of_rows(read, group)
    if owners is None:
        place = read[0].place
        owners = [place if place == "the table" else name_of(Path(place))] * len(read[0].frame)
    # Groups such as wards are tested with the personal models of the rows' clients.
    clients = client_of_rows(read, schema.client) if own and named else None
    # Other columns are ignored, as in predictions.
    answers = used_columns([each.name for each in schema.targets])
    known = {column.name for column in schema.columns} | {*answers}
    used = [table._replace(frame=table.frame[[name for name in table.frame if name in known]]) for table in read]
    parts = [encode(schema, table) for table in used]
    # The model reads the features itself, and reads truth values as in its training.
    for problem in (each for part in parts for each in part.problems if each.field in answers):
        raise problem
    targets = target_tensor(schema, np.concatenate([part.targets for part in parts]))[0]
    outputs = torch.from_numpy(personal_outputs(model, own, read, clients or owners))
    for notice in unit_notices(model, read, [f"at {name}" for name in owners]):
        warn(notice)
    if schema.task == "classification" and (outputs.ndim == 1 or outputs.shape[1] == 1):
        outputs = outputs.reshape(-1, 1)
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    elif outputs.ndim == 1:
        outputs = outputs[:, None]
    # The interval of a squared error is unknown, so absolute errors are assessed unless another metric is named.
    trained = model.about.get("task", {}).get("score")
    score = measure or ("mae" if schema.task == "regression" else trained if trained in METRICS else None)
    task = Task(GivenOutputs(), LOSSES[schema.task](), score)
    if task.measures[0].rows is Rows.RATE:
        outputs[:, 1] -= model.threshold.log_odds  # rates are at ½
    names, client = np.unique(np.array(owners, dtype=object).astype(str), return_inverse=True)
    of_client = tuple(torch.from_numpy(np.flatnonzero(client == k)) for k in range(len(names)))
    patients = patients_of_tables(read, schema.patient)
    data = ClientData(
        outputs, targets, of_client, outputs, targets, of_client, tuple(map(str, names)), schema.classes,
        patients=None if patients is None else numbered(patients),
    )  # fmt: skip
    fed = Simulation(data, task, engine=Loop())
    evaluation = fed.tested_outputs(torch.cat([outputs[part] for part in of_client]))[0]
    counts = None if patients is None else data.patient_counts(data.test).tolist()
    return assess_evaluation(
        evaluation, fed.measures, data.names, level=level, auc_interval=auc_interval, patients=counts
    )
