"""Features from a backbone: those before its last layer, and empirical neural tangent features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data.features.backbone import Backbone
from drfl.data.features.pretraining import Log
from drfl.data.features.sample_gradients import sample_gradients

PIXELS = 2**19
"""Numbers of the prepared images of a pass, 3 images of 224 × 224 × 3: with more, layers' outputs leave the CPU's
caches, and EfficientNet-Lite0 takes twice as long."""

IMAGES = 256
"""Images of a pass at most."""


def penultimate(backbone: Backbone, images: Tensor, resize: int | None = None, log: Log | None = None) -> Tensor:
    """What comes out of the backbone's last layer but one; for ResNet-18 512 numbers, for the model "cnn" 500.

    Args:
        backbone: the network; it works on the device that it is on.
        images: (n, c, height, width), floating in [0, 1] or bytes.
        resize: see :meth:`drfl.data.features.Backbone.prepared`.
        log: gets a line now and then on how far it is.

    Returns:
        (n, p) float32, on the CPU.

    Raises:
        InputError: the images do not fit the backbone.
    """
    trunk = backbone.trunk
    with torch.no_grad():
        parts = (trunk(x).float() for x in batches(backbone, images, resize))
        return _together(parts, len(images), f"features by {backbone.name}", log)


def _together(parts: Iterator[Tensor], images: int, what: str, log: Log | None) -> Tensor:
    """Features (n, p) on the CPU from those of a few images at a time, and lines on how far it is."""
    features, done, told = torch.empty(0), 0, time.monotonic()
    for part in parts:
        if done == 0:  # the only place that knows p and the type
            features = torch.empty(images, part.shape[1], dtype=part.dtype)
        features[done : done + len(part)] = part
        done += len(part)
        if log is not None and time.monotonic() - told >= EVERY:
            told = time.monotonic()
            log(f"{what}: {done} of {images} images")
    return features


def batches(backbone: Backbone, images: Tensor, resize: int | None, most: int = IMAGES) -> Iterator[Tensor]:
    """Prepared images (B, channels, h, w), on the backbone's device.

    Args:
        backbone: whose.
        images: (n, c, height, width).
        resize: see :meth:`drfl.data.features.Backbone.prepared`.
        most: images of a batch at most.
    """
    backbone.check_images(images.shape)
    device = next(backbone.model.parameters()).device
    area = images.shape[2] * images.shape[3] if resize is None else resize * resize
    # A batch has at least one image, however large.
    size = max(1, min(most, PIXELS // (backbone.channels * area)))
    for x in images.split(size):
        yield backbone.prepared(x.to(device), resize)


BYTES = 2**26
"""Gradients held at a time, with respect to all parameters; on CPUs more are no faster."""

LARGE = 2**24
"""Bytes of parameters from which whole gradients, which tell the coordinates that are alive, are taken one by one on a
CPU: ``vmap`` turns convolutions into grouped ones, which for ResNet-18 take four times as long; for small networks it
saves the calls and takes a third of the time.
"""

PROBES = 512
"""Training images by which coordinates are told to be alive."""

ALIVE = 8
"""Probes, or one in 64 where there are fewer, on which a coordinate must be other than 0 to be chosen from."""

EVERY = 10.0
"""Seconds from one line on how far it is to the next."""


@dataclass(frozen=True)
class Coordinates:
    """Which numbers of the gradient are kept.

    Args:
        direction: (C,) unit vector; the scalar output is the logits' product with it.
        kept: by parameter, the sorted int64 places that are kept in it, laid out flat; only parameters with any.
    """

    direction: Tensor
    kept: dict[str, Tensor]

    @property
    def count(self) -> int:
        """How many."""
        return sum(len(places) for places in self.kept.values())


def choose(backbone: Backbone, images: Tensor, count: int, key: Key, resize: int | None = None) -> Coordinates:
    """Draw the scalar output and the coordinates of its gradient.

    The output is the logits projected on one random direction, drawn from the sphere: one network output for all
    classes, as TCT has it with a fresh last layer of one unit. A coordinate is chosen from those that are alive, not 0
    on at least `ALIVE` of some random training images: ReLUs leave many at 0 for nearly all images, and scaled to unit
    variance such a coordinate would be one huge number.

    Args:
        backbone: the network.
        images: (n, c, height, width) of the training part.
        count: coordinates wanted; all that are alive where there are fewer.
        key: names the draws.
        resize: see :meth:`drfl.data.features.Backbone.prepared`.

    Raises:
        InputError: the images do not fit, or no coordinate is alive.
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
    # Coordinates are drawn among all parameters together, and then split by parameter.
    drawn = np.zeros(sum(sizes), dtype=bool)
    drawn[key.fold("coordinates").generator().choice(len(drawn), min(count, len(drawn)), replace=False)] = True
    masks = torch.from_numpy(drawn).to(weight.device).split(sizes)
    kept = {name: places[mask] for (name, places), mask in zip(alive.items(), masks, strict=True)}
    return Coordinates(direction, {name: places for name, places in kept.items() if len(places)})


def entk(
    backbone: Backbone, images: Tensor, coordinates: Coordinates, resize: int | None = None, log: Log | None = None
) -> Tensor:
    """The chosen coordinates of each image's gradient.

    Args:
        backbone: the network; it works on the device that it is on.
        images: (n, c, height, width), floating in [0, 1] or bytes.
        coordinates: see :func:`choose`.
        resize: see :meth:`drfl.data.features.Backbone.prepared`.
        log: gets a line now and then on how far it is.

    Returns:
        (n, p) of the weights' type, on the CPU.

    Raises:
        InputError: the images do not fit the backbone.
    """
    direction, kept = coordinates.direction, coordinates.kept
    parts = (sample_gradients(backbone.model, x, direction, kept) for x in batches(backbone, images, resize))
    return _together(parts, len(images), f"eNTK of {backbone.name}", log)


def _alive(backbone: Backbone, images: Tensor, direction: Tensor, resize: int | None, needed: int) -> dict[str, Tensor]:
    """By parameter, the places whose gradient is not 0 on enough of the images."""
    model = backbone.model
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = dict(model.named_buffers())

    def output(parameters: Mapping[str, Tensor], image: Tensor) -> Tensor:
        return functional_call(model, {**parameters, **buffers}, (image.unsqueeze(0),))[0] @ direction

    nbytes = sum(p.numel() * p.element_size() for p in model.parameters())
    counts: dict[str, Tensor] = {}
    # See `LARGE`: which of the two is faster depends on the network.
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
