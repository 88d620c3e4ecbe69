"""How good are probabilities of a yes? Accuracy, AUC and calibration of one site's test patients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

BINS = 10


class Scores(NamedTuple):
    """Of one model on one site's patients.

    Args:
        accuracy: share of patients on whose side of ½ the probability lies.
        auc: how often an ill patient has the larger probability than a healthy one; NaN where all are of one kind.
        ece: expected calibration error, see below.
        brier: mean squared distance of the probability from what came true.
    """

    accuracy: float
    auc: float
    ece: float
    brier: float


def scores(probability: np.ndarray, ill: np.ndarray) -> Scores:
    """All four of the probabilities (n,) that patients are ill, and of who is (n,): 0 or 1."""
    one_kind = len(np.unique(ill)) < 2
    return Scores(
        accuracy=float(((probability > 0.5) == (ill == 1)).mean()),
        auc=math.nan if one_kind else float(roc_auc_score(ill, probability)),
        ece=calibration_error(probability, ill),
        brier=float(np.square(probability - ill).mean()),
    )


def calibration_error(probability: np.ndarray, ill: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error: Σ_b (n_b/n)·|mean probability − share of the ill| over bins of equal width in [0, 1].

    A bin holds its lower edge; the last one holds 1 too. With few patients it is large by chance alone.
    """
    where = np.minimum((probability * bins).astype(int), bins - 1)
    excess = np.bincount(where, weights=probability - ill, minlength=bins)  # n_b·(mean probability − share)
    return float(np.abs(excess).sum() / len(probability))
