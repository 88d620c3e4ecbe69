"""Is it worth joining? Each hospital's loss compared with training alone, over five seeds."""

import sys

import matplotlib.pyplot as plt
from scipy.stats import t
from torch import nn

import drfl

ROUNDS, SEEDS = 40, 5
SHOWN = {"DualDRDM": ("#D55E00", "D", -0.12), "FineTuned": ("#0072B2", "o", 0.12)}


def clients(seed):  # each seed draws other test patients
    return drfl.ClientData.from_dataset(drfl.load("heart-disease"), drfl.Natural(), drfl.Key(seed))


def task(seed):
    return drfl.Task(nn.Linear(13, 2))


def draw(path):
    algorithms = {
        "LocalOnly": drfl.LocalOnly(),
        "DualDRDM": drfl.DualDRDM(m=4, sampling=drfl.sampling.all_clients),
        "FineTuned": drfl.FineTuned(m=4),
    }
    result = drfl.compare(algorithms, clients, task, rounds=ROUNDS, seeds=SEEDS, evaluate_every=ROUNDS)
    loss = result.to_clients().pivot(index=["client", "seed"], columns="algorithm", values="loss")
    hospitals = clients(0).names
    level = 1 - 0.05 / (len(SHOWN) * len(hospitals))  # all intervals hold at once (Bonferroni)

    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    axis.axvline(0, color="#999999")
    for name, (colour, marker, shift) in SHOWN.items():
        for place, hospital in enumerate(hospitals):
            change = (loss[name] - loss["LocalOnly"])[hospital]
            mean, half = change.mean(), t.ppf((1 + level) / 2, SEEDS - 1) * change.sem()
            axis.hlines(place + shift, mean - half, mean + half, color=colour)
            axis.plot(mean, place + shift, marker, color=colour, label=name if place == 0 else None)
    axis.set_yticks(range(len(hospitals)), hospitals)
    axis.set(xlabel="change of the test loss by joining (less is better)", ylim=(3.5, -0.5))
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "joining.png")
