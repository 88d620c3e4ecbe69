"""Simulated federations for tests of intervals, sets and tests, and the statements checked on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm
from tests.assessment import wrong_ways as wrong
from tests.assessment.other_statements import (
    Exchangeable,
    OneBetter,
    OneWorse,
    Seeds,
    enough_changed,
    enough_rows,
    equal_clients_differ,
    new_client,
    shown_over_seeds,
)
from tests.assessment.simulated import RankSetting, RateSetting, binary, numbers
from tests.assessment.statements import (
    client_intervals,
    gains_of_clients,
    one_model,
    one_model_at_99,
    two_models,
    two_models_at_99,
)

from drfl.assessment.scores import RankScores, RealScores


class Case(NamedTuple):
    """Statements that are checked on a setting.

    Args:
        setting: law of the federations.
        ways: the statements.
        federations: how many of 10,000 are drawn in the available time.
        demanded: whether the statements must hold; approximate ones are only measured.
    """

    setting: Any
    ways: tuple[Callable[..., dict], ...]
    federations: int = 10_000
    demanded: bool = True


BOTH = (one_model, two_models)
ROWS = (3, 100_000)
"""The fewest and the most test rows of a client."""


def unequal(clients, least=ROWS[0], most=ROWS[1]):
    """Return numbers of test rows in a geometric sequence."""
    return np.geomspace(least, most, clients).round()


def dealt(values, clients, stride=1):
    """Deal values to clients in turn with a stride, so that sizes and scores are independent."""
    values = np.asarray(values, float)
    return values[np.arange(clients) * stride % len(values)]


def rolled(name, sizes, right, **options):
    """Give model B at each client model A's law at the previous one, so that their worst clients differ."""
    return binary(name, sizes, right, np.roll(right, 1), **options)


HOSPITALS = np.array([101.0, 87, 15, 43]), np.array([0.83, 0.80, 0.80, 0.74])
ALIKE_20 = binary("20 alike, 10 rows each", np.full(20, 10), 0.9)
HOSPITALS_4 = rolled("4 hospitals", *HOSPITALS, agree=0.9)
UNEQUAL_5 = binary("5 alike, 3 to 100,000 rows", unequal(5), 0.8)

BINARY = (
    binary("2 alike, 3 rows each", [3, 3], 0.5, agree=0),
    binary("2 alike, 3 and 100,000 rows", ROWS, 0.5),
    binary("2 alike, 200 rows each", [200, 200], 0.7, agree=0.8),
    rolled("2 apart by 0.02, 1,000 rows each", [1000, 1000], [0.70, 0.72], agree=0),
    HOSPITALS_4,
    binary("4 hospitals, B better by 0.1", *HOSPITALS, HOSPITALS[1] + 0.1, agree=1),
    UNEQUAL_5,
    rolled("5 near 1, 3 to 100,000 rows", unequal(5), [0.999, 0.9999, 0.99, 0.9995, 1.0]),
    rolled("5 near 0, 3 to 100,000 rows", unequal(5), [0.001, 0.0001, 0.01, 0.0005, 0.0]),
    ALIKE_20,
    rolled("20 spread, 3 to 100,000 rows", unequal(20), dealt(np.linspace(0.6, 0.95, 20), 20, 7)),
    rolled("20, worst clustered, 3 to 100,000 rows", unequal(20), dealt([0.70, 0.72, 0.72, 0.72], 20)),
    binary("20, the worst with 3 rows, others 10,000", [3, *[1e4] * 19], [0.70, *[0.701] * 19], agree=0.9),
    binary("20, the worst with 100,000 rows, others 3", [1e5, *[3] * 19], [0.70, *[0.71] * 19], agree=0.9),
    binary("20 clustered, B's minimum better by 0.05", np.full(20, 100), dealt([0.7, 0.9], 20), dealt([0.9, 0.75], 20)),
    rolled("6 that share rows with a neighbour", np.full(6, 40), dealt([0.7, 0.75], 6), shared=True),
    binary("100 alike, 3 rows each", np.full(100, 3), 0.5),
    rolled("100, worst clustered, 3 to 100,000 rows", unequal(100), dealt([0.80, 0.81, 0.81, 0.81], 100)),
)
LARGE = (
    rolled("1,000 spread, 3 to 100,000 rows", unequal(1000), dealt(np.linspace(0.5, 0.99, 1000), 1000, 389)),
    binary("1,000 alike near 1, 3 to 100,000 rows", unequal(1000), 0.99),
)

GRID = np.linspace(0, 1, 11)


def beta(a, b):
    """Return a beta density on the grid (11,)."""
    x = np.clip(GRID, 0.02, 0.98)
    return x ** (a - 1) * (1 - x) ** (b - 1)


RARE = numbers("10 alike, rare large losses, 1,000 rows", np.full(10, 1000), [0, 0.98, 1], [0.001, 0.3, 0.699])
BOUNDED = (
    numbers("2 of 3 rows, 0 or 1", [3, 3], [0, 1], [0.5, 0.5]),
    numbers("2 of 5,000 rows, 0 or 1", [5000, 5000], [0, 1], [[0.3, 0.7], [0.31, 0.69]], agree=0, roll=1),
    RARE,
    numbers("5 alike, rare large losses, 3 to 2,000 rows", unequal(5, 3, 2000), [0, 1], [0.002, 0.998]),
    numbers("5 alike, rare large gains, 2,000 rows", np.full(5, 2000), [0, 1], [0.9995, 0.0005]),
    numbers("10 that hardly vary, 1,000 rows", np.full(10, 1000), [0.49, 0.5, 0.51], [1, 2, 1]),
    numbers("10 of beta laws, 1,000 rows", np.full(10, 1000), GRID,
            np.stack([beta(2 + k % 3, 3) for k in range(10)]), agree=0, roll=1),
    numbers("20 alike of a beta law, 3 to 500 rows", unequal(20, 3, 500), GRID, beta(5, 2)),
    numbers("100 alike, uniform, 100 rows", np.full(100, 100), GRID, np.ones(11)),
)  # fmt: skip

APPROXIMATE = (
    numbers("5 alike, nearly normal, 5 rows, no bounds", np.full(5, 5), np.linspace(-3, 3, 11),
            np.exp(-np.linspace(-3, 3, 11) ** 2 / 2), scores=RealScores),
    numbers("5 alike, nearly normal, 100 rows, no bounds", np.full(5, 100), np.linspace(-3, 3, 11),
            np.exp(-np.linspace(-3, 3, 11) ** 2 / 2), scores=RealScores),
    numbers("5 alike, skewed, 100 rows, no bounds", np.full(5, 100), -np.exp(np.linspace(-3, 3, 11)),
            np.exp(-np.linspace(-3, 3, 11) ** 2 / 2), scores=RealScores),
    numbers("5 alike, rare large losses, 500 rows, no bounds", np.full(5, 500), [-100, 0.0, 0.1],
            [0.002, 0.5, 0.498], scores=RealScores),
)  # fmt: skip


def outputs(n, *positive):
    """Return the laws (N, 2, K) of N clients: the positive class's, dealt, and the other's, uniform."""
    laws = np.array([positive[i % len(positive)] for i in range(n)], float)
    return np.stack([laws / laws.sum(1, keepdims=True), np.full_like(laws, 1 / laws.shape[1])], 1)


UNEVEN = np.geomspace(3, 300, 10), np.geomspace(300, 20, 10), outputs(10, (1, 2, 3, 4, 5, 6), (1, 2, 4, 8, 16, 32))
SPLIT = np.stack([[[0.1, 0, 0.9], [0, 1.0, 0]]] * 5)
"""Laws by which positives rank above all other rows or below them all."""

RANKS = (
    RankSetting("AUC: 2 of 3 and 3 rows", np.full(2, 3), np.full(2, 3), outputs(2, (1, 2, 3)), scores=RankScores),
    RankSetting("AUC: 10, unequal classes", *UNEVEN, scores=RankScores),
    RankSetting("AUC: 5 alike, positives above all or below all", np.full(5, 20), np.full(5, 200), SPLIT,
                scores=RankScores),
    RankSetting("AUC: 100 alike, 20 and 20 rows", np.full(100, 20), np.full(100, 20), outputs(100, (1, 2, 3, 4)),
                scores=RankScores),
)  # fmt: skip
"""AUC settings for the distribution-free bound."""

FEW_TO_MANY = np.geomspace(2, 200, 5).round()
OTHERS = np.full(5, 300)


def alike(positive, other):
    """Return the laws (5, 2, K) of five clients: the positive class's, and the other's."""
    laws = np.array([positive, other], float)
    return np.stack([laws / laws.sum(1, keepdims=True)] * 5)


def normal(difference, spread=1.0, levels=12):
    """Return the laws of outputs that are normal in either class, on a grid: an AUC without many ties."""
    edges = np.linspace(-4, 4 + difference, levels + 1)
    return alike(*(np.diff(norm.cdf(edges, m, s)) for m, s in ((difference, spread), (0, 1))))


RIGHT = alike((5, 95), (95, 5))
LOWEST = alike((1, 0, 9), (0, 8, 2))
RARE_LOW = alike((0.1, 0.1, 0.2, 0.6), (0.7, 0.2, 0.08, 0.02))
DELONG = (
    RankSetting("DeLong: 2 of 1 and 3 rows", [1, 1], [3, 3], outputs(2, (1, 2, 3))),
    RankSetting("DeLong: 10, unequal classes", *UNEVEN),
    RankSetting("DeLong: 5, 2 to 200 positives, no difference", FEW_TO_MANY, OTHERS, normal(0)),
    RankSetting("DeLong: 5, 2 to 200 positives, AUC 0.76", FEW_TO_MANY, OTHERS, normal(1)),
    RankSetting("DeLong: 5, 2 to 200 positives, AUC 0.98", FEW_TO_MANY, OTHERS, normal(3)),
    RankSetting("DeLong: 5, 2 to 200 negatives, AUC 0.92", OTHERS, FEW_TO_MANY, normal(2)),
    RankSetting("DeLong: 5, 2 to 200 positives, wide ones", FEW_TO_MANY, OTHERS, normal(1, 4)),
    RankSetting("DeLong: 5 of 20 positives, rare low ones", np.full(5, 20), OTHERS, RARE_LOW),
    RankSetting("DeLong: 5 of 60 positives, rare low ones", np.full(5, 60), OTHERS, RARE_LOW),
    RankSetting("DeLong: 5, 2 to 200 positives, two outputs", FEW_TO_MANY, OTHERS, alike((1, 9), (8, 2))),
    RankSetting("DeLong: 5, 2 to 200 positives, nearly all tied", FEW_TO_MANY, OTHERS, alike((95, 5), (99, 1))),
    RankSetting("DeLong: 5 alike, positives above all or below all", np.full(5, 20), np.full(5, 200), SPLIT),
    RankSetting("DeLong: one, right at 95 % of either class", [35], [3000], RIGHT[:1]),
    RankSetting("DeLong: 5 alike, right at 95 % of either class", np.full(5, 60), np.full(5, 3000), RIGHT),
    RankSetting("DeLong: 5 alike, rare lowest positives", np.full(5, 100), np.full(5, 3000), LOWEST),
    RankSetting("DeLong: 100 alike, 20 and 20 rows", np.full(100, 20), np.full(100, 20), outputs(100, (1, 2, 3, 4))),
)
SIX = alike((1, 2, 3, 4, 5, 6), np.ones(6))
TWO_RANKS = (
    RankSetting("DeLong: two models, 2 to 200 positives", FEW_TO_MANY, OTHERS, SIX, agree=0.9),
    RankSetting("DeLong: two models that rarely differ", FEW_TO_MANY, OTHERS, SIX, agree=0.99),
    RankSetting("DeLong: two models that never agree", FEW_TO_MANY, OTHERS, SIX, agree=0),
    RankSetting("DeLong: two models, B better", FEW_TO_MANY, OTHERS, SIX, alike((1, 1, 1, 1, 4, 20), np.ones(6)), 0.5),
    RankSetting("DeLong: two models of two outputs", FEW_TO_MANY, OTHERS, alike((1, 9), (8, 2)), agree=0.8),
    RankSetting("DeLong: two models, B right at few more", FEW_TO_MANY, OTHERS, SIX, alike([0] * 5 + [1], np.ones(6)),
                0.95),
    RankSetting("DeLong: two models, 8 and 8 rows", np.full(5, 8), np.full(5, 8), SIX, agree=0.8),
    RankSetting("DeLong: two models, B wrong at few rows", np.full(5, 35), np.full(5, 3000), alike((0, 1), (1, 0)),
                alike((4, 96), (96, 4)), 0),
    RankSetting("DeLong: two models, B lowest at few positives", np.full(5, 100), np.full(5, 3000),
                alike((0, 0, 1), (0, 1, 0)), alike((5, 0, 95), (0, 1, 0)), 0),
    RankSetting("DeLong: two models, A lowest at many, B at few", np.full(5, 60), np.full(5, 300),
                alike((4, 0, 6), (0, 1, 0)), alike((1, 0, 19), (0, 1, 0)), 0),
)  # fmt: skip
RATES = (
    RateSetting("rate: 4 hospitals, few positives", HOSPITALS[0], [0.1, 0.1, 0.2, 0.05], [0.8, 0.7, 0.8, 0.7]),
    RateSetting("rate: 20 near 1, 2 to 200 positives", np.geomspace(20, 2000, 20).round(), np.full(20, 0.1),
                np.full(20, 0.98)),
)  # fmt: skip
"""Settings of sensitivity, specificity and PPV."""

EQUAL = {
    binary("equal: 2 of 3 rows", [3, 3], 0.5): 10_000,
    binary("equal: 4 hospitals", HOSPITALS[0], 0.8): 10_000,
    binary("equal: 5, 3 to 100,000 rows", unequal(5), 0.8): 10_000,
    binary("equal: 5 near 1, 3 to 1,000 rows", unequal(5, 3, 1000), 0.995): 10_000,
    binary("equal: 20 of 10 rows", np.full(20, 10), 0.9): 3_000,
    binary("equal: 100, 3 to 100,000 rows", unequal(100), 0.9): 1_000,
    binary("equal: 1,000, 3 to 1,000 rows", unequal(1000, 3, 1000), 0.9): 50,
}
UNALIKE = np.stack([beta(5, 5), np.ones(11)] * 10)
EQUAL_NUMBERS = (
    RARE,
    BOUNDED[7],
    numbers("equal numbers: 100 of 3 rows", np.full(100, 3), GRID, beta(5, 2)),
    numbers("equal numbers: 20 of 20 rows, spread unalike", np.full(20, 20), GRID, UNALIKE, agree=0),
    numbers("equal numbers: 20 of 3 and 10 rows, spread unalike", np.tile([10, 3], 10), GRID, UNALIKE, agree=0),
    *APPROXIMATE[:3],
)
"""Settings in which the test of equal clients is approximate."""

NEW = tuple(
    Exchangeable(f"new client beside {n}", n, (30, 300, 3000), law)
    for n, law in ((2, (8.0, 2.0)), (10, (8.0, 2.0)), (19, (80.0, 20.0)), (100, (0.5, 0.5)), (1000, (8.0, 2.0)))
)
SIZES = tuple(OneWorse(f"1 of {n} at {a:g} worse by {d:g}", a, d, n) for a, d, n in
              ((0.9, 0.1, 4), (0.8, 0.05, 30), (0.99, 0.05, 1000), (0.5, 0.2, 2)))  # fmt: skip
CHANGED = tuple(
    OneBetter(f"{c:g} of the rows change, better by {d:g}", c, d) for c, d in ((0.1, 0.05), (0.3, 0.02), (1, 0.3))
)
SEEDS = tuple(Seeds(f"{n} seeds", n) for n in (3, 5, 6, 10))

OURS = (
    *(Case(setting, BOTH) for setting in (*BINARY, *BOUNDED)),
    *(Case(setting, BOTH, 1_000, demanded=False) for setting in APPROXIMATE),
    *(Case(setting, (one_model,)) for setting in RANKS),
    *(Case(setting, (client_intervals,)) for setting in DELONG[:-1]),
    Case(DELONG[-1], (client_intervals,), 3_000),
    *(Case(setting, (one_model,), 500) for setting in (DELONG[1], DELONG[3])),
    *(Case(setting, (gains_of_clients,)) for setting in TWO_RANKS),
    Case(TWO_RANKS[0], (two_models,), 200),
    *(Case(setting, (one_model,), count) for setting, count in zip(RATES, (10_000, 3_000), strict=True)),
    *(Case(setting, (one_model_at_99, two_models_at_99)) for setting in (HOSPITALS_4, BINARY[5], BINARY[2])),
    *(Case(setting, (equal_clients_differ,), count) for setting, count in EQUAL.items()),
    *(Case(setting, (equal_clients_differ,), demanded=False) for setting in EQUAL_NUMBERS),
    *(Case(setting, (new_client,)) for setting in NEW),
    *(Case(setting, (enough_rows,)) for setting in SIZES),
    *(Case(setting, (enough_changed,)) for setting in CHANGED),
    *(Case(setting, (shown_over_seeds,)) for setting in SEEDS),
    *(Case(setting, (one_model,)) for setting in LARGE),
    *(Case(setting, (two_models,), 1_000) for setting in LARGE),
)
WRONG = (
    *(Case(setting, wrong.OF_COUNTS) for setting in (BINARY[0], HOSPITALS_4, UNEQUAL_5, ALIKE_20)),
    *(Case(setting, (wrong.students_t,)) for setting in (RARE, *BOUNDED[3:5])),
    *(Case(setting, (wrong.delong_normal,)) for setting in (*DELONG[3:6], *DELONG[8:11], DELONG[13])),
    *(Case(setting, (wrong.delong_normal_gain,)) for setting in (TWO_RANKS[0], *TWO_RANKS[5:8:2])),
    Case(NEW[1], (wrong.smallest_seen,)),
    *(Case(setting, (wrong.bootstrap_over_seeds,)) for setting in SEEDS[:2]),
)
