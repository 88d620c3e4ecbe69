"""Measure the server's arithmetic for large models: averages, drift terms, merges and the checks of replies.

    python benchmarks/server.py [--parameters 1e7] [--clients 20] [--rounds 5] [--smoke]

The clients are not trained: a federation returns the same prepared models and losses in every round, so a round is the
server's work alone. The algorithms are FedAvg and dual DRDM, each without and with the guards that runs have by
default, all clients in every round. Times are wall and CPU seconds, medians over the rounds after the first. The script
prints a table and writes results/server.json.
"""

from __future__ import annotations

import os
import statistics
import time

import torch
from jobs import RESULTS, script, store
from torch import Tensor

from drfl import DualDRDM, FedAvg, Key, LocalSGD
from drfl.core.intraop import VECTORS, threads_for
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Evaluation, Federation, Ledger
from drfl.federation.requests import Losses, R, Replies, Request, TrainRequest
from drfl.federation.sampling import all_clients
from drfl.resilience import Protected
from drfl.training.averages import DecayingAverage

LOCAL = LocalSGD(steps=3, lr=0.01, batch=16)


class Prepared(Federation):
    """Clients whose models and losses are the same in every round."""

    def __init__(self, n: int, d: int) -> None:
        rng = torch.Generator().manual_seed(0)
        self.n, self.shares, self.ledger = n, torch.full((n,), 1 / n, dtype=torch.float64), Ledger()
        self.w0 = 0.02 * torch.randn(d, generator=rng)
        self.models, self.snapshots = (self.w0 + size * torch.randn(n, d, generator=rng) for size in (1e-3, 5e-4))

    def ask(self, request: Request[R]) -> R:
        """Return the models or the losses of the cohort, without a copy."""
        k = len(request.cohort)
        if isinstance(request, TrainRequest):
            snapshot = None if request.snapshot is None else self.snapshots[:k]
            return Replies(request.cohort, self.models[:k], snapshot)  # pyright: ignore[reportReturnType]
        return Losses(request.cohort, torch.linspace(1, 2, k, dtype=torch.float64))  # pyright: ignore[reportReturnType]

    def evaluate(self, w: Tensor) -> Evaluation:
        """Raise an error; no round evaluates."""
        raise NotImplementedError


def seconds(algorithm: Algorithm, fed: Federation, rounds: int) -> dict[str, float]:
    """Return the median wall and CPU seconds of a round, with the checks and the average that a run adds."""
    state, wall, cpu = algorithm.init(fed), [], []
    average = DecayingAverage.start(fed.w0, fed.shares)
    for r in range(rounds + 1):
        start = time.perf_counter(), time.process_time()
        with threads_for(VECTORS * fed.w0.numel()):
            state, _ = algorithm.round(state, fed, Key(r))
            assert bool(torch.isfinite(state.w).all())
            average = average.add(state.w, fed.shares)
        wall.append(time.perf_counter() - start[0])
        cpu.append(time.process_time() - start[1])
    return {"wall_s": round(statistics.median(wall[1:]), 3), "cpu_s": round(statistics.median(cpu[1:]), 3)}


def main() -> None:
    """Measure and store."""
    parser = script.parser(__doc__, RESULTS)
    parser.add_argument("--parameters", type=float, default=script.sized(1e7, 1e4))
    parser.add_argument("--clients", type=int, default=script.sized(20, 3))
    parser.add_argument("--rounds", type=int, default=script.sized(5, 1))
    options = parser.parse_args()
    m, before = options.clients, os.getloadavg()[0]
    fed = Prepared(m, int(options.parameters))
    algorithms = {
        "FedAvg": FedAvg(m=m, local=LOCAL),
        "FedAvg, guards": Protected(FedAvg(m=m, local=LOCAL)),
        "dual DRDM": DualDRDM(m=m, local=LOCAL, sampling=all_clients),
        "dual DRDM, guards": Protected(DualDRDM(m=m, local=LOCAL, sampling=all_clients)),
    }
    rows = {name: seconds(algorithm, fed, options.rounds) for name, algorithm in algorithms.items()}
    for name, row in rows.items():
        print(f"{name}: {row['wall_s']} s, {row['cpu_s']} s of CPU")
    about = {"parameters": int(options.parameters), "clients": m, "rounds": options.rounds}
    store(options.out, "server", "python benchmarks/server.py", {**about, "load_average_before": before, "rows": rows})


if __name__ == "__main__":
    main()
