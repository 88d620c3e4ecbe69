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
from drfl.experiments.config.hyperparameters import Value, canonical, defaults_of, make, takes
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
"""Where a step moves along some axis by less than this share, the closed form loses digits: it steps instead."""


class ClosedForm(QuadraticFederation):
    """N clients with f_i(w) = ½‖A_i w − b_i‖² + (ridge/2)‖w‖², in exact gradients; keys and batches do not matter.

    With H = Hessian + prox and g the direction at w, u_{t+1} − w = (I − ηH)(u_t − w) − ηg, so that in H's axes, of
    eigenvalues h, u_t − w = −(1 − (1 − ηh)^t)/h · g. Everything but plain local steps goes the long way of
    :class:`drfl.testing.quadratic_federation.QuadraticFederation`.

    Args:
        functions: the f_i.
    """

    def __init__(self, functions: LeastSquares) -> None:
        super().__init__(functions.hessians, functions.linear, functions.b.square().sum(1) / 2)
        self.eigenvalues, self.axes = torch.linalg.eigh(self.A)

    def local_steps(self, request: TrainRequest) -> Replies:
        """The models of a request's cohort, in closed form where the steps are plain."""
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
"""A squared distance below this is rounding: the run ends there."""

ROUNDING = 1e-24
"""Of squared distances below this the sooner is the better, not the smaller: w* itself is known to about 1e-13."""

FAR = 1e12
"""A squared distance above this counts as diverged."""

REACH = "reach"
"""The name in a grid for steps·lr·L: how far a round's local steps go together, whatever their number and L."""


class Distance(BaseModel):
    """A job: SCAFF-PD's robust regression (its C.1) with a χ² penalty, in exact gradients, everybody taking part.

    Args:
        sigma: σ, how far the clients' truths lie apart; the paper does not give it for Figure 2.
        rho: weight ρ of the χ² penalty; 0 = none, the whole simplex.
        steps: J, local steps.
        clients: N.
        d: parameters.
        samples: m per client.
        c: scale of the common truth; the paper does not give it.
        mu: μ, weight of the penalty on the parameters; the paper does not give it.
        trial: rounds after which the values of a grid are compared; no more than the figure's rounds are run.
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
    """A cell's job: all that its result depends on.

    Args:
        algorithm: its name.
        parameters: all that it takes, less those in the grid.
        grid: the values to choose from, by parameter, or :data:`REACH`; all combinations are tried.
        seed: of the problem's draw and of the algorithm's.
        rounds: of communication.
    """

    algorithm: str
    parameters: dict[str, Value]
    grid: dict[str, list[float]]
    seed: int
    rounds: int


class Track(NamedTuple):
    """One run's way.

    Args:
        errors: ‖w − w*‖² after rounds 0, 1, 2, …; finite.
        diverged: why it was given up; None where it was not.
    """

    errors: list[float]
    diverged: str | None

    @property
    def score(self) -> tuple[float, int]:
        """Less is better: the last error to two digits, and where it is but rounding the round that first came so near.

        More digits would let rounding choose between step sizes that do the same.
        """
        last = math.inf if self.diverged is not None else float(f"{max(self.errors[-1], ROUNDING):.1e}")
        near = (r for r, error in enumerate(self.errors) if error <= ROUNDING)
        return last, next(near, len(self.errors))


def cell(job: Job, method: MethodRow, seed: int, rounds: int) -> Cell:
    """A cell of a distance figure, all values spelt out.

    Args:
        job: keys of :class:`Distance`.
        method: an algorithm, its parameters, and the grid to choose the rest from.
        seed: of the problem's draw and of the algorithm's.
        rounds: of communication.

    Raises:
        InputError: a key or parameter is unknown, or a value impossible.
    """
    for name in job:
        if name not in Distance.model_fields:
            raise unknown("key of a distance figure's job", name, Distance.model_fields, field="key")
    try:
        distance = Distance.model_validate(job)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"]
        raise InputError(
            f"{first['loc'][0]} = {first['input']!r}: {reason[0].lower()}{reason[1:]}",
            code="invalid-value",
            field=str(first["loc"][0]),
        ) from None
    checks.whole("trial", distance.trial)
    _draw(distance, 0)  # finds values out of range before anything runs
    algorithm = canonical("algorithm", method.algorithm, ALGORITHMS)
    # outside the grid, the method's values override those fixed by the job, which override the algorithm's defaults
    exact = {"m": distance.clients, "sampling": "everybody", "batch": None, "dual_batch": None}
    exact |= {"steps": distance.steps, "ambiguity": _ambiguity(distance.rho)}
    fixed = {name: value for name, value in exact.items() if takes(algorithm, name)}
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
    # check each value with the first values of the others, as there may be many combinations
    make(algorithm, _values(work, points[0], 1.0))
    for name, choices in method.grid.items():
        for choice in choices:
            make(algorithm, _values(work, {**points[0], name: choice}, 1.0))
    return Cell("distance", work.model_dump(), 2.0 * (len(points) * work.trial + rounds))


def approach(job: Mapping[str, object]) -> Record:
    """Run a distance cell: try the grid, then run the point that came nearest.

    The algorithm runs in `drfl.training.loop.run`, on a federation that takes all local steps in one go, see
    `drfl_papers.saddle_distance`; to rounding it is the one that computes with the samples.

    Args:
        job: see :class:`Approach`.

    Returns:
        ``stopped`` ("rounds" or "diverged"), ``reason``, ``rounds`` done, ``errors`` (‖w − w*‖² after rounds 0, 1, …;
        the run ends early below :data:`FLOOR`), ``chosen`` values of the grid, ``grid``: how many combinations, and
        ``failed``: how many of them diverged, ``parameters`` in full, ``seconds``, ``versions``.

    Raises:
        InputError: the job is impossible.
    """
    work, start = Approach.model_validate(dict(job)), time.perf_counter()
    task = _Task(work, _draw(work, work.seed))
    points = _points(work)
    tracks = [task.track(point, work.trial) for point in points]
    best = min(range(len(points)), key=lambda k: tracks[k].score)  # the first of equals
    track = tracks[best] if work.trial >= work.rounds else task.track(points[best], work.rounds)
    return {
        "stopped": "rounds" if track.diverged is None else "diverged",
        "reason": track.diverged or "",
        "rounds": len(track.errors) - 1,
        "errors": track.errors,
        "chosen": points[best],
        "grid": len(points),
        "failed": sum(found.diverged is not None for found in tracks),
        "parameters": _values(work, points[best], task.problem.smoothness),
        "versions": versions(),
        "seconds": time.perf_counter() - start,
    }


class _Task(NamedTuple):
    """A cell's job with its problem, whose optima are found once."""

    work: Approach
    problem: Quadratic

    def track(self, point: Mapping[str, float], rounds: int) -> Track:
        """Run one point of the grid for some rounds."""
        work, problem = self
        fed = ClosedForm(cast(LeastSquares, problem.functions))
        optimum, errors = problem.saddle(parse(_ambiguity(work.rho))).w, []

        def watch(progress: RunState) -> bool:
            error = float((progress.state.w - optimum).square().sum())
            if not error < FAR:
                raise DivergedError(f"the squared distance is above {FAR:g} after round {progress.round}")
            errors.append(error)
            return error < FLOOR

        algorithm, often = make(work.algorithm, _values(work, point, problem.smoothness)), max(rounds, 1)
        try:
            run(algorithm, fed, rounds=rounds, seed=work.seed, evaluate_every=often, callbacks=[watch])
        except DivergedError as error:
            return Track(errors, str(error))
        return Track(errors, None)


def _draw(distance: Distance, seed: int) -> Quadratic:
    return robust_regression(
        distance.sigma, seed, distance.clients, distance.d, distance.samples, distance.c, distance.mu
    )


def _ambiguity(rho: float) -> str:
    """Λ and ψ by name; a weight of 0 is no penalty, for which some algorithms are made."""
    return f"chi-square:rho={rho!r}" if rho else "simplex"


def _points(work: Approach) -> list[dict[str, float]]:
    """All combinations of the grid's values, the last name's changing fastest; one without any where it is empty.

    Raises:
        InputError: a list is empty, or the step size is given twice.
    """
    for name, values in work.grid.items():
        if not values:
            raise InputError(
                f"the grid of {work.algorithm} has no value for {name}: give one or remove it",
                code="missing-option",
                field=name,
            )
    if REACH in work.grid and "lr" in work.grid:
        raise InputError(
            f"the grid of {work.algorithm} has both lr and reach = steps·lr·L: give one of them",
            code="conflicting-options",
            field="lr",
        )
    return [dict(zip(work.grid, values, strict=True)) for values in itertools.product(*work.grid.values())]


def _values(work: Approach, point: Mapping[str, float], smoothness: float) -> dict[str, Value]:
    """The algorithm's parameters at a point of the grid, on a problem whose f_i are L-smooth."""
    own = {name: value for name, value in point.items() if name != REACH}
    lr = {"lr": point[REACH] / work.steps / smoothness} if REACH in point else {}
    return {**work.parameters, **lr, **own}
