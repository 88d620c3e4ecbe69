"""Which round's model a run returns, and when it stops, by rows that are not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, unknown
from drfl.core.run_end import Stopped
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Part
from drfl.task.measure import Measure
from drfl.training.history import Metrics, Row, columns_of, field_of, smaller_is_better

SHORT = {"worst": "worst_score", "worst20": "worst20_score", "average": "avg_score", "loss": "worst_loss"}
"""The metrics that model selection goes by, by their short names; "loss" is the worst client's."""


def selection_field(metric: str, score: Measure) -> str:
    """The field of :class:`drfl.training.history.Metrics` behind a short name or a column's name.

    Raises:
        InputError: there is none.
    """
    names = dict(zip(columns_of(score.name), Metrics._fields, strict=True)) | SHORT
    if metric not in names and metric not in Metrics._fields:
        raise unknown("metric", metric, names)
    return names.get(metric, metric)


@dataclass(frozen=True)
class Best:
    """Return the model of the evaluated round that does best on the clients' validation rows.

    The default is the worst client, as group DRO is evaluated (Sagawa et al. 2020, §3.1). Every evaluated round after
    the start is a candidate; the untrained model is not. The later of two equal rounds wins. Rounds whose metric is
    undefined or infinite are skipped; if it is so in all of them, the run returns its usual model and logs a warning.
    Test rows are not used.

    Args:
        metric: "worst", "worst20" or "average", of the score; "loss", the worst client's; or a column of the history.
    """

    metric: str = "worst"


@dataclass(frozen=True)
class Patience:
    """Stop when the clients' validation rows have shown no gain for a number of rounds.

    A run whose metric has not been defined in any round yet goes on.

    Args:
        rounds: The number, counted from the last evaluated round that was better than all before.
        metric: see :class:`Best`.
        delta: how much better it must be, ≥ 0, in the metric's unit.

    Raises:
        InputError: a number is out of range.
    """

    rounds: int = 20
    metric: str = "worst"
    delta: float = 0.0

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds)
        checks.non_negative("delta", self.delta)


TEST = "test:"
"""Before the metric of a text target that is measured on test rows."""


@dataclass(frozen=True)
class Target:
    """Stop once a metric has reached a value.

    Args:
        metric: a column of the history, such as "worst_accuracy", or a field of :class:`drfl.training.history.Metrics`,
            such as "worst_score".
        value: The value; losses, std and scores of which less is better reach it from above.
        rows: The clients' rows that the metric is measured on. A run that "test" rows have stopped has no intervals:
            the rows that would judge its model have chosen it.

    Raises:
        InputError: there are no such rows.
    """

    metric: str
    value: float
    rows: Part = "validation"

    def __post_init__(self) -> None:
        if self.rows not in get_args(Part):
            raise unknown("rows", str(self.rows), get_args(Part))

    @classmethod
    def parse(cls, text: str | None, score: Measure) -> Target | None:
        """Read a target such as "worst_accuracy=0.5" or "test:worst_accuracy=0.5"; None gives None.

        Args:
            text: metric and value.
            score: the run's.

        Raises:
            InputError: it is not of that form, or there is no such metric.
        """
        if text is None:
            return None
        metric, _, value = text.removeprefix(TEST).partition("=")
        try:
            number = float(value)
        except ValueError:
            raise InputError(
                f"until = '{text}' is not of the form metric=value, e.g. worst_{score.name}=0.5",
                code="invalid-format",
                field="until",
            ) from None
        found = cls(metric.strip(), number, "test" if text.startswith(TEST) else "validation")
        # An unknown metric is an error now, not at the first test.
        field_of(found.metric, score.name)
        return found

    def is_reached(self, row: Row, score: Measure) -> bool:
        """Whether an evaluated round has reached the value."""
        metrics = row.metrics if self.rows == "test" else row.validation
        if metrics is None:
            return False
        field = field_of(self.metric, score.name)
        now = getattr(metrics, field)
        return now <= self.value if smaller_is_better(field, score) else now >= self.value


class Selected(NamedTuple):
    """What model selection knows of the rounds so far.

    Args:
        w: (d,) the best model.
        lam: (N,) float64, the mixture with it.
        round: () int64, when that was.
        value: () float64, its metric on validation rows, signed so that more is better; −∞ before the first.
        level: () float64, what :class:`Patience` measures gains from.
        since: () int64, the round of the last gain.
        models: (N, d) with a model that serves all, None; else the clients' own.
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
        """Whether no round could be selected yet."""
        return bool(self.value == -math.inf)

    @classmethod
    def start(cls, w: Tensor, lam: Tensor, models: ClientTable | None = None) -> Selected:
        """No round yet; (w, lam) stands in until there is one, as does ``models``, a table of the right size."""
        zero, least = torch.zeros((), dtype=torch.int64), torch.tensor(-math.inf, dtype=torch.float64)
        # Copies: a checkpoint takes no two tensors that share memory.
        return cls(w.clone(), lam.clone(), zero, least, least.clone(), zero.clone(), models)

    def wrong(self) -> str | None:
        """See :class:`drfl.federation.algorithm.Consistent`."""
        return "a round is negative" if self.round < 0 or self.since < 0 else None


class ModelSelection(NamedTuple):
    """How a run selects and stops.

    Args:
        best: which model it returns; None = as without.
        patience: when it stops; None = at its end.
        score: the run's.
        until: when it stops too; None = at its end.
    """

    best: Best | None
    patience: Patience | None
    score: Measure
    until: Target | None = None

    @property
    def validates(self) -> bool:
        """Whether models are tested on validation rows."""
        return any(rule is not None for rule in self._rules)

    @property
    def by_score(self) -> bool:
        """Whether it goes by a statistic of the score, rather than by losses alone."""
        return any(selection_field(r.metric, self.score).endswith("_score") for r in self._rules if r is not None)

    @property
    def _rules(self) -> tuple[Best | Patience | Target | None, ...]:
        """Those that go by validation rows."""
        return self.best, self.patience, None if self.until is None or self.until.rows == "test" else self.until

    def check(self) -> None:
        """Refuse metrics that there are not.

        Raises:
            InputError: there is none of that name.
        """
        for rule in (self.best, self.patience):
            if rule is not None:
                selection_field(rule.metric, self.score)
        if self.until is not None:
            field_of(self.until.metric, self.score.name)

    def after(
        self, before: Selected, r: int, w: Tensor, lam: Tensor, metrics: Metrics, models: ClientTable | None = None
    ) -> Selected:
        """With one more evaluated round.

        Args:
            before: what was known.
            r: the round.
            w: (d,) its model.
            lam: (N,) its mixture.
            metrics: of the model, on validation rows.
            models: (N, d) where every client has its own.
        """
        found, here = before, torch.tensor(r)
        value = self._value(self.best, metrics)
        # The last of equal rounds is selected, but never round 0, which has the initial model.
        if self.best is not None and r > 0 and bool(value >= before.value) and math.isfinite(value):
            found = found._replace(w=w.clone(), lam=lam.clone(), round=here, value=value, models=models)
        gain = self._value(self.patience, metrics)
        # Gains below delta leave the level unchanged, so that several small gains can add up to delta.
        if self.patience is not None and bool(gain > before.level + self.patience.delta):
            found = found._replace(level=gain, since=here.clone())
        return found

    def stops(self, selected: Selected | None, r: int, row: Row | None) -> Stopped | None:
        """Why the run ends after round r; None if it goes on.

        Args:
            selected: what is known of the rounds so far; None if there are no tests on validation rows.
            r: the round.
            row: its row of the history; None if it was not evaluated.
        """
        # Patience starts with the first defined metric.
        gained = None if selected is None or selected.level == -math.inf else int(selected.since)
        if self.patience is not None and gained is not None and r - gained >= self.patience.rounds:
            return "patience"
        reached = self.until is not None and row is not None and self.until.is_reached(row, self.score)
        return "target" if reached else None

    def _value(self, rule: Best | Patience | None, metrics: Metrics) -> Tensor:
        if rule is None:
            return torch.tensor(-math.inf, dtype=torch.float64)
        field = selection_field(rule.metric, self.score)
        # The sign makes larger values better for every metric.
        sign = -1.0 if smaller_is_better(field, self.score) else 1.0
        return torch.tensor(sign * getattr(metrics, field), dtype=torch.float64)


class Selection(NamedTuple):
    """How model selection ended.

    Args:
        part: which rows it went by: "validation".
        metric: the metric of the model that is returned; None if no model was to be selected, or no round could be.
        round: of that model.
        value: of the metric, on validation rows.
        undefined: the clients that it left out, as the score was undefined on their validation rows at the last test.
    """

    part: str
    metric: str | None
    round: int
    value: float
    undefined: tuple[int, ...] = ()
