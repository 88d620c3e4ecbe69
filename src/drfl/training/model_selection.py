"""Model selection and early stopping by rows that are not used for training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, unknown
from drfl.core.run_end import StopReason
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Part
from drfl.task.measure import Measure
from drfl.training.history import Metrics, Row, columns_of, field_of, smaller_is_better

SHORT = {"worst": "worst_score", "worst20": "worst20_score", "average": "avg_score", "loss": "worst_loss"}
"""Short names of the metrics for model selection; "loss" is the loss of the worst client."""


def selection_field(metric: str, score: Measure) -> str:
    """Return the field of :class:`drfl.training.history.Metrics` for a short name or a column name.

    Raises:
        InputError: If there is no such metric.
    """
    names = dict(zip(columns_of(score.name), Metrics._fields, strict=True)) | SHORT
    if metric not in names and metric not in Metrics._fields:
        raise unknown("metric", metric, names)
    return names.get(metric, metric)


TEST = "test:"
"""Prefix of a target in text form whose metric is measured on test rows."""


@dataclass(frozen=True)
class Target:
    """Stop when a metric has reached a value.

    Args:
        metric: A column of the history, such as "worst_accuracy", or a field of
            :class:`drfl.training.history.Metrics`, such as "worst_score".
        value: The value, such as 0.9 for an accuracy of 90 %. Metrics for which smaller is better (losses, std, some
            scores) reach it from above.
        rows: The clients' rows on which the metric is measured. With "test", the run reports no confidence intervals,
            because the rows that would assess its model have also chosen it.

    Raises:
        InputError: If ``rows`` is unknown, or the value is not a finite number.
    """

    metric: str
    value: float
    rows: Part = "validation"

    def __post_init__(self) -> None:
        checks.finite_number("value", self.value)
        if self.rows not in get_args(Part):
            raise unknown("rows", str(self.rows), get_args(Part))

    @classmethod
    def parse(cls, text: str | None, score: Measure) -> Target | None:
        """Parse a target such as "worst_accuracy=0.5" or "test:worst_accuracy=0.5"; None gives None.

        Args:
            text: Metric and value.
            score: The score of the run.

        Raises:
            InputError: If the text does not have this form, the metric is unknown, or the value is impossible for it.
        """
        if text is None:
            return None
        metric, _, value = text.removeprefix(TEST).partition("=")
        try:
            number = float(value)
            target = cls(metric.strip(), number, "test" if text.startswith(TEST) else "validation")
        except ValueError:  # also that of a value that is not finite
            raise InputError(
                f"`until = '{text}'` must have the form metric=value, e.g. worst_{score.name}=0.5",
                code="invalid-format",
                field="until",
            ) from None
        # Report an unknown metric now, not at the first test.
        target.check(score)
        return target

    def check(self, score: Measure) -> None:
        """Check that the metric exists and can have the value.

        Raises:
            InputError: If the metric is unknown, or is a fraction and the value is outside [0, 1].
        """
        if field_of(self.metric, score.name).endswith("_score") and score.percent and not 0 <= self.value <= 1:
            remedy = f" Write {self.value / 100:g} for {self.value:g} %." if 1 < self.value <= 100 else ""
            raise InputError(
                f"the target of {self.metric} must be between 0 and 1, got {self.value:g}.{remedy}",
                code="out-of-range",
                field="until",
            )

    def is_reached(self, row: Row, score: Measure) -> bool:
        """Return whether an evaluated round has reached the value."""
        metrics = row.metrics if self.rows == "test" else row.validation
        if metrics is None:
            return False
        field = field_of(self.metric, score.name)
        reached = getattr(metrics, field)
        return reached <= self.value if smaller_is_better(field, score) else reached >= self.value


class Selected(NamedTuple):
    """State of model selection after the rounds so far.

    Args:
        w: (d,) the best model.
        lam: (N,) float64, its client weights.
        round: () int64, its round.
        value: () float64, its validation metric, signed so that larger is better; −∞ before the first candidate.
        level: () float64, the best value so far of the metric whose gains patience counts from.
        since: () int64, the round of the last improvement.
        models: (N, d) the clients' personal models; None if one model serves all clients.
    """

    w: Tensor
    lam: Tensor
    round: Tensor
    value: Tensor
    level: Tensor
    since: Tensor
    models: ClientTable | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no round has been selected yet."""
        return bool(self.value == -math.inf)

    @classmethod
    def start(cls, w: Tensor, lam: Tensor, models: ClientTable | None = None) -> Selected:
        """Return the state without a selected round; the arguments are placeholders of the right size."""
        zero, least = torch.zeros((), dtype=torch.int64), torch.tensor(-math.inf, dtype=torch.float64)
        # Copy, because a checkpoint rejects two tensors that share memory.
        return cls(w.clone(), lam.clone(), zero, least, least.clone(), zero.clone(), models)

    def describe_fault(self) -> str | None:
        """Describe an inconsistency, see :class:`drfl.federation.algorithm.Consistent`."""
        return "a round is negative" if self.round < 0 or self.since < 0 else None


class ModelSelection(NamedTuple):
    """Rules by which a run selects its model and stops.

    If ``select`` names a metric, the run returns the model of the evaluated round that does best on the clients'
    validation rows. "worst", the score of the worst client, is the metric of group DRO (Sagawa et al. 2020, §3.1).
    Every evaluated round except round 0 is a candidate. If rounds are equal, the latest is selected. Rounds whose
    metric is undefined or infinite are skipped. If that applies to all rounds, the run returns its default model and
    logs a warning. Test rows are not used.

    Args:
        score: The score of the run.
        select: Metric of the returned model, see :func:`selection_field`; None = no selection.
        patience: Stop if ``select``, or else "worst", has not improved on validation rows for this many rounds; None =
            never. A run does not stop before the metric has been defined in some round.
        until: Target at which the run stops; None = none.
    """

    score: Measure
    select: str | None = None
    patience: int | None = None
    until: Target | None = None

    @classmethod
    def parse(cls, score: Measure, select: str | None, patience: int | None, until: str | None) -> ModelSelection:
        """Return the rules that :func:`drfl.run`, a command or a file gives.

        Raises:
            InputError: If a metric is unknown, the patience is not a positive integer, or the target has the wrong form
                or an impossible value.
        """
        if select is not None:
            selection_field(select, score)
        if patience is not None:
            checks.integer("patience", patience)
        return cls(score, select, patience, Target.parse(until, score))

    @property
    def validates(self) -> bool:
        """Whether models are tested on validation rows."""
        return bool(self._metrics)

    @property
    def by_score(self) -> bool:
        """Whether a rule uses a statistic of the score, not only losses."""
        return any(selection_field(metric, self.score).endswith("_score") for metric in self._metrics)

    @property
    def _metrics(self) -> list[str]:
        """The metrics on validation rows that rules use."""
        metrics = [] if self.select is None else [self.select]
        metrics += [] if self.patience is None else [self._gained]
        return metrics if self.until is None or self.until.rows == "test" else [*metrics, self.until.metric]

    @property
    def _gained(self) -> str:
        """The metric whose gains ``patience`` counts from."""
        return self.select or "worst"

    def after(
        self, before: Selected, r: int, w: Tensor, lam: Tensor, metrics: Metrics, models: ClientTable | None = None
    ) -> Selected:
        """Return the state after one more evaluated round.

        Args:
            before: The state before the round.
            r: The round.
            w: (d,) its model.
            lam: (N,) its client weights.
            metrics: Metrics of the model on validation rows.
            models: (N, d) the clients' personal models, if they have them.
        """
        selected, this_round = before, torch.tensor(r)
        if self.select is not None:
            value = self._value(self.select, metrics)
            # If rounds are equal, select the latest, but never round 0, which has the initial model.
            if r > 0 and bool(value >= before.value) and math.isfinite(value):
                selected = selected._replace(w=w.clone(), lam=lam.clone(), round=this_round, value=value, models=models)
        if self.patience is not None:
            value = self._value(self._gained, metrics)
            if bool(value > before.level):
                selected = selected._replace(level=value.clone(), since=this_round.clone())
        return selected

    def stops(self, selected: Selected | None, r: int, row: Row | None) -> StopReason | None:
        """Return why the run stops after round r; None if it continues.

        Args:
            selected: State of model selection; None if there are no tests on validation rows.
            r: The round.
            row: Its row of the history; None if the round was not evaluated.
        """
        # Patience starts at the first round with a defined metric.
        gained = None if selected is None or selected.level == -math.inf else int(selected.since)
        if self.patience is not None and gained is not None and r - gained >= self.patience:
            return "patience"
        reached = self.until is not None and row is not None and self.until.is_reached(row, self.score)
        return "target" if reached else None

    def _value(self, metric: str, metrics: Metrics) -> Tensor:
        """Return the value () of a metric, float64, with a sign that makes larger values better."""
        field = selection_field(metric, self.score)
        sign = -1.0 if smaller_is_better(field, self.score) else 1.0
        return torch.tensor(sign * getattr(metrics, field), dtype=torch.float64)


class Selection(NamedTuple):
    """Outcome of model selection.

    Args:
        part: The rows used: "validation".
        metric: The metric of the returned model; None if no model was to be selected, or no round could be.
        round: Round of that model.
        value: Value of the metric on validation rows.
        undefined: Clients that the metric excludes, because the score was undefined on their validation rows in the
            last test.
    """

    part: str
    metric: str | None
    round: int
    value: float
    undefined: tuple[int, ...] = ()
