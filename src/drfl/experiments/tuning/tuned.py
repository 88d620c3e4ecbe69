"""The result of a search for the hyperparameters of an object."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.html_table import MOST, html_table
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.tuning.confirmation import Confirmation, headline
from drfl.experiments.tuning.criterion import Criterion
from drfl.experiments.tuning.suggestion import Trial
from drfl.federation.algorithm import Algorithm

if TYPE_CHECKING:
    import pandas as pd


class Tuned(NamedTuple):
    """The result of a search.

    Args:
        best_algorithm: The algorithm of the best trial, to run or compare.
        best_trial: Its number, parameters and scores. It is the earliest of equally good trials.
        criterion: The criterion that compared trials.
        trials: All trials, in order.
        seeds: The seeds of each trial.
        directory: The folder of the search; None if no files were kept.
        confirmation: The comparison with the default setting at new seeds; None without one, or without a default.
    """

    best_algorithm: Algorithm
    best_trial: Trial
    criterion: Criterion
    trials: tuple[Trial, ...]
    seeds: tuple[int, ...]
    directory: Path | None
    confirmation: Confirmation | None = None

    @property
    def best_value(self) -> float:
        """The criterion at the best trial, on validation rows, as the mean over its seeds."""
        return self.best_trial.score

    @property
    def best_params(self) -> Mapping[str, Value]:
        """The parameters that the space suggested in the best trial."""
        return dict(self.best_trial.table)

    @property
    def headline(self) -> str:
        """Whether to use the best trial or the default setting, in one line; "" without a confirmation."""
        name = type(self.best_algorithm).__name__
        return headline({} if self.confirmation is None else {name: self.confirmation}, self.criterion.shown)

    def to_frame(self) -> pd.DataFrame:
        """Return a row per trial: its number, its parameters, the criterion, and the value at each seed, NaN for failed
        runs.

        The criterion's column has its name in files, such as "worst_accuracy", and those of the seeds are "seed1000"
        and so on.
        """
        import pandas as pd

        names = dict.fromkeys(name for trial in self.trials for name in trial.table)
        columns: dict[str, list[object]] = {"trial": [trial.number for trial in self.trials]}
        columns |= {name: [trial.table.get(name) for trial in self.trials] for name in names}
        columns[self.criterion.metric] = [trial.score for trial in self.trials]
        for k, seed in enumerate(self.seeds):
            columns[f"seed{seed}"] = [t.scores[k] if t.stopped[k] == "rounds" else math.nan for t in self.trials]
        return pd.DataFrame(columns)

    def _repr_html_(self) -> str:
        return html_table(repr(self), self.to_frame().head(MOST), len(self.trials) - MOST)

    def __repr__(self) -> str:
        parameters = ", ".join(
            f"{k}={v:.3g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.best_params.items()
        )
        head = f"<Tuned {type(self.best_algorithm).__name__}: {parameters or 'no parameters'}"
        place = f"trial {self.best_trial.number} of {len(self.trials)}"
        value = f"{self.criterion.shown.name} {self.best_value:.3f}{self.best_trial.note}"
        confirmed = (
            "" if self.confirmation is None else f"; {self.confirmation.verdict}: use the {self.confirmation.use}"
        )
        return f"{head}; {value} on validation rows, {place}{confirmed}>"
