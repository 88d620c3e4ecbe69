"""Networks and random data of the GPU suite. The rivals' processes load the networks from files, by these names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drfl import ClientData, Key, Task
from drfl.task import models

CLASSES = 10


class GroupNormNet(nn.Module):
    """Two convolutions with group normalisation, and a linear layer on the means of the channels."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1),
            nn.GroupNorm(4, 8),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16),
            nn.ReLU(),
        )
        self.output = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores (B, classes) for images."""
        return self.output(self.body(x).mean((-2, -1)))


class Transformer(nn.Module):
    """One encoder layer over the embeddings of tokens, and a linear layer on their mean.

    It has no biases, because the gradient of attention's key bias is 0: its rounding error alone would steer Adam.
    """

    def __init__(self, vocabulary: int, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.encoder = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, bias=False)
        self.output = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute scores (B, V) for texts (B, T)."""
        return self.output(self.encoder(self.embedding(tokens)).mean(1))


class Block(nn.Module):
    """A residual block of ResNet-18 with group normalisation."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _convolution(before, after, stride), _convolution(after, after)
        plain = before == after and stride == 1
        self.shortcut = nn.Identity() if plain else _convolution(before, after, stride, size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Add the two convolutions to the shortcut."""
        return (self.second(self.first(x).relu()) + self.shortcut(x)).relu()


def _convolution(before: int, after: int, stride: int = 1, size: int = 3) -> nn.Module:
    convolution = nn.Conv2d(before, after, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.GroupNorm(min(32, after // 2), after))


def resnet18(channels: int = 3, width: int = 64) -> nn.Module:
    """Create the ResNet-18 for 32×32 images, with a 3×3 convolution first and GroupNorm instead of BatchNorm."""
    layers, before = [_convolution(channels, width), nn.ReLU()], width
    for after in (width, 2 * width, 4 * width, 8 * width):
        layers += [Block(before, after, 1 if after == width else 2), Block(after, after, 1)]
        before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))


VOCABULARY, LENGTH, SIDE = 11, 6, 8

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: models.linear((1, SIDE, SIDE), CLASSES),
    "cnn": lambda: models.cnn((1, SIDE, SIDE), CLASSES),
    "groupnorm": GroupNormNet,
    "lstm": lambda: models.LSTM(VOCABULARY, embedding=3, hidden=5),
    "transformer": lambda: Transformer(VOCABULARY),
}
"""The networks of the correctness part, by name."""


def small_task(name: str, dtype: torch.dtype) -> Task:
    """Return the task of a small network, with the same parameters in every process."""
    with Key(0).fold("model").torch_scope():
        return Task(NETWORKS[name]().to(dtype))


def small_clients(name: str, dtype: torch.dtype) -> ClientData:
    """Return clients of different sizes with learnable targets, for one of :data:`NETWORKS`."""
    rng, pairs = torch.Generator().manual_seed(1), []
    for i, n in enumerate((9, 20, 33, 48, 12, 25)):
        if name in ("lstm", "transformer"):
            text = torch.randint(VOCABULARY, (n, LENGTH + 1), generator=rng)
            pairs.append((text[:, :-1], (text[:, 0] + i) % VOCABULARY))
        else:
            x = torch.randn(n, 1, SIDE, SIDE, generator=rng, dtype=torch.float64)
            pairs.append((x.to(dtype), (x[:, 0, :2].flatten(1)[:, :CLASSES].argmax(1) + i) % CLASSES))
    return ClientData.from_arrays(pairs, dtype=None)


def random_clients(n: int, per_client: int, shape: tuple[int, int, int]) -> ClientData:
    """Return clients with random images and labels, so that no data set is needed."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(n, per_client, *shape, generator=rng)
    y = torch.randint(CLASSES, (n, per_client), generator=rng)
    return ClientData.from_arrays(list(zip(x, y, strict=True)), test_fraction=1 / per_client)
