"""Run a fit, and write its folder: that of the final run, with the decision in ``fit.json``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import tomli_w

from drfl.core.errors import InputError
from drfl.core.json_toml import read_json, read_toml
from drfl.data import ClientData, Dataset
from drfl.data.personal_models import DECISION, PERSONAL
from drfl.experiments.compare.compare_objects import as_seed_function, clients_by_seed, description_of
from drfl.experiments.compare.objects import about_objects, object_setup, rule_objects, run_settings, sources_of
from drfl.experiments.config.algorithm_settings import COMMON, AlgorithmSettings
from drfl.experiments.config.build import Setup, build_setup, make_job
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import DataSettings
from drfl.experiments.config.ready_run import Job
from drfl.experiments.fit.fit import fit_jobs
from drfl.experiments.fit.fitted import Fitted
from drfl.experiments.fit.members import PORTFOLIO, FitJobs, FitRuns, Member, reference, with_member
from drfl.experiments.fit.personal import GLOBAL, personalise
from drfl.experiments.fit.steps import Show, Steps
from drfl.experiments.run.artifacts import decisive_settings, json_text, personal_bytes
from drfl.experiments.run.manifest import CONFIG
from drfl.experiments.run.resume import check_settings
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.run_warnings import warnings_of
from drfl.experiments.run.runner import StopSignal, write_results
from drfl.report.read_run import nested_table
from drfl.task.task import Task

TESTS = 10
"""Tests of a run, for its history; the decision uses only the last model."""


def evaluate_every(budget: int) -> int:
    """Return the number of rounds between tests."""
    return -(-budget // TESTS)


def jobs_of_config(config: Config, dataset: Dataset) -> FitJobs:
    """Return the builder of the runs on a job that is given by names."""

    def make(setup: Setup, member: Member) -> Job:
        own = with_member(config, member)
        algorithm = own.build_algorithm(member.algorithm, setup.data.n)
        if not hasattr(algorithm, "m"):  # the references do not sample clients, so over-selection does not apply
            own = own.model_copy(update={"over_select": None})
        return make_job(setup, own, own.about(algorithm, setup.data.n), algorithm)

    # The digests of user files are part of the identity, so that a fit does not resume with a changed file.
    files = config.user_files(PORTFOLIO[0].algorithm)
    return FitJobs.of(build_setup(config, dataset), config, make, {**config.to_plain(), "files": files})


def jobs_of_objects(
    data: ClientData | DataSettings | Callable[[int], ClientData],
    task: Task | Callable[[int], Task],
    settings: Mapping[str, object],
    algorithm: Mapping[str, object],
) -> FitJobs:
    """Return the builder of the runs on a job of objects.

    ``algorithm`` has the parameters that all members share, by the names of the command's options; None = their
    defaults.
    """
    # The command builds data and model from the seed, so functions of the seed are accepted here as well.
    learned = as_seed_function("task", task, Task)
    seed = int(str(settings["seed"]))
    model = learned(seed)
    run = run_settings(settings, model)
    shared = {name: value for name, value in algorithm.items() if value is not None}
    sources = sources_of([model.model, *rule_objects(run)])

    def make(setup: Setup, member: Member) -> Job:
        tables = {member.algorithm: dict(member.parameters)}
        values = AlgorithmSettings.checked({**shared, "algorithms": tables})
        built = values.build_algorithm(member.algorithm, setup.data.n)
        about = about_objects(run, member.algorithm, built, setup.data.n, setup.task, sources, description_of(data))
        return make_job(setup, run, about, built)

    setup = object_setup(run, clients_by_seed(data)(seed), model, sources)
    return FitJobs.of(setup, run, make, {**run.to_plain(), **shared})


def run_fit(
    jobs: FitJobs,
    place: Path | None,
    *,
    personal: bool,
    watch: StopSignal,
    show: Show,
    log: Callable[[str], None],
    warn: Callable[[str], None],
    resume: bool = False,
    overwrite: bool = False,
    numbered: bool = False,
) -> Fitted:
    """Execute a fit in this process, and write its folder.

    ``show`` shows the progress of a run, and ``log`` gets a line for every run that ends.
    """
    check_members(jobs, warn)
    # Check before the first run, so that missing or too few validation rows are not found after hours.
    steps, judge = Steps(None, watch, show, log, warn), jobs.judge()
    choose_models = partial(personalise, jobs.rows, jobs.final.fed) if personal else None
    if place is None:
        return fit_jobs(jobs, judge, steps, personalise=choose_models)
    config = tomli_w.dumps({**jobs.config, "personalise": personal})
    with claim_folder(
        place, "fit", resume=resume, overwrite=overwrite, numbered=numbered, config=config, warn=warn
    ) as claim:
        steps.claim = claim
        fitted = replace(fit_jobs(jobs, judge, steps, personalise=choose_models), directory=claim.directory)
        more = fit_files(fitted)
        own = [] if fitted.personal is None else [i for i, used in enumerate(fitted.personal.used) if used != GLOBAL]
        if fitted.personal is not None and own:
            more[PERSONAL] = personal_bytes(fitted.finished.job, fitted.personal.models, own)
        write_results(fitted.finished, claim, more)
    return fitted


def check_members(jobs: FitRuns, warn: Callable[[str], None]) -> None:
    """Refuse members that cannot run with these settings before the first run, and warn of problems with the data."""
    references = [reference(name, algorithm, PORTFOLIO[0]) for name, algorithm in jobs.references.values()]
    # Building a run checks its settings. All are built, so that the last one does not fail after hours of training.
    first, *_ = (jobs.whole(member) for member in (*PORTFOLIO, *references))
    for line in warnings_of(first):
        warn(line)


def check_finished(folder: Path, jobs: FitJobs, given: Collection[str], *, personal: bool) -> None:
    """Check that the finished fit in a folder has the settings ``given``, and personal models if these are wanted.

    Raises:
        InputError: If a setting differs, there are no personal models, or a file cannot be read.
    """
    stored = read_toml(folder / CONFIG, follow=False, remedy="start again with `overwrite`")
    algorithm = str(stored.get("algorithm"))
    job = jobs.whole(Member(algorithm, algorithm))
    # The fit chose the algorithm and its parameters, apart from those that the user gave.
    before, now = (
        nested_table(nested_table(values, "algorithms"), algorithm) for values in (stored, decisive_settings(job))
    )
    own = {COMMON[name] for name in given if name in COMMON}
    table = {name: value for name, value in now.items() if name not in own}
    table |= {name: value for name, value in before.items() if name in own}
    check_settings(job, {**stored, "algorithms": {algorithm: table}})
    decision = read_json(folder / DECISION, follow=False)
    if personal and isinstance(decision, dict) and decision.get("personal") is None:
        raise InputError(
            f"the fit in {folder} has no personal models: remove `personalise`, or {job.settings.new_folder}",
            code="other-run",
            field="personalise",
        )


def fit_files(fitted: Fitted) -> dict[str, str | bytes]:
    """Return the file that a fit adds to those of its final run, text by name."""
    return {DECISION: json_text(fitted.summary(), indent=2) + "\n"}
