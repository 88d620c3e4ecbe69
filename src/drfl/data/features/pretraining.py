"""Backbones by name, and small ones that drfl trains on public data (stand-ins)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from safetensors.torch import save
from torch import Tensor

from drfl.core.atomic_files import atomic_write
from drfl.core.errors import InputError
from drfl.core.files import sha256_of
from drfl.core.intraop import threads_for
from drfl.core.json_toml import read_json
from drfl.core.key import Key
from drfl.data.features.backbone import Backbone, resnet18
from drfl.data.features.images import Images, check_images, load_images
from drfl.data.features.recipe import IMAGENET, LITE_IMAGENET, Architecture, StandInBackbone, parse_backbone
from drfl.data.features.weights import EFFICIENTNET_LITE0, RESNET18, find_or_download, folder, read_weights
from drfl.task.models import cnn

Log = Callable[[str], None]
"""Receives a line on progress."""

IMAGES = 500
"""Number of samples in a pass when testing."""


@dataclass(frozen=True)
class Training:
    """Training of a stand-in: AdamW on the cross-entropy, with a step size that decreases linearly to zero.

    The seed is the root of the initialisation and the shuffling.
    """

    epochs: int
    batch: int
    lr: float
    weight_decay: float
    seed: int = 0


TRAININGS: dict[Architecture, Training] = {
    "resnet18": Training(epochs=1, batch=128, lr=1e-3, weight_decay=0.01),
    "cnn": Training(epochs=3, batch=128, lr=1e-3, weight_decay=0.01),
}


def load_stand_in(which: StandInBackbone, log: Log) -> Backbone:
    """Return the stand-in from drfl's cache, or train it and store it there.

    The cache contains ``NAME.safetensors`` and ``NAME.json``, which records the training, the accuracy on the data
    set's test part and the checksum of the weights. If the two files do not match, or the training was different, the
    stand-in is trained again. If the cache cannot be written, the stand-in is used nevertheless.
    """
    name = f"{which.architecture}-{which.dataset}"
    weights, told = folder() / f"{name}.safetensors", folder() / f"{name}.json"
    training = TRAININGS[which.architecture]
    try:
        before = read_json(told)
        digest = sha256_of(weights)
    except InputError:
        before, digest = None, ""
    # The cached weights are intact and come from the same training.
    if isinstance(before, dict) and (before.get("sha256"), before.get("training")) == (digest, asdict(training)):
        return Backbone.of(name, read_weights(weights))
    backbone, accuracy = train(which.architecture, load_images(which.dataset), training, log)
    content = save({key: value.contiguous() for key, value in backbone.model.state_dict().items()})
    record = {
        "backbone": name,
        "accuracy": accuracy,
        "sha256": hashlib.sha256(content).hexdigest(),
        "training": asdict(training),
        "versions": {"python": platform.python_version(), "torch": importlib.metadata.version("torch")},
    }
    try:
        # Write the record last: weights without a record are ignored.
        for path, text in ((weights, content), (told, (json.dumps(record, indent=2) + "\n").encode())):
            with atomic_write(path) as file:
                file.write(text)
    except OSError as error:
        log(f"cannot store {name} in '{weights.parent}' ({error.strerror}); it will be trained again next time")
    return backbone


def train(architecture: Architecture, dataset: Images, training: Training, log: Log) -> tuple[Backbone, float]:
    """Train a network on a data set's training part, and return it frozen with its accuracy on the test part.

    Equal arguments give equal weights on the same kind of CPU, for any number of threads.
    """
    check_images(dataset)
    key = Key(training.seed).fold("drfl.data.features", architecture, dataset.name)
    # Layers are initialised from torch's global generator.
    with key.fold("init").torch_scope():
        fresh = (
            resnet18(dataset.classes) if architecture == "resnet18" else cnn(dataset.inputs.shape[1:], dataset.classes)
        )
    backbone = Backbone.of(f"{architecture}-{dataset.name}", fresh.state_dict())
    parts = -(-len(dataset.targets) // training.batch)
    optimiser = torch.optim.AdamW(backbone.model.parameters(), training.lr, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 1e-3, parts * training.epochs)
    # Backbones are frozen when they are built.
    backbone.model.requires_grad_(True)
    accuracy = 0.0
    for epoch in range(1, training.epochs + 1):
        order = key.fold("epoch", epoch).generator().permutation(len(dataset.targets))
        # Rounding of sums depends on the number of threads, and training amplifies the differences.
        with threads_for(0):
            total = 0.0
            backbone.model.train()
            for rows in map(torch.from_numpy, np.array_split(order, parts)):
                x, y = backbone.prepare(dataset.inputs[rows], None), dataset.targets[rows]
                loss = F.cross_entropy(backbone.model(x), y)
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
                total += loss.item() * len(rows)
            backbone.model.eval()
        accuracy = compute_accuracy(backbone, dataset.test_inputs, dataset.test_targets)
        where = f"{backbone.name}: epoch {epoch} of {training.epochs}"
        log(f"{where}, training loss {total / len(order):.3f}, test accuracy {accuracy:.1%}")
    backbone.model.requires_grad_(False)
    return backbone, accuracy


def compute_accuracy(backbone: Backbone, images: Tensor, targets: Tensor) -> float:
    """Return the share of images (n, c, height, width) whose largest output is their label (n,)."""
    with torch.no_grad():
        right = [
            (backbone.model(backbone.prepare(x, None)).argmax(1) == y).sum()
            for x, y in zip(images.split(IMAGES), targets.split(IMAGES), strict=True)
        ]
    return float(torch.stack(right).sum()) / len(targets)


def no_log(line: str) -> None:
    """Ignore the line."""


WEIGHTS = {IMAGENET: RESNET18, LITE_IMAGENET: EFFICIENTNET_LITE0}
"""Published weights by the name of the backbone."""


def load_backbone(name: str, log: Log | None = None) -> Backbone:
    """Load a trained network by name.

    Args:
        name: ``resnet18-imagenet`` or ``efficientnet-lite0-imagenet`` (published weights, see
            :func:`drfl.data.features.weights.find_or_download`); ``resnet18-DATASET`` or ``cnn-DATASET`` for a stand-in
            that is trained once on a data set of `drfl.data.DATASETS`; or a file: ``.safetensors``, such as a run of
            the model "cnn" writes, or ``.pth``.
        log: Receives a line per epoch if a stand-in is trained.

    Raises:
        InputError: If the backbone does not exist or is not available.
    """
    what = parse_backbone(name)
    if isinstance(what, StandInBackbone):
        return load_stand_in(what, log or no_log)
    if isinstance(what, Path):
        return Backbone.of(name, read_weights(what.expanduser()))
    return Backbone.of(what, read_weights(find_or_download(WEIGHTS[what])))
