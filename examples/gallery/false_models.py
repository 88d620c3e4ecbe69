"""False models: four of twenty clients send w − (w_i − w), with and without a robust aggregation rule."""

import sys

import matplotlib.pyplot as plt
import torch
from scipy.stats import sem, t
from torch import nn

import drfl
from drfl.resilience import CoordinateMedian, ProbeCosine, Protected, ServerProbe
from drfl.testing import SignFlip

ROUNDS, SEEDS = 30, 5
CLIENTS, ATTACKERS = 20, 4


def worst_honest(case, seed):
    torch.manual_seed(seed)
    parts = drfl.ZipfDirichlet(CLIENTS, alpha=1.0)
    data = drfl.ClientData.from_dataset(drfl.load("digits"), parts, drfl.Key(seed))
    task = drfl.Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    fed = drfl.Simulation(data, task)
    algorithm = drfl.DualDRDM(m=CLIENTS, sampling=drfl.sampling.all_clients)
    if case != "no attack":
        fed = SignFlip(fed, range(ATTACKERS))
    if case == "attack, CoordinateMedian":
        algorithm = Protected(algorithm, aggregator=CoordinateMedian())
    if case == "attack, ProbeCosine":  # the server holds 16 rows of each client
        algorithm = Protected(algorithm, aggregator=ProbeCosine(ServerProbe.of(data, task, rows=16)))
    result = drfl.run(algorithm, fed, rounds=ROUNDS, seed=seed, evaluate_every=ROUNDS, check_data=False)
    return 100 * float(result.evaluation.score[ATTACKERS:].min())


def draw(path):
    cases = "no attack", "attack, no rule", "attack, CoordinateMedian", "attack, ProbeCosine"
    figure, axis = plt.subplots(figsize=(5, 2.8), layout="constrained")
    for place, case in enumerate(cases):
        seen = [worst_honest(case, seed) for seed in range(SEEDS)]
        mean, half = sum(seen) / SEEDS, t.ppf(0.975, SEEDS - 1) * sem(seen)
        axis.hlines(place, mean - half, mean + half, color="#D55E00", linewidth=7, alpha=0.4)
        axis.plot(mean, place, "|", color="#D55E00", markersize=16)
        axis.plot(seen, [place] * SEEDS, "o", color="black", markersize=4)
    axis.set_yticks(range(len(cases)), cases)
    axis.set(xlabel="worst honest client, test accuracy (%)", xlim=(-5, 100), ylim=(3.5, -0.5))
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "false_models.png")
