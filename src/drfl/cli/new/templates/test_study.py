"""Tests of the study: run them with `python -m pytest`. The conformance suite in drfl.testing works without pytest."""

from __future__ import annotations

import torch
from algorithm import FedAvgM
from model import net

from drfl import LocalSGD
from drfl.testing import WEIGHTED, check_algorithm


def test_algorithm_passes_the_conformance_suite() -> None:
    """With exact gradients the last model reaches the minimum of the loss weighted by samples."""
    # solves: the limit of your algorithm, or omit it; a ConformanceError lists every check that fails
    report = check_algorithm(FedAvgM(m=3, local=LocalSGD(steps=1, lr=0.02)), solves=WEIGHTED)
    assert not report.failed


def test_model_has_an_output_for_each_class() -> None:
    """The model accepts rows with the three columns of the table."""
    assert net((3,), 2)(torch.zeros(5, 3)).shape == (5, 2)
