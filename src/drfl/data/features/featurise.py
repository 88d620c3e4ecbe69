"""A data set's images exchanged for their features."""

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
from drfl.data.features.images import Images, check_images, digest, kept, one_pool
from drfl.data.features.pretraining import Log, load_backbone, silent
from drfl.data.features.recipe import Recipe

CONSTANT = 1e-6
"""Deviation below which a column of mean 1 counts as constant: a few roundings of float32."""

COLUMNS = 256
"""Columns that are standardised together, in float64."""


def featurise(
    dataset: Images, recipe: Recipe, cache: Path | None = None, log: Log | None = None, device: str = "cpu"
) -> Dataset:
    """The data set with features for inputs; labels and groups stay.

    Standardised features (see :class:`Recipe`) are scaled here, once, by all training rows, not by
    ``Dataset.standardise`` whenever clients are made: that copies everything in float64, and a comparison makes clients
    once per run. No test row has a say in the scale. Only data of one pool, whose test rows are not known yet, carry
    the mark.

    Args:
        dataset: images (n, c, height, width) with 1 or 3 channels, floating in [0, 1] or bytes.
        recipe: which features.
        cache: folder to keep them in, see `drfl.data.features.images`; None = not kept.
        log: gets a line now and then.
        device: torch device that the backbone works on.

    Returns:
        Inputs (n, p) and test inputs (k, p) float32.

    Raises:
        InputError: the backbone cannot be had, the images do not fit it, or the features do not fit into memory.
    """
    log = log or silent
    check_images(dataset)
    if dataset.inputs.shape[2:] == (recipe.resize, recipe.resize):  # already so: the cache holds them once
        recipe = replace(recipe, resize=None)
    backbone, shared = load_backbone(recipe.backbone, log), one_pool(dataset)
    rows = {"inputs": len(dataset.inputs)} | ({} if shared else {"test_inputs": len(dataset.test_inputs)})

    def make() -> dict[str, Tensor]:
        network = backbone.to(device)
        sources = {"inputs": dataset.inputs, "test_inputs": dataset.test_inputs}
        images = {name: sources[name] for name in rows}
        log(f"features of {dataset.name} by {backbone.name}: {sum(map(len, images.values()))} images")
        if recipe.kind == "penultimate":
            made = {name: penultimate(network, x, recipe.resize, log) for name, x in images.items()}
        else:
            chosen = choose(
                network,
                dataset.inputs,
                recipe.count,
                Key(recipe.seed).fold("drfl.data.features", "entk"),
                recipe.resize,
            )
            # This check is before hours of work.
            check_memory(sum(map(len, images.values())), chosen.count)
            made = {name: entk(network, x, chosen, recipe.resize, log) for name, x in images.items()}
        if recipe.scaled and not shared:
            # Features are standardised before they are cached, so the cache holds the final values.
            standardise(made["inputs"], made["test_inputs"])
        return made

    if cache is None:
        found = make()
    else:
        parts = [dataset.inputs] if shared else [dataset.inputs, dataset.test_inputs]
        drawn = (recipe.count, recipe.seed) if recipe.kind == "entk" else ()
        name = digest(parts, recipe.kind, backbone.digest, recipe.resize, recipe.scaled, *drawn)
        found = kept(cache / f"{recipe.kind}-{name}.safetensors", rows, make, log)
    inputs = found["inputs"]
    return Dataset(
        dataset.name,
        inputs,
        dataset.targets,
        inputs if shared else found["test_inputs"],
        dataset.test_targets,
        dataset.classes,
        dataset.groups if isinstance(dataset, Dataset) else None,
        standardise=recipe.scaled and shared,
    )


def check_memory(rows: int, columns: int) -> None:
    """Refuse features that take more than this machine's memory.

    Raises:
        InputError: naming their size and the remedy.
    """
    needed = 4 * rows * columns
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.9 * memory:
        raise InputError(
            f"{columns} features of {rows} images take {needed / 2**30:.1f} GiB, but this machine has "
            f"{memory / 2**30:.1f} GiB. Set a smaller feature_count",
            code="out-of-memory",
            field="feature_count",
        )


def standardise(inputs: Tensor, *others: Tensor) -> None:
    """Centre and scale columns in place by the mean and the standard deviation of ``inputs``.

    A column that is constant there, up to rounding, becomes 0 everywhere: it tells nothing apart.

    Args:
        inputs: (n, p) training features.
        others: (k, p) features to be treated alike.
    """
    for start in range(0, inputs.shape[1], COLUMNS):
        columns = slice(start, start + COLUMNS)
        # Columns are converted a few at a time: all of them in float64 would take too much memory.
        std, mean = torch.std_mean(inputs[:, columns].double(), dim=0, correction=0)
        scale = torch.where(std > CONSTANT * mean.abs(), 1 / std, torch.zeros_like(std))
        for values in (inputs, *others):
            values[:, columns] = ((values[:, columns].double() - mean) * scale).to(values.dtype)
