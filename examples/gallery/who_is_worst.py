"""Which hospital could be the worst? Exact intervals, and the range expected if all were equal."""

import sys

import matplotlib.pyplot as plt
from torch import nn

import drfl

ROUNDS = 50


def draw(path):
    data = drfl.ClientData.from_dataset(drfl.load("heart-disease"), drfl.Natural())
    fed = drfl.Simulation(data, drfl.Task(nn.Linear(13, 2)))
    result = drfl.run(drfl.DualDRDM(m=4, sampling=drfl.sampling.all_clients), fed, rounds=ROUNDS)
    found = drfl.assess(result, data)

    rows = found.to_frame().sort_values("accuracy", ascending=False)
    low, high, measured = 100 * rows["low"], 100 * rows["high"], 100 * rows["accuracy"]
    figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
    axis.axvspan(
        100 * found.equal.low, 100 * found.equal.high, color="#56B4E9", alpha=0.4, linewidth=0,
        label="the worst accuracy expected if all four were equal (95 %)",
    )  # fmt: skip
    axis.hlines(rows["client"], low, high, color="black", label="95 % interval, simultaneous over the four")
    axis.plot(measured, rows["client"], "wo", markeredgecolor="black", markersize=9, label="measured")
    could = rows["could_be_worst"]
    axis.plot(measured[could], rows["client"][could], "x", color="#D55E00", label="could be the worst")
    axis.set_yticks(rows["client"], rows["client"] + "\n" + rows["samples"].astype(str) + " patients")
    axis.set(xlabel="test accuracy (%)", ylim=(-0.6, 3.6))
    figure.legend(loc="outside lower center", fontsize=9)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "who_is_worst.png")
