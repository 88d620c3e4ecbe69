"""Measure the speed-up from bfloat16 in the local steps, and its effect on accuracy.

    python benchmarks/precision.py --data-dir DIR [--rounds 40] [--seeds 3] [--smoke]

The job is the CNN on kmnist-t10k with FedAvg and DRDM, N = 30, m = 20, τ = 10, B = 32. Both precisions have the same
partition, initial model and minibatches. Accuracies are of the last round; times are medians of interleaved series. The
script prints a table and writes results/precision.json.
"""

from __future__ import annotations

import torch
from jobs import COHORT, LOCAL, RESULTS, script, simulation, store, turns

from drfl import DRDM, FedAvg, Key, Simulation, run

PRECISIONS = ("full", "bf16")
ALGORITHMS = {"FedAvg": FedAvg(m=COHORT, local=LOCAL), "DRDM": DRDM(m=COHORT, local=LOCAL)}


def accuracies(fed: Simulation, name: str, rounds: int, seed: int) -> dict[str, float]:
    """Return the average and the worst accuracy after the last round."""
    metrics = run(ALGORITHMS[name], fed, rounds=rounds, seed=seed, evaluate_every=rounds).history.last.metrics
    return {"avg": round(metrics.avg_score, 4), "worst": round(metrics.worst_score, 4)}


def main() -> None:
    """Measure both precisions."""
    parser = script.parser(__doc__, RESULTS, data=True)
    parser.add_argument("--rounds", type=int, default=script.sized(40, 1))
    parser.add_argument("--seeds", type=int, default=script.sized(3, 1))
    options = parser.parse_args()
    feds = {p: simulation("cnn", options.data_dir, precision=p) for p in PRECISIONS}
    calls = {p: lambda r, fed=fed: fed.train(torch.arange(COHORT), fed.w0, LOCAL, Key(r)) for p, fed in feds.items()}
    seconds = {p: round(s, 5) for p, s in turns(script.sized(12, 1), calls).items()}
    print("seconds a round", seconds, flush=True)
    rows = [
        {"algorithm": name, "seed": seed, "precision": p, **accuracies(fed, name, options.rounds, seed)}
        for name in ALGORITHMS
        for seed in range(options.seeds)
        for p, fed in feds.items()
    ]
    for row in rows:
        print(row)
    content = {"rounds": options.rounds, "median_s": seconds, "accuracy": rows}
    store(options.out, "precision", "python benchmarks/precision.py", content)


if __name__ == "__main__":
    main()
