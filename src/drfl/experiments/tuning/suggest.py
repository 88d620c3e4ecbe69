"""Which point to try next: Optuna's tree-structured Parzen estimator, as a pure function of what was tried."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from drfl.errors import InputError
from drfl.experiments.tuning.spaces import Dimension, Space, rounded
from drfl.experiments.tuning.trial import Trial
from drfl.key import Key

if TYPE_CHECKING:
    from optuna.distributions import FloatDistribution

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
        raise InputError("tuning needs optuna: pip install 'drfl[experiments]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def distribution(dimension: Dimension) -> FloatDistribution:
    """A dimension in Optuna's terms."""
    from optuna.distributions import FloatDistribution

    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def suggest(space: Space, trials: Sequence[Trial], key: Key) -> dict[str, float]:
    """The next point. It depends on the arguments alone.

    Trials that have no place in the space, as a default that is a rule and no number, are passed over.

    Args:
        space: where to look.
        trials: those that ended, in order.
        key: names the draws; another one for every trial.

    Returns:
        A value by dimension, to three significant digits.
    """
    optuna = needed()
    sampler = optuna.samplers.TPESampler(
        seed=key.integer(0, 2**32 - 1), n_startup_trials=STARTUP, multivariate=True, constant_liar=False
    )
    study = optuna.create_study(direction="maximize", sampler=sampler)
    places = {dimension.name: distribution(dimension) for dimension in space}
    for trial in trials:
        if trial.point.keys() == places.keys():
            study.add_trial(optuna.trial.create_trial(value=trial.score, params=trial.point, distributions=places))
    asked = study.ask(places)
    return {name: rounded(asked.params[name]) for name in places}
