"""λ over the rounds for two algorithms, and the λ of the exact saddle point."""

import sys

import matplotlib.pyplot as plt
import torch

import drfl
from drfl.testing.problems import logistic

ROUNDS, EVERY = 300, 3
COLOURS = ["#0072B2", "#E69F00", "#BBBBBB", "#D55E00"]


def draw(path):
    problem = logistic("heart-disease")  # logistic regression at four hospitals, solved exactly
    everybody = drfl.sampling.all_clients
    algorithms = {
        "DRFA": drfl.DRFA(m=4, sampling=everybody),
        "dual DRDM": drfl.DualDRDM(m=4, sampling=everybody),
    }
    shape = {"figsize": (5, 3.4), "width_ratios": [5, 5, 1.6], "layout": "constrained"}
    figure, axes = plt.subplots(1, 3, sharey=True, **shape)
    for axis, (name, algorithm) in zip(axes, algorithms.items(), strict=False):
        fed = problem.federation()
        result = drfl.run(algorithm, fed, rounds=ROUNDS, evaluate_every=EVERY, check_data=False)
        rounds = [row.round for row in result.history.rows]
        weights = torch.stack([row.lam for row in result.history.rows], dim=1)  # (clients, rows)
        axis.stackplot(rounds, weights, colors=COLOURS, labels=problem.data.names)
        axis.set(title=name, xlabel="round", xlim=(0, ROUNDS), ylim=(0, 1))
    axes[0].set_ylabel("λ, stacked")

    exact = problem.saddle(drfl.Simplex()).lam
    axes[2].bar(0, exact, bottom=exact.cumsum(0) - exact, color=COLOURS)
    axes[2].set(title="exact", xticks=[])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "weights.png")
