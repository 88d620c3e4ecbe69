"""Measure how often the worst client's interval misses the truth if a run stops at a target.

    python evidence/stopping_rows.py [--smoke]

The script simulates federations of linear classifiers with known true accuracies: a client's inputs are normal, and its
labels are the noisy sides of its own hyperplane. In every round each client takes a step of minibatch SGD, and the
models are averaged. A run stops at the first round whose worst measured accuracy reaches the target, otherwise after
its last round. Accuracy is measured on ``test`` rows or on ``validation`` rows, a fifth of the training rows that are
then not used for training. The test rows then give the 95 % interval of the worst client's true accuracy.

results/stopping_rows/misses.csv has a row for each setting and choice of rows. Its columns are the number of runs that
stopped; how many of their intervals miss the truth, and that share with its exact binomial 95 % interval; the same
count and share for the runs that did not stop; the share over all runs; and the mean excess of the worst client's
measured over its true accuracy, in points, over the runs that stopped. summary.json has the versions.
"""

from __future__ import annotations

import csv
import importlib.metadata
import io
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown, paragraph

from drfl.assessment.assess_evaluation import worst_of
from drfl.assessment.clients import scores_of
from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.experiments.run.artifacts import versions
from drfl.task.metrics import ACCURACY
from evidence import script

RESULTS = Path(__file__).parent / "results" / "stopping_rows"
FEDERATIONS, ROUNDS = script.sized((2_000, 500), (10, 20))
PIECE, KEY = 100, 0
INPUTS, TRAIN, BATCH, LR = 20, 100, 5, 1.0
NOISE, APART = 0.7, 0.1
"""Standard deviations of the label noise, and of the clients' hyperplanes around their mean."""
COLUMNS = (
    "clients", "test_rows", "target", "rows", "runs", "stopped", "stopped_misses", "stopped_share", "low", "high",
    "other_misses", "other_share", "all_share", "measured_less_true_points",
)  # fmt: skip


class Setting(NamedTuple):
    """The settings of a simulation.

    Args:
        clients: number of clients N.
        test_rows: test rows per client.
        target: worst accuracy at which to stop.
    """

    clients: int
    test_rows: int
    target: float


SETTINGS = (
    Setting(2, 20, 0.95), Setting(2, 50, 0.85), Setting(2, 50, 0.9), Setting(2, 100, 0.75), Setting(2, 100, 0.82),
    Setting(2, 100, 0.85), Setting(4, 100, 0.75), Setting(4, 100, 0.8), Setting(10, 100, 0.72),
)  # fmt: skip


class Clients(NamedTuple):
    """The clients of F federations, side by side.

    Args:
        planes: (F, N, d) normals of the hyperplanes, of length 1.
        inputs: (F, N, rows, d).
        labels: (F, N, rows), −1 or 1.
    """

    planes: Tensor
    inputs: Tensor
    labels: Tensor

    @classmethod
    def draw(cls, federations: int, clients: int, rows: int, draw: torch.Generator) -> Clients:
        """Draw clients with this number of rows each."""
        centre = normalize(torch.randn(federations, 1, INPUTS, generator=draw), dim=-1)
        around = torch.randn(federations, clients, INPUTS, generator=draw) / math.sqrt(INPUTS)
        planes = normalize(centre + APART * around, dim=-1)
        inputs = torch.randn(federations, clients, rows, INPUTS, generator=draw)
        noise = NOISE * torch.randn(federations, clients, rows, generator=draw)
        labels = torch.where((inputs @ planes[..., None]).squeeze(-1) + noise > 0, 1.0, -1.0)
        return cls(planes, inputs, labels)

    def true(self, w: Tensor) -> Tensor:
        """True accuracies (F, N) of models (F, d): the probability that two correlated normals have the same sign."""
        cosine = (self.planes @ w[..., None]).squeeze(-1) / w.norm(dim=1, keepdim=True) / math.sqrt(1 + NOISE**2)
        return 1 - torch.arccos(cosine) / math.pi

    def right(self, w: Tensor, rows: slice) -> Tensor:
        """The numbers (F, N) of these rows that models (F, d) classify correctly."""
        outputs = (self.inputs[:, :, rows] @ w[:, None, :, None]).squeeze(-1)
        return (outputs * self.labels[:, :, rows] > 0).sum(-1)


class Run(NamedTuple):
    """How a run ended.

    Args:
        stopped: whether it reached its target.
        measured: the worst client's accuracy on test rows.
        true: the worst client's true accuracy.
        missed: whether the interval misses the true accuracy.
    """

    stopped: bool
    measured: float
    true: float
    missed: bool


def runs(setting: Setting, rows: str, piece: int, federations: int) -> Iterator[Run]:
    """Train the federations of one batch side by side."""
    draw = torch.Generator().manual_seed(Key(KEY).fold("stopping", *map(str, setting), piece).integer(0, 2**31))
    clients = Clients.draw(federations, setting.clients, TRAIN + setting.test_rows, draw)
    test, held = slice(TRAIN, None), slice(0, TRAIN // 5)
    looked_at, first = (test, 0) if rows == "test" else (held, TRAIN // 5)
    n = len(range(TRAIN + setting.test_rows)[looked_at])
    returned = torch.zeros(federations, INPUTS)
    going, w = torch.arange(federations), returned.clone()
    running = clients  # indices of the federations that still train
    each = torch.arange(setting.clients)[None, :, None]
    for _ in range(ROUNDS):
        places = torch.arange(len(going))[:, None, None], each
        drawn = torch.randint(first, TRAIN, (len(going), setting.clients, BATCH), generator=draw)
        x, y = running.inputs[*places, drawn], running.labels[*places, drawn]
        slope = -y * torch.sigmoid(-y * (x @ w[:, None, :, None]).squeeze(-1))
        w = w - LR * (slope[..., None] * x).mean(2).mean(1)
        returned[going] = w
        short = running.right(w, looked_at).amin(1) < setting.target * n - 1e-9
        if not short.all():
            going, w, running = going[short], w[short], Clients(*(part[short] for part in running))
        if not len(going):
            break
    stopped = torch.ones(federations, dtype=torch.bool)
    stopped[going] = False
    right, true = clients.right(returned, test), clients.true(returned).amin(1).tolist()
    tested = torch.full((setting.clients,), setting.test_rows)
    for i, counts in enumerate(right):
        interval = worst_of(scores_of(ACCURACY, torch.stack([tested, counts, counts], 1).double().numpy()), ACCURACY)
        assert interval is not None
        missed = not interval[0] <= true[i] <= interval[1]
        yield Run(bool(stopped[i]), int(counts.min()) / setting.test_rows, true[i], missed)


def misses() -> Iterator[list[object]]:
    """The rows of misses.csv."""
    sizes = [min(PIECE, FEDERATIONS - start) for start in range(0, FEDERATIONS, PIECE)]
    for setting in SETTINGS:
        for rows in ("test", "validation"):
            every = [run for piece, size in enumerate(sizes) for run in runs(setting, rows, piece, size)]
            stopped, other = [run for run in every if run.stopped], [run for run in every if not run.stopped]
            missed, missed_other = (sum(run.missed for run in part) for part in (stopped, other))
            ends = binomtest(missed, len(stopped)).proportion_ci(0.95) if stopped else None
            apart = np.mean([100 * (run.measured - run.true) for run in stopped]) if stopped else math.nan
            yield [
                *setting, rows, len(every), len(stopped), missed, share(missed, len(stopped)),
                *(("nan", "nan") if ends is None else (f"{ends.low:.4f}", f"{ends.high:.4f}")),
                missed_other, share(missed_other, len(other)), share(missed + missed_other, len(every)), f"{apart:.1f}",
            ]  # fmt: skip


def share(part: int, whole: int) -> str:
    return f"{part / whole:.4f}" if whole else "nan"


def stored_rows() -> list[Mapping[str, str]]:
    """Read the stored rows."""
    return list(csv.DictReader(io.StringIO((RESULTS / "misses.csv").read_text(encoding="utf-8"))))


def page() -> str:
    """Write the block of docs/uncertainty.md: a row per setting, and a note on the other runs."""
    rows = stored_rows()
    lines: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        setting = row["clients"], row["test_rows"], f"{100 * float(row['target']):.0f} %"
        missed, low, high = (f"{100 * float(row[name]):.1f}" for name in ("stopped_share", "low", "high"))
        lines.setdefault(setting, list(setting)).extend((f"{int(row['stopped']):,}", f"{missed} % [{low}, {high}]"))
    head = ("clients", "test rows each", "target", "stopped by test rows", "missed", "by validation rows", "missed")
    spared = [(int(r["other_misses"]), int(r["runs"]) - int(r["stopped"]), int(r["runs"])) for r in rows[::2]]
    most = max(missed / runs for missed, _, runs in spared)
    missed, others, _ = max(spared, key=lambda one: one[0] / one[1])
    said = f"""
    The simulation has {int(rows[0]["runs"]):,} runs in each setting. A run that test rows could have stopped, but
    did not, keeps its interval. These intervals miss in at most {100 * most:.1f} % of all runs of a setting. If nearly
    all other runs stopped, the remaining ones are a selection too: in one setting the interval missed in {missed} of
    {others}.
    """
    return f"{markdown(head, list(lines.values()))}\n\n{paragraph(said)}"


BLOCKS: dict[str, Callable[[], str]] = {"uncertainty.stopping": page}
"""Page and block → function that writes it."""


def main() -> None:
    options = script.parser(__doc__, RESULTS).parse_args()
    torch.set_num_threads(1)
    found = []
    for row in misses():
        found.append(row)
        print(*row, flush=True)
    about = {
        "command": "python evidence/stopping_rows.py",
        "runs_per_row": FEDERATIONS,
        "rounds": ROUNDS,
        "training_rows_per_client": TRAIN,
        "level": 0.95,
        "seed": KEY,
        "versions": {**versions(), "scipy": importlib.metadata.version("scipy")},
    }
    script.store(options.out, {"misses.csv": csv_text(COLUMNS, found), "summary.json": about})


if __name__ == "__main__":
    main()
