"""The models of benchmarks/models.py and benchmarks/auto.py, each with the shape of a usual federated job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from gpu_parts.networks import resnet18
from jobs import script
from torch import Tensor, nn
from torch.nn import functional

from drfl import ClientData, Key, LocalSGD, Simulation, Task
from drfl.engine.stacked import trial_of
from drfl.task import models

CLASSES, VOCABULARY = 10, 80


class Transformer(nn.Module):
    """Two encoder layers over 32 tokens, and a linear layer on the mean of their outputs."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute scores (B, V) for texts (B, T)."""
        return self.output(self.encoder(self.embedding(tokens)).mean(1))


class VisionTransformer(nn.Module):
    """Four encoder layers over the 64 patches of 4×4 pixels of a colour image of 32×32 (Dosovitskiy et al. 2021)."""

    def __init__(self, width: int = 128, layers: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.positions = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.output = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Compute scores (B, C) for images (B, 3, 32, 32)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        return self.output(self.encoder(patches + self.positions).mean(1))


class Adapted(nn.Linear):
    """A frozen linear layer plus a trained product of low rank (LoRA, Hu et al. 2022)."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4) -> None:
        super().__init__(inputs, outputs)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        """Add the product of low rank to the frozen layer's outputs."""
        return super().forward(x) + x @ self.down.T @ self.up.T


class AdaptedBlock(nn.Module):
    """An encoder layer whose linear layers are adapted. torch's own layer would skip the adapters without gradients."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.joined = Adapted(width, 3 * width), Adapted(width, width)
        self.wide, self.narrow = Adapted(width, 4 * width), Adapted(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute attention and the two-layer network, each with a residual connection."""
        parts = self.mixed(self.first(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        attended = functional.scaled_dot_product_attention(*parts).transpose(-3, -2).flatten(-2)
        x = x + self.joined(attended)
        return x + self.narrow(functional.relu(self.wide(self.second(x))))


class AdaptedTransformer(nn.Module):
    """The transformer with a frozen embedding and frozen layers, of which only adapters of rank 4 are trained."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width).requires_grad_(False)
        self.layers = nn.Sequential(AdaptedBlock(width), AdaptedBlock(width))
        self.output = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute scores (B, V) for texts (B, T)."""
        return self.output(self.layers(self.embedding(tokens)).mean(1))


def cifar_cnn() -> nn.Module:
    """Create the CNN of many papers on CIFAR: two 5×5 convolutions of 64 channels, hidden layers of 384 and 192."""
    body = [nn.Conv2d(3, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5, padding=2), nn.ReLU()]
    body += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64 * 8 * 8, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(192, CLASSES))


@dataclass(frozen=True)
class Job:
    """A model with its cohort.

    Args:
        make: Creates the model.
        shape: Shape of an input; a shape of one number is a text of tokens.
        m: Clients in a round.
        steps: Local steps τ.
        batch: Samples per step B.
        cohorts: Cohort sizes of benchmarks/auto.py.
    """

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    m: int
    steps: int
    batch: int
    cohorts: Sequence[int] = (5, 10, 20)

    @property
    def local(self) -> LocalSGD:
        """The local solver."""
        return LocalSGD(steps=self.steps, lr=0.01, batch=self.batch)

    def simulation(self, clients: int) -> Simulation:
        """Return clients with random samples: four minibatches for training and one sample for tests."""
        rng, n = Key(0).fold("data").generator(), 4 * self.batch + 1
        tokens, classes = len(self.shape) == 1, VOCABULARY if len(self.shape) == 1 else CLASSES
        pairs = []
        for _ in range(clients):
            x = rng.integers(0, VOCABULARY, (n, *self.shape)) if tokens else rng.standard_normal((n, *self.shape))
            pairs.append((torch.from_numpy(x if tokens else x.astype("float32")), rng.integers(0, classes, n)))
        arrays = [(x, torch.from_numpy(y)) for x, y in pairs]
        with Key(0).fold("model").torch_scope():
            model = self.make()
        return Simulation(ClientData.from_arrays(arrays, test_fraction=1 / n), Task(model))


def is_short(fed: Simulation) -> bool:
    """Return whether a stacked step has so few operations that its trace takes seconds, not minutes."""
    trial = trial_of(fed._train)
    return trial.fault is None and trial.operations < 6000


IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (32,)
JOBS = {
    "MLP 784-512-512": Job(lambda: models.mlp(IMAGE, CLASSES, (512, 512)), IMAGE, 20, 10, 32),
    "transformer": Job(Transformer, TEXT, 10, 5, 16),
    "LSTM 2x256": Job(lambda: models.LSTM(VOCABULARY, 8, 256, 2), TEXT, 6, 5, 16, (3, 6, 12)),
    "CIFAR CNN": Job(cifar_cnn, COLOUR, 10, 5, 32),
    "ResNet-18": Job(resnet18, COLOUR, 4, 3, 16, (2, 4, 6)),
    "DRDM CNN": Job(lambda: models.cnn(IMAGE, CLASSES), IMAGE, 20, 10, 32),
    "vision transformer": Job(VisionTransformer, COLOUR, 4, 3, 16, (2, 4, 6)),
    "LoRA transformer": Job(AdaptedTransformer, TEXT, 10, 5, 16),
}
if script.SMOKE:
    JOBS = {"LSTM": Job(lambda: models.LSTM(VOCABULARY, 4, 8, 1), (4,), 2, 1, 2, (2,))}
