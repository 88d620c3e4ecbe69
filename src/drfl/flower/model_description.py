"""A model file as the server and the sites of a deployment use it: its architecture, its vector and its columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.files import reading
from drfl.data.model_file import ModelFile
from drfl.data.standardisation import Standardisation
from drfl.flower.messages import Model, SiteIdentity, short_name
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
    model: Model
    shape: tuple[int, ...]
    w: Tensor
    standardisation: Standardisation | None
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    schema: str
    path: Path

    def check_fits(self, site: SiteIdentity, name: str) -> None:
        """Check that the model can be used with a site's data.

        Raises:
            InputError: If schema, columns, classes or the shape of the inputs differ.
        """
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
    file: ModelFile, metrics: Sequence[str] = (), name: str = "", approved: Collection[str] = ()
) -> DescribedModel:
    """Describe a model file for the sites.

    Args:
        file: The file.
        metrics: Names of the metrics of its tests, the score first; by default its own score.
        name: Name of the model in messages; by default that of the file.
        approved: SHA-256 digests of the user's code. A model of such code is not built, so it cannot be tested.

    Raises:
        InputError: If the file lacks a field, its model is neither one of drfl's nor of approved code, or its weights
            are not finite or do not match the model.
    """
    about, name = file.about, name or file.path.name
    with reading(file.path, "has damaged metadata"):
        module, task, weights = about["module"], about["task"], list(file.weights.values())
        names = [key for key, make in MODELS.items() if module.get("class") == f"drfl.models.{make.__name__}"]
        loss, score, digests = str(task["loss"]), str(task["score"]), set(module.get("sha256", {}).values())
        dtype = cast("Literal['float32', 'float64']", str(weights[0].dtype).removeprefix("torch."))
        is_approved = "reference" in module and bool(digests) and digests <= set(approved)
        if not is_approved and (not names or loss not in LOSSES):
            raise InputError(
                f"'{name}' has the model {module.get('class') or module.get('reference')} with the loss '{loss}', "
                "which is not built into drfl",
                code="unknown-name",
                field="model",
            )
        classes = 0 if is_approved else int(module["arguments"]["classes"])
    if is_approved:
        model, w = Model("", "", dtype, 0), torch.cat([value.double().flatten() for value in weights])
    else:
        model = Model(names[0], loss, dtype, classes, metrics=tuple(metrics) or (score,))
        built = task_of(model, file.shape)
        load_weights(built.model, file.weights)
        w = built.w0
    if not bool(w.isfinite().all()):
        raise InputError(
            f"'{name}' has weights that are not finite. Use the model of another run", code="not-finite", field="model"
        )
    columns, class_names = (tuple(map(short_name, names or ())) for names in (file.columns, file.classes))
    return DescribedModel(
        name, model, file.shape, w, file.standardisation, columns, class_names, file.schema_digest, file.path
    )
