"""What a search for the hyperparameters of an object gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.suggestion import Trial
from drfl.federation.algorithm import Algorithm

if TYPE_CHECKING:
    import pandas as pd


class Tuned(NamedTuple):
    """What a search found.

    Args:
        best_algorithm: of the best trial, to run or compare.
        best_trial: its number, parameters and scores; of equal ones the earliest.
        criterion: what trials were compared by.
        trials: all of them, in order.
        seeds: the runs of each trial.
        directory: where the search is kept; None where it is not.
    """

    best_algorithm: Algorithm
    best_trial: Trial
    criterion: Criterion
    trials: tuple[Trial, ...]
    seeds: tuple[int, ...]
    directory: Path | None

    @property
    def best_value(self) -> float:
        """The criterion at the best trial, the mean over its seeds, on validation rows."""
        return self.best_trial.score

    @property
    def best_params(self) -> Mapping[str, Value]:
        """What the space suggested in the best trial."""
        return dict(self.best_trial.table)

    def to_frame(self) -> pd.DataFrame:
        """A row per trial: its number, its parameters, the criterion, and what each seed gave, NaN where it broke off.

        The criterion's column is called as in files, e.g. "worst_accuracy", those of the seeds "seed1000" and so on.
        """
        import pandas as pd

        names = dict.fromkeys(name for trial in self.trials for name in trial.table)
        columns: dict[str, list[object]] = {"trial": [trial.number for trial in self.trials]}
        columns |= {name: [trial.table.get(name) for trial in self.trials] for name in names}
        columns[self.criterion.metric] = [trial.score for trial in self.trials]
        for k, seed in enumerate(self.seeds):
            columns[f"seed{seed}"] = [t.scores[k] if t.stopped[k] == "rounds" else math.nan for t in self.trials]
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        found = ", ".join(f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.best_params.items())
        head = f"<Tuned {type(self.best_algorithm).__name__}: {found or 'nothing was searched for'}"
        place = f"trial {self.best_trial.number} of {len(self.trials)}"
        value = f"{self.criterion.shown.name} {self.best_value:.3f}{self.best_trial.note}"
        return f"{head}; {value} on validation rows, {place}>"
