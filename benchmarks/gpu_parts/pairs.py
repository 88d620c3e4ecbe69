"""Pairwise coverage: few combinations in which every pair of levels of two factors occurs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product

Case = dict[str, str]
Pair = tuple[tuple[str, str], tuple[str, str]]


def pairs_of(case: Mapping[str, str]) -> set[Pair]:
    """Return the pairs of levels that occur in a case."""
    return set(combinations(case.items(), 2))


def all_pairs(factors: Mapping[str, Sequence[str]], allowed: Callable[[Mapping[str, str]], bool]) -> list[Case]:
    """Cover every possible pair of levels; the first cases cover the most, so that a prefix is useful too.

    Args:
        factors: Levels of each factor.
        allowed: Whether a partial or complete case is possible. Pairs that are not possible are not covered.
    """
    missing = {
        pair
        for (a, levels), (b, others) in combinations(factors.items(), 2)
        for pair in product(((a, level) for level in levels), ((b, level) for level in others))
        if allowed(dict(pair))
    }
    cases: list[Case] = []
    while missing:
        # Start from the first missing pair, then give each further factor the level with the most missing pairs.
        case = dict(min(missing))
        for name in sorted(factors, key=lambda name: -len(factors[name])):
            if name not in case:
                options = [{**case, name: level} for level in factors[name]]
                case = max(filter(allowed, options), key=lambda c: len(missing & pairs_of(ordered(c, factors))))
        case = ordered(case, factors)
        missing -= pairs_of(case)
        cases.append(case)
    # The greedy order covers one level of the first factor after another. This one covers every level early.
    covered: set[Pair] = set()
    levels: set[tuple[str, str]] = set()
    for place in range(len(cases)):
        best = max(
            range(place, len(cases)),
            key=lambda i: (len(cases[i].items() - levels), len(pairs_of(cases[i]) - covered)),
        )
        cases[place], cases[best] = cases[best], cases[place]
        covered |= pairs_of(cases[place])
        levels |= cases[place].items()
    return cases


def ordered(case: Mapping[str, str], factors: Mapping[str, Sequence[str]]) -> Case:
    """Return a case with its factors in their order, as pairs have them."""
    return {name: case[name] for name in factors if name in case}
