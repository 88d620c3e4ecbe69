"""Fit one model: train a portfolio, choose by the worst client on validation rows, and train the choice on all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from drfl.assessment.choice import FEW, Choice, choose, group_clients, worst_group
from drfl.assessment.evaluation import assess_evaluation, worst_interval
from drfl.assessment.scores import Floats
from drfl.core.errors import DivergedError, DrflError
from drfl.data import ClientData
from drfl.experiments.fit.members import PORTFOLIO, FitJobs, Member, reference
from drfl.experiments.fit.personal import GLOBAL, Personalisation, personalise, row_losses
from drfl.experiments.fit.steps import Steps
from drfl.experiments.run.artifacts import round_metrics
from drfl.experiments.run.finished import FinishedRun
from drfl.federation.federation import Evaluation
from drfl.training.history import DIGITS, Metrics, others_of, undefined_counts
from drfl.training.run_log import Result

if TYPE_CHECKING:
    import pandas as pd

    from drfl.assessment.clients import Assessment

REFERENCES = {"local_only": ("local only", "LocalOnly"), "pooled": ("pooled", "Pooled")}
"""References by their keys in files: name in tables, and algorithm."""


class Candidate(NamedTuple):
    """A member of the portfolio after the selection stage.

    Args:
        member: The member.
        model: (d,) its model, trained without validation rows; None if it diverged.
        losses: (n,) its loss on each validation row; None if it diverged.
        excluded: Why it cannot be chosen; "" if it can.
    """

    member: Member
    model: Tensor | None
    losses: Floats | None
    excluded: str


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """The outcome of a fit.

    Args:
        finished: The run of the chosen member on all training rows, with personal models if clients have them.
        candidates: The portfolio after the selection stage, from simple to complex.
        choice: The choice among them.
        groups: (n,) Group of each validation row.
        group_names: The groups' names: those of clients, or a text for several clients with few rows.
        tests: Test results of the candidates, for reports; the choice does not use them. None for diverged ones.
        personal: The clients' personal models; None if nobody asked for them.
        references: Test results of the references by key; None for one that diverged.
        directory: The folder of results; None if there is none.
    """

    finished: FinishedRun
    candidates: tuple[Candidate, ...]
    choice: Choice
    groups: NDArray[np.intp]
    group_names: tuple[str, ...]
    tests: tuple[Evaluation | None, ...]
    personal: Personalisation | None
    references: dict[str, Evaluation | None]
    directory: Path | None = None

    @property
    def result(self) -> Result:
        """The result of the run on all training rows; its test results are those of the personal models, if any."""
        return self.finished.result

    @property
    def model(self) -> Tensor:
        """(d,) the model for all clients, and for clients not yet seen."""
        return self.result.model

    @property
    def chosen(self) -> Member:
        """The chosen member of the portfolio."""
        return self.candidates[self.choice.chosen].member

    @cached_property
    def assessment(self) -> Assessment:
        """Intervals of the clients' true scores on the test rows, and of the worst client's."""
        job = self.finished.job
        independent = not (isinstance(job.data, ClientData) and job.data.shares_test_rows)
        return assess_evaluation(self.result.evaluation, job.fed.measures, job.data.names, independent=independent)

    @property
    def reason(self) -> str:
        """Why the member was chosen, in a sentence."""
        chosen, simplest, p = self.choice
        tested = p[~np.isnan(p)]
        simple = self.candidates[simplest].member.name
        if not len(tested):
            return f"{simple} is the only member of the portfolio that is not excluded"
        if chosen == simplest:
            return (
                f"{simple} is the simplest member, and no other one is significantly better for the worst client on "
                f"validation rows (smallest p = {tested.min():.2g}, Holm-corrected for {len(tested)} comparisons)"
            )
        losses = [worst_group(self._losses(k), self.groups)[1] for k in (chosen, simplest)]
        return (
            f"{self.chosen.name} is significantly better than {simple} for the worst client on validation rows: loss "
            f"{losses[0]:.4g} instead of {losses[1]:.4g} (p = {p[chosen]:.2g}, Holm-corrected for {len(tested)} "
            "comparisons)"
        )

    def _losses(self, k: int) -> Floats:
        losses = self.candidates[k].losses
        assert losses is not None
        return losses

    def to_frame(self) -> pd.DataFrame:
        """Return one row per member of the portfolio: its validation loss, p-value and exclusion, and its test results.

        The models of this table have not seen the validation rows; the final model has.
        """
        import pandas as pd

        return pd.DataFrame(self.members)

    @cached_property
    def members(self) -> list[dict[str, object]]:
        """The rows of :meth:`to_frame`, as plain values."""
        members = list[dict[str, object]]()
        for k, (candidate, test) in enumerate(zip(self.candidates, self.tests, strict=True)):
            group, worst = (None, math.nan) if candidate.losses is None else worst_group(candidate.losses, self.groups)
            p = float(self.choice.p[k])
            members.append(
                {
                    "name": candidate.member.name,
                    "chosen": k == self.choice.chosen,
                    "worst_validation_loss": round(worst, DIGITS),
                    "worst_validation_client": None if group is None else self.group_names[group],
                    "p": None if math.isnan(p) else float(f"{p:.4g}"),
                    "excluded": candidate.excluded or None,
                    **({} if test is None else self._tested(test)),
                }
            )
        return members

    def summary(self) -> dict[str, object]:
        """Return the decision and the test results as plain values, like ``fit.json``."""
        job, chosen = self.finished.job, self.chosen
        personal = self.personal
        return {
            "chosen": chosen.name,
            "algorithm": chosen.algorithm,
            "parameters": dict(job.about.parameters),
            "reason": self.reason,
            "budget": job.settings.rounds,
            "seed": job.settings.seed,
            "clients": job.data.n,
            "validation_rows": len(self.groups),
            "members": self.members,
            "personal": None
            if personal is None
            else {
                name: {"decision": decision, "gain": round(gain, DIGITS), "used": used}
                for name, decision, gain, used in zip(
                    job.data.names, personal.decisions, personal.gains, personal.used, strict=True
                )
            },
            "test": self._tested(self.result.evaluation),
            "references": {key: None if test is None else self._tested(test) for key, test in self.references.items()},
        }

    def _tested(self, evaluation: Evaluation) -> dict[str, object]:
        score = self.finished.job.fed.measures[0]
        metrics = Metrics.of(evaluation, score).as_dict(score.name)
        low, high = worst_interval(evaluation, score) or (math.nan, math.nan)
        names = (f"worst_{score.name}", f"avg_{score.name}", "worst_loss", "avg_loss")
        ends = {f"worst_{score.name}_low": low, f"worst_{score.name}_high": high}
        return dict(round_metrics({**{name: metrics[name] for name in names}, **ends}))

    def __repr__(self) -> str:
        score, test = self.finished.job.fed.measures[0], Metrics.of(self.result.evaluation, self.result.history.score)
        return f"<Fit with {self.chosen.name}: worst {score.words} {score.shown(test.worst_score)}>"


def fit_jobs(jobs: FitJobs, steps: Steps, *, personal: bool) -> Fitted:
    """Execute a fit.

    Args:
        jobs: Builds the runs.
        steps: Executes them.
        personal: Whether clients may get personal models.

    Raises:
        DivergedError: If the final run diverges.
        DrflError: If every member is excluded.
        StoppedError: If a signal asked to stop.
    """
    judge, data = jobs.selection.fed, jobs.selection.data
    steps.total = len(PORTFOLIO) + 1 + len(REFERENCES) + personal
    # A client with a single row trains on its validation row.
    sizes = judge.row_scores(judge.w0).starts.diff().tolist()
    unseen = [len(np.intersect1d(train, test)) == 0 for train, test in zip(data.train, data.test, strict=True)]
    by_client = group_clients(np.where(unseen, sizes, 0).tolist())
    kept = np.repeat(unseen, sizes)
    if not kept.any():
        raise DrflError("no client has two training rows, so none can be held out", code="no-validation")
    groups = np.unique(np.repeat(by_client, sizes)[kept], return_inverse=True)[1]
    initial = worst_group(row_losses(judge, judge.w0)[kept], groups)[1]
    candidates, runs = list[Candidate](), list[FinishedRun | None]()
    for member in PORTFOLIO:
        candidate, run = _try_member(jobs, steps, member, kept, groups, initial)
        candidates.append(candidate)
        runs.append(run)
    eligible = [not candidate.excluded for candidate in candidates]
    if not any(eligible):
        raise DrflError(
            f"no member of the portfolio can be chosen: {candidates[0].member.name} {candidates[0].excluded}. "
            "Standardise the columns, or give more rounds",
            code="no-results",
            field="budget",
        )
    losses = [np.zeros(0) if c.losses is None else c.losses for c in candidates]
    independent = not data.shares_test_rows
    choice = choose(losses, groups, eligible, independent=independent)
    chosen, selected = candidates[choice.chosen].member, runs[choice.chosen]
    assert selected is not None
    alone = None
    if personal:
        local = reference("local only", "LocalOnly", chosen)
        alone = steps.run(f"{local.name}, selection", jobs.make(jobs.selection, local))
        steps.ended(f"{local.name}, selection")
    final = steps.run(f"{chosen.name}, all training rows", jobs.make(jobs.final, chosen))
    steps.ended(f"{chosen.name}, all training rows")
    ends: dict[str, FinishedRun | None] = {}
    for key, (name, algorithm) in REFERENCES.items():
        try:
            ends[key] = steps.run(name, jobs.make(jobs.final, reference(name, algorithm, chosen)))
        except DivergedError:
            ends[key] = None
        steps.ended(name)
    models = None
    if alone is not None and alone.result.personal is not None:
        own = ends["local_only"]
        tables = (alone.result.personal, None if own is None else own.result.personal)
        assert tables[1] is not None
        models = personalise(jobs, (selected, tables[0]), (final, tables[1]), sizes)
        if set(models.used) != {GLOBAL}:
            final = _personalised(final, models, jobs.final.fed.evaluate_each(models.models))
    tests = iter(jobs.final.fed.evaluate_all([c.model for c in candidates if c.model is not None]))
    return Fitted(
        final, tuple(candidates), choice, groups, _group_names(data.names, by_client, unseen),
        tuple(None if c.model is None else next(tests) for c in candidates), models,
        {key: None if run is None else run.result.evaluation for key, run in ends.items()},
    )  # fmt: skip


def _try_member(
    jobs: FitJobs, steps: Steps, member: Member, kept: NDArray[np.bool_], groups: NDArray[np.intp], initial: float
) -> tuple[Candidate, FinishedRun | None]:
    """Train a member without the validation rows, and say whether it can be chosen.

    Args:
        jobs: Builds the run.
        steps: Executes it.
        member: The member.
        kept: (N rows) Whether a validation row counts.
        groups: (n,) Group of each row that counts.
        initial: The loss of the initial model in its worst group.
    """
    try:
        run = steps.run(member.name, jobs.make(jobs.selection, member))
    except DivergedError as error:
        steps.ended(f"{member.name}: diverged")
        return Candidate(member, None, None, f"diverged: {error}"), None
    losses = row_losses(jobs.selection.fed, run.result.model)[kept]
    worst, excluded, marks = worst_group(losses, groups)[1], "", run.result.marks
    if not np.isfinite(losses).all():
        excluded = "has a validation loss that is not finite"
    elif marks.is_late:
        excluded = f"was reset to the initial model so late that only {marks.rounds_text}"
    elif not worst < initial:
        excluded = f"has a worst validation loss of {worst:.4g}, and the initial model has {initial:.4g}"
    steps.ended(f"{member.name}: worst validation loss {worst:.4g}")
    return Candidate(member, run.result.model, losses, excluded), run


def _group_names(names: Sequence[str], by_client: NDArray[np.intp], unseen: Sequence[bool]) -> tuple[str, ...]:
    """Return the names of the groups that have rows, in their order."""
    groups: dict[int, list[str]] = {}
    for name, group, counts in zip(names, by_client.tolist(), unseen, strict=True):
        if counts:
            groups.setdefault(group, []).append(name)
    joint = f"clients with fewer than {FEW} validation rows"
    return tuple(own[0] if len(own) == 1 else f"{len(own)} {joint}" for _, own in sorted(groups.items()))


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
