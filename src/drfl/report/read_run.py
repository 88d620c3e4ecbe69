"""Read a run directory."""

from __future__ import annotations

import csv
import math
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

from drfl.core.csv_cells import unescape_formula
from drfl.core.errors import InputError
from drfl.core.files import lines, open_file, reading
from drfl.core.json_toml import read_json, read_toml
from drfl.core.run_end import Marks
from drfl.report.names import display_names
from drfl.task.measure import PLAIN, Measure, Rows

if TYPE_CHECKING:
    import pandas as pd

    from drfl.data.row_scores import RowScores


CLIENT_COLUMNS = ("client", "score", "loss", "samples", "train_samples", "lambda")

MOST_ROUNDS = 2**53
"""Largest round number: up to here floating-point numbers are exact."""

MOST_COLUMNS = 10_000
"""Maximum number of columns of a file; λ has one for each of at most 2,000 clients."""

LARGEST = 1e100
"""Largest number accepted; no number of a run comes near it, and a percentage of a larger one might overflow."""

ROUNDING = 1e-3
"""Tolerance outside [0, 1] for a weight computed in float32 and written with few digits."""

TEST_ROWS, REPORT = "test-rows.safetensors", "report.html"

FILES = (
    "config.toml", "summary.json", "history.csv", "timing.csv", "lambda.csv", "clients.csv", "partition.json",
    "model.safetensors", "model-last.safetensors", "model-averaged.safetensors", "personal.safetensors",
    TEST_ROWS, REPORT, "traffic.json", "replies.csv", "paired.csv", "delivery.json",
)  # fmt: skip
"""Files that a run may leave."""

REMEDY = "run it again, or pass a folder that `drfl run` wrote"
DAMAGED = "is damaged"


@dataclass(frozen=True, eq=False)
class RunRecord:
    """The results of one run. The statistics of any score are called "avg_score", "worst_score" and so on.

    Args:
        label: Name of the run in tables: the name of its directory.
        config: Nested tables of config.toml; empty if unknown.
        summary: The object in summary.json, with at least ``algorithm``.
        history: A row per evaluated round: round, the fields of :class:`drfl.training.history.Metrics`, the ledger's
            counters.
        clients: (N rows) Final state of every client: client, score, loss, samples, train_samples, lambda, and a column
            for every other measure.
        lam: A row per evaluated round: ``round``, then λ in a column per client, in the order of ``clients``; for very
            many clients only those with the largest λ.
        measures: The measures, the score first.
        effective: (rows of ``lam``) 1/Σλ² over all clients, if ``lam`` has only some of them.
        row_scores: Function that reads the returned model's scores on every test row; it returns None if the run has
            none.
        directory: Folder of the run; None if it was not read from one.
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
        """The measure of how well a client is served."""
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
        """Return a field of :class:`drfl.training.history.Metrics` or another measure's column; NaN if not finite."""
        # Files name these columns after the measure, such as worst_accuracy; reports call all of them worst_score.
        return number(nested_table(self.summary, "final"), metric.replace("_score", f"_{self.score.name}"))

    def column_of(self, measure: Measure) -> str:
        """Return the column of ``clients`` with the values of a measure: that of the score is called "score"."""
        return "score" if measure.name == self.score.name else measure.name

    def undefined(self, measure: Measure) -> int:
        """Count the clients at which a measure is undefined."""
        column = self.column_of(measure)
        return int(self.clients[column].isna().sum()) if column in self.clients else 0

    @cached_property
    def test_setting(self) -> tuple[str, list[str], list[float]]:
        """The test: data set, names of the clients, and number of rows of each client."""
        return text(self.summary, "dataset"), self.clients["client"].tolist(), self.clients["samples"].tolist()

    @cached_property
    def display_names(self) -> tuple[str, ...]:
        """(N,) names of the clients for display, in the order of clients.csv."""
        return display_names(self.clients["client"].tolist())

    @property
    def draw_digests(self) -> tuple[str | None, str | None]:
        """Digests of the test rows and of the initial model; None if unknown."""
        rows, model = self.summary.get("test_rows"), self.summary.get("initial_model")
        return rows if isinstance(rows, str) else None, model if isinstance(model, str) else None

    @property
    def is_reference(self) -> bool:
        """Whether it is a reference: not federated, to show the costs and gains of federation."""
        return self.summary.get("reference") is True

    @property
    def is_predicted(self) -> bool:
        """Whether it is not a run, but predictions of another tool that were tested like one."""
        return self.summary.get("predicted") is True

    @property
    def is_personal(self) -> bool:
        """Whether each client is tested with its own model."""
        return self.summary.get("own_models") is True

    @property
    def shared_test_rows(self) -> bool:
        """Whether two clients share a test row."""
        return self.summary.get("shared_test_rows") is True

    @property
    def stopped_on_test(self) -> bool:
        """Whether test rows decided when to stop."""
        return self.summary.get("stopped_on") == "test"

    @property
    def marks(self) -> Marks:
        """Marks that tables put on the run."""
        names = ("rounds", "rollbacks", "effective_rounds", "last_rollback")
        counts = (number(self.summary, name) for name in names)
        rounds, rollbacks, effective, last = (None if math.isnan(value) else int(value) for value in counts)
        rounds = rounds or 0
        return Marks(
            self.stopped_on_test, rollbacks or 0, rounds, rounds if effective is None else effective, last or 0
        )  # fmt: skip

    @property
    def is_deployed(self) -> bool:
        """Whether the clients are the sites of a deployment."""
        return bool(nested_list(self.config, "sites"))

    def display_limit(self, most: int) -> int:
        """Return how many clients a table or figure shows: the ``most`` worst, or every site of a deployment."""
        return len(self.clients) if self.is_deployed else most

    @property
    def is_proven(self) -> bool:
        """Whether the lower bound of the final certificate is proven."""
        return nested_table(self.summary, "final").get("proven") is True

    def ledger(self, counter: str) -> float:
        """Return a counter of the run's ledger (bytes, messages or evaluations); NaN if missing."""
        return number(nested_table(self.summary, "ledger"), counter)

    @property
    def has_diverged(self) -> bool:
        """Whether a loss of the final model is not a finite number; a missing certificate does not count."""
        final = nested_table(self.summary, "final")
        return any(math.isnan(number(final, f"{statistic}_loss")) for statistic in ("avg", "worst"))


def load_run(directory: Path, *, curves: bool = True) -> RunRecord:
    """Read the results of a run from its directory.

    Args:
        directory: The folder with config.toml, summary.json, history.csv, clients.csv and lambda.csv.
        curves: Whether to read the history and λ, which take longest; without them both tables are empty.

    Raises:
        InputError: If the folder or a file is missing or damaged; one line that names the file and the remedy.
    """
    import pandas as pd

    from drfl.training.history import EFFECTIVE, LAMBDA_CLIENTS, LEDGER_COLUMNS, Metrics, columns_of

    directory = Path(directory)
    if not os.path.isdir(directory):  # unlike pathlib's method, it returns False for a name that is too long
        raise InputError(
            f"{directory} is not a run directory: the folder does not exist; {REMEDY}",
            code="not-a-run",
            field=str(directory),
        )
    summary = read_json(directory / "summary.json", follow=False, problem=DAMAGED, remedy=REMEDY)
    if not isinstance(summary, dict) or "algorithm" not in summary:
        raise _damaged(directory, "summary.json", "it does not name an algorithm")
    measures = measures_of(summary)
    score, names = measures[0].name, columns_of(measures[0].name)
    wanted = [score if name == "score" else name for name in CLIENT_COLUMNS]
    clients = _frame(directory, "clients.csv", wanted, words=("client",)).rename(columns={score: "score"})
    history, lam, effective = pd.DataFrame(), pd.DataFrame(), None
    if curves:
        history = _frame(directory, "history.csv", ("round", *names, *LEDGER_COLUMNS, "flagged_mass"))
        history = history.rename(columns=dict(zip(names, Metrics._fields, strict=True)))
        lam, known = _frame(directory, "lambda.csv", ("round",)), clients["client"].tolist()
        # For very many clients the file has 1/Σλ² over all of them, then the columns of the largest λ.
        if len(known) > LAMBDA_CLIENTS and lam.shape[1] == LAMBDA_CLIENTS + 2 and lam.columns[1] == EFFECTIVE:
            # Columns are taken by position, because a client may have the same name.
            effective, lam = lam.iloc[:, 1], lam.iloc[:, [0, *range(2, lam.shape[1])]]
            some = set(lam.columns[1:])
            known = [name for name in known if name in some]  # the file keeps their order
        if (abs(lam.iloc[:, 1:].to_numpy(float) - 0.5) > 0.5 + ROUNDING).any():  # NaN is accepted: reports omit it
            raise _damaged(directory, "lambda.csv", "a weight is not between 0 and 1")
        if lam.columns[1:].tolist() != known:
            raise _damaged(directory, "lambda.csv", "its columns do not match the clients of clients.csv")
    return RunRecord(
        label=directory.resolve().name,  # not the path, which reveals the name of a home folder
        config=read_toml(directory / "config.toml", follow=False, problem=DAMAGED, remedy=REMEDY),
        summary=summary,
        history=history,
        clients=clients,
        lam=lam,
        effective=effective,
        measures=measures,
        row_scores=partial(_row_scores, directory / TEST_ROWS),
        directory=directory,
    )


def _row_scores(path: Path) -> RowScores | None:
    """Read the scores of every test row; None if the file does not exist."""
    from drfl.report.test_rows import read  # this import loads torch

    return read(path) if os.path.lexists(path) else None


class FailedRun(NamedTuple):
    """A run that ended early and left no results.

    Args:
        algorithm: Name of the algorithm.
        seed: The seed as text.
        how: "diverged" or "refused".
        config: Its configuration, as ``config.toml`` would hold it; empty if unknown. Then it may be of any
            configuration of its algorithm.
    """

    algorithm: str
    seed: str
    how: str
    config: Mapping[str, object] = {}


def constant_line(summary: Mapping[str, object]) -> str | None:
    """Describe the score of always predicting one class, if that looks good; None if it does not."""
    constant = nested_table(summary, "constant")
    overall, worst = (100 * number(constant, name) for name in ("accuracy", "worst_accuracy"))
    if not math.isfinite(overall):
        return None
    label = constant.get("class")
    prediction = "each client's most frequent class" if label is None else str(label)
    return f"always predicting {prediction}: {overall:.1f} % of all test rows, {worst:.1f} % at the worst client"


def threshold_line(summary: Mapping[str, object]) -> str | None:
    """Describe the threshold above which rates such as sensitivity call a row positive; None without one."""
    threshold = nested_table(summary, "threshold")
    probability = number(threshold, "probability")
    if not math.isfinite(probability):
        return None
    if threshold.get("chosen_on") is None:
        return f"rates use the threshold {probability:.3g}, because no validation rows of both classes could choose one"
    return f"rates use the threshold {probability:.3g}, which maximises sensitivity plus specificity on validation rows"


def remark_lines(summary: Mapping[str, object]) -> list[str]:
    """Collect the remarks with which accuracies and rates must be read, one line each."""
    return [line for line in (constant_line(summary), threshold_line(summary)) if line is not None]


def sort_worst_first(run: RunRecord) -> pd.DataFrame:
    """Sort the clients of a run, the worst first; clients with an undefined score come last."""
    return run.clients.sort_values("score", kind="stable", ascending=run.score.more_is_better)


def measures_of(summary: Mapping[str, object]) -> tuple[Measure, ...]:
    """Read the measures of a run from its summary, the score first; accuracy if the summary has none it can read."""
    try:
        measures = tuple(
            Measure(
                str(m["name"]),
                more_is_better=bool(m["more_is_better"]),
                percent=bool(m["percent"]),
                rows=Rows(str(m["rows"])),
            )
            for m in cast("list[dict[str, object]]", nested_list(summary, "measures"))
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return (PLAIN,)
    return measures or (PLAIN,)


def number(values: Mapping[str, object], key: str) -> float:
    """Return a value as a float; NaN if it is missing, not a number or not finite."""
    value = values.get(key)
    try:
        converted = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # integers in JSON are unbounded
        return math.nan
    return converted if math.isfinite(converted) else math.nan


def text(values: Mapping[str, object], key: str) -> str:
    """Return a value as text; "?" if it is missing."""
    value = values.get(key)
    return "?" if value is None else str(value)


def nested_list(values: Mapping[str, object], key: str) -> list[object]:
    """Return a nested list; empty if it is missing or not a list."""
    value = values.get(key)
    return list(value) if isinstance(value, list) else []


def nested_table(values: Mapping[str, object], key: str) -> dict[str, object]:
    """Return a nested table; empty if it is missing or not a table."""
    value = values.get(key)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _damaged(directory: Path, name: str, why: str) -> InputError:
    return InputError(
        f"{directory / name} {DAMAGED}: {why}; {REMEDY}", code="damaged-file", field=str(directory / name)
    )


def _frame(directory: Path, name: str, columns: Sequence[str], words: Sequence[str] = ()) -> pd.DataFrame:
    """Read a CSV file as floats, apart from the columns of ``words``; further columns are allowed.

    The csv module is used because pandas renames repeated headers and treats a client called "NA" as missing.
    """
    import numpy as np
    import pandas as pd

    path, ragged = directory / name, ""
    with open_file(path, follow=False, remedy=REMEDY) as file, reading(path, DAMAGED, REMEDY):
        rows = csv.reader(lines(file, path), strict=True)
        header = [unescape_formula(cell) for cell in next(rows, [])]
        if len(header) > MOST_COLUMNS:
            raise ValueError(f"it has {len(header):,} columns")
        # An array takes 8 bytes per number; a list of floats takes four times as much. One row is read at a time,
        # because the text of a million rows takes gigabytes.
        values: list[list[str] | array[float]] = [[] if column in words else array("d") for column in header]
        for line, row in enumerate(rows, start=2):
            if len(row) != len(header):
                ragged = f"row {line} has {len(row)} values instead of {len(header)}"
                break
            for column, cell in zip(values, row, strict=True):
                if isinstance(column, list):
                    column.append(unescape_formula(cell))
                else:
                    column.append(float(cell))
    repeated = [column for column in columns if header.count(column) > 1 and header.index(column)]
    if repeated:  # except lambda.csv's first column, because a client may be called "round"
        raise _damaged(directory, name, f"column '{repeated[0]}' appears twice")
    missing = [column for column in columns if column not in header]
    if missing:
        raise _damaged(directory, name, f"column '{missing[0]}' is missing")
    if ragged:
        raise _damaged(directory, name, ragged)
    if not values or not len(values[0]):
        raise _damaged(directory, name, "it has no rows")
    frame = pd.DataFrame({i: v if isinstance(v, list) else np.array(v) for i, v in enumerate(values)})
    frame.columns = pd.Index(header)  # names may repeat
    if "round" in columns and not frame.iloc[:, header.index("round")].between(0, MOST_ROUNDS).all():
        raise _damaged(directory, name, "its column 'round' holds an invalid round number")
    sizes = frame.drop(columns=list(words), errors="ignore").abs()
    if ((sizes > LARGEST) & (sizes < math.inf)).to_numpy().any():
        raise _damaged(directory, name, f"it has numbers larger than {LARGEST:g}")
    return frame
