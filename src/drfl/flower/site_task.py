"""The model, the engine and the tests with which a site does the server's requests."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.user_code import is_reference
from drfl.data.row_scores import RowScores
from drfl.engine import ENGINES, Engine, Loop, Simulation, Threads
from drfl.experiments.config.learned import make_loss, make_measures
from drfl.flower.messages import ModelRecipe, SiteTest
from drfl.task.architecture import make_model
from drfl.task.models import LOSSES, MODELS
from drfl.task.task import Task

MOST_PARAMETERS = 2**30
"""Maximum number of parameters of a model that is built from a name, a shape and a number of classes."""


def task_of(model: ModelRecipe, shape: tuple[int, ...], folder: Path | None = None) -> Task:
    """Build the task that a server names, for inputs of this shape.

    Args:
        model: The description.
        shape: Shape of an input.
        folder: Folder of the files that the description may refer to, whose digests have been checked; None to use only
            drfl's own models, losses and metrics.

    Raises:
        InputError: If this version of drfl lacks the model or the loss, the model does not accept such inputs, or the
            model would be too large.
    """

    def located(name: str) -> str:
        # Use the folder of the site, not the working directory of the process.
        return str(folder / name) if folder is not None and is_reference(name) else name

    names = {"model": (model.model, MODELS), "loss": (model.loss, LOSSES)}
    if not all(name in known or (folder is not None and is_reference(name)) for name, known in names.values()):
        raise InputError(
            f"this drfl has no model '{model.model}' with loss '{model.loss}'. Install the server's version",
            code="unknown-name",
            field="model",
        )
    # Count the parameters before allocating them, because sites report the shape and the classes.
    with torch.device("meta"):
        sizes = make_model(located(model.model), shape, model.classes).parameters()
        size = sum(part.numel() for part in sizes)
    if size > MOST_PARAMETERS:
        raise InputError(
            f"model '{model.model}' for inputs of shape {shape} and {model.classes} classes has {size} parameters, "
            f"more than {MOST_PARAMETERS}. Check the sites' reports, and set 'classes' for each site in server.toml",
            code="model-too-large",
            field="model",
        )
    module = make_model(located(model.model), shape, model.classes)
    score, *others = map(located, model.metrics)
    score, *others = make_measures(score, others, model.loss)
    return Task(module.to(getattr(torch, model.dtype)), make_loss(located(model.loss)), score, tuple(others))


def check_same_model(w: Tensor, task: Task) -> None:
    """Check that parameters (d,) from the server are those of a task."""
    if w.shape != task.w0.shape or w.dtype != task.w0.dtype:
        raise InputError(
            f"the server's model has {w.numel()} parameters in {w.dtype}, but this site's has {task.w0.numel()} in "
            f"{task.w0.dtype}. Use the same model, shape of inputs and classes at both ends",
            code="sites-differ",
            field="model",
        )


def engine_of(name: str, device: str) -> Engine:
    """Make an engine from its name; "auto" selects the best engine for one client in a process for a single message.

    That engine does not trace the model, because tracing takes longer than thousands of steps of a small model. The
    client gets all intra-op threads.
    """
    if name == "auto":
        return Threads(workers=1, intra_op=None) if torch.device(device).type == "cpu" else Loop()
    return ENGINES[name]()


def score_model(fed: Simulation, w: Tensor) -> tuple[SiteTest, RowScores]:
    """Test a model and return the result, which the server receives, and the row scores, which stay at the site."""
    evaluation, rows = fed.tested(w)
    others = tuple(float(values[0]) for values in evaluation.others)
    assert evaluation.sums is not None
    sums = tuple(map(tuple, evaluation.sums[0].tolist()))
    test = SiteTest(float(evaluation.score[0]), float(evaluation.loss[0]), int(evaluation.samples[0]), others, sums)
    return test, rows
