"""A model file as the server and the sites of a deployment use it: its architecture, its vector and its columns."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.files import reading
from drfl.data.model_file import ModelFile
from drfl.data.standardisation import Standardisation
from drfl.data.warm_start import differing_tensor
from drfl.flower.job_code import JobCode
from drfl.flower.messages import ModelRecipe, SiteIdentity, short_name
from drfl.flower.site_task import task_of
from drfl.task.architecture import load_weights
from drfl.task.models import CLASS_LOSSES, LOSSES, MODELS


@dataclass(frozen=True, eq=False)
class DescribedModel:
    """A model in a file.

    Args:
        name: Its name in messages.
        model: Description from which a site builds it.
        shape: Shape of an input.
        w: (d,) its parameters; for code of the user, all of its tensors.
        standardisation: Mean and scale of its columns; None for no standardisation.
        columns: (p,) names of its inputs as in messages; empty if they have none.
        classes: Names of its classes as in messages; empty if they have none.
        schema: Digest of its schema; "" without one.
        path: The file.
    """

    name: str
    model: ModelRecipe
    shape: tuple[int, ...]
    w: Tensor
    standardisation: Standardisation | None
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    schema: str
    path: Path

    def check_fits(self, site: SiteIdentity, name: str) -> None:
        """Check that the model can be used with a site's data."""
        pairs = (
            ("shape of an input", self.shape, site.shape),
            ("schema", self.schema, site.schema),
            ("columns", self.columns, site.features),
            ("classes", self.classes, site.class_names),
        )
        for what, own, other in pairs:
            # Models and sites without names, or without a schema, can only be compared by shape.
            if not own or not other or own == other:
                continue
            text = f"the model has {own} and the site {other}"
            if what == "schema":
                text = f"the model was trained with schema {self.schema[:8]}, and the site has {site.schema[:8]}"
            elif what in ("columns", "classes"):
                assert isinstance(own, tuple)
                assert isinstance(other, tuple)
                i = next((i for i, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), -1)
                text = f"the model has {len(own)} {what}, and the site {len(other)}"
                if i >= 0:
                    text = f"number {i + 1} of the {what} is '{own[i]}' in the model and '{other[i]}' at the site"
            raise InputError(
                f"'{self.name}' does not fit site '{name}': {text}. Use a model that was trained on the same "
                f"{'columns' if what == 'shape of an input' else what}",
                code="model-mismatch",
                field=name,
            )
        if site.classes > max(self.model.classes, 1) and self.model.loss in CLASS_LOSSES:
            raise InputError(
                f"'{self.name}' has {self.model.classes} classes, but the labels of site '{name}' need {site.classes}",
                code="model-mismatch",
                field=name,
            )


def describe_model(
    file: ModelFile, code: JobCode | None = None, name: str = "", approved: Collection[str] = ()
) -> DescribedModel:
    """Describe a model file for the sites.

    Args:
        file: The file.
        code: Code of the user that the server may run, and the metrics of the tests; None for only drfl's own code.
        name: Name of the model in messages; by default that of the file.
        approved: SHA-256 digests of code that may be used elsewhere. A model of such code is not built here.

    Raises:
        InputError: If the file lacks a field, its model or loss is neither one of drfl's nor of known code, or its
            weights are not finite or do not match the model.
    """
    about, name = file.about, name or file.path.name
    with reading(file.path, "has damaged metadata"):
        module, task, weights = about["module"], about["task"], list(file.weights.values())
        loss, score, digests = str(task["loss"]), str(task["score"]), set(module.get("sha256", {}).values())
        dtype = cast("Literal['float32', 'float64']", str(weights[0].dtype).removeprefix("torch."))
        is_approved = "reference" in module and bool(digests) and digests <= set(approved)
        names = [key for key, make in MODELS.items() if module.get("class") == f"drfl.models.{make.__name__}"]
        own = code.reference_of(module) if code is not None and "reference" in module else None
        known, known_loss = next(iter(names), own), loss if code is None else code.loss_of(loss)
        classes = int(module["arguments"]["classes"]) if "arguments" in module else len(file.classes or ())
    built = None
    # A site keeps models of code that it has approved, for its own programs. Without running the code, drfl can check
    # only that the weights are finite.
    if is_approved:
        model, w = ModelRecipe("", "", dtype, 0), torch.cat([value.double().flatten() for value in weights])
    elif known is None or known_loss is None or (code is None and loss not in LOSSES):
        remedy = "" if "reference" not in module or code is None else ". Name the same code with --model FILE.py:NAME"
        raise InputError(
            f"'{name}' has the model {module.get('class') or module.get('reference')} with the loss '{loss}', "
            f"which is neither built into drfl nor in server.toml{remedy}",
            code="unknown-name",
            field="model",
        )
    else:
        metrics = (score,) if code is None else code.metrics
        model = ModelRecipe(known, known_loss, dtype, classes, metrics=metrics, code=() if code is None else code.files)
        built = task_of(model, file.shape, None if code is None else code.folder)
        # Copy, because the weights that the code creates are compared with those of the file below.
        loaded = copy.deepcopy(built.model)
        load_weights(loaded, file.weights)
        w = dataclasses.replace(built, model=loaded).w0
    if not bool(w.isfinite().all()):
        raise InputError(
            f"'{name}' has weights that are not finite. Use the model of another run", code="not-finite", field="model"
        )
    tensor = None if built is None else differing_tensor(built, file.weights, w)
    if tensor is not None:
        raise InputError(
            f"'{name}' has values in '{tensor}' that its code does not create, but sites receive only "
            "trained parameters",
            code="model-mismatch",
            field="model",
        )
    columns, class_names = (tuple(map(short_name, names or ())) for names in (file.columns, file.classes))
    return DescribedModel(
        name, model, file.shape, w, file.standardisation, columns, class_names, file.schema_digest, file.path
    )
