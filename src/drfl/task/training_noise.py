"""Randomness inside a local step: dropout and augmentation, from a seed of each sample in each step.

A mask is a function of the seed and of places in a tensor, in whole-number arithmetic alone. So it does not depend on
the engine, on who else is in the batch, on the device or on what was computed before, and it may be mapped, traced and
replayed like the rest of the model.
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
"""The stream of the augmentation; those of dropout layers are 1, 2, …."""


def mixed(x: Tensor) -> Tensor:
    """A bijection of 32-bit words in int64 that scatters them: MurmurHash3's finaliser (Appleby 2011)."""
    # Products of two words overflow int64, which wraps around: their lower words are right all the same.
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & WORD
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & WORD
    return x ^ (x >> 16)


class Uniform:
    """Numbers in [0, 1) that are uniform and independent over samples, steps, calls and entries.

    Args:
        seeds: (B,) int64, a word for each sample of the minibatch.
        stream: Of numbers from these seeds.
    """

    def __init__(self, seeds: Tensor, stream: int = AUGMENTATION) -> None:
        self._seeds, self._stream, self._calls = seeds, stream, 0

    def __call__(self, *shape: int) -> Tensor:
        """(B, *shape) float32 numbers, others at every call.

        Args:
            shape: Of the numbers of one sample; nothing = one number.
        """
        # Calls of different streams do not meet: there are fewer than 2^16 of each.
        own = mixed((self._seeds ^ mixed(torch.full_like(self._seeds, (self._stream << 16) + self._calls))) & WORD)
        self._calls += 1
        # The generator is counter-based: each number depends on its seed and place alone, not on the rest of the batch.
        places = mixed(torch.arange(prod(shape), device=own.device) + 1)
        words = mixed(own.unsqueeze(-1) ^ places)
        # A float32 holds 24 bits: more of them could be rounded up to 1.
        return ((words >> 8).float() * 2.0**-24).reshape(*own.shape, *shape)


Augmentation = Callable[[Tensor, Uniform], Tensor]
"""(inputs (B, …), the samples' random numbers) → inputs of the same shape, by torch functions of both alone."""


class KeyedDropout(nn.Module):
    """Dropout whose masks come from seeds; without seeds it is the identity, as in tests and reports.

    Args:
        p: Probability of a zero.
        stream: Which layer of the model it is, from 1.
        channels: Whether whole channels are zeroed, inputs (B, C, …).
    """

    seeds: Tensor

    def __init__(self, p: float, stream: int, *, channels: bool) -> None:
        super().__init__()
        self.p, self.channels, self.stream, self.calls = p, channels, stream, 0
        # A buffer, which a call of the model can take another tensor for; () says that there are no seeds.
        self.register_buffer("seeds", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x, with entries or channels zeroed and the others scaled by 1/(1 − p)."""
        if not self.seeds.dim():
            return x
        if len(x) != len(self.seeds):
            raise InputError(
                f"a dropout layer gets {tuple(x.shape)} for {len(self.seeds)} samples: the batch must come first",
                code="wrong-shape",
            )
        # A layer that is applied twice draws different numbers each time.
        uniform = Uniform(self.seeds, (self.stream << 8) + self.calls)
        self.calls += 1
        kept = uniform(*x.shape[1:2] if self.channels else x.shape[1:]) >= self.p
        if self.channels:
            kept = kept.reshape(*kept.shape, *[1] * (x.dim() - 2))
        # With p = 1 a division by 0 would make the gradients NaN, although nothing is kept.
        return torch.where(kept, x / max(1 - self.p, 1e-38), 0)

    def extra_repr(self) -> str:
        """Its probability."""
        return f"p={self.p}"


def keyed(model: nn.Module) -> nn.Module:
    """A copy of the model with keyed dropout in place of torch's; itself where it has none in training mode.

    Names of parameters stay as they are.
    """
    if not any(_drops(layer) for layer in model.modules()):
        return model
    model = copy.deepcopy(model)
    if _drops(model):
        return _keyed(model, 1)
    stream = 0
    for layer in list(model.modules()):
        for name, child in layer.named_children():
            if _drops(child):
                # Streams number the layers in the order of the modules, which is the same in every process.
                stream += 1
                setattr(layer, name, _keyed(child, stream))
    return model


PLAIN = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
"""Layers that have a keyed version."""


def _drops(layer: nn.Module) -> bool:
    return isinstance(layer, PLAIN) and layer.training and layer.p > 0


def _keyed(layer: nn.Module, stream: int) -> KeyedDropout:
    assert isinstance(layer, PLAIN)
    return KeyedDropout(layer.p, stream, channels=not isinstance(layer, nn.Dropout))


def dropout_layers(model: nn.Module) -> dict[str, KeyedDropout]:
    """The keyed layers by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, KeyedDropout)}


def draw_seeds(clients: list[int], steps: int, counts: Tensor, key: Key) -> Tensor:
    """(k, T, B) int64 words: client number i draws its own from ``key.fold("client", i)``, whoever else is there.

    Args:
        clients: The cohort's numbers.
        steps: T.
        counts: (k,) samples of each in a step, B at most; the others' words are 0.
        key: The purpose's key.
    """
    seeds = torch.zeros(len(clients), steps, int(counts.max()), dtype=torch.int64)
    for own, count, generator in zip(seeds, counts.tolist(), key.generators("client", clients), strict=True):
        # Of uniforms, whose stream NumPy keeps from version to version, which it does not promise of integers.
        own[:, :count] = torch.from_numpy((generator.random((steps, count)) * 2.0**32).astype("int64"))
    return seeds
