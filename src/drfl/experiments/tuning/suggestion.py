"""The next point of a search, suggested by Optuna: it depends on the trials before it alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.core.run_end import BROKEN
from drfl.experiments.config.hyperparameters import Value
from drfl.experiments.tuning.criterion import mean
from drfl.task.measure import undefined_note

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

Places = Mapping[str, "BaseDistribution"]
"""What each parameter of a point was drawn from, in Optuna's terms."""

NOWHERE: Places = MappingProxyType({})


class SearchPoint(NamedTuple):
    """What is tried.

    Args:
        values: where it lies in the search space, as Optuna knows it; empty for defaults that have no place there.
        table: the algorithm's parameters as they run.
        places: of the values.
    """

    values: dict[str, Value]
    table: dict[str, Value]
    places: Places = NOWHERE


class Trial(NamedTuple):
    """A trial that ended.

    Args:
        number: of the trial; 0 is the defaults, where there are any.
        point: where it lies in the search space; empty where it has no place there.
        table: the algorithm's parameters as they ran.
        scores: by seed, see :meth:`drfl.experiments.tuning.criterion.Criterion.of`.
        stopped: by seed, how the run ended: "rounds", "diverged" or "refused".
        places: what the values of the point were drawn from.
        undefined: for each run that has a model, the number of clients at which the score is undefined; 0 for a loss.
        clients: the number of all clients, for each of these runs.
        set_back: for each run whose model was set back to the initial one, its seed and how many of its rounds count.
    """

    number: int
    point: dict[str, Value]
    table: dict[str, Value]
    scores: tuple[float, ...]
    stopped: tuple[str, ...]
    places: Places = NOWHERE
    undefined: tuple[int, ...] = ()
    clients: tuple[int, ...] = ()
    set_back: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What follows its score in a line, see :func:`drfl.task.measure.undefined_note`."""
        return undefined_note(self.undefined, self.clients)

    @property
    def score(self) -> float:
        """What it is judged by: the mean over its seeds, or the worst value where any of its runs broke off."""
        # A mean over the other seeds would hide that the trial is unreliable.
        broken = (score for score, how in zip(self.scores, self.stopped, strict=True) if how in BROKEN)
        return next(broken, mean(self.scores))


def best(trials: Sequence[Trial], *, smaller: bool = False) -> Trial:
    """The one with the best score, the largest or the ``smaller`` ones; of equal ones the earliest."""
    sign = -1 if smaller else 1
    # Equal scores go to the earliest trial: a longer search changes the choice only for a better score.
    return max(trials, key=lambda trial: (sign * trial.score, -trial.number))


def direction(smaller: bool) -> str:
    """Optuna's word for whether less is better."""
    return "minimize" if smaller else "maximize"


STARTUP = 8
"""So many points are drawn at random before the estimator has its say."""


def needed() -> ModuleType:
    """Optuna, told to be quiet.

    Raises:
        InputError: it is not installed.
    """
    try:
        optuna = importlib.import_module("optuna")
    except ImportError:
        raise InputError(
            "tuning needs optuna: pip install 'drfl[experiments]'", code="package-missing", field="optuna"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of every parameter that not all trials have
    return optuna


def suggest(
    ask: Callable[[optuna.Trial], SearchPoint], trials: Sequence[Trial], key: Key, *, smaller: bool = False
) -> SearchPoint:
    """The next point. It depends on the arguments alone.

    Trials that have no place in the space, as a default that is a rule and no number, are passed over.

    Args:
        ask: draws a point by the trial's ``suggest_…``; its ``places`` are filled in here.
        trials: those that ended, in order.
        key: names the draws; another one for every trial.
        smaller: whether less is better.
    """
    optuna = needed()
    sampler = optuna.samplers.TPESampler(
        seed=key.integer(0, 2**32 - 1),
        n_startup_trials=STARTUP,
        multivariate=True,
        constant_liar=False,
    )
    # A new study for every point, so that the sampler keeps no state.
    study = optuna.create_study(direction=direction(smaller), sampler=sampler)
    for trial in trials:
        if trial.point:
            known = optuna.trial.create_trial(value=trial.score, params=trial.point, distributions=dict(trial.places))
            study.add_trial(known)
    asked = study.ask()
    return ask(asked)._replace(places=asked.distributions)
