"""Features from a backbone: the inputs of its last layer, and empirical neural tangent kernel (eNTK) features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.core.vmap import vmap
from drfl.data.features.backbone import Backbone
from drfl.data.features.pretraining import Log
from drfl.data.features.sample_gradients import sample_gradients
from drfl.task.functional import functional_call

PIXELS = 2**19
"""Numbers in the prepared images of a pass, three images of 224 × 224 × 3. With more, the outputs of layers do not fit
into the CPU's caches, and EfficientNet-Lite0 takes twice as long."""

IMAGES = 256
"""Largest number of images in a pass."""


def penultimate(backbone: Backbone, images: Tensor, resize: int | None = None, log: Log | None = None) -> Tensor:
    """Compute the inputs (n, p) float32 of the backbone's last layer, on the CPU."""
    trunk = backbone.model[:-1]
    with torch.no_grad():
        parts = (trunk(x).float() for x in batches(backbone, images, resize))
        return _together(parts, len(images), f"features by {backbone.name}", log)


def _together(parts: Iterator[Tensor], images: int, what: str, log: Log | None) -> Tensor:
    """Collect the features of batches into one tensor (n, p) on the CPU, and log the progress."""
    features, done, told = torch.empty(0), 0, time.monotonic()
    for part in parts:
        if done == 0:  # the first batch determines p and the type
            features = torch.empty(images, part.shape[1], dtype=part.dtype)
        features[done : done + len(part)] = part
        done += len(part)
        if log is not None and time.monotonic() - told >= EVERY:
            told = time.monotonic()
            log(f"{what}: {done} of {images} images")
    return features


def batches(backbone: Backbone, images: Tensor, resize: int | None, most: int = IMAGES) -> Iterator[Tensor]:
    """Yield prepared images (B, channels, h, w) on the backbone's device."""
    backbone.check_images(images.shape)
    device = next(backbone.model.parameters()).device
    area = images.shape[2] * images.shape[3] if resize is None else resize * resize
    # A batch has at least one image, however large it is.
    size = max(1, min(most, PIXELS // (backbone.channels * area)))
    for x in images.split(size):
        yield backbone.prepare(x.to(device), resize)


BYTES = 2**26
"""Bytes of gradients with respect to all parameters that are stored at a time; more are not faster on CPUs."""

LARGE = 2**24
"""With at least this many bytes of parameters, whole gradients (which show the active coordinates) are computed one by
one on a CPU.

``vmap`` turns convolutions into grouped ones, which take four times as long for ResNet-18. For small networks it saves
function calls and takes a third of the time.
"""

PROBES = 512
"""Number of training images that show which coordinates are active."""

ALIVE = 8
"""A coordinate is drawn only if it is nonzero on this number of probes, or one in 64 if there are fewer."""

EVERY = 10.0
"""Seconds between two lines on progress."""


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of the gradient that serve as features.

    The scalar output is the product of the unit vector ``direction`` (C,) and the logits. ``kept`` has the sorted
    positions in each flattened parameter with any.
    """

    direction: Tensor
    kept: dict[str, Tensor]

    @property
    def count(self) -> int:
        """Number of coordinates."""
        return sum(len(places) for places in self.kept.values())


def choose(backbone: Backbone, images: Tensor, count: int, key: Key, resize: int | None = None) -> Coordinates:
    """Draw the scalar output and the coordinates of its gradient.

    The output is the product of the logits and a random direction on the unit sphere. It is one network output for all
    classes, like the fresh last layer with one unit in TCT. Coordinates are drawn from the active ones, which are
    nonzero on at least `ALIVE` of some random training images. ReLUs make many coordinates 0 for nearly all images;
    after standardisation, such a coordinate would be a single huge number.
    """
    weight = next(backbone.model.parameters())
    rng = key.fold("direction").generator()
    # A normal vector scaled to length 1 is uniform on the sphere.
    direction = torch.from_numpy(rng.normal(size=backbone.classes)).to(weight)
    direction = direction / direction.norm()
    probes = key.fold("probes").generator().permutation(len(images))[:PROBES]
    needed = max(1, min(ALIVE, len(probes) // 64))
    alive = _alive(backbone, images[torch.from_numpy(probes)], direction, resize, needed)
    sizes = [len(found) for found in alive.values()]
    if not sum(sizes):
        raise InputError(
            f"backbone '{backbone.name}' cannot give eNTK features: all its gradients are 0",
            code="unsupported-data",
            field="backbone",
        )
    # Draw coordinates from all parameters together, then split them by parameter.
    drawn = np.zeros(sum(sizes), dtype=bool)
    drawn[key.fold("coordinates").generator().choice(len(drawn), min(count, len(drawn)), replace=False)] = True
    masks = torch.from_numpy(drawn).to(weight.device).split(sizes)
    kept = {name: places[mask] for (name, places), mask in zip(alive.items(), masks, strict=True)}
    return Coordinates(direction, {name: places for name, places in kept.items() if len(places)})


def entk(
    backbone: Backbone, images: Tensor, coordinates: Coordinates, resize: int | None = None, log: Log | None = None
) -> Tensor:
    """Compute the chosen coordinates (n, p) of each image's gradient in the type of the weights, on the CPU."""
    direction, kept = coordinates.direction, coordinates.kept
    parts = (sample_gradients(backbone.model, x, direction, kept) for x in batches(backbone, images, resize))
    return _together(parts, len(images), f"eNTK of {backbone.name}", log)


def _alive(backbone: Backbone, images: Tensor, direction: Tensor, resize: int | None, needed: int) -> dict[str, Tensor]:
    """Return, for each parameter, the positions whose gradient is nonzero on enough of the images."""
    model = backbone.model
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def output(parameters: Mapping[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(model, {**parameters, **buffers}, (image.unsqueeze(0),))[0] @ direction

    nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
    counts: dict[str, Tensor] = {}
    # See `LARGE`: the faster of the two depends on the network.
    one_by_one = nbytes >= LARGE and not direction.is_cuda
    for x in batches(backbone, images, resize, max(1, BYTES // nbytes)):
        if one_by_one:
            singles = [grad(output)(parameters, image) for image in x]
            gradients = {name: torch.stack([gradient[name] for gradient in singles]) for name in parameters}
        else:
            gradients = vmap(grad(output), in_dims=(None, 0))(parameters, x)
        for name, value in gradients.items():
            found = (value != 0).flatten(1).sum(0)
            counts[name] = counts[name] + found if name in counts else found
    return {name: torch.nonzero(count >= needed).flatten() for name, count in counts.items()}
