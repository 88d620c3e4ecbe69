"""The search space of each algorithm's hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from drfl.algorithms import FULL_PARTICIPATION
from drfl.experiments.config.config import Config
from drfl.experiments.config.hyperparameters import Value, algorithm_class
from drfl.experiments.tuning.suggestion import Places

if TYPE_CHECKING:
    import optuna


class Dimension(NamedTuple):
    """A number that is searched for.

    Args:
        name: Its name.
        low: Its smallest value.
        high: Its largest value.
        log: Whether it is drawn uniformly on a logarithmic scale.
        parameter: The algorithm's parameter; "" = the one with this name.
        text: The parameter's text, with {} for the number; "" = the number itself.
        default: Its value if the parameter has its default; None = the parameter's value.
    """

    name: str
    low: float
    high: float
    log: bool = True
    parameter: str = ""
    text: str = ""
    default: float | None = None

    def __str__(self) -> str:
        """Describe the range."""
        return f"{self.low:g} to {self.high:g}{', log' * self.log}"


Space = tuple[Dimension, ...]

LR = Dimension("lr", 0.25, 4.0)
"""η divided by 1/L̂, with the same range for every algorithm. L̂ is the largest curvature of a client, see
:mod:`drfl.training.step_size`.
"""

MULTIPLE = LR._replace(parameter="lr_schedule", text="constant:factor={}", default=1.0)
"""The same, relative to the 1/L̂ that each run computes itself."""

SPACES: dict[str, Space] = {
    "FedAvg": (LR,),
    "FedProx": (LR, Dimension("mu", 0.001, 3.0)),
    "SCAFFOLD": (LR, Dimension("server_lr", 0.5, 2.0)),
    "FedDyn": (LR, Dimension("mu", 0.01, 3.0)),
    "FedNova": (LR,),
    "QFedAvg": (LR, Dimension("q", 0.05, 5.0)),
    "DeltaFL": (LR, Dimension("theta", 0.1, 0.9, log=False)),
    "TERM": (LR, Dimension("tilt", 0.1, 10.0)),
    "PropFair": (LR, Dimension("baseline", 2.0, 10.0, log=False)),
    "FedMGDAPlus": (LR, Dimension("epsilon", 0.01, 1.0)),
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
    "FGDROKLAdam": (Dimension("lr", 1e-4, 0.1), Dimension("temperature", 0.03, 10.0)),
}
"""The spaces by algorithm. The ranges contain the papers' values, drfl's defaults and the best MNIST values.

FedNova has no hyperparameter of its own. For algorithms that are not listed, only the step size is tuned.
"""

DIGITS = 3
"""Significant digits of values that are tried."""


def round_value(value: float) -> float:
    """Round a value to few digits. It stays within its range, because the range's ends have no more digits."""
    return float(f"{value:.{DIGITS}g}")


def fixed_parameters(algorithm: str, table: Mapping[str, Value], clients: int) -> dict[str, Value]:
    """Return the parameters that all trials of an algorithm share."""
    everybody = {"m": clients} if issubclass(algorithm_class(algorithm), FULL_PARTICIPATION) else {}
    return {**everybody, **table}  # unless the job sets another value


def space_around(algorithm: str, eta: float | None) -> Space:
    """Return the algorithm's space.

    η ranges from a quarter of ``eta`` = 1/L̂ to four times it. None = the same range relative to each run's own.
    """
    step_size = MULTIPLE if eta is None else LR._replace(low=round_value(LR.low * eta), high=round_value(LR.high * eta))
    return tuple(step_size if dimension is LR else dimension for dimension in SPACES.get(algorithm, (LR,)))


def draw(space: Space, trial: optuna.Trial) -> dict[str, Value]:
    """Draw a value for each dimension, with three significant digits."""
    return {d.name: round_value(trial.suggest_float(d.name, d.low, d.high, log=d.log)) for d in space}


def table_at(space: Space, base: Mapping[str, Value], point: Mapping[str, Value]) -> dict[str, Value]:
    """Return the algorithm's parameters at a point of its space."""
    drawn = {d.parameter or d.name: d.text.format(point[d.name]) if d.text else point[d.name] for d in space}
    return {**base, **drawn}


def default_table(config: Config, base: Mapping[str, Value]) -> dict[str, Value]:
    """Return the first trial's parameters: the job's, else the defaults, with η if it is a number."""
    # None means that each run chooses its own step size.
    lr = config.parameters(config.algorithm)["lr"]
    return {**base, **({} if lr is None else {"lr": lr})}


def default_point(values: Mapping[str, Value], space: Space) -> dict[str, Value]:
    """Return the place of parameters in a space; empty if a dimension has no number or it is out of range."""
    point: dict[str, Value] = {}
    for dimension in space:
        value = dimension.default
        if value is None:
            value = values.get(dimension.parameter or dimension.name)
        # A default that is None or a rule is not a point of the space.
        if isinstance(value, bool) or not isinstance(value, int | float):
            return {}
        if not dimension.low <= value <= dimension.high:
            return {}
        point[dimension.name] = float(value)
    return point


def places(space: Space) -> Places:
    """Return the dimensions as Optuna's distributions."""
    from optuna.distributions import FloatDistribution

    return {d.name: FloatDistribution(d.low, d.high, log=d.log) for d in space}
