"""Ambiguity sets: the loss of the worst client against the average loss."""

import sys

import matplotlib.pyplot as plt
import numpy as np

import drfl
from drfl.testing.problems import logistic

POINTS = 17


def draw(path):
    problem = logistic("heart-disease")  # four hospitals; solved exactly, so that nothing is random
    weak_to_strong = np.geomspace(3, 0.01, POINTS)
    sets = {
        "CVaR(α), α from 1 to 1/4": (map(drfl.CVaR, np.linspace(1, 0.25, POINTS)), "#D55E00", "^"),
        "ChiSquare(ρ), ρ from 3 to 0.01": (map(drfl.ChiSquare, weak_to_strong), "#0072B2", "o"),
        "KL(ρ), ρ from 3 to 0.01": (map(drfl.KL, weak_to_strong), "#009E73", "s"),
    }
    figure, axis = plt.subplots(figsize=(5, 4.2), layout="constrained")
    for label, (members, colour, marker) in sets.items():
        losses = [problem.losses(problem.saddle(member).w) for member in members]
        points = [(float(f.mean()), float(f.max())) for f in losses]
        axis.plot(*zip(*points, strict=True), marker=marker, color=colour, label=label, markersize=4)

    average, minimax = problem.average_optimum, problem.saddle(drfl.Simplex()).w
    for w, label, side, marker in (
        (average, "  the average alone", "left", "*"),
        (minimax, "Simplex(): the worst alone   ", "right", "X"),
    ):
        f = problem.losses(w)
        axis.plot(f.mean(), f.max(), marker, color="black", markersize=11)
        axis.text(f.mean(), f.max(), label, horizontalalignment=side, verticalalignment="center")
    axis.set(xlabel="average loss over the hospitals", ylabel="loss of the worst hospital")
    figure.legend(loc="outside lower center")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(sys.argv[1] if len(sys.argv) > 1 else "ambiguity_sets.png")
