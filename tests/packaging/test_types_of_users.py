"""Test that user code passes type checkers."""

from __future__ import annotations

import subprocess
import sys

import pytest

STUDY = """
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

import drfl


class State(NamedTuple):
    w: Tensor
    rounds: Tensor


@dataclass(frozen=True)
class Mine:
    m: int
    local: drfl.LocalSGD

    def init(self, federation: drfl.Federation) -> State:
        return State(federation.w0, torch.zeros(()))

    def round(self, before: State, federation: drfl.Federation, stream: drfl.Key) -> tuple[State, drfl.Info]:
        cohort = drfl.sampling.uniform(federation.n, self.m, stream.fold("cohort"))
        replies = federation.train(cohort.clients, before.w, self.local, stream)
        return State(replies.w.mean(0), before.rounds + 1), drfl.Info(cohort, replies.clients)


def served(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs.argmax(1) == targets).double().mean())


data = drfl.ClientData.from_arrays([(torch.randn(20, 3), torch.randint(0, 2, (20,))) for _ in range(3)])
task = drfl.Task(torch.nn.Linear(3, 2), score="auc", metrics=("f1", served, drfl.metrics.ACCURACY))
algorithms: list[drfl.Algorithm] = [Mine(3, drfl.LocalSGD()), drfl.DRFA(m=3), drfl.DualDRDM(m=3), drfl.LocalOnly()]
for algorithm in algorithms:
    result = drfl.run(algorithm, drfl.Simulation(data, task), rounds=2, select="worst")
    number: float = result.history.last.metrics.worst_score
frame = drfl.compare({"mine": Mine(3, drfl.LocalSGD()), "DRFA": drfl.DRFA(m=3)}, data, task, rounds=2).to_frame()
"""


@pytest.mark.long
@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_own_algorithm_passes_type_checkers(checker, tmp_path, pytestconfig):
    (tmp_path / "study.py").write_text(STUDY, encoding="utf-8")
    options = ["--pythonpath", sys.executable]
    if checker == "mypy":
        # A cache avoids reading torch's types again, which takes minutes.
        options = ["--python-executable", sys.executable, "--cache-dir", str(pytestconfig.cache.mkdir("mypy"))]
    command = [sys.executable, "-m", checker, *options, "study.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
