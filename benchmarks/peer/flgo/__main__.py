"""FLGo: its ``fedavg``, with clients sampled uniformly and weighted by samples; several workers are threads.

A round ends when FLGo asks its logger whether to evaluate, which it never does.
"""

from __future__ import annotations

from copy import deepcopy

import flgo
import flgo.algorithm.fedavg as fedavg
import torch
from flgo.experiment.logger import BasicLogger

import peer.flgo
from peer.flgo.core import JOB
from peer.job import Clock

CLOCK = Clock(JOB)


def network() -> torch.nn.Module:
    """Return the initial model."""
    return deepcopy(JOB.model)


class Mark(BasicLogger):
    """Marks the ends of rounds."""

    def check_if_log(self, round: int, eval_interval: int = -1) -> bool:
        """FLGo asks this after each round."""
        CLOCK.mark()
        return False


def main() -> None:
    """Run the job."""
    task = str(JOB.out.with_suffix(".task"))
    flgo.gen_task_by_(peer.flgo, None, task)
    option = {
        "num_rounds": JOB.rounds, "proportion": JOB.cohort / len(JOB.y), "sample": "uniform", "aggregate": "other",
        "num_steps": JOB.steps, "batch_size": JOB.batch, "learning_rate": JOB.lr, "lr_scheduler": "-1",
        "num_parallels": JOB.setting.workers, "parallel_type": "t", "torch_num_threads": JOB.setting.threads,
        "train_holdout": 0.0, "eval_interval": -1, "no_tqdm": True, "seed": JOB.seed, "log_level": "WARNING",
    }  # fmt: skip
    runner = flgo.init(task, fedavg, option, model=flgo.convert_model(network), Logger=Mark)
    CLOCK.mark()
    runner.run()
    CLOCK.report(runner.model)


if __name__ == "__main__":
    main()
