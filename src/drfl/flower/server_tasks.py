"""The server's tasks besides training: deliver a model, and test finished models at the sites."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flwr.serverapp import Grid

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError, Notice
from drfl.core.files import read_bytes, read_toml
from drfl.data.model_file import read_model_file
from drfl.experiments.run.artifacts import json_text
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import TESTS
from drfl.flower.delivery import deliver
from drfl.flower.deploy.paths import DELIVERY_FILE
from drfl.flower.deploy.requests import REQUEST_FILE
from drfl.flower.deployed_federation import measures_of
from drfl.flower.evaluation_results import Evaluations, evaluation_files
from drfl.flower.job_code import job_code
from drfl.flower.messages import MOST_MODEL_BYTES, MOST_MODELS, AnswerTests, AskTests, FinishedModel
from drfl.flower.model_description import describe_model
from drfl.flower.records import write
from drfl.flower.session import read_resolved, session

LOG = logging.getLogger("drfl.flower")


def deliver_model(
    grid: Grid, path: Path, models: Sequence[Path], out: Path, wait: float | None = None, code: Sequence[str] = ()
) -> None:
    """Deliver a model to the sites, and write the outcome to a folder."""
    (model,) = models
    content = read_bytes(model, limit=MOST_MODEL_BYTES)
    settings, folder = read_resolved(path), path.resolve().parent
    own = job_code(settings.job, folder, code)
    described = describe_model(read_model_file(model), own)
    with session(grid, settings, folder, wait) as joined:
        # Sites check this too. Here the operator sees the reason before the model is sent to anyone.
        for client, member in joined.members.items():
            described.check_fits(member, joined.roster.names[client])
        outcome = deliver(joined, content)
    with atomic_write(out / DELIVERY_FILE) as file:
        file.write((json_text(outcome, indent=2) + "\n").encode())


def evaluate_models(
    grid: Grid, path: Path, models: Sequence[Path], out: Path, wait: float | None = None, code: Sequence[str] = ()
) -> None:
    """Test finished models at all sites, and write the results to a folder.

    The first one is the baseline of the comparisons.
    """
    if len(models) > MOST_MODELS:
        raise InputError(
            f"at most {MOST_MODELS} models can be evaluated together, got {len(models)}",
            code="out-of-range",
            field="MODEL",
        )
    # All models are tested by the metrics of server.toml, so that their results can be compared.
    settings, folder = read_resolved(path), path.resolve().parent
    own = job_code(settings.job, folder, code)
    described = [describe_model(read_model_file(model), own) for model in models]
    losses = {each.model.loss for each in described}
    if len(losses) > 1:
        raise InputError(
            f"the models have different losses ({', '.join(sorted(losses))}). Evaluate them separately",
            code="model-mismatch",
            field="MODEL",
        )
    with session(grid, settings, folder, wait) as joined:
        names, members = joined.roster.names, joined.members
        for each in described:
            for client, member in members.items():
                each.check_fits(member, names[client])
        request = AskTests(tuple(FinishedModel(each.model, each.w, each.standardisation) for each in described))
        # All sites share one encoded message, because it contains all models.
        answers, reasons = ask_once(joined, dict.fromkeys(members, write(request)), TESTS, AnswerTests)
        has_labels = all(member.majority is not None for member in members.values())
        measures = measures_of(described[0].model, settings.job.measures, has_labels)
        evaluations = Evaluations.of(described, measures, names, answers, reasons)
    for name, reason in evaluations.missing.items():
        LOG.warning(Notice(f"{name} is not in the evaluation: {reason}", "site-untested", name))
    for name, text in evaluation_files(evaluations, models).items():
        with atomic_write(out / name) as file:
            file.write(text.encode())
    LOG.info("results: %s", out)


TASKS: Mapping[str, Callable[[Grid, Path, Sequence[Path], Path, float | None, Sequence[str]], None]] = {
    "deliver": deliver_model,
    "evaluate": evaluate_models,
}
"""Functions for the tasks by name."""


def carry_out(grid: Grid, path: Path, folder: Path, wait: float | None = None) -> None:
    """Carry out the request in a folder, and write the results there."""
    request = read_toml(folder / REQUEST_FILE)
    task, models, code = request.get("task"), request.get("models"), request.get("code", [])
    if task not in TASKS or not isinstance(models, list) or not models or not isinstance(code, list):
        raise InputError(
            f"{folder / REQUEST_FILE} is not a request. Run 'drfl deploy evaluate' or 'drfl deploy deliver' again",
            code="damaged-file",
            field=str(folder),
        )
    TASKS[str(task)](grid, path, [Path(str(model)) for model in models], folder, wait, [*map(str, code)])
