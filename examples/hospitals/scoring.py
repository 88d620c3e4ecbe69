"""Accuracy, AUC and calibration of predicted probabilities on one site's test patients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

BINS = 10


class Scores(NamedTuple):
    """Scores of one model on one site's patients.

    Args:
        accuracy: Share of patients whose probability is on the correct side of ½.
        auc: Probability that an ill patient has a larger value than a healthy one; NaN if all belong to one class.
        ece: Expected calibration error, see below.
        brier: Mean squared difference of the probability and the outcome.
    """

    accuracy: float
    auc: float
    ece: float
    brier: float


def scores(probability: np.ndarray, ill: np.ndarray) -> Scores:
    """Compute all four scores from the probabilities (n,) of being ill and the labels (n,), 0 or 1."""
    one_kind = len(np.unique(ill)) < 2
    return Scores(
        accuracy=float(((probability > 0.5) == (ill == 1)).mean()),
        auc=math.nan if one_kind else float(roc_auc_score(ill, probability)),
        ece=calibration_error(probability, ill),
        brier=float(np.square(probability - ill).mean()),
    )


def calibration_error(probability: np.ndarray, ill: np.ndarray, bins: int = BINS) -> float:
    """Compute Σ_b (n_b/n)·|mean probability − share of ill patients| over bins of equal width in [0, 1].

    A bin contains its lower edge, and the last one also 1. With few patients the error is large by chance.
    """
    where = np.minimum((probability * bins).astype(int), bins - 1)
    excess = np.bincount(where, weights=probability - ill, minlength=bins)  # n_b·(mean probability − share)
    return float(np.abs(excess).sum() / len(probability))
