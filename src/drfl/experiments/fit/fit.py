"""Fit one model: train a portfolio, choose by the worst client on validation rows, and train the choice on all rows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from drfl.assessment.choice import choose
from drfl.core.errors import DivergedError, DrflError
from drfl.experiments.config.ready_run import Job
from drfl.experiments.fit.fitted import Candidate, Fitted
from drfl.experiments.fit.judge import Judge
from drfl.experiments.fit.members import PORTFOLIO, FitJobs, Member, reference
from drfl.experiments.fit.personal import GLOBAL, Personalisation, personalise
from drfl.experiments.fit.steps import Steps
from drfl.experiments.run.finished import FinishedRun
from drfl.federation.federation import Evaluation
from drfl.training.history import Metrics, others_of, undefined_counts

REFERENCES = {"local_only": ("local only", "LocalOnly"), "pooled": ("pooled", "Pooled")}
"""References by their keys in files: name in tables, and algorithm."""


def fit_jobs(jobs: FitJobs, judge: Judge, steps: Steps, *, personal: bool) -> Fitted:
    """Execute a fit.

    Args:
        jobs: Builds the runs.
        judge: The validation rows of the selection stage.
        steps: Executes them.
        personal: Whether clients may get personal models.

    Raises:
        DivergedError: If the final run diverges.
        DrflError: If every member is excluded.
        StoppedError: If a signal asked to stop.
    """
    steps.total = len(PORTFOLIO) + 1 + len(REFERENCES) + personal
    initial = judge.worst(judge.losses(judge.fed.w0)[judge.counted])[1]
    candidates = [_try_member(jobs, steps, judge, member, initial) for member in PORTFOLIO]
    eligible = [not candidate.excluded for candidate in candidates]
    if not any(eligible):
        raise DrflError(
            f"no candidate can be chosen: {candidates[0].member.name} {candidates[0].excluded}. "
            "Standardise the columns, or use more rounds",
            code="no-results",
            field="budget",
        )
    independent = not jobs.selection.data.shares_test_rows
    patients = None if judge.patients is None else judge.patients[judge.counted]
    choice = choose([c.losses for c in candidates], judge.groups, eligible, patients=patients, independent=independent)
    chosen, selected = candidates[choice.chosen].member, candidates[choice.chosen].run
    assert selected is not None
    runs: dict[str, FinishedRun | None] = {}
    name, local = REFERENCES["local_only"]
    alone = None
    if personal:
        alone = _try(steps, f"{name}, selection", jobs.make(jobs.selection, reference(name, local, chosen)))
        steps.ended(f"{name}, selection")
    final = steps.run(f"{chosen.name}, all training rows", jobs.make(jobs.final, chosen))
    steps.ended(f"{chosen.name}, all training rows")
    for key, (name, algorithm) in REFERENCES.items():
        runs[key] = _try(steps, name, jobs.make(jobs.final, reference(name, algorithm, chosen)))
        steps.ended(name)
    models = None
    if personal:
        models = personalise(judge, jobs.final.fed, (selected, alone), (final, runs["local_only"]))
        if set(models.used) != {GLOBAL}:
            final = _personalised(final, models, jobs.final.fed.evaluate_each(models.models))
    tests = iter(jobs.final.fed.evaluate_all([c.run.result.model for c in candidates if c.run is not None]))
    return Fitted(
        final, tuple(candidates), choice, len(judge.groups),
        tuple(None if c.run is None else next(tests) for c in candidates), models,
        {key: None if run is None else run.result.evaluation for key, run in runs.items()},
    )  # fmt: skip


def _try(steps: Steps, name: str, job: Job) -> FinishedRun | None:
    """Execute a run; return None if it diverges."""
    try:
        return steps.run(name, job)
    except DivergedError:
        return None


def _try_member(jobs: FitJobs, steps: Steps, judge: Judge, member: Member, initial: float) -> Candidate:
    """Train a member without the validation rows, and say whether it can be chosen.

    Args:
        jobs: Builds the run.
        steps: Executes it.
        judge: The validation rows.
        member: The member.
        initial: The loss of the initial model in its worst group.
    """
    run = _try(steps, member.name, jobs.make(jobs.selection, member))
    if run is None:
        steps.ended(f"{member.name}: diverged")
        return Candidate(member, None, np.zeros(0), "", math.nan, "diverged")
    losses = judge.losses(run.result.model)[judge.counted]
    (group, worst), excluded, marks = judge.worst(losses), "", run.result.marks
    if not np.isfinite(losses).all():
        excluded = "has a validation loss that is not finite"
    elif 2 * marks.effective_rounds < marks.rounds:
        excluded = f"was reset to the initial model so late that only {marks.rounds_text}"
    elif not worst < initial:
        excluded = f"has a worst validation loss of {worst:.4g}, and the initial model has {initial:.4g}"
    steps.ended(f"{member.name}: worst validation loss {worst:.4g}")
    return Candidate(member, run, losses, group, worst, excluded)


def _personalised(final: FinishedRun, personal: Personalisation, evaluation: Evaluation) -> FinishedRun:
    """Return the run with the clients' personal models, and their test results."""
    result, fed = final.result, final.job.fed
    row = result.history.last._replace(
        metrics=Metrics.of(evaluation, result.history.score),
        others=others_of(evaluation, fed.measures),
        undefined=undefined_counts(evaluation),
    )
    history = replace(result.history, rows=(*result.history.rows[:-1], row))
    return FinishedRun(final.job, result._replace(history=history, evaluation=evaluation, personal=personal.models))
