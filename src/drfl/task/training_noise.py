"""Random numbers in local steps, for dropout and augmentation, from one seed per sample and step.

A dropout mask is a function of the seed and the position in a tensor, computed with integer arithmetic only. Therefore,
it does not depend on the engine, the other samples of the batch, the device or earlier computations. It can be
vectorised with vmap, traced and replayed like the rest of the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError

if TYPE_CHECKING:
    from drfl.core.key import Key

WORD = 0xFFFFFFFF
AUGMENTATION = 0
"""Number of the stream for augmentation. Dropout layers have the streams 1, 2, …."""


def scramble(x: Tensor) -> Tensor:
    """Scramble 32-bit words in int64 with the finaliser of MurmurHash3 (Appleby 2011), which is a bijection."""
    # Products of two words overflow int64 and wrap around, but their lower words are correct.
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
    return x ^ (x >> 16)


class Uniform:
    """A source of uniform numbers in [0, 1), independent over samples, steps, calls and entries.

    Args:
        seeds: One 32-bit word per sample of the minibatch, int64 (B,).
        stream: Number of the stream. Different streams give independent numbers from the same seeds.
    """

    def __init__(self, seeds: Tensor, stream: int = AUGMENTATION) -> None:
        self._seeds, self._stream, self._calls = seeds, stream, 0

    def __call__(self, *shape: int) -> Tensor:
        """Draw new float32 numbers of shape (B, *shape).

        Args:
            shape: Shape of the numbers of one sample; empty = one number.
        """
        # The sum is unique for each stream and call, because a stream has fewer than 2^16 calls.
        call_seeds = scramble(
            (self._seeds ^ scramble(torch.full_like(self._seeds, (self._stream << 16) + self._calls))) & WORD
        )
        self._calls += 1
        # The generator is counter-based: each number depends only on its seed and position, not on other samples.
        positions = scramble(torch.arange(prod(shape), device=call_seeds.device) + 1)
        words = scramble(call_seeds.unsqueeze(-1) ^ positions)
        # A float32 holds 24 bits; with more bits, a number could be rounded up to 1.
        return ((words >> 8).float() * 2.0**-24).reshape(*call_seeds.shape, *shape)


Augmentation = Callable[[Tensor, Uniform], Tensor]
"""Function of the inputs (B, …) and random numbers that returns inputs of the same shape, with torch functions only."""


class KeyedDropout(nn.Module):
    """Dropout with masks from seeds. Without seeds, as in evaluation and loss reports, it is the identity.

    Args:
        p: Probability of a zero.
        stream: Number of the layer in the model, from 1.
        channels: Whether whole channels of inputs (B, C, …) are set to zero.
    """

    seeds: Tensor

    def __init__(self, p: float, stream: int, *, channels: bool) -> None:
        super().__init__()
        self.p, self.channels, self.stream, self.calls = p, channels, stream, 0
        # The seeds are a buffer, so that functional_call can replace them. The shape () means that there are no seeds.
        self.register_buffer("seeds", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Set random entries or channels of x to zero and scale the others by 1/(1 − p)."""
        if not self.seeds.dim():
            return x
        if len(x) != len(self.seeds):
            raise InputError(
                f"the first dimension of a dropout layer's input must be the batch of {len(self.seeds)} samples, got "
                f"shape {tuple(x.shape)}",
                code="wrong-shape",
            )
        # A layer that is applied twice draws different numbers each time.
        uniform = Uniform(self.seeds, (self.stream << 8) + self.calls)
        self.calls += 1
        mask = uniform(*x.shape[1:2] if self.channels else x.shape[1:]) >= self.p
        if self.channels:
            mask = mask.reshape(*mask.shape, *[1] * (x.dim() - 2))
        # With p = 1, a division by 0 would make the gradients NaN, although all entries are zero.
        return torch.where(mask, x / max(1 - self.p, 1e-38), 0)

    def extra_repr(self) -> str:
        """Return the probability, for printing."""
        return f"p={self.p}"


def with_keyed_dropout(model: nn.Module) -> nn.Module:
    """Copy the model with keyed dropout instead of torch's; return the model if it has no dropout in training mode.

    Names of parameters do not change.
    """
    if not any(_drops(layer) for layer in model.modules()):
        return model
    model = copy.deepcopy(model)
    if _drops(model):
        return _keyed(model, 1)
    stream = 0
    for layer in list(model.modules()):
        # named_children() omits the second place of a layer. There it draws other numbers.
        for name, child in layer._modules.items():
            if child is not None and _drops(child):
                # Streams number the layers in the order of the modules, which is the same in every process.
                stream += 1
                setattr(layer, name, _keyed(child, stream))
    return model


DROPOUT_LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Dropout layers that have a keyed version."""


def _drops(layer: nn.Module) -> bool:
    return isinstance(layer, DROPOUT_LAYERS) and layer.training and layer.p > 0


def _keyed(layer: nn.Module, stream: int) -> KeyedDropout:
    assert isinstance(layer, DROPOUT_LAYERS)
    return KeyedDropout(layer.p, stream, channels=not isinstance(layer, nn.Dropout))


def dropout_layers(model: nn.Module) -> dict[str, KeyedDropout]:
    """Return the keyed dropout layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, KeyedDropout)}


def draw_seeds(clients: list[int], steps: int, counts: Tensor, key: Key) -> Tensor:
    """Draw one 32-bit seed per client, step and sample, int64 (k, T, B).

    Client i draws from ``key.fold("client", i)``, so its seeds do not depend on the rest of the cohort.

    Args:
        clients: Numbers of the clients in the cohort.
        steps: Number of local steps T.
        counts: Samples per step of each client (k,), at most B. Unused seeds are 0.
        key: Key for this purpose.
    """
    seeds = torch.zeros(len(clients), steps, int(counts.max()), dtype=torch.int64)
    for rows, count, generator in zip(seeds, counts.tolist(), key.generators("client", clients), strict=True):
        # Convert uniform numbers, because NumPy guarantees a stable stream across versions for these, not for integers.
        rows[:, :count] = torch.from_numpy((generator.random((steps, count)) * 2.0**32).astype("int64"))
    return seeds
