"""Distance to the optimum of a problem whose saddle point is known."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from drfl.algorithms import ALGORITHMS
from drfl.ambiguity import parse
from drfl.core import checks
from drfl.core.errors import DivergedError, InputError, unknown
from drfl.experiments.config.hyperparameters import Value, canonical, defaults_of, has_parameter, make_algorithm
from drfl.experiments.config.strict import input_error
from drfl.experiments.execution.cells import Cell
from drfl.experiments.execution.records import Record
from drfl.experiments.run.artifacts import versions
from drfl.federation.requests import Replies, TrainRequest
from drfl.optim.local import LocalSGD
from drfl.testing.problems import LeastSquares, Quadratic, robust_regression
from drfl.testing.quadratic_federation import QuadraticFederation
from drfl.training.loop import run
from drfl.training.run_state import RunState
from drfl_papers.specification import Job, MethodRow

LEAST = 1e-9
"""If a step moves along some axis by less than this share, the closed form loses digits: steps are taken instead."""


class ClosedForm(QuadraticFederation):
    """N clients with f_i(w) = ½‖A_i w − b_i‖² + (ridge/2)‖w‖² and exact gradients; keys and batches do not matter.

    With H = Hessian + prox and g the direction at w, u_{t+1} − w = (I − ηH)(u_t − w) − ηg. In H's eigenbasis with
    eigenvalues h, this gives u_t − w = −(1 − (1 − ηh)^t)/h · g. Anything but plain local steps is computed step by step
    in :class:`drfl.testing.quadratic_federation.QuadraticFederation`.

    Args:
        functions: The f_i.
    """

    def __init__(self, functions: LeastSquares) -> None:
        super().__init__(functions.hessians, functions.linear, functions.b.square().sum(1) / 2)
        self.eigenvalues, self.axes = torch.linalg.eigh(self.A)

    def local_steps(self, request: TrainRequest) -> Replies:
        """Compute the models of a request's cohort, in closed form if the steps are plain."""
        cohort, w, local, shift = request.cohort, request.w, request.local, request.shift
        h, Q = self.eigenvalues[cohort] + request.prox, self.axes[cohort]
        plain = local == LocalSGD(local.steps, local.lr, local.batch) and not request.average
        if not plain or bool((local.eta * h < LEAST).any()):
            return super().local_steps(request)
        direction = self.A[cohort] @ w - self.b[cohort] + (0 if shift is None else shift)
        along = torch.einsum("nij,ni->nj", Q, direction) / h

        def after(steps: int) -> Tensor:
            return w - torch.einsum("nij,nj->ni", Q, (1 - (1 - local.eta * h) ** steps) * along)

        return Replies(cohort, after(local.tau), None if request.snapshot is None else after(request.snapshot))


FLOOR = 1e-26
"""A squared distance below this is rounding error, so the run ends."""

ROUNDING = 1e-24
"""Below this squared distance, the earlier round is better, not the smaller distance: w* is known to about 1e-13."""

FAR = 1e12
"""A squared distance above this counts as diverged."""

REACH = "reach"
"""Name in a grid for steps·lr·L: how far a round's local steps go in total, for any number of steps and any L."""


class Distance(BaseModel):
    """A job: SCAFF-PD's robust regression (its C.1) with a χ² penalty, exact gradients and full participation.

    Args:
        sigma: σ, how far the clients' true models lie apart; the paper does not give it for Figure 2.
        rho: Weight ρ of the χ² penalty; 0 for no penalty and the whole simplex.
        steps: J, local steps.
        clients: N.
        d: Number of parameters.
        samples: m per client.
        c: Scale of the common true model; the paper does not give it.
        mu: μ, weight of the penalty on the parameters; the paper does not give it.
        trial: Rounds after which the values of a grid are compared; at most the figure's rounds are run.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sigma: float = 0.1
    rho: float = 0.1
    steps: int = 100
    clients: int = 5
    d: int = 10
    samples: int = 100
    c: float = 1.0
    mu: float = 0.01
    trial: int = 100


class Approach(Distance):
    """A cell's job: everything that its result depends on. All combinations of the grid's values are tried."""

    algorithm: str
    parameters: dict[str, Value]
    grid: dict[str, list[float]]
    seed: int
    rounds: int


class Track(NamedTuple):
    """The distances of one run.

    Args:
        errors: ‖w − w*‖² after rounds 0, 1, 2, …; finite.
        diverged: Why it was stopped; None if it did not diverge.
    """

    errors: list[float]
    diverged: str | None

    @property
    def score(self) -> tuple[float, int]:
        """The score, lower is better: the last error to two digits; for rounding error, the round that reached it.

        With more digits, rounding would choose between step sizes that do the same.
        """
        last = math.inf if self.diverged is not None else float(f"{max(self.errors[-1], ROUNDING):.1e}")
        near = (r for r, error in enumerate(self.errors) if error <= ROUNDING)
        return last, next(near, len(self.errors))


def cell(job: Job, method: MethodRow, seed: int, rounds: int) -> Cell:
    """Make a cell of a distance figure with all values spelt out.

    Raises:
        InputError: If a key or parameter is unknown, or a value is invalid.
    """
    for name in job:
        if name not in Distance.model_fields:
            raise unknown("key", name, Distance.model_fields, place="of a distance figure's job")
    try:
        distance = Distance.model_validate(job)
    except ValidationError as error:
        raise input_error(error) from None
    checks.integer("trial", distance.trial)
    _draw(distance, 0)  # detects values out of range before anything runs
    algorithm = canonical("algorithm", method.algorithm, ALGORITHMS)
    # Outside the grid, the method's values override those fixed by the job, which override the algorithm's defaults.
    exact = {"m": distance.clients, "sampling": "everybody", "batch": None, "dual_batch": None}
    exact |= {"steps": distance.steps, "ambiguity": _ambiguity(distance.rho)}
    fixed = {name: value for name, value in exact.items() if has_parameter(algorithm, name)}
    chosen = {"lr" if name == REACH else name for name in method.grid}
    values = {**defaults_of(algorithm), **fixed, **method.parameters}
    work = Approach(
        **{**distance.model_dump(), "trial": min(distance.trial, rounds)},
        algorithm=algorithm,
        parameters={name: value for name, value in values.items() if name not in chosen},
        grid=method.grid,
        seed=seed,
        rounds=rounds,
    )
    points = _points(work)
    # Check each value with the first values of the others, because there may be many combinations.
    make_algorithm(algorithm, _values(work, points[0], 1.0))
    for name, choices in method.grid.items():
        for choice in choices:
            make_algorithm(algorithm, _values(work, {**points[0], name: choice}, 1.0))
    return Cell("distance", work.model_dump(), 2.0 * (len(points) * work.trial + rounds))


def approach(job: Mapping[str, object]) -> Record:
    """Run a distance cell: try the grid, then run the best point.

    The algorithm runs in `drfl.training.loop.run`, on a federation that computes all local steps at once (see
    :class:`ClosedForm`). Up to rounding, this equals computing with the samples.

    Returns:
        ``stopped`` ("rounds" or "diverged"), ``reason``, ``rounds`` done, ``errors`` (‖w − w*‖² after rounds 0, 1, …;
        the run ends early below :data:`FLOOR`), ``chosen`` values of the grid, ``grid`` (number of combinations),
        ``failed`` (number of combinations that diverged), all ``parameters``, ``seconds``, ``versions``.

    Raises:
        InputError: If the job is invalid.
    """
    work, start = Approach.model_validate(dict(job)), time.perf_counter()
    task = _Task(work, _draw(work, work.seed))
    points = _points(work)
    tracks = [task.track(point, work.trial) for point in points]
    best = min(range(len(points)), key=lambda k: tracks[k].score)  # the first one wins a tie
    # A trial that is as long as the run is that run.
    track = tracks[best] if work.trial >= work.rounds else task.track(points[best], work.rounds)
    return {
        "stopped": "rounds" if track.diverged is None else "diverged",
        "reason": track.diverged or "",
        "rounds": len(track.errors) - 1,
        "errors": track.errors,
        "chosen": points[best],
        "grid": len(points),
        "failed": sum(attempt.diverged is not None for attempt in tracks),
        "parameters": _values(work, points[best], task.problem.smoothness),
        "versions": versions(),
        "seconds": time.perf_counter() - start,
    }


class _Task(NamedTuple):
    """A cell's job and its problem; the optima are computed once."""

    work: Approach
    problem: Quadratic

    def track(self, point: Mapping[str, float], rounds: int) -> Track:
        """Run one point of the grid for a number of rounds."""
        work, problem = self
        fed = ClosedForm(cast(LeastSquares, problem.functions))
        optimum, errors = problem.saddle(parse(_ambiguity(work.rho))).w, []

        def watch(progress: RunState) -> bool:
            error = float((progress.state.w - optimum).square().sum())
            if not error < FAR:  # also if it is NaN
                raise DivergedError(f"the squared distance is above {FAR:g} after round {progress.round}")
            errors.append(error)
            return error < FLOOR

        algorithm, often = make_algorithm(work.algorithm, _values(work, point, problem.smoothness)), max(rounds, 1)
        try:
            # The callback sees every round, so the loop's own tests are as rare as possible.
            run(algorithm, fed, rounds=rounds, seed=work.seed, evaluate_every=often, callbacks=[watch])
        except DivergedError as error:
            return Track(errors, str(error))
        return Track(errors, None)


def _draw(distance: Distance, seed: int) -> Quadratic:
    return robust_regression(
        distance.sigma, seed, distance.clients, distance.d, distance.samples, distance.c, distance.mu
    )


def _ambiguity(rho: float) -> str:
    """Name Λ and ψ; a weight of 0 means no penalty, which some algorithms require."""
    return f"chi-square:rho={rho!r}" if rho else "simplex"


def _points(work: Approach) -> list[dict[str, float]]:
    """List all combinations of the grid's values, the last name changing fastest; an empty grid gives one empty point.

    Raises:
        InputError: If a list is empty, or the step size is given twice.
    """
    for name, values in work.grid.items():
        if not values:
            raise InputError(
                f"the grid of {work.algorithm} has no value for {name}. Add one, or remove the name.",
                code="missing-option",
                field=name,
            )
    if REACH in work.grid and "lr" in work.grid:
        raise InputError(
            f"the grid of {work.algorithm} has both lr and reach = steps·lr·L. Remove one of them.",
            code="conflicting-options",
            field="lr",
        )
    return [dict(zip(work.grid, values, strict=True)) for values in itertools.product(*work.grid.values())]


def _values(work: Approach, point: Mapping[str, float], smoothness: float) -> dict[str, Value]:
    """Return the algorithm's parameters at a point of the grid, on a problem with L-smooth f_i."""
    values = {name: value for name, value in point.items() if name != REACH}
    lr = {"lr": point[REACH] / work.steps / smoothness} if REACH in point else {}
    return {**work.parameters, **lr, **values}
