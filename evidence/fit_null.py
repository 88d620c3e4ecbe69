"""Measure how often `drfl fit` leaves the simplest member although no other member has a better worst client.

    python evidence/fit_null.py [--smoke]

Six members have losses on the same validation rows. The losses of a row are a common gamma variable with a long tail,
which differs in scale between the clients, times noise of each member. There are five kinds of federations:

- equal: all clients are equally hard for all members.
- spread: the hardest client has three times the loss of the easiest one, for all members.
- others pay: the five other members have 40 % more loss everywhere but at the worst client.
- another worst: they have 40 % less loss at the client that is the worst with the first member, and just as much loss
  as that at another client, so that they have more loss on average unless there are only two clients.
- worse: they have 10 % more loss at all clients.

In each case a binary score of the chosen member is tested on fresh rows, 0.85 − 0.03·(position) for the clients, and
the 95 % interval of the worst client is compared with the true value.

results/fit_null/errors.csv has a row per kind, number of clients and number of rows: how often the simplest member was
left, with the exact binomial 99 % interval (Clopper and Pearson 1934), the mean of the relative rise of the worst
client's true loss by the choice, and how often the interval missed. In the federations with "few" rows, half of the
clients have 2 to 4. They are missing for the last three kinds, in which the members differ in the group of these
clients. summary.json has the versions.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

import script
from drfl.assessment.choice import choose, group_clients
from drfl.assessment.row_moments import RowMoments
from drfl.assessment.scores import BinaryScores
from drfl.assessment.seeds import LEVEL
from drfl.assessment.worst import worst_score
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions

RESULTS = Path(__file__).parent / "results" / "fit_null"
CASES = script.sized(2000, 20)
KINDS = ("equal", "spread", "others pay", "another worst", "worse")
CLIENTS = script.sized((2, 4, 10, 30), (2, 4))
ROWS = ("20", "100", "few")
MEMBERS = 6
TEST_ROWS = 50
COLUMNS = ("kind", "clients", "rows", "cases", "left", "share", "low", "high", "rise", "missed", "missed_share")


def sizes(clients: int, rows: str) -> np.ndarray:
    """Validation rows of each client."""
    if rows != "few":
        return np.full(clients, int(rows))
    return np.where(np.arange(clients) % 2, 2 + np.arange(clients) % 3, 60)


def true_losses(kind: str, clients: int) -> np.ndarray:
    """True losses (members, clients)."""
    means = np.tile(np.linspace(1, 3, clients) if kind != "equal" else np.ones(clients), (MEMBERS, 1))
    if kind == "others pay":
        means[1:, :-1] = np.minimum(1.4 * means[1:, :-1], means[1:, -1:])
    if kind == "another worst":
        means[1:, 0] = means[1:, -1]
        means[1:, -1] *= 0.6
    if kind == "worse":
        means[1:] *= 1.1
    return means


def losses(means: np.ndarray, groups: np.ndarray, rng: np.random.Generator) -> list[np.ndarray]:
    """Draw the loss of each member on each row; ``groups`` are the clients of the rows."""
    base = rng.gamma(0.5, 2.0, len(groups))
    return [own[groups] * base * rng.gamma(4, 1 / 4, len(groups)) for own in means]


def interval_misses(clients: int, rng: np.random.Generator) -> bool:
    """Whether the 95 % interval of the worst client misses its true score on fresh rows."""
    true = np.linspace(0.85, 0.55, clients)
    found = worst_score(BinaryScores(np.full(clients, float(TEST_ROWS)), rng.binomial(TEST_ROWS, true).astype(float)))
    return not found.low <= true.min() <= found.high


def chosen(losses: list[np.ndarray], groups: np.ndarray) -> int:
    """The member chosen by these losses."""

    def gains(first: int, others: Sequence[int]) -> list[RowMoments]:
        return [RowMoments.of(losses[first] - losses[k], groups) for k in others]

    return choose([RowMoments.of(x, groups) for x in losses], gains, [True] * MEMBERS).chosen


def row(kind: str, clients: int, rows: str) -> list[object]:
    """One row of the table."""
    n, left, missed, rise = sizes(clients, rows), 0, 0, 0.0
    by_client, means = group_clients(n.tolist()), true_losses(kind, clients)
    of = np.repeat(np.arange(clients), n)
    for case in range(CASES):
        rng = Key(0).fold(kind, clients, rows, case).generator()
        choice = chosen(losses(means, of, rng), by_client[of])
        left += choice != 0
        rise += means[choice].max() / means[0].max() - 1
        missed += interval_misses(clients, rng)
    ends = binomtest(left, CASES).proportion_ci(0.99)
    shares = [f"{x:.4f}" for x in (left / CASES, ends.low, ends.high, rise / CASES)]
    return [kind, clients, rows, CASES, left, *shares, missed, f"{missed / CASES:.4f}"]


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    rows = []
    for kind in KINDS:
        for clients in CLIENTS:
            for count in ROWS if kind in ("equal", "spread") else ROWS[:2]:
                rows.append(row(kind, clients, count))
                print(*rows[-1], flush=True)
    about = {"versions": versions(), "level": LEVEL, "command": "python evidence/fit_null.py"}
    script.store(options.out, {"errors.csv": csv_text(COLUMNS, rows), "summary.json": about})


if __name__ == "__main__":
    main()
