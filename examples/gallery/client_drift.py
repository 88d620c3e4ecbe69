"""Client drift in two dimensions: paths of FedAvg, SCAFFOLD, DRDM and dual DRDM to their limits."""

import sys

import matplotlib.pyplot as plt
import torch

import drfl
from drfl.testing.problems import curved_quadratics

ROUNDS = 120


def draw(path):
    problem = curved_quadratics(n=3, d=2, seed=7)
    local = drfl.LocalSGD(steps=10, lr=0.02, batch=None)  # exact gradients
    dual = {"gamma": 0.005, "mu": 5.0, "dual_batch": None, "sampling": drfl.sampling.all_clients}
    algorithms = {
        "FedAvg": (drfl.FedAvg(m=3, local=local), "#000000", "-"),
        "SCAFFOLD": (drfl.SCAFFOLD(m=3, local=local), "#56B4E9", "-"),
        "DRDM": (drfl.DRDM(m=3, local=local, **dual), "#E69F00", "-"),
        "dual DRDM": (drfl.DualDRDM(m=3, local=local, **dual), "#D55E00", "--"),
    }
    figure, axis = plt.subplots(figsize=(5, 4.6), layout="constrained")
    for name, (algorithm, colour, style) in algorithms.items():
        models = []
        drfl.run(
            algorithm, problem.federation(), rounds=ROUNDS, evaluate_every=ROUNDS, check_data=False,
            callbacks=[lambda step, models=models: models.append(step.state.w)],
        )  # fmt: skip
        axis.plot(*torch.stack(models).T, style, color=colour, marker=".", markersize=4, label=name)
    places = {
        "optimum of the average": (problem.average_optimum, "*", 14),
        "minimax point": (problem.saddle(drfl.Simplex()).w, "X", 10),
        "FedAvg's fixed point": (problem.fedavg_fixed_point(local), "s", 10),
    }
    for name, (w, marker, size) in places.items():
        axis.plot(*w, marker, color="black", markersize=size, fillstyle="none", label=name)
    axis.set(xlabel="first parameter", ylabel="second parameter")
    figure.legend(loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "client_drift.png")
