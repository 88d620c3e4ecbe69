"""Compare requests for all of a cohort's data with one plain forward (and backward) pass over its rows.

    python benchmarks/full_batch.py --data-dir DIR [--rounds 12] [--threads 1] [--smoke]

The jobs are the linear model, a perceptron and the CNN, with 20 of 30 clients and the losses and gradients of ``Auto``.
The passes are PyTorch's own, at one model and over contiguous rows, in the fastest parts of 128 to 2,048 rows. They
give one sum, whereas drfl gathers the rows and gives each client's mean. Series are interleaved; medians are of wall
time and of this process's CPU time after a warm-up. The script prints a table and writes results/full_batch.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
from jobs import COHORT, JOBS, RESULTS, script, simulation, store, turns

from drfl import Key, Simulation
from drfl.engine.sgd import channels_last, functional, has_images
from drfl.task import models

MODELS = {**JOBS, "mlp 784-128": ("mnist", models.mlp)}
PARTS = script.sized((128, 512, 1024, 2048), (128, 512))


def plain(fed: Simulation, size: int, *, backward: bool) -> Callable[[int], object]:
    """Run one pass over the cohort's rows, with or without the gradient of the sum of their losses."""
    problem, task = fed._train, fed._train.task
    rows = fed._rows.index[: int(fed._rows.sizes[:COHORT].sum())]
    x, y = problem.x[rows], problem.y[rows]
    x = channels_last(x) if has_images(problem) else x

    def call(r: int) -> None:
        w = fed.w0.clone().requires_grad_(backward)
        model = functional(problem, w)
        with torch.set_grad_enabled(backward):
            for own, targets in zip(x.split(size), y.split(size), strict=True):
                total = task.sample_losses(model(own), targets).sum()
                if backward:
                    torch.autograd.grad(total, w)

    return call


def measured(job: str, rounds: int, data_dir: Path | None) -> dict[str, object]:
    """Return medians and ratios of wall and CPU time."""
    fed, cohort = simulation(job, data_dir), torch.arange(COHORT)
    calls: dict[str, Callable[[int], object]] = {
        "losses": lambda r: fed.losses(cohort, fed.w0, Key(r)),
        "gradients": lambda r: fed.gradients(cohort, fed.w0, Key(r)),
    }
    for size in PARTS:
        calls[f"forward {size}"] = plain(fed, size, backward=False)
        calls[f"backward {size}"] = plain(fed, size, backward=True)
    found: dict[str, object] = {"rows": int(fed._rows.sizes[:COHORT].sum())}
    for clock, read in {"wall": time.perf_counter, "cpu": time.process_time}.items():
        medians = turns(rounds, calls, clock=read)
        forward, backward = (min(medians[f"{name} {size}"] for size in PARTS) for name in ("forward", "backward"))
        found[clock] = {
            "forward_s": round(forward, 5),
            "losses_s": round(medians["losses"], 5),
            "losses_over_forward": round(medians["losses"] / forward, 2),
            "forward_backward_s": round(backward, 5),
            "gradients_s": round(medians["gradients"], 5),
            "gradients_over_forward_backward": round(medians["gradients"] / backward, 2),
        }
    return found


def main() -> None:
    """Measure all models."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(12, 1))
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    JOBS.update(MODELS)
    jobs = {}
    for job in MODELS:
        jobs[job] = measured(job, options.rounds, options.data_dir)
        print(job, jobs[job])
    store(options.out, "full_batch", "python benchmarks/full_batch.py", {"rounds": options.rounds, "jobs": jobs})


if __name__ == "__main__":
    main()
