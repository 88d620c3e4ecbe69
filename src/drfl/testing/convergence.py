"""Checks of an algorithm's limit, of its special cases, and of its rounds against a second implementation."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet, ChiSquare, CVaR, Simplex
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Algorithm, State, ambiguity_of, mixture_of
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.requests import R, Request
from drfl.testing.federations import DropoutFederation, Recording
from drfl.testing.report import CheckError, NotApplicable, require
from drfl.testing.state import gap, leaves
from drfl.testing.subject import SEED, Oracle, ReplayedRound, Solves, Subject, last_of, rounds_of
from drfl.training.loop import run
from drfl.training.run_state import RunState


def converges(subject: Subject) -> None:
    """Check that the last iterate reaches the claim of ``solves``, with exact gradients and full participation.

    If ``solves.sampled`` is set, the same must hold with half of the clients per round: then only the draws are random,
    and an algorithm that corrects client drift must still arrive.
    """
    if subject.solves is None:
        raise NotApplicable("solves is not set, so the algorithm's limit is unknown")
    _require_solved(subject, subject.variant(full_participation=True, full=True), "everybody")
    if subject.solves.sampled:
        half = (subject.n + 1) // 2
        _require_solved(subject, subject.variant(m=half, full=True), f"{half} of {subject.n} clients")


LOOK = 25
"""Rounds between two checks of a run, which has converged if two checks in a row find it at the solution."""
OTHER_SETS: tuple[AmbiguitySet, ...] = (CVaR(0.5), ChiSquare(0.1))
"""Sets that must change the solution, without and with a penalty."""


def converges_on_other_sets(subject: Subject) -> None:
    """Check the claim of ``solves`` for other sets Λ and penalties ψ that the algorithm accepts.

    Catches a dual update without the penalty, and a set that is ignored.
    """
    subject.needs("ambiguity")
    if subject.solves is None:
        raise NotApplicable("solves is not set, so the algorithm's limit is unknown")
    for chosen in OTHER_SETS:
        try:
            _require_solved(subject, subject.variant(full_participation=True, full=True, ambiguity=chosen), f"{chosen}")
        except InputError:
            continue  # the algorithm rejects this penalty


class _SilentOnce(WrappedFederation):
    """A federation in which no client answers in one round."""

    def __init__(self, fed: Federation, round: int) -> None:
        super().__init__(fed)
        self.round = round

    def ask(self, request: Request[R]) -> R:
        return request.empty_reply() if request.key.round == self.round else self.fed.ask(request)


def average_is_of_the_iterates(subject: Subject) -> None:
    """Check that (ŵ, λ̂) is the mean, over rounds that counted, of the models after and the mixtures before a round.

    The algorithm takes one local step. If the rounds report other mixtures, or weights, these are averaged.

    Catches averages that include the initial model, lag one round behind, or count rounds without replies.
    """
    # No client answers in round 3, so it must not count.
    algorithm, fed = subject.variant(m=3, full=True, steps=1), _SilentOnce(subject.exact, 3)
    seen: list[RunState] = []
    try:
        run(algorithm, fed, rounds=5, seed=SEED, evaluate_every=5, averaged=True, callbacks=[seen.append])
    except InputError as error:
        raise NotApplicable("the algorithm has no averaged solution") from error
    models, mixtures, weights = [], [], []
    for r, (before, progress) in enumerate(pairwise(seen), 1):
        if progress.info is not None and not progress.info.is_empty:
            models.append(progress.state.w)
            reported = progress.info.mixture
            mixtures.append(mixture_of(algorithm, before.state, fed) if reported is None else reported)
            weights.append(progress.info.weight)
        average = progress.average
        if average is None:
            raise CheckError("averages were requested, but the run has none")
        a = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        expected = {"w": a.to(models[0]) @ torch.stack(models), "lam": a @ torch.stack(mixtures)}
        far = [path for path, mean in expected.items() if not gap(getattr(average, path), mean) < 1e-9]
        require(not far, f"after {r} rounds {' and '.join(far)} of the average are not the mean of the iterates")
        require(int(average.rounds) == len(models), f"the average counts {int(average.rounds)} of {len(models)} rounds")


def reduces(subject: Subject) -> None:
    """Check that in each special case the algorithm takes the same steps as the other algorithm, at the same keys."""
    if not subject.reductions:
        raise NotApplicable("reductions is not set")
    for name, ours, theirs, fields, tolerance in subject.reductions:
        fed = subject.simulation()
        ends = [last_of(copy.deepcopy(algorithm), fed, 4) for algorithm in (ours, theirs)]
        mine, other = (leaves(end) for end in ends)
        far = [
            f"{path} by {gap(mine[path], other[path]):.1e}"
            for path in fields or mine.keys() & other.keys() & {"w", "lam"}
            if path not in mine or path not in other or not gap(mine[path], other[path]) <= tolerance
        ]
        require(not far, f"'{name}' does not hold: after 4 rounds they differ in {', '.join(far)}")


def matches_its_reference(subject: Subject) -> None:
    """Check that rounds agree with the second implementation to 1e-9, with and without client dropout.

    The second implementation gets the clients that were drawn and that answered, and computes everything else.
    """
    if subject.reference is None:
        raise NotApplicable("reference is not set")
    fed, rounds = subject.exact, 5
    for silent in ((), (1, fed.n - 2)):
        for algorithm in (
            subject.variant(m=4, full=True, gamma=0.05),
            subject.variant(full_participation=True, full=True),
        ):
            recording, state, played, states = (
                Recording(DropoutFederation.without(fed, silent)),
                algorithm.init(fed),
                [],
                [],
            )
            for r in range(1, rounds + 1):
                state, info = algorithm.round(state, recording, Key(SEED).fold("round", r))
                states.append(state)
                played.append(ReplayedRound(info.cohort, info, recording.take()))
            expected = subject.reference(algorithm, Oracle(fed), played)
            for r, (state, want) in enumerate(zip(states, expected, strict=True), start=1):
                mine = leaves(state)
                far = [
                    f"{path} by {_distance(mine[path], value):.1e}"
                    for path, value in want.items()
                    if not _distance(mine[path], value) < 1e-9
                ]
                case = f"in round {r}" + (f" without replies of clients {list(silent)}" if silent else "")
                require(not far, f"the second implementation differs {case} in {', '.join(far)}")


def _require_solved(subject: Subject, algorithm: Algorithm, who: str) -> None:
    solves, fed, residual = subject.solves, subject.exact, float("inf")
    if solves is None:
        return
    for r, (state, _) in enumerate(rounds_of(algorithm, fed, subject.rounds), start=1):
        if r % LOOK and r != subject.rounds:
            continue
        before, residual = residual, solves.residual(fed, algorithm, state)
        if before <= subject.tolerance and residual <= subject.tolerance:
            return
    distance = f"after {subject.rounds} rounds with {who} the residual for {solves.name} is {residual:.2e}"
    require(residual <= subject.tolerance, f"{distance}, more than {subject.tolerance:.0e}")


def _distance(mine: Tensor, value: np.ndarray) -> float:
    return gap(mine, torch.from_numpy(np.asarray(value)))


def stationary(fed: Federation, w: Tensor, weights: Tensor) -> float:
    """Return ‖Σ_i a_i ∇f_i(w)‖ on all data: 0 exactly at the optimum of the weighted loss, if that is convex."""
    reply = fed.gradients(torch.arange(fed.n), w, Key(SEED))
    gradients = torch.empty_like(reply.values).index_copy(0, reply.clients, reply.values)
    return float((weights.to(gradients) @ gradients).norm())


def losses_at(fed: Federation, w: Tensor) -> Tensor:
    """Return the (N,) float64 losses of the clients on all their data."""
    reply = fed.losses(torch.arange(fed.n), w, Key(SEED))
    return torch.empty_like(reply.values).index_copy(0, reply.clients, reply.values)


def _saddle(fed: Federation, algorithm: Algorithm, state: State) -> float:
    """Return the larger of ‖Σ_i λ_i ∇f_i(w)‖ and max_{u∈Λ} F(w, u) − F(w, λ): both are 0 exactly at a saddle point."""
    # An algorithm without a set uses the whole simplex.
    chosen = ambiguity_of(algorithm) or Simplex()
    losses, lam = losses_at(fed, state.w), mixture_of(algorithm, state, fed)
    gain = chosen.worst_case(losses).value - (float(lam @ losses) - chosen.penalty(lam))
    return max(stationary(fed, state.w, lam), gain)


AVERAGE = Solves(
    "the optimum of the average loss",
    lambda fed, algorithm, state: stationary(fed, state.w, torch.full((fed.n,), 1 / fed.n, dtype=torch.float64)),
)
"""min_w (1/N) Σ_i f_i(w)."""
WEIGHTED = Solves(
    "the optimum of the loss weighted by samples", lambda fed, algorithm, state: stationary(fed, state.w, fed.shares)
)
"""min_w Σ_i (n_i/n) f_i(w)."""
SADDLE = Solves("the saddle point", _saddle)
"""min_w max_{λ∈Λ} Σ_i λ_i f_i(w) − ψ(λ), with the algorithm's own Λ."""
Q_FAIR = Solves(
    "the q-fair optimum",
    # The gradient of Σ_i f_i^{q+1}/((q+1)·N) is Σ_i (f_i^q/N)·∇f_i.
    lambda fed, algorithm, state: stationary(
        fed, state.w, losses_at(fed, state.w) ** getattr(algorithm, "q", 0.0) / fed.n
    ),
)
"""min_w Σ_i f_i(w)^{q+1}, with the algorithm's own q."""


def also_sampled(solves: Solves) -> Solves:
    """Return the same solution, reached also if only some clients take part in a round."""
    return solves._replace(sampled=True)
