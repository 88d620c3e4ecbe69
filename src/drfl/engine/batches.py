"""Which samples a client uses at which step, drawn on the CPU from keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.key import Key


class Batches(NamedTuple):
    """Samples for k clients and T steps.

    Args:
        samples: (k, T, B) int64 rows of the pool; T is 1 where every step uses the same samples (full batch). Beyond a
            client's count the row repeats one of its own samples.
        counts: (k,) int64, how many of the B entries are real.
    """

    samples: Tensor
    counts: Tensor

    def at(self, step: int) -> Tensor:
        """(k, B) rows of the pool for this step, counted from 0."""
        return self.samples[:, step if self.samples.shape[1] > 1 else 0]

    @property
    def real(self) -> Tensor:
        """(k, B) whether an entry is a sample of its own, not a filler."""
        return torch.arange(self.samples.shape[2]) < self.counts[:, None]

    def weights(self, like: Tensor) -> Tensor:
        """(k, B) weight of each entry in its client's mean: 1/count, 0 beyond it; in the type and place of ``like``."""
        return (self.real.double() / self.counts[:, None]).to(like)

    def rows(self, part: Tensor) -> Batches:
        """The batches of these rows (clients) only, without columns that none of them needs."""
        counts = self.counts[part]
        return Batches(self.samples[part, :, : int(counts.max())], counts)


def draw(rows: Sequence[Tensor], clients: Sequence[int], steps: int, batch: int | None, key: Key) -> Batches:
    """min(batch, n_i) distinct samples for each client and step, uniform, independent over clients and steps.

    Client i draws from ``key.fold("client", i)``, so its samples do not depend on who else is in the cohort.

    Args:
        rows: for each client of the cohort its (n_i,) rows of the pool.
        clients: their indices, which name their keys.
        steps: T.
        batch: samples per step; None = all. Clients with no more than ``batch`` samples use all of them.
        key: the purpose's key.
    """
    sizes = np.array([len(r) for r in rows])
    counts = sizes if batch is None else np.minimum(sizes, batch)
    if bool((counts == sizes).all()):
        width = int(counts.max())
        index = torch.stack([torch.cat([r, r[:1].expand(width - len(r))]) for r in rows])
        return Batches(index[:, None], torch.from_numpy(counts))
    width = int(batch or 0)
    uniforms = np.zeros((len(rows), steps, width))
    for j, i in enumerate(clients):
        if sizes[j] > width:
            uniforms[j] = key.fold("client", int(i)).generator().random((steps, width))
    local = _distinct(uniforms, np.maximum(sizes, width))
    local[local >= sizes[:, None, None]] = 0
    index = torch.stack([r[torch.from_numpy(chosen)] for r, chosen in zip(rows, local, strict=True)])
    return Batches(index, torch.from_numpy(counts))


def _distinct(uniforms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Floyd's sampling without replacement, for all clients and steps at once.

    Args:
        uniforms: (k, T, B) in [0, 1).
        sizes: (k,) how many there are to choose from, each ≥ B.

    Returns:
        (k, T, B) distinct integers along the last axis, a uniform subset of {0, …, size − 1}.
    """
    B = uniforms.shape[2]
    chosen = np.empty(uniforms.shape, dtype=np.int64)
    for b in range(B):
        last = (sizes - B + b)[:, None]
        pick = np.minimum((uniforms[:, :, b] * (last + 1)).astype(np.int64), last)
        taken = (chosen[:, :, :b] == pick[:, :, None]).any(2)
        chosen[:, :, b] = np.where(taken, last, pick)
    return chosen
