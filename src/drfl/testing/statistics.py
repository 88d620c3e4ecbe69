"""Statistical checks: distributions of sampled clients, and properties of mixtures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drfl import ambiguity
from drfl.ambiguity import AmbiguitySet
from drfl.core.errors import InputError, NonFiniteError
from drfl.core.key import Key
from drfl.federation import sampling
from drfl.federation.algorithm import Algorithm, State, mixture_of
from drfl.federation.federation import Federation
from drfl.testing.attacks import ConstantLosses
from drfl.testing.federations import Call, DropoutFederation, Recording, first_asked
from drfl.testing.hyperplane import Hyperplane
from drfl.testing.report import NotApplicable, brief, require
from drfl.testing.state import leaves, tables, with_mixture
from drfl.testing.subject import SEED, Subject, last_of, rounds_of

ROUNDS = 300
"""Number of rounds, all from one state, for estimating a distribution."""
ERRORS = 5.0
"""Tolerance of an estimate in standard errors; a correct estimate exceeds it once in two million."""


def snapshot_step(subject: Subject) -> None:
    """Check that t' is one step for the whole cohort of a round, uniform on {1, …, τ} with both ends.

    Catches ``randint(1, tau)``, which never draws τ, and a separate t' for each client.
    """
    tau = 4
    recording = Recording(subject.constant_losses())
    rounds = _recorded(subject.variant(m=3, full=True, steps=tau), recording, recording.fed)
    per_round = [[call.snapshot for call in calls if call.snapshot is not None] for calls in rounds]
    if not any(per_round):
        raise NotApplicable("no snapshot is requested")
    # The snapshots form one global model only if all were taken at the same step.
    torn = sum(len(set(steps)) > 1 for steps in per_round)
    require(not torn, f"in {torn} of {ROUNDS} rounds clients got different snapshot steps: draw one for the cohort")
    drawn = [steps[0] for steps in per_round if steps]
    counts = np.bincount(drawn, minlength=tau + 1)
    require(counts[0] == 0 and len(counts) == tau + 1, f"snapshot steps {sorted(set(drawn))} are not all in 1…{tau}")
    chi_square = float(((counts[1:] - len(drawn) / tau) ** 2 / (len(drawn) / tau)).sum())
    require(
        chi_square < 34,  # exceeded once in five million for 3 degrees of freedom
        f"snapshot steps 1…{tau} occur {counts[1:].tolist()} times in {len(drawn)} rounds: they must be uniform",
    )


def cohort_law(subject: Subject) -> None:
    """Check that clients are drawn by λ if the algorithm has a ``sampling``, else uniformly, else that all are asked.

    Catches a uniform cohort instead of one drawn by λ: the state's λ is set far from uniform.
    """
    constant, m, lam = subject.constant_losses(), 2, subject.skewed()
    algorithm = subject.variant(m=m, full=True, steps=2, sampling=sampling.with_replacement)
    state = algorithm.init(constant)
    by_lam = subject.has("sampling")
    state = with_mixture(state, lam) if by_lam else state
    rounds = _recorded(algorithm, Recording(constant), constant, state)
    frequencies = _frequencies([first_asked(calls) for calls in rounds], constant.n)
    if by_lam:
        # Probability of being drawn at least once.
        law, name = 1 - (1 - lam) ** m, f"m = {m} draws with replacement by λ = {[round(p, 2) for p in lam.tolist()]}"
    else:
        k = m if subject.has("m") else constant.n
        law, name = torch.full_like(lam, k / constant.n), f"uniform cohorts of {k}"
    _require_law(frequencies, law.numpy(), f"the cohort is not drawn as {name}")


def report_law(subject: Subject) -> None:
    """Check that the clients that report losses are a uniform sample for any λ: only then is (N/m)·ℓ unbiased."""
    constant, lam = subject.constant_losses(), subject.skewed()
    algorithm = subject.variant(m=2, full=True, steps=2)
    state = algorithm.init(constant)
    state = with_mixture(state, lam) if subject.has("sampling") else state
    rounds = _recorded(algorithm, Recording(constant), constant, state)
    reports = [call.cohort for calls in rounds for call in calls if call.kind == "losses"]
    if not reports:
        raise NotApplicable("no separate loss requests are sent")
    size = np.mean([len(clients) for clients in reports])
    law = np.full(constant.n, size / constant.n)
    _require_law(_frequencies(reports, constant.n), law, "the clients that report losses are not a uniform sample")


def missing_reports_leave_no_bias(subject: Subject) -> None:
    """Check that λ moves on average as with all reports if random clients fail to report.

    Catches N/m with m the number of requests instead of the number of replies.
    """
    constant = subject.constant_losses()
    algorithm = subject.variant(full_participation=True, full=True, steps=2, gamma=1e-3, ambiguity=Hyperplane())
    recording, state = Recording(constant), algorithm.init(constant)
    complete, _ = algorithm.round(state, recording, Key(SEED))
    if not recording.of("losses") or torch.equal(subject.mixture(complete), subject.mixture(state)):
        raise NotApplicable("λ does not depend on reported losses")
    subject.needs("ambiguity")  # a projection onto the simplex, or another rule than ascent, is not linear
    rng, moves = np.random.default_rng(SEED), []
    for r in range(ROUNDS):
        lossy = DropoutFederation(constant, losses=rng.choice(constant.n, size=max(1, constant.n - 3), replace=False))
        after = algorithm.round(state, lossy, Key(SEED).fold("round", r))[0]
        moves.append(subject.mixture(after) - subject.mixture(state))
    _require_mean(moves, subject.mixture(complete) - subject.mixture(state), "λ's mean update with missing reports")


def round_is_unbiased(subject: Subject) -> None:
    """Check that the mean of a sampled round is the round with all clients, weighted by λ, for w and for λ.

    Catches weights that do not fit the sampling. w is checked if the state has no table per client.
    """
    subject.needs("sampling")
    fed, lam = subject.exact, subject.skewed()
    options = {"full": True, "steps": 2, "lr": 1e-4, "gamma": 1e-3, "ambiguity": Hyperplane()}
    everyone = subject.variant(full_participation=True, **options)
    state = with_mixture(everyone.init(fed), lam)
    mean, _ = everyone.round(state, fed, Key(SEED))
    sampled = subject.variant(m=2, sampling=sampling.with_replacement, **options)
    ends = [sampled.round(state, fed, Key(SEED).fold("round", r))[0] for r in range(ROUNDS)]
    # The losses are taken at a model that depends on the draws, but with this small lr by less than the errors.
    _require_mean([subject.mixture(end) for end in ends], subject.mixture(mean), "the mean of λ after a round")
    if not tables(state, subject.n):
        _require_mean([end.w for end in ends], mean.w, "the mean of the model after a round")


def fresh_samples(subject: Subject) -> None:
    """Check that every round draws new samples, and that training, losses and gradients draw theirs separately.

    Catches a key used twice: losses on the samples that were just trained on are too small.
    """
    constant = subject.constant_losses()
    algorithm, recording = subject.variant(m=3), Recording(constant)
    state, seen = algorithm.init(constant), {}
    for r in range(1, 4):
        key = Key(SEED).fold("round", r)
        state, _ = algorithm.round(state, recording, key)
        for call in recording.take():
            # The key must be the round's key or folded from it.
            inside = call.key.seed == key.seed and call.key.path[: len(key.path)] == key.path
            require(inside, f"the key of a {call.kind} request is not folded from the round's key")
            purpose = seen.setdefault(call.key, (r, call.kind))
            require(
                purpose == (r, call.kind),
                f"one key is used for {purpose[1]} and {call.kind} in rounds {purpose[0]}, {r}",
            )


def _recorded(
    algorithm: Algorithm, recording: Recording, fed: Federation, state: State | None = None
) -> list[list[Call]]:
    """Return the calls of many rounds that all start from one state."""
    state = algorithm.init(fed) if state is None else state
    rounds = []
    for r in range(ROUNDS):
        algorithm.round(state, recording, Key(SEED).fold("round", r))
        rounds.append(recording.take())
    return rounds


def _frequencies(cohorts: Sequence[Tensor], n: int) -> np.ndarray:
    return np.bincount(torch.cat(list(cohorts)).numpy(), minlength=n) / max(len(cohorts), 1)


def _require_law(found: np.ndarray, law: np.ndarray, what: str) -> None:
    # Standard error of a frequency over ROUNDS independent rounds.
    error = np.sqrt(law * (1 - law) / ROUNDS)
    off = np.abs(found - law) > ERRORS * error + 1e-12
    differences = ", ".join(f"client {i} {found[i]:.2f} instead of {law[i]:.2f}" for i in np.flatnonzero(off))
    require(not off.any(), f"{what}: in {ROUNDS} rounds {differences}")


def _require_mean(samples: Sequence[Tensor], mean: Tensor, what: str) -> None:
    values = torch.stack(list(samples)).double()
    error = values.std(0) / math.sqrt(len(values))
    off = (values.mean(0) - mean.double()).abs() > ERRORS * error + 1e-9
    means = f"{values.mean(0).tolist()} instead of {mean.tolist()}"
    require(not bool(off.any()), f"{what} is {means}, more than {ERRORS:.0f} standard errors off")


def sets_for(n: int) -> dict[str, AmbiguitySet]:
    """Return the sets to try with an algorithm that has a field ``ambiguity``, for n clients."""
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
    """Check that λ ∈ Λ after every round, for several sets and a step that reaches their boundaries.

    Catches floors by renormalising, steps without a projection, and sets that an algorithm ignores.
    """
    offered = sets_for(subject.n) if subject.has("ambiguity") else {"the simplex": ambiguity.Simplex()}
    for name, chosen in offered.items():
        if subject.has("ambiguity"):
            try:
                subject.variant(ambiguity=chosen)
            except InputError:
                continue  # the algorithm does not support this set
        algorithm = subject.variant(m=3, full=True, gamma=0.2, ambiguity=chosen)
        lam = subject.mixture(algorithm.init(subject.exact))
        try:
            states = [state for state, _ in rounds_of(algorithm, subject.exact, 8)]
        except InputError:
            continue  # the algorithm rejects a penalty without a gradient on the boundary
        for state in states:
            before, lam = lam, subject.mixture(state)
            require(lam.dtype == torch.float64, f"λ turned into {lam.dtype}")
            require(abs(float(lam.sum()) - 1) < 1e-9, f"λ sums to {float(lam.sum())} with {name}")
            require(
                _inside(chosen, lam),
                f"λ = {brief(lam)} is not in {name}; previously it was {brief(before)}",
            )


def mixture_follows_the_losses(subject: Subject) -> None:
    """Check that with constant losses λ moves by the same amount in every round, and towards the larger losses.

    Catches a dual update that decays silently, whether the counter is hidden or part of the state.
    """
    constant = subject.constant_losses()
    algorithm = subject.variant(full_participation=True, full=True, gamma=1e-3, ambiguity=Hyperplane())
    played = (state for state, _ in rounds_of(algorithm, constant, 40))
    lams = torch.stack([mixture_of(algorithm, state, constant) for state in (algorithm.init(constant), *played)])
    moves = lams.diff(dim=0)
    if not moves.any():
        raise NotApplicable("λ is constant: there is no dual update")
    subject.needs("ambiguity")  # other rules than ascent may shorten their steps
    drift = float((moves[1:] - moves[1]).abs().max() / moves[1].abs().max().clamp(min=1e-300))
    require(drift < 1e-6, f"λ's updates change by {drift:.1%} within 40 rounds, although the losses are constant")
    ends = [int(values.argmax()) for values in (moves[1], -moves[1])]
    worst_and_best = [int(values.argmax()) for values in (constant.values, -constant.values)]
    require(ends == worst_and_best, "λ does not move towards the larger losses")


def nonfinite_losses_are_refused(subject: Subject) -> None:
    """Check that a reported loss of NaN or ±∞ raises NonFiniteError or is ignored, and never stays in the state.

    Catches checks of only the type of a report: a single NaN makes λ NaN permanently.
    """
    recording = Recording(subject.exact)
    clean = last_of(subject.variant(full_participation=True, full=True, gamma=0.1), recording, 1)
    if not recording.of("losses") and not recording.of("gradients"):
        raise NotApplicable("no losses are requested")
    finite = {path for path, t in leaves(clean).items() if bool(torch.isfinite(t.double()).all())}
    for value in (math.nan, math.inf, -math.inf):
        algorithm = subject.variant(full_participation=True, full=True, gamma=0.1)
        state = algorithm.init(subject.exact)
        try:
            state, _ = algorithm.round(state, ConstantLosses(subject.exact, [2], value), Key(SEED).fold("round", 1))
        except (NonFiniteError, InputError):
            continue
        if not bool(torch.isfinite(state.w).all()):
            continue  # the loop that runs rounds stops at this model and gives the reason
        bad = [path for path in sorted(finite) if not bool(torch.isfinite(leaves(state)[path].double()).all())]
        require(not bad, f"a reported loss of {value} is now in {', '.join(bad)}: raise NonFiniteError instead")
        lam = subject.mixture(state)
        require(_inside(ambiguity.Simplex(), lam), f"a reported loss of {value} turned λ into {brief(lam)}")


def _inside(chosen: AmbiguitySet, lam: torch.Tensor) -> bool:
    return bool(torch.isfinite(lam).all()) and chosen.contains(lam, 1e-7)
