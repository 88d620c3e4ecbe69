"""Fit one model on the sites of a deployment, by the same steps and the same choice as in a simulation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import tomli_w
from flwr.serverapp import Grid
from torch import Tensor

from drfl.assessment.row_moments import RowMoments
from drfl.core.errors import DrflError, InputError
from drfl.experiments.config.build import VALIDATION
from drfl.experiments.fit.fit import fit_jobs
from drfl.experiments.fit.judge import Judge
from drfl.experiments.fit.members import Member, with_member
from drfl.experiments.fit.run_fit import check_members, evaluate_every, fit_files
from drfl.experiments.fit.steps import Steps
from drfl.experiments.fit.validation_rows import ComparedLosses, scored_by_loss
from drfl.experiments.run.run_directory import claim_folder
from drfl.experiments.run.runner import StopSignal, write_results
from drfl.federation.federation import Evaluation
from drfl.flower.ask_once import ask_once
from drfl.flower.client_app import LOSSES
from drfl.flower.delivery import deliver_result
from drfl.flower.deploy.dated_folders import FITS, folder_to_fill
from drfl.flower.deployed_federation import FlowerFederation
from drfl.flower.deployment import Deployment, Preparation
from drfl.flower.job_code import job_code
from drfl.flower.messages import AnswerLosses, AskLosses, HoldOut, LossSums
from drfl.flower.possible_tests import are_possible_losses
from drfl.flower.progress import log_end, log_progress
from drfl.flower.records import write
from drfl.flower.session import read_resolved, session
from drfl.flower.settings import DeployedConfig

LOG = logging.getLogger("drfl.flower")

ATTEMPTS = 3
"""Number of times a site is asked for the losses of models before the fit stops."""

UNUSED = ("validation", "until", "returned", "select", "patience", "averaged", "checkpoint_key")
"""Keys of ``[job]`` that a fit rejects, because ``drfl fit`` has no such options."""


@dataclass(frozen=True)
class RowsAtSites:
    """The validation rows of the sites."""

    prepared: Preparation
    holdout: HoldOut

    def compare(self, models: Sequence[Tensor]) -> ComparedLosses:
        """See :class:`drfl.experiments.fit.validation_rows.ValidationRows`. No row leaves a site.

        A site without validation rows of its own is not asked, and has moments of 0.

        Raises:
            DrflError: If a site does not answer, or its answer contradicts itself.
        """
        prepared, names = self.prepared, self.prepared.sites.names
        members = {client: member for client, member in prepared.session.members.items() if member.held_out}
        content = write(AskLosses(prepared.model, tuple(models), self.holdout, prepared.sites.standardisation))
        answers, reasons = dict[int, AnswerLosses](), dict[int, str]()
        for _ in range(ATTEMPTS):
            contents = {client: content for client in members if client not in answers}
            if not contents:
                break
            valid, reasons = ask_once(prepared.session, contents, LOSSES, AnswerLosses)
            for client, answer in valid.items():
                if answer.digest != members[client].digest:
                    reasons[client] = "its data have changed since the fit began"
                elif are_possible_losses(answer, len(models), members[client].held_out):
                    answers[client] = answer
                else:
                    reasons[client] = "its sums contradict themselves"
        missing = [f"{names[client]}: {reasons[client]}" for client in members if client not in answers]
        if missing:
            raise DrflError(
                f"the models cannot be compared on validation rows ({'; '.join(missing)}). "
                "'drfl deploy fit' continues the fit when the sites can answer",
                code="site-untested",
                field=names[next(client for client in members if client not in answers)],
            )
        return ComparedLosses(
            [self._moments({c: (a, a.losses[k]) for c, a in answers.items()}) for k in range(len(models))],
            [self._moments({c: (a, a.gains[k]) for c, a in answers.items()}) for k in range(len(models) - 1)],
        )

    def _moments(self, sums: Mapping[int, tuple[AnswerLosses, LossSums]]) -> RowMoments:
        columns = np.zeros((len(RowMoments._fields), self.prepared.sites.n))
        for client, (answer, each) in sums.items():
            columns[:, client] = (answer.rows, answer.units, each.mean, each.squares, each.cross, answer.sizes)
        return RowMoments(*columns)


@dataclass(frozen=True)
class DeployedFit:
    """Builds the runs of a fit at the sites, see :class:`drfl.experiments.fit.members.FitRuns`."""

    # The sites' rows cannot be pooled, and clients that train alone would have to send their models.
    references: ClassVar[Mapping[str, tuple[str, str]]] = {}

    prepared: Preparation
    holdout: HoldOut

    @property
    def independent(self) -> bool:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        return not self.prepared.sites.shares_test_rows

    @property
    def config(self) -> Mapping[str, object]:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        return self.prepared.config.to_plain()

    def judge(self) -> Judge:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        prepared = self.prepared
        unseen = [bool(member.held_out) for _, member in sorted(prepared.session.members.items())]
        return Judge.of(RowsAtSites(prepared, self.holdout), prepared.sites.names, unseen, prepared.task.w0)

    def trial(self, member: Member) -> Deployment:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        return self.prepared.run(with_member(self.prepared.config, member), self.holdout)

    def whole(self, member: Member) -> Deployment:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        return self.prepared.run(with_member(self.prepared.config, member), None)

    def test(self, models: Sequence[Tensor]) -> list[Evaluation]:
        """See :class:`drfl.experiments.fit.members.FitRuns`."""
        # Use one federation per model, because one that has tested another model would use its result for an offline
        # site.
        return [self.prepared.federation(None).evaluate(w) for w in models]


def fit_sites(grid: Grid, path: Path, wait: float | None = None) -> Path:
    """Fit one model on the sites of a deployment, or continue the fit in the newest folder.

    Returns:
        The fit's folder.

    Raises:
        DrflError: If settings, model and sites do not fit together, sites are missing, or the fit fails.
    """
    settings, folder = read_resolved(path), path.resolve().parent
    job = settings.job
    check_job(job)
    if "evaluate_every" not in job.model_fields_set:
        job = job.model_copy(update={"evaluate_every": evaluate_every(job.rounds)})
    settings = settings.model_copy(update={"job": job})
    job_code(job, folder)  # its errors show before any site is asked
    holdout = HoldOut(VALIDATION, job.seed, tested=True)
    out = folder_to_fill(folder, FITS)
    with session(grid, settings, folder, wait, holdout) as joined:
        notice = settings.protection_notice()
        if notice is not None:
            LOG.warning(notice)
        prepared = Preparation.of(joined)
        scored_by_loss(prepared.task)  # rejects a loss without values of rows
        jobs = DeployedFit(prepared, holdout)
        check_members(jobs, lambda line: None)  # the warnings about the sites' data are in the log already
        with claim_folder(out, "fit", resume=True, config=tomli_w.dumps(jobs.config), warn=LOG.warning) as claim:
            steps = Steps(claim, StopSignal(), lambda label: nullcontext([log_progress]), LOG.info, LOG.warning)
            fitted = replace(fit_jobs(jobs, jobs.judge(), steps), directory=claim.directory)
            final, fed = fitted.finished, fitted.finished.job.fed
            assert isinstance(fed, FlowerFederation)
            files = {
                **fit_files(fitted),
                **deliver_result(final, joined),
                "traffic.json": fed.traffic_json(steps.since),
            }
            write_results(final, claim, files)
    for row in fitted.members:
        p = "" if row["p"] is None else f", p = {row['p']:.2g}"
        text = row["excluded"] or f"worst validation loss {row['worst_validation_loss']:.4g}{p}"
        LOG.info("%s: %s", row["name"], text)
    for group in fitted.pooled:
        LOG.info("validation losses: %s", group)
    LOG.info("chosen: %s", fitted.reason)
    LOG.info("there are no references: the sites' rows cannot be pooled, and models of single sites are not tested")
    log_end(final, out)
    return out


def check_job(job: DeployedConfig) -> None:
    """Refuse keys of ``[job]`` that a fit does not use."""
    for name in UNUSED:
        if name in job.model_fields_set:
            raise InputError(
                f"a fit has no '{name}', because it chooses the model on validation rows itself. Remove job.{name} "
                "from server.toml",
                code="unused-option",
                field=name,
            )
