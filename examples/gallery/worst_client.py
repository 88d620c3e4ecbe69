"""The worst client over the rounds: FedAvg and dual DRDM, mean and 95 % t-interval over five seeds."""

import sys

from scipy.stats import t
from torch import nn

import drfl

ROUNDS, SEEDS = 60, 5


def clients(seed):
    return drfl.ClientData.from_dataset(drfl.load("digits"), drfl.OneClass(10), drfl.Key(seed))


def task(seed):
    return drfl.Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def draw(path):
    algorithms = {
        "FedAvg": drfl.FedAvg(m=10),
        "DualDRDM": drfl.DualDRDM(m=10, sampling=drfl.sampling.all_clients),
    }
    result = drfl.compare(algorithms, clients, task, rounds=ROUNDS, seeds=SEEDS)
    worst = result.to_frame().pivot(index="seed", columns="algorithm", values="worst_accuracy")
    lead = 100 * (worst["DualDRDM"] - worst["FedAvg"])  # paired: both have the same clients at each seed
    mean, half = lead.mean(), t.ppf(0.975, SEEDS - 1) * lead.sem()

    figure = result.plot("worst")
    figure.axes[0].set_title(
        f"DualDRDM − FedAvg after {ROUNDS} rounds:\n"
        f"{mean:+.1f} points (95 %: {mean - half:+.1f} to {mean + half:+.1f})", fontsize=10,
    )  # fmt: skip
    figure.axes[0].set_ylim(0, 100)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "worst_client.png")
