"""The outcome of a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from drfl.assessment.assess_evaluation import assess_evaluation, worst_interval
from drfl.assessment.choice import Choice
from drfl.assessment.row_moments import RowMoments
from drfl.assessment.seeds import LEVEL
from drfl.core.html_table import html_table
from drfl.data import ClientData
from drfl.experiments.fit.members import Member
from drfl.experiments.fit.personal import Personalisation
from drfl.experiments.run.artifacts import round_metrics
from drfl.experiments.run.finished import FinishedRun
from drfl.federation.federation import Evaluation
from drfl.training.history import DIGITS, Metrics
from drfl.training.run_log import Result

if TYPE_CHECKING:
    import pandas as pd

    from drfl.assessment.clients import Assessment


class Candidate(NamedTuple):
    """A member of the portfolio after the selection stage.

    Args:
        member: The member.
        run: Its run without the validation rows; None if it diverged.
        losses: Its losses on validation rows, by group of clients; None if it diverged.
        group: The group of clients with the largest mean loss; "" if it diverged.
        worst: That loss.
        average: The average over the groups of their mean losses; NaN if it diverged.
        excluded: Why it cannot be chosen; "" if it can.
    """

    member: Member
    run: FinishedRun | None
    losses: RowMoments | None
    group: str
    worst: float
    average: float
    excluded: str


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """The outcome of a fit.

    Args:
        finished: The run of the chosen member on all training rows, with personal models if clients have them.
        candidates: The portfolio after the selection stage, from simple to complex.
        choice: The choice among them.
        rows: Number of validation rows.
        groups: Names of the groups of clients by which the candidates were judged: clients, or a text for several.
        tests: Test results of the candidates, for reports; the choice does not use them. None for diverged ones.
        personal: The clients' personal models; None if they were not requested.
        references: Test results of the references by key; None for one that diverged.
        directory: The folder of results; None if there is none.
        global_test: Test results of the global model at all clients; None unless clients have personal models.
    """

    finished: FinishedRun
    candidates: tuple[Candidate, ...]
    choice: Choice
    rows: int
    groups: tuple[str, ...]
    tests: tuple[Evaluation | None, ...]
    personal: Personalisation | None
    references: dict[str, Evaluation | None]
    directory: Path | None = None
    global_test: Evaluation | None = None

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
        """Intervals of the clients' true scores on the test rows, and of the worst client's.

        Raises:
            InputError: If the score has no interval, such as RMSE. Add a metric to the task, and name it:
                ``drfl.assess(fitted, measure="mae")``.
        """
        job, patients = self.finished.job, None
        if isinstance(job.data, ClientData) and job.data.patients is not None:
            patients = job.data.patient_counts(job.data.test).tolist()
        return assess_evaluation(
            self.result.evaluation,
            job.fed.measures,
            job.data.names,
            # Rows that several clients share make their scores dependent, for which another interval is valid.
            independent=not job.data.shares_test_rows,
            patients=patients,
        )

    @property
    def reason(self) -> str:
        """Why the member was chosen, in a sentence."""
        chosen, simplest, p = self.choice
        # NaN marks the first member, with which the others are compared, and excluded members.
        tested = p[~np.isnan(p)]
        simple = self.candidates[simplest].member.name
        if not len(tested):
            return f"{simple} is the only member of the portfolio that is not excluded"
        corrected = f"Holm-corrected for {len(tested)} comparisons"
        is_one, units = len(self.groups) == 1, "groups" if self.pooled else "clients"
        who = self.groups[0] if is_one else f"the worst {'group of clients' if self.pooled else 'client'}"
        if chosen == simplest:
            return (
                f"no other member has a smaller loss than {simple} on validation rows of {who}"
                if is_one
                else f"no other member improves on {simple} on validation rows: none has a smaller loss both for {who} "
                f"and on average, and none is significantly better for {who} (smallest p = {tested.min():.2g}, "
                f"{corrected})"
            )
        new, old = self.candidates[chosen], self.candidates[simplest]
        worst = f"{new.worst:.4g} at {new.group} instead of {old.worst:.4g} at {old.group}"
        if new.group == old.group:
            worst = f"{new.worst:.4g} instead of {old.worst:.4g}{'' if is_one else f', at {old.group}'}"
        if p[chosen] <= LEVEL:
            return (
                f"{new.member.name} is significantly better than {simple} on validation rows of {who}: loss {worst} "
                f"(p = {p[chosen]:.2g}, {corrected})"
            )
        if is_one:
            return f"{new.member.name} has a smaller loss than {simple} on validation rows of {who}: {worst}"
        return (
            f"{new.member.name} has a smaller loss than {simple} on validation rows, both for {who} ({worst}) and "
            f"on average over {units} ({new.average:.4g} instead of {old.average:.4g})"
        )

    @property
    def pooled(self) -> list[str]:
        """The groups of more than one client."""
        return [group for group in self.groups if group not in self.finished.job.data.names]

    def to_frame(self) -> pd.DataFrame:
        """Return one row per member of the portfolio: its validation loss, p-value and exclusion, and its test results.

        The models of this table have not seen the validation rows; the final model has.
        """
        import pandas as pd

        return pd.DataFrame(self.members)

    @cached_property
    def members(self) -> list[dict[str, Any]]:
        """The rows of :meth:`to_frame`, as plain values."""
        members = list[dict[str, Any]]()
        for k, (candidate, test) in enumerate(zip(self.candidates, self.tests, strict=True)):
            # The p-values are those of the selection stage; no test row has been used for them.
            p = float(self.choice.p[k])
            members.append(
                {
                    "name": candidate.member.name,
                    "chosen": k == self.choice.chosen,
                    "worst_validation_loss": round(candidate.worst, DIGITS),
                    "worst_validation_client": candidate.group or None,
                    "average_validation_loss": round(candidate.average, DIGITS),
                    "p": None if math.isnan(p) else float(f"{p:.4g}"),
                    "excluded": candidate.excluded or None,
                    # A diverged member keeps its row, so that the table shows what was tried.
                    **({} if test is None else self._tested(test)),
                }
            )
        return members

    def summary(self) -> dict[str, Any]:
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
            "validation_rows": self.rows,
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
            "test_of_global_model": None if self.global_test is None else self._tested(self.global_test),
            "references": {key: None if test is None else self._tested(test) for key, test in self.references.items()},
        }

    def _tested(self, evaluation: Evaluation) -> dict[str, Any]:
        score = self.finished.job.fed.measures[0]
        metrics = Metrics.of(evaluation, score).as_dict(score.name)
        # Some scores, such as a squared error, have no interval from counts.
        low, high = worst_interval(evaluation, score) or (math.nan, math.nan)
        names = (f"worst_{score.name}", f"avg_{score.name}", "worst_loss", "avg_loss")
        ends = {f"worst_{score.name}_low": low, f"worst_{score.name}_high": high}
        return dict(round_metrics({**{name: metrics[name] for name in names}, **ends}))

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.to_frame())

    def __repr__(self) -> str:
        score, test = self.finished.job.fed.measures[0], Metrics.of(self.result.evaluation, self.result.history.score)
        return f"<Fit with {self.chosen.name}: worst {score.words} {score.shown(test.worst_score)}>"
