"""Read a run directory back."""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from drfl.core.csv_cells import unquoted
from drfl.core.errors import InputError
from drfl.core.files import lines, open_file, read_json, read_toml, reading
from drfl.core.run_end import Marks
from drfl.report.names import display_names
from drfl.task.measure import PLAIN, Measure, Rows

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from drfl.data.row_scores import RowScores


CLIENT_COLUMNS = ("client", "score", "loss", "samples", "train_samples", "lambda")
CERTIFICATE = ("primal", "lower", "gap", "gradient_norm", "proven")
"""What a summary has beside the metrics where certificates were asked for."""

MOST_ROUNDS = 2**53
"""Up to here floating-point numbers count."""

MOST_COLUMNS = 10_000
"""Columns of a file; λ has one for each of at most 2,000 clients."""

LARGEST = 1e100
"""No number of a run comes near; a percentage of a larger one might be infinite."""

ROUNDING = 1e-3
"""How far from [0, 1] a weight may lie that was worked out in float32 and written with few digits."""

TEST_ROWS, REPORT = "test-rows.safetensors", "report.html"

FILES = (
    "config.toml", "summary.json", "history.csv", "timing.csv", "lambda.csv", "clients.csv", "partition.json",
    "model.safetensors", "model-last.safetensors", "model-averaged.safetensors", TEST_ROWS, REPORT,
    "traffic.json", "replies.csv", "paired.csv",
)  # fmt: skip
"""What a run may leave."""

REMEDY = "run it again, or give a folder that `drfl run` wrote"
DAMAGED = "is damaged"


@dataclass(frozen=True, eq=False)
class RunRecord:
    """What one run left behind. Whatever the run's score, its statistics are "avg_score", "worst_score" and so on.

    Args:
        label: what tables call the run; the directory's name.
        config: the nested tables of config.toml; empty if unknown.
        summary: the object in summary.json: at least ``algorithm``.
        history: a row per evaluated round: round, the fields of :class:`drfl.training.history.Metrics`, the ledger's
            counters.
        clients: (N rows) the final state of every client: client, score, loss, samples, train_samples, lambda, and a
            column for every other measure.
        lam: a row per evaluated round: ``round``, then λ in a column per client, in the order of ``clients``; of very
            many clients only those with the largest λ.
        measures: what was measured, the score first.
        effective: (rows of ``lam``) 1/Σλ² over all clients, where ``lam`` has only some of them.
        row_scores: reads what the returned model scores on every test row; gives None if the run keeps none.
        directory: its folder; None if it was not read from one.
    """

    label: str
    config: dict[str, object]
    summary: dict[str, object]
    history: pd.DataFrame
    clients: pd.DataFrame
    lam: pd.DataFrame
    measures: tuple[Measure, ...] = (PLAIN,)
    effective: pd.Series | None = None
    row_scores: Callable[[], RowScores | None] = lambda: None
    directory: Path | None = None

    @property
    def score(self) -> Measure:
        """What says how well a client is served."""
        return self.measures[0]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return text(self.summary, "algorithm")

    @property
    def seed(self) -> str:
        """The seed as text; "?" if the summary has none."""
        return text(self.summary, "seed")

    def final(self, metric: str) -> float:
        """A field of :class:`drfl.training.history.Metrics`, or a column of another measure; NaN if missing or not
        finite.
        """
        return number(table(self.summary, "final"), metric.replace("_score", f"_{self.score.name}"))

    def undefined(self, measure: Measure) -> int:
        """The number of clients at which a measure is undefined."""
        column = "score" if measure.name == self.score.name else measure.name
        return int(self.clients[column].isna().sum()) if column in self.clients else 0

    @cached_property
    def tested(self) -> tuple[str, list[str], list[float]]:
        """On what it was tested: the dataset, the clients' names and how many rows each has."""
        return text(self.summary, "dataset"), self.clients["client"].tolist(), self.clients["samples"].tolist()

    @cached_property
    def display_names(self) -> tuple[str, ...]:
        """(N,) the clients' names as reports show them, in the order of clients.csv."""
        return display_names(self.clients["client"].tolist())

    @property
    def drawn(self) -> tuple[str | None, str | None]:
        """What its test rows and its initial model are known by; None where it is not known."""
        rows, model = self.summary.get("test_rows"), self.summary.get("initial_model")
        return rows if isinstance(rows, str) else None, model if isinstance(model, str) else None

    @property
    def reference(self) -> bool:
        """Whether it is not federated, but shows what federation costs and gains."""
        return self.summary.get("reference", self.algorithm in ("LocalOnly", "Pooled")) is True

    @property
    def shared_test_rows(self) -> bool:
        """Whether some test row is that of two clients; older runs do not say."""
        return self.summary.get("shared_test_rows") is True

    @property
    def stopped_on_test(self) -> bool:
        """Whether test rows decided when to stop; older runs, which do not say, had no other rows for a target."""
        older = "test" if self.summary.get("stopped") == "target" else None
        return self.summary.get("stopped_on", older) == "test"

    @property
    def marks(self) -> Marks:
        """What readers of a table have to know of it; older runs do not say if the model was set back."""
        found = (number(self.summary, name) for name in ("rounds", "rollbacks", "effective_rounds"))
        rounds, rollbacks, effective = (None if math.isnan(value) else int(value) for value in found)
        return Marks(
            self.stopped_on_test, rollbacks or 0, rounds or 0, (rounds or 0) if effective is None else effective
        )

    @property
    def deployed(self) -> bool:
        """Whether the clients are the sites of a deployment."""
        return bool(listed(self.config, "sites"))

    def most_shown(self, most: int) -> int:
        """Clients of a table or figure: ``most``, the worst ones; of a deployment every site, however small."""
        return len(self.clients) if self.deployed else most

    @property
    def proven(self) -> bool:
        """Whether the final certificate's lower bound is proven."""
        return table(self.summary, "final").get("proven") is True

    def ledger(self, counter: str) -> float:
        """A counter of the run's ledger (bytes, messages or evaluations); NaN if missing."""
        return number(table(self.summary, "ledger"), counter)

    @property
    def diverged(self) -> bool:
        """Whether a metric of the final model is not a finite number; a missing certificate says nothing."""
        final = table(self.summary, "final")
        return any(math.isnan(number(final, f"{what}_loss")) for what in ("avg", "worst"))


def load_run(directory: Path) -> RunRecord:
    """Read what a run left in its directory.

    Args:
        directory: the folder that holds config.toml, summary.json, history.csv, clients.csv and lambda.csv.

    Raises:
        InputError: the folder or a file is missing or damaged; one line that names the file and the remedy.
    """
    from drfl.training.history import EFFECTIVE, LAMBDA_CLIENTS, LEDGER_COLUMNS, Metrics, columns_of

    directory = Path(directory)
    if not os.path.isdir(directory):  # unlike pathlib's, False for a name that is too long
        raise InputError(
            f"{directory} is not a run directory: there is no such folder; {REMEDY}",
            code="not-a-run",
            field=str(directory),
        )
    summary = read_json(directory / "summary.json", follow=False, problem=DAMAGED, remedy=REMEDY)
    if not isinstance(summary, dict) or "algorithm" not in summary:
        raise _damaged(directory, "summary.json", "it names no algorithm")
    measures = measures_of(summary)
    score, names = measures[0].name, columns_of(measures[0].name)
    wanted = [score if name == "score" else name for name in CLIENT_COLUMNS]
    clients = _frame(directory, "clients.csv", wanted, words=("client",)).rename(columns={score: "score"})
    history = _frame(directory, "history.csv", ("round", *names, *LEDGER_COLUMNS, "flagged_mass"))
    lam = _frame(directory, "lambda.csv", ("round",))
    # For very many clients the file has 1/Σλ² over all of them, then the largest λ.
    effective = None
    if len(clients) > LAMBDA_CLIENTS and lam.shape[1] == LAMBDA_CLIENTS + 2 and lam.columns[1] == EFFECTIVE:
        effective, lam = lam.iloc[:, 1], lam.iloc[:, [0, *range(2, lam.shape[1])]]  # a client may be called so, too
    if (abs(lam.iloc[:, 1:].to_numpy(float) - 0.5) > 0.5 + ROUNDING).any():  # NaN may be: a report leaves it out
        raise _damaged(directory, "lambda.csv", "a weight is not between 0 and 1")
    names_of_lam = lam.columns[1:].tolist()
    known = clients["client"].tolist()
    if effective is not None:  # lambda.csv lists some of the clients, in the same order
        some = set(names_of_lam)
        known = [name for name in known if name in some]
    if names_of_lam != known:
        raise _damaged(directory, "lambda.csv", "its columns are not the clients of clients.csv")
    return RunRecord(
        label=directory.resolve().name,  # not the path: a report is shared, a home folder's name is not
        config=read_toml(directory / "config.toml", follow=False, problem=DAMAGED, remedy=REMEDY),
        summary=summary,
        history=history.rename(columns=dict(zip(names, Metrics._fields, strict=True))),
        clients=clients,
        lam=lam,
        effective=effective,
        measures=measures,
        row_scores=partial(_row_scores, directory / TEST_ROWS),
        directory=directory,
    )


def _row_scores(path: Path) -> RowScores | None:
    """What is kept of every test row; None if there is no such file."""
    from drfl.report.test_rows import read  # loads torch

    return read(path) if os.path.lexists(path) else None


class FailedRun(NamedTuple):
    """A run that broke off, so that it left no results.

    Args:
        algorithm: its name.
        seed: as text.
        how: "diverged" or "refused".
    """

    algorithm: str
    seed: str
    how: str


def _columns(
    rows: Iterable[Sequence[str]], header: Sequence[str], words: Sequence[str]
) -> tuple[list[list[str] | np.ndarray], str]:
    """The columns of a CSV file, and which row has more or fewer values than the header; "" where none has.

    One row at a time: the text of a million rows takes gigabytes.

    Raises:
        csv.Error: the file is none.
        ValueError: a cell is no number.
    """
    import numpy as np

    # An array takes 8 bytes per number, a list of floats four times as much.
    found: list[list[str] | array[float]] = [[] if column in words else array("d") for column in header]
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            return [], f"row {line} has {len(row)} values, not {len(header)}"
        for column, cell in zip(found, row, strict=True):
            if isinstance(column, list):
                column.append(unquoted(cell))
            else:
                column.append(float(cell))
    return [column if isinstance(column, list) else np.array(column) for column in found], ""


def constant_line(summary: Mapping[str, object]) -> str | None:
    """What a model would score that always says the same, where that looks good; None where it does not."""
    constant = table(summary, "constant")
    overall, worst = (100 * number(constant, name) for name in ("accuracy", "worst_accuracy"))
    if not math.isfinite(overall):
        return None
    label = constant.get("class")
    what = "each client's most frequent class" if label is None else str(label)
    return f"always predicting {what}: {overall:.1f} % of all test rows, {worst:.1f} % at the worst client"


def threshold_line(summary: Mapping[str, object]) -> str | None:
    """Above which probability sensitivity and the like call a row positive; None if none is measured."""
    found = table(summary, "threshold")
    probability = number(found, "probability")
    if not math.isfinite(probability):
        return None
    if found.get("chosen_on") is None:
        return f"rates are at probability {probability:.3g}: no validation rows of both classes chose a threshold"
    return f"rates are at probability {probability:.3g}, the largest sensitivity plus specificity on validation rows"


def lines_beside(summary: Mapping[str, object]) -> list[str]:
    """What accuracies and rates have to be read with, a line each."""
    return [line for line in (constant_line(summary), threshold_line(summary)) if line is not None]


def worst_first(run: RunRecord) -> pd.DataFrame:
    """The clients of a run, the worst first; those on whose rows the score is not defined last."""
    return run.clients.sort_values("score", kind="stable", ascending=run.score.more_is_better)


def measures_of(summary: Mapping[str, object]) -> tuple[Measure, ...]:
    """What a run has measured, the score first, as its summary says; accuracy where it says nothing legible."""
    try:
        found = tuple(
            Measure(
                str(m["name"]),
                more_is_better=bool(m["more_is_better"]),
                percent=bool(m["percent"]),
                rows=Rows(str(m.get("rows", Rows.WHOLE))),  # older runs have none
            )
            for m in cast("list[dict[str, object]]", listed(summary, "measures"))
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return (PLAIN,)
    return found or (PLAIN,)


def number(values: Mapping[str, object], key: str) -> float:
    """A value as a float; NaN if it is missing, not a number or not finite."""
    value = values.get(key)
    try:
        found = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON's integers have no end
        return math.nan
    return found if math.isfinite(found) else math.nan


def text(values: Mapping[str, object], key: str) -> str:
    """A value as text; "?" if it is missing."""
    value = values.get(key)
    return "?" if value is None else str(value)


def listed(values: Mapping[str, object], key: str) -> list[object]:
    """A nested list; empty if it is missing or not a list."""
    value = values.get(key)
    return list(value) if isinstance(value, list) else []


def table(values: Mapping[str, object], key: str) -> dict[str, object]:
    """A nested table; empty if it is missing or not a table."""
    value = values.get(key)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _damaged(directory: Path, name: str, why: str) -> InputError:
    return InputError(
        f"{directory / name} {DAMAGED}: {why}; {REMEDY}", code="damaged-file", field=str(directory / name)
    )


def _frame(directory: Path, name: str, columns: Sequence[str], words: Sequence[str] = ()) -> pd.DataFrame:
    """A CSV file as floats, apart from the columns of ``words``; it may have more columns than asked for.

    Read with the csv module because pandas renames repeated headers and takes a client called "NA" for a gap.
    """
    import pandas as pd

    path = directory / name
    with open_file(path, follow=False, remedy=REMEDY) as file, reading(path, DAMAGED, REMEDY):
        rows = csv.reader(lines(file, path), strict=True)
        header = [unquoted(cell) for cell in next(rows, [])]
        if len(header) > MOST_COLUMNS:
            raise ValueError(f"it has {len(header):,} columns")
        values, ragged = _columns(rows, header, words)
    twice = [column for column in columns if header.count(column) > 1 and header.index(column)]
    if twice:  # not lambda.csv's first column: a client may be called "round" too
        raise _damaged(directory, name, f"column '{twice[0]}' is there twice")
    absent = [column for column in columns if column not in header]
    if absent:
        raise _damaged(directory, name, f"column '{absent[0]}' is missing")
    if ragged:
        raise _damaged(directory, name, ragged)
    if not values or not len(values[0]):
        raise _damaged(directory, name, "it has no rows")
    frame = pd.DataFrame(dict(enumerate(values)))
    frame.columns = pd.Index(header)  # of which some may be called alike
    if "round" in columns and not frame.iloc[:, header.index("round")].between(0, MOST_ROUNDS).all():
        raise _damaged(directory, name, "a round is no number of a round")
    sizes = frame.drop(columns=list(words), errors="ignore").abs()
    if ((sizes > LARGEST) & (sizes < math.inf)).to_numpy().any():
        raise _damaged(directory, name, f"it has numbers beyond {LARGEST:g}")
    return frame
