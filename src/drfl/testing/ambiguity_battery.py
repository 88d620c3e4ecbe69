"""The conformance checks for ambiguity sets.

The checks do not know how a set is made. They compare the set's answers with each other: by duality, the worst case
shows how far a prox is from optimal, and mixtures accepted by ``contains`` show whether a worst case is the worst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from drfl.ambiguity import AmbiguitySet
from drfl.core import checks
from drfl.core.errors import InputError, NonFiniteError
from drfl.testing.report import NotApplicable, Report, brief, examine, require

FEASIBLE = 1e-9
"""Largest distance of an answer from the set."""

EDGE = 1e-15
"""Tolerance in the search for the set's edge: rounding only, because a tolerance on a square is large on its root."""

EXTREMES = (0.0, 1.0, -1.0, 1e-300, -1e-300, 1e17, 1e300, -1e300)
"""Entries of the vectors with huge and tiny numbers."""


@dataclass(frozen=True)
class AmbiguitySubject:
    """An ambiguity set with the vectors to try it on.

    Args:
        ambiguity: The set.
        n: Number of clients.
        draws: Number of random vectors.
        seed: Seed of the vectors.
    """

    ambiguity: AmbiguitySet
    n: int = 8
    draws: int = 200
    seed: int = 0

    @cached_property
    def vectors(self) -> Tensor:
        """(draws, n) vectors of many sizes: spread out, tied, near the simplex, sparse, and far from the origin."""
        g = self._generator(0)
        # Sizes range from 1/1000 to 1000.
        normal, size = self._normal(g), 10 ** (6 * torch.rand(self.draws, 1, generator=g, dtype=torch.float64) - 3)
        zeros = torch.rand(self.draws, self.n, generator=g) < 0.7
        kinds = (
            normal * size,
            (2 * normal).round() / 2,
            torch.softmax(2 * normal, 1),
            normal.masked_fill(zeros, 0),
            normal * 0.2 + 100,
        )
        kind = torch.arange(self.draws) % len(kinds)
        return torch.stack([kinds[int(k)][i] for i, k in enumerate(kind)])

    @cached_property
    def steps(self) -> list[float]:
        """One step for each vector, from 1/1000 to 1000."""
        exponents = 6 * torch.rand(self.draws, generator=self._generator(1), dtype=torch.float64) - 3
        return (10**exponents).tolist()

    @cached_property
    def extremes(self) -> Tensor:
        """(30, n) vectors of huge and tiny entries, with ties."""
        return torch.tensor(EXTREMES, dtype=torch.float64)[
            torch.randint(len(EXTREMES), (30, self.n), generator=self._generator(2))
        ]

    @cached_property
    def members(self) -> Tensor:
        """(P, n) mixtures accepted by ``contains``: answers of the set, their means, and points on its edge."""
        g, unit = self._generator(3), torch.eye(self.n, dtype=torch.float64)
        few = self.vectors[:40]
        answers = [self.ambiguity.project(v) for v in (*few, *unit, *(1e3 * unit), torch.zeros(self.n))]
        answers += [self.ambiguity.worst_case(v).lam for v in (*few, *unit, *-unit)]
        answers = [lam for lam in answers if self.ambiguity.contains(lam, FEASIBLE)]
        require(bool(answers), "the set contains none of its own answers")
        inside = torch.stack(answers)
        pairs = torch.randint(len(inside), (2, 40), generator=g)
        means = (inside[pairs[0]] + inside[pairs[1]]) / 2
        ends = [*unit, *torch.softmax(3 * self._normal(g)[:20], 1)]
        # From a mixture in the set towards each end, bisect for the last point in the set.
        start, edges = inside.mean(0), []
        for end in ends:
            if self.ambiguity.contains(end, EDGE):
                edges.append(end)
                continue
            low, high = 0.0, 1.0
            for _ in range(40):
                middle = (low + high) / 2
                within = self.ambiguity.contains(start + middle * (end - start), EDGE)
                low, high = (middle, high) if within else (low, middle)
            edges.append(start + low * (end - start))
        return torch.cat([inside, means, torch.stack(edges)])

    @cached_property
    def penalties(self) -> Tensor:
        """(P,) ψ at the members."""
        return _penalties(self, self.members)

    def _generator(self, stream: int) -> torch.Generator:
        return torch.Generator().manual_seed(1000 * self.seed + stream)

    def _normal(self, g: torch.Generator) -> Tensor:
        return torch.randn(self.draws, self.n, generator=g, dtype=torch.float64)


def answers_are_mixtures(subject: AmbiguitySubject) -> None:
    """Check that projections, proxes and worst cases are mixtures in the set, for huge and tiny entries too."""
    for v, step in zip((*subject.vectors, *subject.extremes), (*subject.steps, *([1.0] * 30)), strict=True):
        for name, lam in _answers(subject, v, step):
            answer = f"{name} of {brief(v)} gives {brief(lam)}"
            require(bool(torch.isfinite(lam).all()) and bool((lam >= -FEASIBLE).all()), f"{answer}: not all ≥ 0")
            require(abs(float(lam.sum()) - 1) <= FEASIBLE, f"{answer}: the sum is {float(lam.sum())}")
            require(subject.ambiguity.contains(lam, FEASIBLE), f"{answer}: not in the set")


def answers_are_float64_vectors(subject: AmbiguitySubject) -> None:
    """Check that answers are repeatable (n,) float64 vectors on the CPU, and that the argument does not change."""
    for v, step in zip(subject.vectors[:20].float(), subject.steps, strict=False):
        before = v.clone()
        twice = (_answers(subject, v, step), _answers(subject, v, step), _answers(subject, v.double(), step))
        for (name, lam), (_, again), (_, double) in zip(*twice, strict=True):
            kind = f"{lam.dtype} of shape {tuple(lam.shape)} on {lam.device}"
            fits = lam.dtype == torch.float64 and lam.shape == (subject.n,) and lam.device.type == "cpu"
            require(fits, f"{name} of {subject.n} clients gives {kind}")
            require(torch.equal(lam, again), f"{name} of the same vector gives two answers")
            require(torch.equal(lam, double), f"{name} of a float32 vector differs from the same numbers in float64")
        require(torch.equal(v, before), "the argument was changed")


def contains_rejects_nonmembers(subject: AmbiguitySubject) -> None:
    """Check that vectors with a negative entry, or with a sum other than 1, are not members."""
    start = subject.ambiguity.project(torch.full((subject.n,), 1 / subject.n, dtype=torch.float64))
    require(subject.ambiguity.contains(start), f"the uniform mixture's projection, {brief(start)}, is not contained")
    wrong = [(1.01 * start, "sums to 1.01"), (0.99 * start, "sums to 0.99")]
    if subject.n > 1:
        shift = torch.zeros_like(start)
        shift[0], shift[1] = -start[0] - 0.01, start[0] + 0.01
        wrong.append((start + shift, "has a negative entry"))
    for lam, why in wrong:
        require(not subject.ambiguity.contains(lam), f"contains({brief(lam)}) is true, though it {why}")


def projection_is_nearest(subject: AmbiguitySubject) -> None:
    """Check that no member is nearer than the projection λ of v: (v − λ)·(u − λ) ≤ 0 for every member u."""
    for v in (*subject.vectors, *subject.extremes):
        lam = subject.ambiguity.project(v)
        gain, nearest = ((subject.members - lam) @ ((v - lam) / _size(v))).max(0)
        sentence = f"the projection of {brief(v)} is {brief(lam)}, but {brief(subject.members[nearest])} is nearer"
        require(float(gain) <= 1e-7, sentence)


def projection_is_firm(subject: AmbiguitySubject) -> None:
    """Check that members project to themselves, and that ‖λ − λ'‖² ≤ (λ − λ')·(v − v') for two projections."""
    lams = torch.stack([subject.ambiguity.project(v) for v in subject.vectors])
    for v, lam in zip(subject.vectors, lams, strict=True):
        moved = float((subject.ambiguity.project(lam) - lam).abs().max())
        require(moved <= 1e-9, f"the projection of {brief(v)}, projected again, moves by {moved:.1e}")
    apart, before = lams - lams.roll(1, 0), subject.vectors - subject.vectors.roll(1, 0)
    # Relative to the size of the vectors, with which rounding grows.
    excess = ((apart.square() - apart * before).sum(1) / (1 + before.abs().amax(1))).max()
    require(float(excess) <= 1e-9, f"projections violate firm nonexpansiveness by {excess:.1e}")


def prox_is_optimal(subject: AmbiguitySubject) -> None:
    """Check that u = prox(v, s) attains the worst case of the losses (v − u)/s, so that it is the minimiser."""
    for v, step in zip(subject.vectors, subject.steps, strict=True):
        lam = subject.ambiguity.prox(v, step)
        losses, cost = (v - lam) / step, subject.ambiguity.penalty(lam)
        best = max(
            float((subject.members @ losses - subject.penalties).max()), subject.ambiguity.worst_case(losses).value
        )
        gap = step * (best - (float(lam @ losses) - cost))
        size = _size(v) + step * (abs(best) + abs(cost))
        require(
            gap <= 1e-7 * size,
            f"prox of {brief(v)} with step {step:.3g}, {brief(lam)}, is not optimal by {gap:.1e}",
        )


def prox_tends_to_the_projection(subject: AmbiguitySubject) -> None:
    """Check that the prox equals the projection for step 0 or a tiny step, and for every step if ψ = 0."""
    for v, step in zip(subject.vectors, subject.steps, strict=True):
        # The penalty moves λ by less than the tolerance below if the step is this small.
        for short in (0.0, 1e-14 if subject.ambiguity.penalised else step):
            off = float((subject.ambiguity.prox(v, short) - subject.ambiguity.project(v)).abs().max())
            require(off <= 1e-6, f"prox of {brief(v)} with step {short:.3g} is {off:.1e} away from the projection")


def worst_case_is_attained(subject: AmbiguitySubject) -> None:
    """Check that the value is Σ λ_i f_i − ψ(λ) at the returned λ."""
    for f in subject.vectors:
        value, lam = subject.ambiguity.worst_case(f)
        attained = float(lam @ f) - subject.ambiguity.penalty(lam)
        size = _size(f) + abs(subject.ambiguity.penalty(lam))
        require(abs(value - attained) <= 1e-9 * size, f"the worst case of {brief(f)} is {value}; λ gives {attained}")


def worst_case_is_worst(subject: AmbiguitySubject) -> None:
    """Check that no member of the set gives a larger weighted loss than the worst case."""
    for f in subject.vectors:
        value, lam = subject.ambiguity.worst_case(f)
        best, top = (subject.members @ f - subject.penalties).max(0)
        sentence = f"the worst case of {brief(f)} is {value} at {brief(lam)}, but {brief(subject.members[top])} gives"
        require(float(best) - value <= 1e-7 * (_size(f) + abs(value)), f"{sentence} {float(best)}")


def penalty_fits_its_gradient(subject: AmbiguitySubject) -> None:
    """Check that differences of ψ along the set agree with its gradient; both are 0 if the set is not penalised."""
    centre = subject.members.mean(0)
    if not subject.ambiguity.penalised:
        plain = not subject.penalties.any() and not subject.ambiguity.penalty_gradient(centre).any()
        require(plain and subject.ambiguity.strong_convexity(subject.n) == 0, "penalised is False, but ψ is not 0")
        return
    for end in subject.members:
        # Compare halfway, because ψ may have no gradient at the end, on the boundary of the set.
        middle, h = (centre + end) / 2, 1e-5
        ahead, behind = (subject.ambiguity.penalty(middle + sign * h * (end - centre)) for sign in (1, -1))
        slope = (ahead - behind) / (2 * h)
        claimed = float(subject.ambiguity.penalty_gradient(middle) @ (end - centre))
        # Rounding error of ψ, which the difference quotient divides by h.
        noise = 1e-10 * abs(ahead) / h
        size = abs(slope) + abs(claimed) + 1e-3 * float(subject.penalties.abs().max())
        require(
            abs(slope - claimed) <= 1e-5 * size + noise,
            f"towards {brief(end)}, ψ changes at the rate {slope:.6g} and its gradient says {claimed:.6g}",
        )


def penalty_is_strongly_convex(subject: AmbiguitySubject) -> None:
    """Check that ψ halfway between two members is below its mean there by strong_convexity/8·distance²."""
    if not subject.ambiguity.penalised:
        raise NotApplicable("ψ = 0")
    modulus, other = subject.ambiguity.strong_convexity(subject.n), subject.members.roll(1, 0)
    halfway = _penalties(subject, (subject.members + other) / 2)
    room = (subject.penalties + subject.penalties.roll(1)) / 2 - modulus / 8 * (subject.members - other).square().sum(1)
    excess = float((halfway - room).max())
    size = float(subject.penalties.abs().max())
    require(excess <= 1e-9 * size, f"ψ is not strongly convex with modulus {modulus}: off by {excess:.1e}")


def nonfinite_input_is_refused(subject: AmbiguitySubject) -> None:
    """Check that NaN and infinity raise NonFiniteError in every method."""
    ambiguity = subject.ambiguity
    for value in (math.nan, math.inf, -math.inf):
        v = torch.zeros(subject.n, dtype=torch.float64)
        v[subject.n // 2] = value
        # Methods that take a mixture must also reject it.
        others = (ambiguity.contains, ambiguity.penalty, ambiguity.penalty_gradient)
        for name, call in (*_calls(subject, v, 1.0), *((f.__name__, partial(f, v)) for f in others)):
            try:
                result = call()
            except NonFiniteError:
                continue
            answer = brief(result) if isinstance(result, Tensor) else result
            require(False, f"{name} of a vector with {value} gives {answer}: raise NonFiniteError")


def order_is_irrelevant(subject: AmbiguitySubject) -> None:
    """Check that the order of clients does not change their weights, and that equal entries get equal weights."""
    if getattr(subject.ambiguity, "prior", None) is not None:
        raise NotApplicable("the prior distinguishes clients")
    order = torch.randperm(subject.n, generator=torch.Generator().manual_seed(subject.seed))
    for v, step in zip(subject.vectors, subject.steps, strict=True):
        # Check only projection and prox, because the worst case of tied losses need not be unique.
        here, there = list(_answers(subject, v, step))[:2], list(_answers(subject, v[order], step))[:2]
        for (name, lam), (_, moved) in zip(here, there, strict=True):
            off = float((lam[order] - moved).abs().max())
            require(off <= 1e-9, f"{name} of {brief(v)} depends on the order of clients, by {off:.1e}")
            apart = float(((lam[:, None] - lam[None]) * (v[:, None] == v[None])).abs().max())
            require(apart <= 1e-9, f"{name} of {brief(v)} gives unequal weights to equal entries, by {apart:.1e}")
        off = abs(subject.ambiguity.worst_case(v).value - subject.ambiguity.worst_case(v[order]).value)
        require(off <= 1e-9 * _size(v), f"the worst case of {brief(v)} depends on the order of clients, by {off:.1e}")


def one_client(subject: AmbiguitySubject) -> None:
    """Check that λ = (1) for one client, unless the set rejects one client with InputError."""
    for value in (0.0, -3.0, 1e300):
        for name, call in _calls(subject, torch.tensor([value], dtype=torch.float64), 1.0):
            try:
                lam = call()
            except InputError:
                continue
            require(lam.tolist() == [1.0], f"{name} of one client with {value} gives {lam.tolist()}")


AMBIGUITY_CHECKS: tuple[Callable[[AmbiguitySubject], None], ...] = (
    answers_are_mixtures,
    answers_are_float64_vectors,
    contains_rejects_nonmembers,
    projection_is_nearest,
    projection_is_firm,
    prox_is_optimal,
    prox_tends_to_the_projection,
    worst_case_is_attained,
    worst_case_is_worst,
    penalty_fits_its_gradient,
    penalty_is_strongly_convex,
    nonfinite_input_is_refused,
    order_is_irrelevant,
    one_client,
)
"""All checks; each takes a :class:`AmbiguitySubject`."""


def examine_ambiguity(
    ambiguity: AmbiguitySet, *, n: int = 8, draws: int = 200, seed: int = 0, waive: Mapping[str, str] | None = None
) -> Report:
    """Run all checks and return the report, without an exception if some fail; see :func:`check_ambiguity`."""
    if isinstance(ambiguity, str | type):
        raise InputError(
            f"expected an ambiguity set such as drfl.CVaR(0.3), got {ambiguity!r}",
            code="wrong-type",
            field="ambiguity",
        )
    checks.integer("n", n)
    checks.integer("draws", draws, low=50)
    try:
        # A set whose numbers are impossible for n rejects it at the first use.
        ambiguity.project(torch.zeros(n))
    except InputError as error:
        raise InputError(
            f"{error}. Set n to a number of clients that the set accepts (n={n}).", code=error.code, field=error.field
        ) from None
    except Exception:
        pass  # the checks will report it
    return examine(repr(ambiguity), AmbiguitySubject(ambiguity, n, draws, seed), AMBIGUITY_CHECKS, waive)


def check_ambiguity(
    ambiguity: AmbiguitySet, *, n: int = 8, draws: int = 200, seed: int = 0, waive: Mapping[str, str] | None = None
) -> Report:
    """Check everything that an ambiguity set must get right; ``docs/ambiguity.md`` lists the checks.

    A set with an attribute ``prior`` that is not None is assumed to distinguish clients.

    Args:
        ambiguity: The set.
        n: Number of clients to try it with.
        draws: Number of random vectors to try it on, at least 50.
        seed: Seed of the vectors.
        waive: Names of checks to skip for this set, with the reason.

    Returns:
        The report.

    Raises:
        ConformanceError: If a check fails; an AssertionError that lists every failed check with a sentence.
        InputError: If n or draws is out of range, ``ambiguity`` is not a set, or a waived check does not exist.

    Example:
        >>> from drfl.ambiguity import CVaR
        >>> check_ambiguity(CVaR(0.3)).failed
        ()
    """
    return examine_ambiguity(ambiguity, n=n, draws=draws, seed=seed, waive=waive).raise_failures()


def _calls(subject: AmbiguitySubject, v: Tensor, step: float) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    yield "project", lambda: subject.ambiguity.project(v)
    yield "prox", lambda: subject.ambiguity.prox(v, step)
    yield "worst_case", lambda: subject.ambiguity.worst_case(v).lam


def _answers(subject: AmbiguitySubject, v: Tensor, step: float) -> Iterator[tuple[str, Tensor]]:
    for name, call in _calls(subject, v, step):
        yield name, call()


def _penalties(subject: AmbiguitySubject, lams: Tensor) -> Tensor:
    return torch.tensor([subject.ambiguity.penalty(lam) for lam in lams], dtype=torch.float64)


def _size(v: Tensor) -> float:
    return 1 + float(v.abs().max())
