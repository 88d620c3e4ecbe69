"""Flower: ``FedAvg`` on its simulation, with one Ray actor per worker.

A round ends when the strategy calls ``evaluate_fn``, right after aggregation. Actors start in the first round.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.nn.functional import cross_entropy

from peer.job import Clock, Job, from_arguments, from_command


@lru_cache
def _job(arguments: tuple[str, ...]) -> Job:
    """Read the job once per actor."""
    return from_arguments(list(arguments))


def client_app(arguments: tuple[str, ...]) -> ClientApp:
    """Train the model of a message, and send it back."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        job = _job(arguments)
        client, model = int(context.node_config["partition-id"]), job.model
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimiser = torch.optim.SGD(model.parameters(), lr=job.lr)
        for x, y in job.batches(client):
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()
        metrics = MetricRecord({"num-examples": len(job.y[client])})
        content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    return app


def server_app(job: Job) -> ServerApp:
    """Start the server with Flower's own strategy, which reads the clock in its evaluation."""
    app, clock = ServerApp(), Clock(job)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        clients = len(job.y)
        strategy = FedAvg(fraction_train=job.cohort / clients, fraction_evaluate=0.0, min_available_nodes=clients)
        result = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(job.model.state_dict()),
            num_rounds=job.rounds,
            evaluate_fn=lambda server_round, arrays: clock.mark(),
        )
        job.model.load_state_dict(result.arrays.to_torch_state_dict())
        clock.report(job.model)

    return app


def main() -> None:
    """Run the job."""
    job = from_command()
    workers, threads = job.setting.workers, job.setting.threads
    resources = {"num_cpus": threads, "num_gpus": 0.0}
    ray = {"num_cpus": workers * threads, "include_dashboard": False}
    run_simulation(
        server_app(job),
        client_app(job.arguments),
        num_supernodes=len(job.y),
        backend_config={"client_resources": resources, "init_args": ray},
    )


if __name__ == "__main__":
    from peer import flower  # Ray needs its functions in an importable module

    flower.main()
