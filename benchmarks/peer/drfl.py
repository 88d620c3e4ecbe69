"""drfl: ``drfl.run`` of ``FedAvg`` on a simulation, with the engine of the setting.

A round ends when the callbacks are called. The evaluation at the end of ``drfl.run`` comes after the last one.
"""

from __future__ import annotations

import torch

from drfl import ClientData, FedAvg, LocalSGD, RunState, Simulation, Stacked, Task, Threads, run
from peer.job import Clock, Job, from_command


def _data(job: Job) -> ClientData:
    """Return the clients' samples; the first sample of each is its test data, which no timed round uses."""
    train = torch.arange(sum(job.sizes)).split(job.sizes)
    x, y, names = job.inputs, job.targets, tuple(map(str, range(len(train))))
    return ClientData(x, y, train, x, y, tuple(rows[:1] for rows in train), names)


def main() -> None:
    """Run the job."""
    job = from_command()
    engine = {"default": None, "stacked": Stacked(), "threads": Threads(job.setting.workers)}[job.setting.engine]
    fed = Simulation(_data(job), Task(job.model), engine=engine)
    clock = Clock(job)

    def after(progress: RunState) -> bool:
        clock.mark()
        return progress.round == job.rounds

    algorithm = FedAvg(m=job.cohort, local=LocalSGD(steps=job.steps, lr=job.lr, batch=job.batch))
    # One round more than asked for, so that stopping, not testing, ends the last timed round.
    more = job.rounds + 1
    run(algorithm, fed, rounds=more, seed=job.seed, evaluate_every=more, callbacks=[after]).write_into(job.model)
    clock.report(job.model)


if __name__ == "__main__":
    main()
