"""What a run's log holds: the metrics over clients, a row per evaluated round."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from drfl.certificate import Certificate
from drfl.csv_cells import quoted
from drfl.federation import Evaluation

if TYPE_CHECKING:
    import pandas as pd


class Metrics(NamedTuple):
    """Statistics over clients, each client counting once whatever its size. Accuracies are fractions.

    ``std`` is the population standard deviation; worst20 and best20 are means over the worst and best 20 % of clients
    (at least one client).
    """

    avg_accuracy: float
    worst_accuracy: float
    std_accuracy: float
    worst20_accuracy: float
    best20_accuracy: float
    avg_loss: float
    worst_loss: float

    @classmethod
    def of(cls, evaluation: Evaluation) -> Metrics:
        """The metrics of an evaluation."""
        accuracy = evaluation.accuracy.sort().values
        fifth = max(1, accuracy.numel() // 5)
        return cls(
            avg_accuracy=float(accuracy.mean()),
            worst_accuracy=float(accuracy[0]),
            std_accuracy=float(accuracy.std(correction=0)),
            worst20_accuracy=float(accuracy[:fifth].mean()),
            best20_accuracy=float(accuracy[-fifth:].mean()),
            avg_loss=float(evaluation.loss.mean()),
            worst_loss=float(evaluation.loss.max()),
        )


class Row(NamedTuple):
    """One evaluated round.

    Args:
        round: rounds done; 0 is the initial model.
        metrics: over clients, of the model that the run would return.
        ledger: the ledger's counters since the start of the run.
        lam: (N,) the mixture after that round.
        seconds: wall time since the start of the run.
        certificate: how far (w, λ) is from the saddle point; None where it was not asked for or is not to be had.
        flagged: (N,) bool, the clients that a guard mistrusts; None where nobody looks.
        last: over clients, of the last iterate; None where that is what the run returns.
    """

    round: int
    metrics: Metrics
    ledger: dict[str, int]
    lam: Tensor
    seconds: float
    certificate: Certificate | None = None
    flagged: Tensor | None = None
    last: Metrics | None = None

    @property
    def last_metrics(self) -> Metrics:
        """Over clients, of the last iterate."""
        return self.metrics if self.last is None else self.last

    @property
    def flagged_mass(self) -> float:
        """Σ λ_i over the flagged clients; 0 where nobody looks."""
        return 0.0 if self.flagged is None else float(self.lam[self.flagged].sum())


SMALL_IS_GOOD = ("std_accuracy", "avg_loss", "worst_loss")
"""The metrics that are better the smaller they are."""

LEDGER_COLUMNS = ("bytes_up", "bytes_down", "gradient_evaluations")
LAST_COLUMNS = tuple(f"last_{name}" for name in Metrics._fields)
"""The metrics of the last iterate, which are those of the returned model where that is what the run returns."""
COLUMNS = ("round", *Metrics._fields, *LEDGER_COLUMNS, "flagged_mass")
CERTIFICATE_COLUMNS = ("primal", "lower", "gap")
"""What a history has beside `COLUMNS` where certificates were asked for."""

DIGITS = 6
"""Decimals kept in files: enough to tell clients apart, few enough that engines agree to the byte in float64."""

GAP_DIGITS = 9
"""Decimals of certificates, whose gap goes to 0."""


@dataclass
class History:
    """The rows of a run, oldest first.

    Args:
        rows: one per evaluated round.
        certified: whether certificates were asked for.
    """

    rows: list[Row] = field(default_factory=list)
    certified: bool = False

    @property
    def last(self) -> Row:
        """The newest row."""
        return self.rows[-1]

    def __repr__(self) -> str:
        if not self.rows:
            return "<History without a row>"
        m = self.last.metrics
        end = f"worst accuracy {m.worst_accuracy:.3f}, average {m.avg_accuracy:.3f}"
        return f"<History of {len(self.rows)} rows, the last of round {self.last.round}: {end}>"

    def to_frame(self) -> pd.DataFrame:
        """A row per evaluated round: the columns of :meth:`to_csv`, not rounded, and wall time in seconds."""
        import pandas as pd

        columns = {
            "round": [row.round for row in self.rows],
            **{name: [getattr(row.metrics, name) for row in self.rows] for name in Metrics._fields},
            **{name: [row.ledger[name] for row in self.rows] for name in LEDGER_COLUMNS},
            "flagged_mass": [row.flagged_mass for row in self.rows],
            **{f"last_{name}": [getattr(row.last_metrics, name) for row in self.rows] for name in Metrics._fields},
            "seconds": [row.seconds for row in self.rows],
        }
        if self.certified:
            for name in CERTIFICATE_COLUMNS:
                columns[name] = [getattr(row.certificate, name, math.nan) for row in self.rows]
        return pd.DataFrame(columns)

    def to_csv(self) -> str:
        """The rows as CSV text; the same run gives the same bytes, so wall time is not in it (see `timing_csv`).

        Where certificates were asked for, `CERTIFICATE_COLUMNS` follow, nan where there is none.
        """
        return csv_text(
            (*COLUMNS, *(CERTIFICATE_COLUMNS if self.certified else ()), *LAST_COLUMNS),
            (
                [
                    row.round,
                    *(f"{x:.{DIGITS}f}" for x in row.metrics),
                    *(row.ledger[c] for c in LEDGER_COLUMNS),
                    f"{row.flagged_mass:.{DIGITS}f}",
                    *(certificate_cells(row.certificate) if self.certified else ()),
                    *(f"{x:.{DIGITS}f}" for x in row.last_metrics),
                ]
                for row in self.rows
            ),
        )

    def lambda_csv(self, names: tuple[str, ...]) -> str:
        """λ after each evaluated round as CSV text, a column per client."""
        return csv_text(("round", *names), ([row.round, *(f"{x:.9f}" for x in row.lam.tolist())] for row in self.rows))

    def timing_csv(self) -> str:
        """Wall time in seconds at each evaluated round as CSV text."""
        return csv_text(("round", "seconds"), ([row.round, f"{row.seconds:.3f}"] for row in self.rows))


def certificate_cells(certificate: Certificate | None) -> list[str]:
    """A certificate's values in the order of `CERTIFICATE_COLUMNS`, as text; nan where there is none."""
    if certificate is None:
        return ["nan"] * len(CERTIFICATE_COLUMNS)
    return [f"{getattr(certificate, name):.{GAP_DIGITS}f}" for name in CERTIFICATE_COLUMNS]


def csv_text(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """CSV text with plain line ends, in which no text is a formula to a spreadsheet; see :mod:`drfl.csv_cells`."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([quoted(cell) for cell in header])
    writer.writerows([quoted(cell) for cell in row] for row in rows)
    return text.getvalue()
