"""The server's tasks besides training: deliver a model, and test finished models at the sites."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from flwr.serverapp import Grid

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError, Notice
from drfl.core.files import read_bytes
from drfl.core.json_toml import read_toml
from drfl.data.model_file import read_model_file
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import TESTS
from drfl.flower.delivery import deliver
from drfl.flower.deploy.requests import FOLDERS, REQUEST_FILE
from drfl.flower.deployed_federation import measures_of
from drfl.flower.evaluation_results import Evaluations, evaluation_files
from drfl.flower.job_code import job_code
from drfl.flower.messages import MOST_MODEL_BYTES, MOST_MODELS, AnswerTests, AskTests, FinishedModel
from drfl.flower.model_description import DescribedModel, describe_model
from drfl.flower.records import write
from drfl.flower.session import Session, read_resolved, session

LOG = logging.getLogger("drfl.flower")


def carry_out(grid: Grid, path: Path, folder: Path, wait: float | None = None) -> None:
    """Carry out the request in a folder, see :mod:`drfl.flower.deploy.requests`, and write the results there.

    The first model of an evaluation is the baseline of its comparisons.
    """
    request = read_toml(folder / REQUEST_FILE)
    task, paths, code = request.get("task"), request.get("models"), request.get("code", [])
    if task not in FOLDERS or not isinstance(paths, list) or not paths or not isinstance(code, list):
        raise InputError(
            f"{folder / REQUEST_FILE} is not a request. Run 'drfl deploy evaluate' or 'drfl deploy deliver' again",
            code="damaged-file",
            field=str(folder),
        )
    models = [Path(str(model)) for model in paths]
    if len(models) > MOST_MODELS:
        raise InputError(
            f"at most {MOST_MODELS} models can be evaluated together, got {len(models)}",
            code="out-of-range",
            field="MODEL",
        )
    settings, home = read_resolved(path), path.resolve().parent
    # All models are tested by the metrics of server.toml, so that their results can be compared.
    own = job_code(settings.job, home, [*map(str, code)])
    described = [describe_model(read_model_file(model), own) for model in models]
    losses = {each.model.loss for each in described}
    if len(losses) > 1:
        raise InputError(
            f"the models have different losses ({', '.join(sorted(losses))}). Evaluate them separately",
            code="model-mismatch",
            field="MODEL",
        )
    contents = [read_bytes(model, limit=MOST_MODEL_BYTES) for model in models] if task == "deliver" else []
    with session(grid, settings, home, wait) as joined:
        # Sites check this too. Here the operator sees the reason before a model is sent to anyone.
        for each in described:
            for client, member in joined.members.items():
                each.check_fits(member, joined.roster.names[client])
        files = deliver(joined, *contents) if contents else evaluation_files(evaluate(joined, described), models)
    for name, text in files.items():
        with atomic_write(folder / name) as file:
            file.write(text.encode())
    if task == "evaluate":
        LOG.info("results: %s", folder)


def evaluate(joined: Session, described: Sequence[DescribedModel]) -> Evaluations:
    """Test finished models at all sites, and warn of sites that are not in the evaluation."""
    names, members = joined.roster.names, joined.members
    request = AskTests(tuple(FinishedModel(each.model, each.w, each.standardisation) for each in described))
    # All sites share one encoded message, because it contains all models.
    answers, reasons = ask_once(joined, dict.fromkeys(members, write(request)), TESTS, AnswerTests)
    has_labels = all(member.majority is not None for member in members.values())
    measures = measures_of(described[0].model, joined.settings.job.measures, has_labels)
    evaluations = Evaluations.of(described, measures, names, answers, reasons)
    for name, reason in evaluations.missing.items():
        LOG.warning(Notice(f"{name} is not in the evaluation: {reason}", "site-untested", name))
    return evaluations
