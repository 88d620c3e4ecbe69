"""A prediction for a new client that is exchangeable with the clients seen."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from drfl.assessment.scores import Floats


class UnseenClient(NamedTuple):
    """Prediction of the measured score of a new client, drawn with its test set in the same way as the N others.

    No distribution is assumed: ranks of exchangeable clients are equally likely (Wilks 1941; conformal prediction, Vovk
    et al. 2005).

    Args:
        clients: Number of clients N.
        worse: Upper bound of the probability that the new client is worse than the worst seen, 1/(N + 1), before any
            client was seen.
        worse_high: Upper bound of the same probability given these N clients, at 95 % confidence: 1 − 0.05^(1/N).
        level: Requested probability of the bound ``low``.
        low: The new client is below this with probability at most 1 − level; NaN if N is too small for any bound.
        coverage: Lower bound of the probability that the new client is no worse than ``low``, or than the worst client
            seen if ``low`` is NaN.
        needed: Number of clients at which the worst one seen is a bound at this level.
    """

    clients: int
    worse: float
    worse_high: float
    level: float
    low: float
    coverage: float
    needed: int


def unseen_client(values: Floats, level: float = 0.95) -> UnseenClient:
    """Predict the score of one more client from the measured scores of N clients.

    Args:
        values: (N,) Scores without NaN, larger is better; N ≥ 1.
        level: Requested probability of the bound.
    """
    n = len(values)
    # The new client is at or above the k-th smallest of N with probability at least 1 − k/(N + 1), ties included. The
    # small constant keeps rounding from lowering k.
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
