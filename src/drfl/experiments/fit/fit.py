"""Fit one model: train a portfolio, choose by the worst client on validation rows, and train the choice on all rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from drfl.assessment.choice import average_loss, choose
from drfl.assessment.row_moments import RowMoments
from drfl.core.errors import DivergedError, DrflError
from drfl.experiments.config.ready_run import Running
from drfl.experiments.fit.fitted import Candidate, Fitted
from drfl.experiments.fit.judge import Judge
from drfl.experiments.fit.members import PORTFOLIO, REFERENCES, FitRuns, Member, reference
from drfl.experiments.fit.personal import GLOBAL, Personalisation
from drfl.experiments.fit.steps import Steps
from drfl.experiments.run.finished import FinishedRun
from drfl.training.history import Metrics, others_of, undefined_counts

RunAndAlone = tuple[FinishedRun, FinishedRun | None]
"""A run of the chosen member, and one of clients that train alone; None if that diverged."""

Personalise = Callable[[RunAndAlone, RunAndAlone], Personalisation]
"""Chooses the clients' models from the runs of the selection stage and those on all training rows."""


def fit_jobs(jobs: FitRuns, judge: Judge, steps: Steps, *, personalise: Personalise | None = None) -> Fitted:
    """Execute a fit.

    Raises:
        DivergedError: If the final run diverges.
        DrflError: If every member is excluded.
        StoppedError: If a signal asked to stop.
    """
    steps.total = len(PORTFOLIO) + 1 + len(jobs.references) + (personalise is not None)
    candidates = [_try_member(jobs, steps, judge, member) for member in PORTFOLIO]
    eligible = [not candidate.excluded for candidate in candidates]
    if not any(eligible):
        reason = f"{candidates[0].member.name} {candidates[0].excluded}"
        if jobs.whole(PORTFOLIO[0]).origin.start is not None:
            raise DrflError(
                f"no candidate can be chosen: {reason}. Keep the initial model of `init_from`, or set a smaller `lr`",
                code="no-results",
                field="init_from",
            )
        raise DrflError(
            f"no candidate can be chosen: {reason}. Standardise the columns, or use more rounds",
            code="no-results",
            field="budget",
        )

    def gains(first: int, others: Sequence[int]) -> Sequence[RowMoments]:
        runs = [candidates[k].run for k in (first, *others)]
        reference, *models = [run.result.model for run in runs if run is not None]
        return judge.gains(reference, models)

    choice = choose([c.losses for c in candidates], gains, eligible, independent=jobs.independent)
    chosen, selected = candidates[choice.chosen].member, candidates[choice.chosen].run
    assert selected is not None
    runs: dict[str, FinishedRun | None] = {}
    alone = None
    if personalise is not None:
        name, local = REFERENCES["local_only"]
        alone = _try(steps, f"{name}, selection", jobs.trial(reference(name, local, chosen)))
        steps.ended(f"{name}, selection")
    final = steps.run(f"{chosen.name}, all training rows", jobs.whole(chosen))
    steps.ended(f"{chosen.name}, all training rows")
    for key, (name, algorithm) in jobs.references.items():
        runs[key] = _try(steps, name, jobs.whole(reference(name, algorithm, chosen)))
        steps.ended(name)
    models = global_test = None
    if personalise is not None:
        models = personalise((selected, alone), (final, runs["local_only"]))
        if set(models.used) != {GLOBAL}:
            # The run, its history and its test results are then those of the clients' own models.
            result, fed, global_test = final.result, final.job.fed, final.result.evaluation
            evaluation = fed.evaluate_each(models.models)
            row = result.history.last._replace(
                metrics=Metrics.of(evaluation, result.history.score),
                others=others_of(evaluation, fed.measures),
                undefined=undefined_counts(evaluation),
            )
            history = replace(result.history, rows=(*result.history.rows[:-1], row))
            result = result._replace(history=history, evaluation=evaluation, personal=models.models)
            final = FinishedRun(final.job, result)
    # All models are tested in one request. Those of candidates that diverged are missing.
    tests = iter(jobs.test([c.run.result.model for c in candidates if c.run is not None]))
    return Fitted(
        final, tuple(candidates), choice, judge.total,
        tuple(None if c.run is None else next(tests) for c in candidates), models,
        {key: None if run is None else run.result.evaluation for key, run in runs.items()}, global_test=global_test,
    )  # fmt: skip


def _try(steps: Steps, name: str, job: Running) -> FinishedRun | None:
    """Execute a run; return None if it diverges."""
    try:
        return steps.run(name, job)
    except DivergedError:
        return None


def _try_member(jobs: FitRuns, steps: Steps, judge: Judge, member: Member) -> Candidate:
    """Train a member without the validation rows, and decide whether it can be chosen."""
    job = jobs.trial(member)
    run = _try(steps, member.name, job)
    if run is None:
        steps.ended(f"{member.name}: diverged")
        return Candidate(member, None, None, "", math.nan, math.nan, "diverged")
    losses = judge.losses(run.result.model)
    (group, worst), excluded, marks = judge.worst(losses), "", run.result.marks
    if not np.isfinite(losses.mean).all():
        excluded = "has a validation loss that is not finite"
    # The model of `init_from` is a useful result, and was probably trained on these validation rows. So candidates that
    # return to it, or have a larger loss there, are not excluded.
    elif job.origin.start is None and 2 * marks.effective_rounds < marks.rounds:
        excluded = f"was reset to the initial model so late that only {marks.rounds_text}"
    elif job.origin.start is None and not worst < judge.initial:
        excluded = f"has a worst validation loss of {worst:.4g}, and the initial model has {judge.initial:.4g}"
    steps.ended(f"{member.name}: worst validation loss {worst:.4g}")
    return Candidate(member, run, losses, group, worst, average_loss(losses), excluded)
