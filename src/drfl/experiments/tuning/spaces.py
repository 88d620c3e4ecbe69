"""Where each algorithm's hyperparameters are looked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from drfl.algorithms import EVERYBODY
from drfl.experiments.config.config import Config
from drfl.experiments.config.hyperparameters import Value, algorithm_class
from drfl.experiments.tuning.suggestion import Places

if TYPE_CHECKING:
    import optuna


class Dimension(NamedTuple):
    """A number that is searched for.

    Args:
        name: what it is called.
        low: its least value.
        high: its largest value.
        log: whether values are drawn evenly on a logarithmic scale.
        parameter: the algorithm's parameter that it goes into; "" = the one of its name.
        text: how it is written there, with {} where the number stands; "" = as a number.
        default: its value where nothing is said of that parameter; None = what the parameter is.
    """

    name: str
    low: float
    high: float
    log: bool = True
    parameter: str = ""
    text: str = ""
    default: float | None = None

    def __str__(self) -> str:
        """The range in words."""
        return f"{self.low:g} to {self.high:g}{', log' * self.log}"


Space = tuple[Dimension, ...]

LR = Dimension("lr", 0.25, 4.0)
"""η over 1/L̂, the same range for every algorithm; L̂ is the largest curvature of a client,
:mod:`drfl.training.step_size`.
"""

MULTIPLE = LR._replace(parameter="lr_schedule", text="constant:factor={}", default=1.0)
"""The same, of the 1/L̂ that each run finds for itself."""

SPACES: dict[str, Space] = {
    "FedAvg": (LR,),
    "FedProx": (LR, Dimension("mu", 0.001, 3.0)),
    "SCAFFOLD": (LR, Dimension("server_lr", 0.5, 2.0)),
    "FedDyn": (LR, Dimension("mu", 0.01, 3.0)),
    "FedNova": (LR,),
    "QFedAvg": (LR, Dimension("q", 0.05, 5.0)),
    "DeltaFL": (LR, Dimension("theta", 0.1, 0.9, log=False)),
    "AFL": (LR, Dimension("gamma", 1e-4, 1.0)),
    "DRFA": (LR, Dimension("gamma", 1e-4, 0.03)),
    "DRFAProx": (
        LR,
        Dimension("gamma", 1e-4, 0.03),
        Dimension("rho", 0.03, 3.0, parameter="ambiguity", text="chi-square:rho={}"),
    ),
    "DRFAGA": (LR, Dimension("gamma", 1e-3, 1.0)),
    "ScaffPD": (LR, Dimension("sigma", 1e-3, 1.0)),
    "DRDM": (LR, Dimension("mu", 0.01, 3.0), Dimension("gamma", 1e-5, 0.01)),
    "DualDRDM": (LR, Dimension("mu", 0.05, 10.0), Dimension("gamma", 1e-5, 0.01)),
}
"""By algorithm. The ranges hold the papers' values, drfl's defaults and the best of the MNIST table.

FedNova has no hyperparameter of its own. For one that is not listed the step size alone is tuned.
"""

DIGITS = 3
"""Significant digits of a value that is tried."""


def rounded(value: float) -> float:
    """A value as it is tried and written: few digits, and within its range, whose ends have no more."""
    return float(f"{value:.{DIGITS}g}")


def fixed(algorithm: str, table: Mapping[str, Value], clients: int) -> dict[str, Value]:
    """What all trials of an algorithm have in common.

    Args:
        algorithm: its name.
        table: what the job says of it.
        clients: N.
    """
    everybody = {"m": clients} if issubclass(algorithm_class(algorithm), EVERYBODY) else {}
    return {**everybody, **table}  # unless the job says otherwise


def around(algorithm: str, eta: float | None) -> Space:
    """The algorithm's space.

    Args:
        algorithm: its name.
        eta: 1/L̂; η is looked for from a quarter of it to four times it. None = as such multiples of each run's own.
    """
    own = MULTIPLE if eta is None else LR._replace(low=rounded(LR.low * eta), high=rounded(LR.high * eta))
    return tuple(own if dimension is LR else dimension for dimension in SPACES.get(algorithm, (LR,)))


def draw(space: Space, trial: optuna.Trial) -> dict[str, Value]:
    """A value by dimension, to three significant digits, drawn by the trial."""
    return {d.name: rounded(trial.suggest_float(d.name, d.low, d.high, log=d.log)) for d in space}


def table_at(space: Space, base: Mapping[str, Value], point: Mapping[str, Value]) -> dict[str, Value]:
    """The algorithm's parameters at a point of its space.

    Args:
        space: the algorithm's.
        base: what all trials have in common.
        point: a value by dimension, for all of them.
    """
    own = {d.parameter or d.name: d.text.format(point[d.name]) if d.text else point[d.name] for d in space}
    return {**base, **own}


def default_table(config: Config, base: Mapping[str, Value]) -> dict[str, Value]:
    """The first trial's parameters: what the job says, else the defaults; η is written out where it is a number.

    Args:
        config: the job, for this algorithm.
        base: what all trials have in common.
    """
    # None means that each run finds its own step size.
    lr = config.parameters(config.algorithm)["lr"]
    return {**base, **({} if lr is None else {"lr": lr})}


def default_point(values: Mapping[str, Value], space: Space) -> dict[str, Value]:
    """Where an algorithm's own parameters lie in a space; empty unless each dimension has a number in its range.

    Args:
        values: the parameters.
        space: the algorithm's.
    """
    found: dict[str, Value] = {}
    for dimension in space:
        value = dimension.default
        if value is None:
            value = values.get(dimension.parameter or dimension.name)
        # A default that is None or a rule is not a point of the space.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return {}
        if not dimension.low <= value <= dimension.high:
            return {}
        found[dimension.name] = float(value)
    return found


def places(space: Space) -> Places:
    """The dimensions in Optuna's terms."""
    from optuna.distributions import FloatDistribution

    return {d.name: FloatDistribution(d.low, d.high, log=d.log) for d in space}
