"""Seeded, foldable randomness: every random draw of a run is named by a key, and no generator is shared.

A key is a seed and a path of labels such as ``("round", 3, "client", 17)``. The same path always gives the same
numbers, whatever was drawn before, on whatever device, in whatever order: that is what makes results independent of
backend, number of threads and order of clients. The numbers come from NumPy's ``SeedSequence`` over Philox.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np
import torch

from drfl.core.errors import InputError

_WORD = 0xFFFFFFFF
_POOL = 4
"""Words that a ``SeedSequence`` fills with zeros before a spawn key."""


def _words(label: str | int) -> tuple[int, int, int]:
    """Three 32-bit words that name a label; a string and an integer never share them."""
    if isinstance(label, str):
        return _text_words(label)
    number = _index(label)
    if not 0 <= number < 2**64:
        raise InputError(
            f"a key is folded with strings and with integers in [0, 2^64), not {label!r}",
            code="wrong-type",
            field="label",
        )
    return 0, number & _WORD, number >> 32


@functools.lru_cache(maxsize=256)
def _text_words(label: str) -> tuple[int, int, int]:
    # Python's hash() would differ from process to process.
    digest = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")
    return 1, digest & _WORD, digest >> 32


def _index(value: object) -> int:
    """The integer that a Python or NumPy integer is; −1 for what is none."""
    if type(value) is int:
        return value  # a protocol's isinstance takes longer than all the rest
    return operator.index(value) if isinstance(value, SupportsIndex) else -1


@dataclass(frozen=True)
class Key:
    """A point in the tree of random streams.

    Args:
        seed: the root, an integer in [0, 2^64).
        path: 32-bit words, filled by :meth:`fold`; leave it alone.

    Example:
        >>> key = Key(0).fold("round", 3)
        >>> key.fold("client", 7).integer(1, 10) == Key(0).fold("round", 3, "client", 7).integer(1, 10)
        True
    """

    seed: int
    path: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        if not 0 <= _index(self.seed) < 2**64:
            raise InputError(
                f"seed must be an integer in [0, 2^64), not {self.seed}", code="out-of-range", field="seed"
            )

    def fold(self, *labels: str | int) -> Key:
        """The key further down the tree, one level a label."""
        return Key(self.seed, self.path + tuple(word for label in labels for word in _words(label)))

    @property
    def round(self) -> int | None:
        """The round r of a run that this key belongs to, ``Key(seed).fold("round", r)`` and below; None for others."""
        # A label is three words: those of "round" come first, then those of r.
        if len(self.path) < 6 or self.path[:3] != _words("round"):
            return None
        return self.path[4] | self.path[5] << 32

    def generator(self) -> np.random.Generator:
        """A fresh generator at this key. Two calls give two generators with the same numbers."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self._entropy())))

    def generators(self, label: str, numbers: Iterable[int]) -> Iterator[np.random.Generator]:
        """The generators of ``fold(label, i)`` for each i of the numbers, at a fraction of the time."""
        words = self.fold(label, 0)._entropy()
        for number in numbers:
            # Only the last label differs, so the other words are assembled once.
            words[-3:] = _words(number)
            yield np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))

    def _entropy(self) -> np.ndarray:
        """The words that ``SeedSequence(seed, spawn_key=path)`` would assemble: given as one array it is seven times
        as fast.
        """
        # SeedSequence pads the seed to its pool only if a spawn key follows.
        seed = [self.seed & _WORD, self.seed >> 32, 0, 0][:_POOL]
        return np.array([*(seed if self.path else seed[: 1 + (self.seed > _WORD)]), *self.path], dtype=np.uint32)

    def integer(self, low: int, high: int) -> int:
        """One integer, uniform on {low, …, high}, both ends included."""
        return int(self.generator().integers(low, high, endpoint=True))

    @contextmanager
    def torch_scope(self) -> Iterator[None]:
        """Within it torch's CPU generator starts from this key; afterwards it is what it was before.

        For code that can only draw from torch's global generator, such as the initialisation of layers.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.integer(0, 2**63 - 1))  # torch.manual_seed would reach CUDA too
            yield
