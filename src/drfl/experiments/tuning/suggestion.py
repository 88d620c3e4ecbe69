"""The next point of a search, which Optuna suggests from the earlier trials only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.key import Key
from drfl.core.packages import require
from drfl.core.run_end import FAILURES
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.tuning.criterion import mean
from drfl.task.measure import undefined_note

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Places = Mapping[str, "BaseDistribution"]
"""The distributions from which a point's parameters were drawn, in Optuna's terms."""

NO_PLACES: Places = MappingProxyType({})


class SearchPoint(NamedTuple):
    """A point to try.

    Args:
        values: Its place in the search space, as Optuna knows it; empty for defaults outside the space.
        table: The algorithm's parameters in the run.
        places: The distributions of the values.
    """

    values: dict[str, Value]
    table: dict[str, Value]
    places: Places = NO_PLACES


class Trial(NamedTuple):
    """A finished trial.

    Args:
        number: The trial's number; 0 is the defaults, if there are any.
        point: Its place in the search space; empty if it is outside.
        table: The algorithm's parameters in the run.
        scores: The scores by seed, see :meth:`drfl.experiments.tuning.criterion.Criterion.of`.
        stopped: How the run of each seed ended: "rounds", "diverged" or "refused".
        places: The distributions of the point's values.
        undefined: For each run with a model, the number of clients at which the score is undefined; 0 for a loss.
        clients: For each of these runs, the number of all clients.
        set_back: For each run that was reset to or returned an earlier model, its seed and how many rounds count.
    """

    number: int
    point: dict[str, Value]
    table: dict[str, Value]
    scores: tuple[float, ...]
    stopped: tuple[str, ...]
    places: Places = NO_PLACES
    undefined: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    set_back: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The note behind its score in a line, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note(self.undefined, self.clients)

    @property
    def score(self) -> float:
        """Its score: the mean over its seeds, or the worst value if one of its runs failed."""
        # The mean over the other seeds would hide that the trial is unreliable.
        broken = (score for score, how in zip(self.scores, self.stopped, strict=True) if how in FAILURES)
        return next(broken, mean(self.scores))


def best(trials: Sequence[Trial], *, smaller: bool = False) -> Trial:
    """Return the trial with the best score, the largest or, with ``smaller``, the smallest; if equal, the earliest."""
    sign = -1 if smaller else 1
    # Equal scores go to the earliest trial, so a longer search changes the choice only for a better score.
    return max(trials, key=lambda trial: (sign * trial.score, -trial.number))


def direction(smaller: bool) -> str:
    """Return Optuna's word for whether less is better."""
    return "minimize" if smaller else "maximize"


STARTUP = 8
"""The number of points that are drawn at random before the estimator suggests points."""


def import_optuna() -> ModuleType:
    """Import Optuna, with its log reduced to errors."""
    require("optuna", "tuning needs optuna: pip install 'drfl[experiments]'")
    optuna = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it would warn about parameters that not all trials have
    return optuna


def suggest(
    ask: Callable[[optuna.Trial], SearchPoint], trials: Sequence[Trial], key: Key, *, smaller: bool = False
) -> SearchPoint:
    """Return the next point. It depends on the arguments alone.

    Trials without a place in the space, such as a default that is a rule and not a number, are ignored.

    ``ask`` draws a point with a trial's ``suggest_…`` methods; its ``places`` are filled in here. Every trial needs
    another ``key``.
    """
    optuna = import_optuna()
    sampler = optuna.samplers.TPESampler(
        seed=key.integer(0, 2**32 - 1),
        n_startup_trials=STARTUP,
        # Step sizes and other parameters interact, so model them jointly.
        multivariate=True,
        # Trials of an algorithm run one after another, so there are no pending trials to guess values for.
        constant_liar=False,
    )
    # Create a new study for every point, so that the sampler has no state.
    study = optuna.create_study(direction=direction(smaller), sampler=sampler)
    for trial in trials:
        if trial.point:
            known = optuna.trial.create_trial(value=trial.score, params=trial.point, distributions=dict(trial.places))
            study.add_trial(known)
    trial_of_point = study.ask()
    return ask(trial_of_point)._replace(places=trial_of_point.distributions)
