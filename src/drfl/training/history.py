"""The history of a run: metrics over clients, one row per evaluated round."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from drfl.core.csv_cells import csv_text
from drfl.core.errors import Notice, listing, unknown
from drfl.core.html_table import html_table
from drfl.federation.federation import Evaluation
from drfl.task.measure import Measure, number, undefined_note, undefined_share
from drfl.task.metrics import ACCURACY
from drfl.training.certificate import Certificate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Metrics(NamedTuple):
    """Statistics of the score and the loss over clients; every client counts equally.

    ``std`` is the population standard deviation. ``worst20`` and ``best20`` are means over the worst and best 20 % of
    clients (at least one client). Accuracies are fractions. Statistics of the score exclude the clients at which the
    score is undefined, which :attr:`Row.undefined` counts; they are NaN if it is undefined at all clients.
    """

    avg_score: float
    worst_score: float
    std_score: float
    worst20_score: float
    best20_score: float
    avg_loss: float
    worst_loss: float

    @classmethod
    def of(cls, evaluation: Evaluation, score: Measure = ACCURACY) -> Metrics:
        """Compute the metrics of an evaluation for this score."""
        ranked = defined(evaluation.score).sort(descending=not score.more_is_better).values
        fifth, loss = max(1, ranked.numel() // 5), evaluation.loss
        if not ranked.numel():
            none = math.nan
            return cls(none, none, none, none, none, float(loss.mean()), float(loss.max()))
        return cls(
            avg_score=float(ranked.mean()),
            worst_score=float(ranked[0]),
            std_score=float(ranked.std(correction=0)),
            worst20_score=float(ranked[:fifth].mean()),
            best20_score=float(ranked[-fifth:].mean()),
            avg_loss=float(loss.mean()),
            worst_loss=float(loss.max()),
        )

    def summary(self, score: Measure, note: str) -> str:
        """Return the worst and the average score as a short text, with the note on undefined clients, if any."""
        return f"worst {score.words} {number(self.worst_score, 3)}{note}, average {number(self.avg_score, 3)}"

    def as_dict(self, score: str) -> dict[str, float]:
        """Return the metrics under their names in files, see :func:`columns_of`."""
        return dict(zip(columns_of(score), self, strict=True))


def columns_of(score: str) -> tuple[str, ...]:
    """Return the names of the metrics in files, in order, for a score: "worst_accuracy" and so on."""
    return tuple(name.replace("_score", f"_{score}") for name in Metrics._fields)


def smaller_is_better(field: str, score: Measure) -> bool:
    """Return whether smaller values of this field of :class:`Metrics` are better."""
    return field.endswith("_loss") or field == "std_score" or not score.more_is_better


def field_of(name: str, score: str) -> str:
    """Return the field of :class:`Metrics` that has this name in files.

    Raises:
        InputError: If there is no such metric.
    """
    fields = dict(zip(columns_of(score), Metrics._fields, strict=True))
    if name not in fields and name not in Metrics._fields:
        raise unknown("metric", name, fields)
    return fields.get(name, name)


def defined(values: Tensor) -> Tensor:
    """Return the values (N,) of the clients at which the measure is defined; all statistics use this rule."""
    return values[~values.isnan()]


def undefined_counts(evaluation: Evaluation) -> tuple[int, ...]:
    """Count the clients at which each measure is undefined, the score first."""
    return tuple(int(values.isnan().sum()) for values in (evaluation.score, *evaluation.others))


def undefined_names(
    evaluation: Evaluation, measures: Sequence[Measure], names: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """List the clients at which each measure is undefined, by the measure's name, without measures defined at all."""
    undefined: dict[str, tuple[str, ...]] = {}
    for measure, values in zip(measures, (evaluation.score, *evaluation.others), strict=True):
        clients = zip(names, values.isnan().tolist(), strict=True)
        undefined[measure.name] = tuple(name for name, is_undefined in clients if is_undefined)
    return {name: clients for name, clients in undefined.items() if clients}


def undefined_notices(
    measures: Sequence[Measure], undefined: Sequence[Mapping[str, Sequence[str]]], clients: int
) -> list[Notice]:
    """Return a warning for each measure that is undefined at some clients.

    Args:
        measures: The measures.
        undefined: The results of :func:`undefined_names` for each tested model.
        clients: Number of all clients.
    """
    notices = []
    for measure in measures:
        per_model = [names.get(measure.name, ()) for names in undefined]
        affected = list(dict.fromkeys(name for names in per_model for name in names))
        if affected:
            share = undefined_share([len(names) for names in per_model], [clients])
            notice = Notice(
                f"{measure.words} is undefined at {share} clients ({listing(affected, 'client')}), and statistics over "
                "clients exclude them. Check for rows of a single class, too few rows, or outputs that are not finite.",
                "undefined-metric",
                measure.name,
            )
            notices.append(notice)
    return notices


def others_of(evaluation: Evaluation, measures: Sequence[Measure]) -> dict[str, float]:
    """Return the average and worst over clients of every measure but the score, by their names in files."""
    statistics: dict[str, float] = {}
    for metric, values in zip(measures[1:], evaluation.others, strict=True):
        present = defined(values)
        # A measure may be undefined at every client.
        worst = math.nan if not present.numel() else float(present.min() if metric.more_is_better else present.max())
        statistics |= {f"avg_{metric.name}": float(present.mean()), f"worst_{metric.name}": worst}
    return statistics


class Row(NamedTuple):
    """One evaluated round.

    Args:
        round: Completed rounds; 0 is the initial model.
        metrics: Metrics of the model that the run would return.
        ledger: The ledger's counters since the start of the run.
        lam: (N,) the client weights after that round.
        seconds: Wall time since the start of the run.
        certificate: How far (w, λ) is from the saddle point; None if none was requested or none could be made.
        flagged: (N,) bool, the clients that a guard flags as suspicious; None without a guard.
        last: Metrics of the last iterate; None if the run returns the last iterate.
        others: Average and worst over clients of the measures other than the score, see :func:`others_of`.
        validation: Metrics of the model on the clients' validation rows; None if nothing is selected by them.
        undefined: Number of clients that ``metrics`` and ``others`` exclude, per measure, the score first.
    """

    round: int
    metrics: Metrics
    ledger: dict[str, int]
    lam: Tensor
    seconds: float
    certificate: Certificate | None = None
    flagged: Tensor | None = None
    last: Metrics | None = None
    others: Mapping[str, float] = {}
    validation: Metrics | None = None
    undefined: tuple[int, ...] = (0,)

    @property
    def note(self) -> str:
        """The note that follows the score's statistics in a text, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note(self.undefined[:1], [len(self.lam)])

    @property
    def last_metrics(self) -> Metrics:
        """Metrics of the last iterate."""
        return self.metrics if self.last is None else self.last

    @property
    def flagged_mass(self) -> float:
        """Σ λ_i over the flagged clients; 0 without a guard."""
        return 0.0 if self.flagged is None else float(self.lam[self.flagged].sum())


LEDGER_COLUMNS = ("bytes_up", "bytes_down", "gradient_evaluations")
ACCURACY_COLUMNS = columns_of(ACCURACY.name)
"""Names of the metrics in files if the score is accuracy."""
CERTIFICATE_COLUMNS = ("primal", "lower", "gap")
"""Additional columns of a history with certificates."""

DIGITS = 6
"""Decimals in files: enough to distinguish clients, few enough that engines agree to the byte in float64."""

GAP_DIGITS = 9
"""Decimals of certificates, whose gap approaches 0."""


LAMBDA_CLIENTS = 2_000
"""Largest number of clients for which `lambda.csv` lists all of them."""

EFFECTIVE = "effective_clients"
"""The column of `lambda.csv` that summarises all clients if the file lists only some."""


@dataclass(frozen=True)
class History:
    """The rows of a run, oldest first.

    Args:
        rows: One row per evaluated round.
        certified: Whether certificates were requested.
        measures: The measures, the score first.
        validated: Whether models were also tested on validation rows.
    """

    rows: tuple[Row, ...] = ()
    certified: bool = False
    measures: tuple[Measure, ...] = (ACCURACY,)
    validated: bool = False

    @property
    def score(self) -> Measure:
        """The score that the metrics summarise."""
        return self.measures[0]

    @property
    def last(self) -> Row:
        """The newest row."""
        return self.rows[-1]

    def __repr__(self) -> str:
        if not self.rows:
            return "<History without rows>"
        end = self.last.metrics.summary(self.score, self.last.note)
        return f"<History of {len(self.rows)} rows, the last from round {self.last.round}: {end}>"

    def to_frame(self) -> pd.DataFrame:
        """Return one row per evaluated round: the columns of :meth:`to_csv`, not rounded, and wall time in seconds."""
        import pandas as pd

        names = columns_of(self.score.name)
        columns = {
            "round": [row.round for row in self.rows],
            **{name: [row.metrics[k] for row in self.rows] for k, name in enumerate(names)},
            **{name: [row.ledger[name] for row in self.rows] for name in LEDGER_COLUMNS},
            "flagged_mass": [row.flagged_mass for row in self.rows],
            **{f"last_{name}": [row.last_metrics[k] for row in self.rows] for k, name in enumerate(names)},
            **{name: [row.others[name] for row in self.rows] for name in other_columns(self.measures)},
            "seconds": [row.seconds for row in self.rows],
        }
        if self.validated:
            for k, name in enumerate(names):
                columns[f"validation_{name}"] = [row.validation[k] if row.validation else math.nan for row in self.rows]
        if self.certified:
            for name in CERTIFICATE_COLUMNS:
                columns[name] = [getattr(row.certificate, name, math.nan) for row in self.rows]
        return pd.DataFrame(columns)

    def plot(self) -> Figure:
        """Plot score and loss over the rounds, see :func:`drfl.training.plots.plot_history`."""
        from drfl.training.plots import plot_history

        return plot_history(self)

    def _repr_html_(self) -> str:
        names = ["round", *columns_of(self.score.name)[:3], "avg_loss", "worst_loss"]
        return html_table(repr(self), self.to_frame()[names].tail(10))

    def to_csv(self) -> str:
        """Return the rows as CSV text.

        The metrics are named after the score, as in "worst_accuracy". Those of the last iterate begin with "last_".
        With certificates, the columns `CERTIFICATE_COLUMNS` are included, with nan in rows that have no certificate.
        The same run gives the same bytes, so wall time is not included (see `timing_csv`).
        """
        others, none = other_columns(self.measures), (math.nan,) * len(Metrics._fields)
        return csv_text(
            history_columns(self.measures, certified=self.certified, validated=self.validated),
            (
                [
                    row.round,
                    *(f"{x:.{DIGITS}f}" for x in row.metrics),
                    *(row.ledger[c] for c in LEDGER_COLUMNS),
                    f"{row.flagged_mass:.{DIGITS}f}",
                    *(certificate_cells(row.certificate) if self.certified else ()),
                    *(f"{x:.{DIGITS}f}" for x in row.last_metrics),
                    *(f"{row.others[name]:.{DIGITS}f}" for name in others),
                    *(f"{x:.{DIGITS}f}" for x in (row.validation or none) if self.validated),
                ]
                for row in self.rows
            ),
        )

    def lambda_csv(self, names: tuple[str, ...]) -> str:
        """Return λ after each evaluated round as CSV text, one column per client.

        With more than :data:`LAMBDA_CLIENTS` clients, only those with the largest λ in any evaluated round are listed,
        in the order of the clients. Ties are resolved in favour of the first clients. The column `EFFECTIVE` then
        precedes them. It is 1/Σλ², the effective number of clients, over all clients.
        """
        if len(names) <= LAMBDA_CLIENTS:
            rows = ([row.round, *(f"{x:.9f}" for x in row.lam.tolist())] for row in self.rows)
            return csv_text(("round", *names), rows)
        # A client is included for all rounds if its λ was large in any of them.
        most = self.rows[0].lam
        for row in self.rows[1:]:
            most = torch.maximum(most, row.lam)
        # A stable sort selects the first of equal clients on every system.
        columns = most.argsort(descending=True, stable=True)[:LAMBDA_CLIENTS].sort().values
        return csv_text(
            ("round", EFFECTIVE, *(names[i] for i in columns.tolist())),
            (
                [row.round, f"{1 / float(row.lam.square().sum()):.{DIGITS}f}", *(f"{x:.9f}" for x in weights.tolist())]
                for row in self.rows
                for weights in [row.lam[columns]]
            ),
        )

    def timing_csv(self) -> str:
        """Return the wall time in seconds at each evaluated round as CSV text."""
        return csv_text(("round", "seconds"), ([row.round, f"{row.seconds:.3f}"] for row in self.rows))


def history_columns(
    measures: Sequence[Measure] = (ACCURACY,), *, certified: bool = False, validated: bool = False
) -> tuple[str, ...]:
    """Return the columns of :meth:`History.to_csv`."""
    names, certificates = columns_of(measures[0].name), CERTIFICATE_COLUMNS if certified else ()
    last = (f"last_{name}" for name in names)
    validation = (f"validation_{name}" for name in names) if validated else ()
    columns = ("round", *names, *LEDGER_COLUMNS, "flagged_mass", *certificates, *last, *other_columns(measures))
    return (*columns, *validation)


def other_columns(measures: Sequence[Measure]) -> tuple[str, ...]:
    """Return the names in files of the statistics of measures other than the score, see :func:`others_of`."""
    return tuple(f"{what}_{metric.name}" for metric in measures[1:] for what in ("avg", "worst"))


def certificate_cells(certificate: Certificate | None) -> list[str]:
    """Return a certificate's values in the order of `CERTIFICATE_COLUMNS`, as text; nan if there is none."""
    if certificate is None:
        return ["nan"] * len(CERTIFICATE_COLUMNS)
    return [f"{getattr(certificate, name):.{GAP_DIGITS}f}" for name in CERTIFICATE_COLUMNS]
