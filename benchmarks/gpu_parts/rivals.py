"""Rounds of plain PyTorch and of pfl on the same jobs and the same card, each in a separate process.

The adapters are those of benchmarks/peers.py. A framework that is not installed is reported as failed, with the reason.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from jobs import script

from drfl import Key
from gpu_parts.networks import CLASSES
from gpu_parts.report import Report
from gpu_parts.speed import BATCH, MODELS, STEPS, M, clients

HERE = Path(__file__).parents[1]
FRAMEWORKS = {"plain PyTorch": "plain", "pfl": "pfl"}
ROUNDS = script.sized({"cnn": 12, "resnet18": 2, "linear": 12, "cnn-28": 12, "lstm": 8}, {"linear": 1})
"""Measured rounds of each model, the most important model first. One more round before them is a warm-up."""


def write_job(name: str, folder: Path) -> None:
    """Write a job as the adapters read it, see peer/job.py."""
    data = clients(name)
    rows = torch.cat(list(data.train))
    with Key(0).fold("model").torch_scope():
        torch.save(MODELS[name](), folder / "model.pt")
    np.savez(
        folder / "data.npz",
        inputs=data.inputs[rows].numpy(),
        targets=data.targets[rows].numpy(),
        sizes=data.sizes.numpy(),
    )
    about = {"cohort": M, "steps": STEPS, "batch": BATCH, "lr": 0.01, "classes": CLASSES}
    (folder / "job.json").write_text(json.dumps(about))


def measure(report: Report) -> None:
    """Measure each framework on each job."""
    for name, rounds in ROUNDS.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            write_job(name, folder)
            for framework, module in FRAMEWORKS.items():
                if report.is_over:
                    return
                report.add(model=name, framework=framework, **one_run(folder, module, rounds, report))


def one_run(folder: Path, module: str, rounds: int, report: Report) -> dict[str, object]:
    """Run an adapter and return its times."""
    out = folder / f"{module}.json"
    options = {"rounds": rounds + 1, "seed": 0, "started": time.monotonic(), "device": report.device}
    command = [
        sys.executable,
        "-m",
        f"peer.{module}",
        str(folder),
        str(out),
        *(f"--{k}={v}" for k, v in options.items()),
    ]
    try:
        ended = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, timeout=max(1, report.left), check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": "no time left"}
    if ended.returncode:
        return {"failed": " ".join(ended.stderr.split())[-300:]}
    times = json.loads(out.read_text())["seconds"][1:]
    return {"median_ms": round(1e3 * statistics.median(times), 2), "rounds": len(times)}
