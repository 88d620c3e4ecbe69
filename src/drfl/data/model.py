"""Predictions of a trained model from rows in raw columns."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drfl.core import checks, user_code
from drfl.core.errors import InputError, Notice
from drfl.core.html_table import html_table
from drfl.data.model_file import ModelFile, Threshold, read_model_file
from drfl.data.model_store import find_model
from drfl.data.personal_models import (
    clients_of_fit,
    has_own_models,
    no_personal_models,
    personal_file,
    personal_weights,
    weights_of,
)
from drfl.data.standardisation import Standardisation, Standardise
from drfl.data.tables.columns import frame_row
from drfl.data.tables.conform import encode_features
from drfl.data.tables.schema import Column, TableSchema
from drfl.data.tables.table import Table, check_unique, plain_columns, text_names
from drfl.task.architecture import build, check_sizes, load_weights, make_model

LOG = logging.getLogger("drfl")

BATCH = 4096
"""Rows that the module gets at a time."""


def load_model(
    path: str | Path,
    module: nn.Module | str | None = None,
    *,
    schema: TableSchema | str | Path | None = None,
    trusted: Collection[str] = (),
    client: str | None = None,
) -> Model:
    """Load a trained model that takes rows in raw columns.

    Code that the file names is not run. A model of torch's layers in sequence, such as drfl's built-in models, is built
    from its description in the file. For another model, pass the module.

    Args:
        path: A run's ``model.safetensors``, ``model-last.safetensors`` or ``model-averaged.safetensors``, or the folder
            of a run or a fit. The folder of a comparison, a sweep or a deployment is accepted if it has a single run.
            At a site of a deployment, give the folder with ``site.toml``, which has the site's current model and its
            schema.
        module: Module with the architecture that was trained, whose parameters and buffers are overwritten; or the
            reference to the user's model, such as "mine.py:net". None if the file describes the module.
        schema: The schema of the columns, or its file, if the model file has only the schema's digest, as after a
            deployment.
        trusted: SHA-256 digests of Python files. The code that the model file names is loaded if the file has these
            digests, and the code on this machine has them too.
        client: Name of a client of a fit or a run with personal models. Its personal model is loaded, or the global
            model if the fit gave it none.

    Returns:
        The model. Without its module it can do everything except predict. A warning is logged if it is the global model
        of a run that tested its clients' own models.

    Raises:
        InputError: If the file cannot be read, was not written by drfl, is damaged or has a newer format; if the module
            has other names, shapes or types; if the schema has another digest; or if no client has this name.

    Example:
        >>> import drfl, tempfile
        >>> out = f"{tempfile.mkdtemp()}/runs"
        >>> data = drfl.data_spec(dataset="heart-disease").for_seed(0)
        >>> task = drfl.Task(drfl.models.linear((13,), 2))
        >>> algorithms = {"FedAvg": drfl.FedAvg(m=4)}
        >>> result = drfl.compare(algorithms, data, task, rounds=2, seeds=1, out=out, progress=None)
        >>> model = drfl.load_model(f"{out}/FedAvg-seed0/model.safetensors")
        >>> model.to_torch()(drfl.load("heart-disease").inputs[:3]).shape
        torch.Size([3, 2])
    """
    file, of_site = find_model(path)
    content = read_model_file(file)
    if client is not None:
        own = weights_of(file, content.about, client)
        content = content._replace(weights=_merged(content.weights, own, client))
    elif has_own_models(content.about):
        remedy = "name a client to use its model" if personal_file(file).is_file() else "which are not stored"
        text = f"{file} is a global model, but the run tested its clients' own models: {remedy}"
        LOG.warning(Notice(text, "no-personal-models", str(file)))
    return Model(content, module, of_site if schema is None else schema, trusted)


def _merged(weights: Mapping[str, Tensor], own: Mapping[str, Tensor], client: str) -> dict[str, Tensor]:
    """Return the weights of a global model with those of a client's personal model."""
    shapes = {name: (value.shape, value.dtype) for name, value in weights.items()}
    fits = all(shapes.get(name) == (value.shape, value.dtype) for name, value in own.items())
    if not fits or not all(bool(value.isfinite().all()) for value in own.values()):
        why = "has values that are not finite" if fits else "does not fit the global model, which is from another run"
        raise InputError(f"the personal model of client '{client}' {why}", code="damaged-file", field="client")
    return {**weights, **own}


def load_models(
    path: str | Path,
    reference: str | None = None,
    *,
    schema: TableSchema | str | Path | None = None,
    client: str | None = None,
    personal: bool = False,
) -> tuple[Model, dict[str, dict[str, Tensor]]]:
    """Load a model (see :func:`load_model`) and, if ``personal``, the weights of personal models beside it by client.

    Raises:
        InputError: If ``personal`` is true and there are none, or a client is named too.
    """
    if personal and client is not None:
        raise InputError(
            "`client` and `personal` exclude each other: omit `client` to use the model of each row's client",
            code="conflicting-options",
            field="personal",
        )
    if not personal:
        return load_model(path, reference, schema=schema, client=client), {}
    file, of_site = find_model(path)
    model = Model(read_model_file(file), reference, of_site if schema is None else schema)
    return model, model.personal_weights()


def personal_outputs(
    model: Model, own: Mapping[str, Mapping[str, Tensor]], tables: Sequence[Table], clients: Sequence[str]
) -> np.ndarray:
    """Compute the outputs for the rows of tables: of a client's personal model if there is one, else of ``model``.

    Args:
        model: The global model.
        own: Weights of the personal models, by client.
        tables: The tables.
        clients: The client of each row of all tables.

    Raises:
        InputError: If a personal model does not fit the global one, or has values that are not finite.
    """
    inputs = torch.cat([model.encode(table) for table in tables])
    outputs = model.outputs_of(inputs)
    rows = dict[str, list[int]]()
    for row, name in enumerate(clients):
        if name in own:
            rows.setdefault(name, []).append(row)
    # The models share one module, because a copy for each client would repeat frozen layers, which may be large.
    try:
        for name, of_client in rows.items():
            load_weights(model.module, _merged(model.weights, own[name], name))
            outputs[of_client] = model.outputs_of(inputs[of_client])
    finally:
        load_weights(model.module, model.weights)
    return outputs


class Model:
    """A trained model with the conventions of scikit-learn. :func:`load_model` makes it.

    Attributes:
        weights: The ``state_dict()`` of the trained module.
        about: The document in the file's metadata, see the reference on files.
        kind: Kind of task.
        schema: The schema of the raw columns; None if there is none.
        standardisation: Standardisation of the encoded columns; None if they were not standardised.
        threshold: The threshold above which the positive class of two is predicted.
        classes_: (k,) the classes in the order of the probabilities: whole numbers if all names are, else texts. Absent
            in regression.
        feature_names_in_: The raw columns that the model needs. Absent if its inputs have no names.
        n_features_in_: Their number. Absent unless inputs are rows of columns.
    """

    def __init__(
        self,
        file: ModelFile,
        module: nn.Module | str | None = None,
        schema: TableSchema | str | Path | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        self._file = file
        self.weights, self.about, self.kind = file.weights, file.about, file.kind
        self.standardisation: Standardisation | None = file.standardisation
        self.threshold: Threshold = file.threshold
        self.schema = file.schema
        if schema is not None:
            self.schema = schema if isinstance(schema, TableSchema) else TableSchema.read(schema)
            if self.schema.digest != file.schema_digest:
                raise InputError(
                    f"{file.path} was trained with another schema ({file.schema_digest[:8] or 'none'}, "
                    f"not {self.schema.digest[:8]}). Pass the schema that was used for training",
                    code="schema-differs",
                    field="schema",
                )
        about = self.about.get("module", {})
        if module is None and "architecture" in self.about:
            module = build(self.about["architecture"]).eval()
            check_sizes(module, file.shape, torch.get_default_dtype() if file.dtype.is_floating_point else file.dtype)
        elif module is None and self._is_trusted(trusted):
            module = str(about["reference"])
        if isinstance(module, str):
            classes = about.get("arguments", {}).get("classes", 0 if file.classes is None else len(file.classes))
            made = make_model(module, file.shape, classes)
            # The module's own types are those before the run converted it.
            kinds = {value.dtype for value in self.weights.values() if value.is_floating_point()}
            module = made.to(kinds.pop()) if len(kinds) == 1 else made
        if module is not None:
            load_weights(module, self.weights)
        # Some modules cannot be built without running code. Such a model can still describe itself.
        self._module = None if module is None else module.eval()
        names = self._raw_names
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
            self.n_features_in_ = len(names)
        elif len(file.shape) == 1 and file.dtype.is_floating_point and file.fields is None:
            self.n_features_in_ = file.shape[0]

    def __repr__(self) -> str:
        return f"<Model for {self.kind}, {self._file.path}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        results = [*self.about.get("metrics", {}).items()]
        return html_table(repr(self), pd.DataFrame(results, columns=["test results", "value"]))

    def _is_trusted(self, trusted: Collection[str]) -> bool:
        """Return whether the code that the file names has trusted digests, in the file and on this machine."""
        about = self.about.get("module", {})
        reference, digests = about.get("reference"), about.get("sha256")
        if not isinstance(reference, str) or not isinstance(digests, dict) or not digests:
            return False
        if not set(map(str, digests.values())) <= set(trusted):
            return False
        # The code must also be that on this machine, because that is what would run.
        user_code.check_received({reference: "model"}, digests, self._file.path.resolve().parent)
        return True

    @property
    def _raw_names(self) -> tuple[str, ...] | None:
        if self.schema is not None:
            return tuple(column.name for column in self.schema.columns if column.is_feature)
        return self._file.columns

    @property
    def module(self) -> nn.Module:
        """The trained module, which takes encoded and standardised rows.

        Raises:
            InputError: If only code that the file names can make it.
        """
        if self._module is None:
            about = self.about.get("module", {})
            name = about.get("reference", about.get("class", "unknown"))
            raise InputError(
                f"{self._file.path} is a model of your code, {name!s:.100}, which drfl does not run by itself: pass "
                "the module, or its reference such as 'mine.py:net'",
                code="untrusted-code",
                field="module",
            )
        return self._module

    def personal_weights(self) -> dict[str, dict[str, Tensor]]:
        """Return the weights of the personal models beside the model's file, by client.

        Raises:
            InputError: If there are none, unless a fit decided that every client uses the global model.
        """
        own = personal_weights(self._file.path)
        if not own and (has_own_models(self.about) or not clients_of_fit(self._file.path)):
            raise no_personal_models(self._file.path, self.about)
        return own

    def to_torch(self) -> nn.Module:
        """Return a module that takes encoded rows in raw units (n, p), standardises them, and returns its outputs.

        Rows in float64 lose no digits. Without a standardisation, it is the trained module, which may take a dictionary
        or tuple.
        """
        module = self.module
        return module if self.standardisation is None else _Prepared(self.standardisation, self._file.dtype, module)

    def to_onnx(self, path: str | Path) -> None:
        """Write the model as ONNX and check the file with onnxruntime; ``pip install 'drfl[onnx]'``.

        The file takes ``inputs`` (n, …), encoded like those of :meth:`to_torch`, in float64 if it standardises them. It
        returns ``probabilities`` (n, k), or ``predictions`` in regression. :meth:`encode` encodes raw columns.

        Args:
            path: The file to write.

        Raises:
            InputError: If a package is not installed, the model cannot be converted, or the file cannot be written.
            DrflError: If onnxruntime computes other results.
        """
        from drfl.data.onnx_file import ROWS, write_onnx

        if self._file.fields is not None:
            raise InputError(
                f"drfl cannot write ONNX for a model with the inputs {self._file.fields}: use torch.onnx.export with "
                "model.to_torch()",
                code="unsupported-model",
                field="model",
            )
        file, generator = self._file, torch.Generator().manual_seed(0)
        if not file.dtype.is_floating_point:
            example = torch.zeros(ROWS, *file.shape, dtype=file.dtype)
        elif self.standardisation is not None:
            # Use rows in the range of the training rows, so that rounding errors are those of real rows.
            normal = torch.randn(ROWS, *file.shape, dtype=torch.float64, generator=generator)
            example = normal * self.standardisation.scale + self.standardisation.mean
        else:
            example = torch.rand(ROWS, *file.shape, generator=generator).to(_dtype_of(self.module))
        if self.kind == "regression":
            write_onnx(self.to_torch(), "predictions", example, Path(path))
        else:
            answering = nn.Sequential(self.to_torch(), _Probabilities(self.kind))
            write_onnx(answering, "probabilities", example, Path(path))

    def encode(self, rows: Any) -> Tensor:  # noqa: ANN401
        """Encode rows as the trained module was given them, before they are standardised.

        Args:
            rows: See :meth:`predict_proba`.

        Returns:
            (n, …) float64, or int64 for tokens. If the model takes a dictionary or tuple, its fields side by side.

        Raises:
            InputError: If a column is missing, a value is wrong, or the shape is not that of the model's inputs.
        """
        file, names, place = self._file, self._raw_names, "the table"
        if file.fields is not None:
            inputs = file.fields.pack(rows, place)
            checks.finite(place, inputs)
            return inputs
        if hasattr(rows, "columns") and hasattr(rows, "iloc"):
            table = Table(place, plain_columns(text_names(rows)), frame_row)
            check_unique(list(table.frame.columns), place)
            schema = self.schema
            # A user's data frame may have texts for numbers and words for missing values, like a file.
            rows = table if schema is None else table.prepared(schema.texts, schema.reading)
        if isinstance(rows, Table):  # the reader has prepared it
            frame = rows.frame
            if names is None:
                raise InputError(
                    "the model's inputs have no column names: pass an array", code="wrong-type", field="rows"
                )
            if self.schema is None and self._file.schema_digest:
                raise self._lacks_schema()
            columns = [Column(name, "number") for name in names] if self.schema is None else self.schema.columns
            if self.schema is None or self.schema.inferred:  # such tables have 0 and 1 for false and true
                words = [column.name for column in columns if column.levels]
                frame = rows.with_numbers(() if self.schema is None else self.schema.texts).frame
                truths = [name for name in frame.columns if frame[name].dtype == bool and name not in words]
                frame = frame.astype(dict.fromkeys(truths, float))
            values = encode_features(columns, rows._replace(frame=frame))
            if self.standardisation is None and np.isnan(values).any():
                row = int(np.isnan(values).any(1).argmax())
                raise InputError(
                    f"{rows.row_name(row)}: a value is missing. Fill it, because the model was trained "
                    "without standardisation, which would replace it",
                    code="missing-values",
                    field="rows",
                )
            return torch.from_numpy(values)
        if self.schema is None and file.schema_digest and names is not None:
            raise self._lacks_schema()
        values = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        shape = file.shape if self.schema is None or names is None else (len(names),)
        if values.ndim != len(shape) + 1 or values.shape[1:] != shape:
            raise InputError(
                f"{place} has the shape {values.shape}, but the model takes (n, {', '.join(map(str, shape))})",
                code="wrong-shape",
                field="rows",
            )
        if self.schema is not None:
            import pandas as pd

            return self.encode(pd.DataFrame(values, columns=list(names or ())).infer_objects())
        kind = np.float64 if file.dtype.is_floating_point else np.int64
        # Tokens are whole numbers, and rounding others would hide a mistake.
        if values.dtype.kind not in "biuf" or (kind is np.int64 and values.dtype.kind == "f"):
            raise InputError(f"{place} holds {values.dtype}, not numbers", code="wrong-type", field="rows")
        inputs = torch.from_numpy(values.astype(kind, order="C"))
        if inputs.is_floating_point() and not bool(inputs.isfinite().all()):
            row = int((~inputs.isfinite()).flatten(1).any(1).int().argmax())
            raise InputError(f"{frame_row(row)} is not finite", code="not-finite", field="rows")
        return inputs

    def _lacks_schema(self) -> InputError:
        return InputError(
            f"{self._file.path} has only the digest of its schema, {self._file.schema_digest[:8]}…: pass the schema",
            code="needs-schema",
            field="schema",
        )

    def outputs(self, rows: Any) -> np.ndarray:  # noqa: ANN401
        """Compute the module's outputs, such as logits, for the rows of :meth:`predict_proba`, (n, …) float64."""
        return self.outputs_of(self.encode(rows))

    def outputs_of(self, inputs: Tensor) -> np.ndarray:
        """Compute the module's outputs for rows that :meth:`encode` has encoded, (n, …) float64."""
        module = self.to_torch()
        # Rows are standardised in float64. Others are rounded as for the training.
        if self.standardisation is None and inputs.is_floating_point():
            inputs = inputs.to(self._file.dtype).to(_dtype_of(self.module))
        fields, parts = self._file.fields, list[Tensor]()
        with torch.no_grad():
            for part in inputs.split(BATCH):
                args, kwargs = ((part,), {}) if fields is None else fields(module, (part,), {})
                parts.append(module(*args, **kwargs).double())
        found, classes = torch.cat(parts), self._file.classes
        width = 1 if found.dim() < 2 else found.shape[1]
        # A single output represents two classes.
        if self.kind == "classification" and classes is not None and max(2, width) != len(classes):
            raise InputError(
                f"{self._file.path} is damaged: the model has {width} outputs, and the file names {len(classes)} "
                "classes",
                code="damaged-file",
                field=str(self._file.path),
            )
        return found.numpy()

    @cached_property
    def classes_(self) -> np.ndarray:
        """See the class."""
        names = self._file.classes
        if self.kind == "regression":
            raise AttributeError("a model for regression has no classes")
        if names is None:
            count = self.about["task"].get("outputs", 2)
            return np.arange(max(2, count) if self.kind == "classification" else count)
        # As in scikit-learn, predictions are the labels of the table, which were numbers.
        if all(re.fullmatch(r"0|-?[1-9][0-9]*", name) for name in names):
            return np.array([int(name) for name in names])
        return np.array(names, dtype=object)

    def predict_proba(self, rows: Any) -> np.ndarray:  # noqa: ANN401
        """Compute probabilities.

        Args:
            rows: A data frame with the model's raw columns in any order, whose other columns are ignored; or an array
                (n, …) with these columns in their order, or of inputs without names, such as images in [0, 1]; or a
                dictionary or tuple of arrays, if the model was trained on these.

        Returns:
            (n, k) the probability of each class, in the order of ``classes_``; for a multi-label task (n, L) the
            probability of each label.

        Raises:
            InputError: If the task is regression, a column is missing or a value is wrong.
        """
        if self.kind == "regression":
            raise InputError(
                "a model for regression has no probabilities: use predict", code="wrong-task", field="task"
            )
        return self.probabilities(self.outputs(rows))

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Convert what :meth:`outputs` returns to what :meth:`predict_proba` returns."""
        return _Probabilities(self.kind)(torch.from_numpy(outputs)).numpy()

    def predict(self, rows: Any) -> np.ndarray:  # noqa: ANN401
        """Predict the class, the labels or the number of each row.

        The positive one of two classes is predicted if its log-odds are above ``threshold.log_odds``.

        Args:
            rows: See :meth:`predict_proba`.

        Returns:
            (n,) classes, (n, L) labels 0 and 1, or (n,) or (n, k) numbers.

        Raises:
            InputError: If a column is missing or a value is wrong.
        """
        return self.answers(self.outputs(rows))

    def answers(self, outputs: np.ndarray) -> np.ndarray:
        """Convert what :meth:`outputs` returns to what :meth:`predict` returns."""
        if self.kind == "regression":
            return outputs[:, 0] if outputs.ndim == 2 and outputs.shape[1] == 1 else outputs
        if self.kind == "multi-label":
            return (outputs > 0).astype(np.int64)
        columns = outputs if outputs.ndim == 2 else outputs[:, None]
        if columns.shape[1] > 2:
            return self.classes_[columns.argmax(1)]
        # One output is the log-odds of the second class, and so is the difference of two logits.
        log_odds = columns[:, 0] if columns.shape[1] == 1 else columns[:, 1] - columns[:, 0]
        return self.classes_[(log_odds > self.threshold.log_odds).astype(int)]


class _Probabilities(nn.Module):
    """The probabilities (n, k) of classes or labels, from a module's outputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, outputs: Tensor) -> Tensor:
        """Return one column per class or label."""
        if self.kind == "multi-label":
            return outputs.sigmoid()
        # One output is the log-odds of the second of two classes.
        if outputs.dim() < 2 or outputs.shape[1] == 1:
            positive = outputs.reshape(-1, 1).sigmoid()
            return torch.cat([1 - positive, positive], 1)
        return outputs.softmax(1)


class _Prepared(nn.Module):
    """A module behind the standardisation of its inputs, which are rounded as for the training."""

    def __init__(self, by: Standardisation, rounded: torch.dtype, model: nn.Module) -> None:
        super().__init__()
        self.standardise, self.model, self.dtype = Standardise(by, rounded), model, _dtype_of(model)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for encoded rows (n, p) in raw units."""
        return self.model(self.standardise(x).to(self.dtype))


def _dtype_of(module: nn.Module) -> torch.dtype:
    return next((p.dtype for p in module.parameters() if p.is_floating_point()), torch.get_default_dtype())
