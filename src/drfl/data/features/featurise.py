"""Replacement of a data set's images by their features."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import Dataset
from drfl.data.features.entk import choose, entk, penultimate
from drfl.data.features.images import Images, check_images, digest, load_or_make
from drfl.data.features.pretraining import Log, load_backbone, no_log
from drfl.data.features.recipe import Recipe

CONSTANT = 1e-6
"""A column is constant if its standard deviation is below this multiple of its mean, a few roundings of float32."""

COLUMNS = 256
"""Number of columns that are standardised together, in float64."""


def featurise(
    dataset: Images, recipe: Recipe, cache: Path | None = None, log: Log | None = None, device: str = "cpu"
) -> Dataset:
    """Replace the inputs of a data set by features; labels and groups are unchanged.

    Standardised features (see :class:`Recipe`) are scaled here, once, with the statistics of all training rows.
    ``Dataset.standardise`` would scale them each time clients are made, which happens once per run of a comparison and
    copies everything in float64. Test rows do not influence the scale. Only a data set without a separate test part,
    whose test rows are not known yet, is marked with ``standardise``.

    Args:
        dataset: Images (n, c, height, width) with 1 or 3 channels; floating-point values in [0, 1], or bytes.
        recipe: The kind of features.
        cache: Folder to store them in, see `drfl.data.features.images`; None does not store them.
        log: Receives a progress line from time to time.
        device: Torch device that the backbone runs on.

    Returns:
        A data set with inputs (n, p) and test inputs (k, p), float32.

    Raises:
        InputError: If the backbone is not available, it cannot take the images, or the features do not fit into memory.
    """
    log = log or no_log
    check_images(dataset)
    if dataset.inputs.shape[2:] == (recipe.resize, recipe.resize):  # already this size: share the cache entry
        recipe = replace(recipe, resize=None)
    backbone = load_backbone(recipe.backbone, log)
    shared = isinstance(dataset, Dataset) and dataset.is_one_pool
    images = {"inputs": dataset.inputs} | ({} if shared else {"test_inputs": dataset.test_inputs})

    def make() -> dict[str, Tensor]:
        network = backbone.to(device)
        log(f"features of {dataset.name} by {backbone.name}: {sum(map(len, images.values()))} images")
        if recipe.kind == "penultimate":
            made = {name: penultimate(network, x, recipe.resize, log) for name, x in images.items()}
        else:
            key = Key(recipe.seed).fold("drfl.data.features", "entk")
            chosen = choose(network, dataset.inputs, recipe.count, key, recipe.resize)
            # Check before hours of work.
            check_memory(sum(map(len, images.values())), chosen.count)
            made = {name: entk(network, x, chosen, recipe.resize, log) for name, x in images.items()}
        if recipe.is_standardised and not shared:
            # Standardise before storing, so that the cache holds the final values.
            standardise(made["inputs"], made["test_inputs"])
        return made

    if cache is None:
        found = make()
    else:
        drawn = (recipe.count, recipe.seed) if recipe.kind == "entk" else ()
        name = digest(images.values(), recipe.kind, backbone.digest, recipe.resize, recipe.is_standardised, *drawn)
        rows = {part: len(x) for part, x in images.items()}
        found = load_or_make(cache / f"{recipe.kind}-{name}.safetensors", rows, make, log)
    inputs = found["inputs"]
    return Dataset(
        dataset.name,
        inputs,
        dataset.targets,
        inputs if shared else found["test_inputs"],
        dataset.test_targets,
        dataset.classes,
        dataset.groups if isinstance(dataset, Dataset) else None,
        standardise=recipe.is_standardised and shared,
    )


def check_memory(rows: int, columns: int) -> None:
    """Raise InputError if features need more than this machine's memory; the message states their size."""
    needed = 4 * rows * columns
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.9 * memory:
        raise InputError(
            f"{columns} features of {rows} images take {needed / 2**30:.1f} GiB, but this machine has "
            f"{memory / 2**30:.1f} GiB. Set a smaller `feature_count`",
            code="out-of-memory",
            field="feature_count",
        )


def standardise(inputs: Tensor, *others: Tensor) -> None:
    """Centre and scale columns in place by the mean and the standard deviation of ``inputs``.

    A column that is constant in ``inputs``, up to rounding, becomes 0 everywhere, because it carries no information.
    """
    for start in range(0, inputs.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        # Convert a few columns at a time: all of them in float64 would take too much memory.
        std, mean = torch.std_mean(inputs[:, columns].double(), dim=0, correction=0)
        scale = torch.where(std > CONSTANT * mean.abs(), 1 / std, torch.zeros_like(std))
        for values in (inputs, *others):
            values[:, columns] = ((values[:, columns].double() - mean) * scale).to(values.dtype)
