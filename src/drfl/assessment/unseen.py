"""A client that nobody has seen yet: what the clients seen say of it, if they are exchangeable with it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from drfl.assessment.scores import Floats


class UnseenClient(NamedTuple):
    """Where the measured score of a new client will lie, drawn as the N were, its test set too. No law is assumed.

    Ranks of exchangeable clients are equally likely (Wilks 1941; conformal prediction, Vovk et al. 2005).

    Args:
        clients: N.
        worse: the probability at most that it is worse than the worst seen, 1/(N + 1), before anything was seen.
        worse_high: an upper bound of the same, given these N clients, at 95 % confidence: 1 − 0.05^(1/N).
        level: of the band, wanted.
        low: the new client is below this with probability at most 1 − level; NaN where N is too small for any bound.
        coverage: the probability that the new client is no worse than ``low``, at least; where ``low`` is NaN, of the
            worst seen.
        needed: clients for which the worst one seen is a bound at this level.
    """

    clients: int
    worse: float
    worse_high: float
    level: float
    low: float
    coverage: float
    needed: int


def unseen_client(values: Floats, level: float = 0.95) -> UnseenClient:
    """What N clients' measured scores (larger is better) say of one more.

    Args:
        values: (N,) without NaN, N ≥ 1.
        level: wanted probability.
    """
    n = len(values)
    # The k-th smallest of N is exceeded or met by the new one with probability 1 − k/(N + 1) or more, ties included.
    k = math.floor((1 - level) * (n + 1) + 1e-9)
    low = float(np.sort(values)[k - 1]) if k else math.nan
    return UnseenClient(
        clients=n,
        worse=1 / (n + 1),
        worse_high=1 - 0.05 ** (1 / n),
        level=level,
        low=low,
        coverage=1 - max(1, k) / (n + 1),
        needed=math.ceil(1 / (1 - level) - 1 - 1e-9),
    )
