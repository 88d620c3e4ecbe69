"""The duality gap over the rounds: the averaged model and the last iterate, over five seeds."""

import sys

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import t
from torch import nn

import drfl

ROUNDS, EVERY, SEEDS = 80, 20, 5


def clients(seed):
    return drfl.ClientData.from_dataset(drfl.load("heart-disease"), drfl.Natural(), drfl.Key(seed))


def task(seed):
    return drfl.Task(nn.Linear(13, 2))


def draw(path):
    local = drfl.LocalSGD(steps=5, weight_decay=0.01)  # the loss is strongly convex: bounds are proven
    fedavg = drfl.FedAvg(m=4, local=local)
    dual = drfl.DualDRDM(m=4, local=local, sampling=drfl.sampling.all_clients)
    shown = {
        "FedAvg, averaged model": (fedavg, "average", "#000000", "s:"),
        "dual DRDM, last iterate": (dual, "last", "#D55E00", "^--"),
        "dual DRDM, averaged model": (dual, "average", "#0072B2", "o-"),
    }
    figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
    for label, (algorithm, returned, colour, style) in shown.items():
        result = drfl.compare(
            {"run": algorithm}, clients, task, rounds=ROUNDS, seeds=SEEDS,
            returned=returned, evaluate_every=EVERY, certificate="pooled",
        )  # fmt: skip
        gaps = result.to_histories().pivot(index="round", columns="seed", values="gap")
        mean, half = np.log(gaps).mean(axis=1), t.ppf(0.975, SEEDS - 1) * np.log(gaps).sem(axis=1)
        ends = np.exp(mean) - np.exp(mean - half), np.exp(mean + half) - np.exp(mean)
        axis.errorbar(mean.index, np.exp(mean), ends, fmt=style, color=colour, label=label, capsize=3)
    axis.set(yscale="log", xlabel="round", ylabel="duality gap")
    figure.legend(loc="outside lower center")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "duality_gap.png")
