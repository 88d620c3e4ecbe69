"""Checks of the mixture λ."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from drfl import ambiguity
from drfl.ambiguity import AmbiguitySet
from drfl.errors import InputError, NonFiniteError
from drfl.key import Key
from drfl.testing.attacks import Claims
from drfl.testing.hyperplane import Hyperplane
from drfl.testing.recording import Recording
from drfl.testing.report import NotApplicable, require
from drfl.testing.state import leaves
from drfl.testing.subject import SEED, Subject, last_of, rounds_of


def sets_for(n: int) -> dict[str, AmbiguitySet]:
    """The sets that an algorithm with a field ``ambiguity`` is tried with, for so many clients."""
    sets = (
        ambiguity.Simplex(),
        ambiguity.Simplex(floor=min(0.1, 0.5 / n)),
        ambiguity.CVaR(0.5),
        ambiguity.Box(1.5 / n),
        ambiguity.ChiSquareBall(0.2),
        ambiguity.KLBall(0.2),
        ambiguity.ChiSquare(0.1),
        ambiguity.KL(0.1),
    )
    return {str(chosen): chosen for chosen in sets}


def mixture_stays_in_its_set(subject: Subject) -> None:
    """λ ∈ Λ after every round, for several sets and a step that reaches their boundaries.

    Catches floors by renormalising, steps without a projection, and sets that an algorithm passes by.
    """
    for name, chosen in _accepted_sets(subject):
        algorithm = subject.variant(m=3, full=True, gamma=0.2, ambiguity=chosen, averaged=True)
        lam = algorithm.init(subject.exact).lam
        try:
            states = [state for state, _ in rounds_of(algorithm, subject.exact, 8)]
        except InputError:
            continue  # a penalty without a gradient on the boundary: the algorithm says so
        for state in states:
            before, lam = lam, state.lam
            require(lam.dtype == torch.float64, f"λ turned into {lam.dtype}")
            require(abs(float(lam.sum()) - 1) < 1e-9, f"λ sums to {float(lam.sum())} with {name}")
            require(_inside(chosen, lam), f"λ = {_short(lam)} is not in {name}; it was {_short(before)} before")
            average = getattr(state, "average", None)
            require(average is None or _inside(chosen, average.lam), f"the averaged λ is not in {name}")


def mixture_follows_the_losses(subject: Subject) -> None:
    """With losses that stay the same, λ moves by the same amount every round, and towards the larger losses.

    Catches a dual step that decays in silence, whether the counter is hidden or part of the state.
    """
    still = subject.still()
    algorithm = subject.variant(everybody=True, full=True, gamma=1e-3, ambiguity=Hyperplane())
    lams = torch.stack([algorithm.init(still).lam, *(state.lam for state, _ in rounds_of(algorithm, still, 40))])
    moves = lams.diff(dim=0)
    if not moves.any():
        raise NotApplicable("λ is constant: there is no dual step")
    drift = float((moves[1:] - moves[1]).abs().max() / moves[1].abs().max().clamp(min=1e-300))
    require(drift < 1e-6, f"λ's steps change by {drift:.1%} within 40 rounds in which the losses do not")
    ends = [int(values.argmax()) for values in (moves[1], -moves[1])]
    worst_and_best = [int(values.argmax()) for values in (still.values, -still.values)]
    require(ends == worst_and_best, "λ does not move towards the larger losses")


def poison_stays_out(subject: Subject) -> None:
    """A loss report of NaN or ±∞ raises NonFiniteError or is ignored; it never stays in the state in silence.

    Catches reports that are tested by their type only: one NaN, and λ is NaN for good.
    """
    recording = Recording(subject.exact)
    clean = last_of(subject.variant(everybody=True, full=True, gamma=0.1), recording, 1)
    if not recording.of("losses") and not recording.of("gradients"):
        raise NotApplicable("no losses are asked for")
    finite = {path for path, t in leaves(clean).items() if bool(torch.isfinite(t.double()).all())}
    for value in (math.nan, math.inf, -math.inf):
        algorithm = subject.variant(everybody=True, full=True, gamma=0.1)
        state = algorithm.init(subject.exact)
        try:
            state, _ = algorithm.round(state, Claims(subject.exact, [2], value), Key(SEED).fold("round", 1))
        except (NonFiniteError, InputError):
            continue
        if not bool(torch.isfinite(state.w).all()):
            continue  # the loop that runs rounds stops at such a model and says why
        bad = [path for path in sorted(finite) if not bool(torch.isfinite(leaves(state)[path].double()).all())]
        require(not bad, f"a reported loss of {value} is now in {', '.join(bad)}: raise NonFiniteError instead")
        require(
            _inside(ambiguity.Simplex(), state.lam), f"a reported loss of {value} turned λ into {_short(state.lam)}"
        )


def _accepted_sets(subject: Subject) -> Iterator[tuple[str, AmbiguitySet]]:
    if not subject.has("ambiguity"):
        yield "the simplex", ambiguity.Simplex()
        return
    for name, chosen in sets_for(subject.n).items():
        try:
            subject.variant(ambiguity=chosen)
        except InputError:
            continue  # the algorithm has no use for this set and says so
        yield name, chosen


def _inside(chosen: AmbiguitySet, lam: torch.Tensor) -> bool:
    return bool(torch.isfinite(lam).all()) and chosen.contains(lam, 1e-7)


def _short(lam: torch.Tensor) -> str:
    return "(" + ", ".join(f"{value:.3g}" for value in lam.tolist()) + ")"
