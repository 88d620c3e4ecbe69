"""Test a training run as a cell."""

from __future__ import annotations

from drfl.experiments.config.build import build
from drfl.experiments.config.config import load_config
from drfl.experiments.execution.training_cells import run_job

JOB = {"dataset": "digits", "algorithm": "FedAvg", "clients": 4, "cohort": 2, "steps": 4, "loss": "squared"}


def test_finite_model_with_infinite_loss_has_diverged():
    ready = build(load_config(None, {**JOB, "rounds": 2, "algorithms": {"FedAvg": {"lr": 300.0}}}))
    record = run_job(ready)
    assert record["stopped"] == "diverged"
    assert record["reason"] == "the average loss over clients is infinite after round 2"
    assert record["rows"] == []
