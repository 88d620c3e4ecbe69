"""Keys for reproducible randomness: each random draw of a run has its own key, and no generator is shared.

A key is a seed and a path of labels such as ``("round", 3, "client", 17)``. The same path always gives the same
numbers, regardless of earlier draws, their order, and the device. Therefore, results do not depend on the backend, the
number of threads or the order of clients. The numbers come from NumPy's ``SeedSequence`` and Philox.
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
"""Number of words to which ``SeedSequence`` pads the seed with zeros if a spawn key follows."""


def _words(label: str | int) -> tuple[int, int, int]:
    """Encode a label as three 32-bit words; a string and an integer never have the same encoding."""
    if isinstance(label, str):
        return _text_words(label)
    number = _index(label)
    if not 0 <= number < 2**64:
        raise InputError(
            f"a label of Key.fold must be a string or an integer in [0, 2^64), got {label!r}",
            code="wrong-type",
            field="label",
        )
    return 0, number & _WORD, number >> 32


@functools.lru_cache(maxsize=256)
def _text_words(label: str) -> tuple[int, int, int]:
    # Python's hash() would differ between processes.
    digest = int.from_bytes(hashlib.blake2b(label.encode(), digest_size=8).digest(), "little")
    return 1, digest & _WORD, digest >> 32


def _index(value: object) -> int:
    """Convert a Python or NumPy integer to int; return −1 for any other object."""
    if type(value) is int:
        return value  # Fast path, because isinstance with a protocol takes longer than all the rest of a fold.
    return operator.index(value) if isinstance(value, SupportsIndex) else -1


def key_of(key: Key | int) -> Key:
    """Return a key unchanged, and that of a seed.

    Raises:
        InputError: If it is neither a key nor a seed.
    """
    if isinstance(key, Key):
        return key
    if isinstance(key, bool) or not isinstance(key, SupportsIndex):
        raise InputError(f"key must be a drfl.Key or a seed such as 0, got {key!r:.60}", code="wrong-type", field="key")
    return Key(operator.index(key))


@dataclass(frozen=True)
class Key:
    """A node in the tree of random streams.

    Args:
        seed: Root of the tree, an integer in [0, 2^64).
        path: Labels as 32-bit words. :meth:`fold` fills it; do not set it yourself.

    Example:
        >>> key = Key(0).fold("round", 3)
        >>> key.fold("client", 7).integer(1, 10) == Key(0).fold("round", 3, "client", 7).integer(1, 10)
        True
    """

    seed: int
    path: tuple[int, ...] = field(default=())

    def __post_init__(self) -> None:
        seed = _index(self.seed)
        if not 0 <= seed < 2**64:
            raise InputError(
                f"seed must be an integer in [0, 2^64), got {self.seed!r}", code="out-of-range", field="seed"
            )
        object.__setattr__(self, "seed", seed)  # NumPy's integers overflow in the draws

    def fold(self, *labels: str | int) -> Key:
        """Return the key further down the tree, one level per label."""
        return Key(self.seed, self.path + tuple(word for label in labels for word in _words(label)))

    @property
    def round(self) -> int | None:
        """Round r if this key is ``Key(seed).fold("round", r)`` or below it; otherwise None."""
        # Each label has three words: first those of "round", then those of r.
        if len(self.path) < 6 or self.path[:3] != _words("round"):
            return None
        return self.path[4] | self.path[5] << 32

    def generator(self) -> np.random.Generator:
        """Create a new generator for this key. All generators of a key give the same numbers."""
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(self._entropy())))

    def generators(self, label: str, numbers: Iterable[int]) -> Iterator[np.random.Generator]:
        """Yield the generator of ``fold(label, i)`` for each i in ``numbers``, faster than by folding each."""
        words = self.fold(label, 0)._entropy()
        for number in numbers:
            # Only the last label differs, so the other words are assembled once.
            words[-3:] = _words(number)
            yield np.random.Generator(np.random.Philox(np.random.SeedSequence(words)))

    def _entropy(self) -> np.ndarray:
        # These are the words that SeedSequence(seed, spawn_key=path) would assemble. Passing them as one array is seven
        # times as fast. SeedSequence pads the seed to its pool only if a spawn key follows.
        seed = [self.seed & _WORD, self.seed >> 32, 0, 0][:_POOL]
        return np.array([*(seed if self.path else seed[: 1 + (self.seed > _WORD)]), *self.path], dtype=np.uint32)

    def integer(self, low: int, high: int) -> int:
        """Draw an integer uniformly from {low, …, high}, including both ends."""
        return int(self.generator().integers(low, high, endpoint=True))

    @contextmanager
    def torch_scope(self) -> Iterator[None]:
        """Seed torch's CPU generator from this key inside the block and restore its state afterwards.

        Use it for code that can only draw from torch's global generator, such as the initialisation of layers.
        """
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.integer(0, 2**63 - 1))  # torch.manual_seed would also seed CUDA.
            yield
