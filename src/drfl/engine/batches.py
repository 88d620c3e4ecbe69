"""Which samples a client uses at which step, drawn on the CPU from keys."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.engine.distinct import distinct
from drfl.engine.rows import Rows
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
        """The batches of these rows (clients) only, without most of the columns that none of them needs.

        Minibatches keep a power of two of columns, so that few shapes occur.
        """
        counts = self.counts[part]
        width = int(counts.max())
        kept = width if self.samples.shape[1] == 1 else 1 << (width - 1).bit_length()
        return Batches(self.samples[part, :, :kept], counts)


def draw(rows: Rows, clients: Tensor, steps: int, batch: int | None, key: Key, first: int = 0) -> Batches:
    """min(batch, n_i) distinct samples for each client and step, uniform, independent over clients and steps.

    Client number i draws from ``key.fold("client", i)``, so its samples do not depend on who else is in the cohort.

    Args:
        rows: all clients' rows of the pool.
        clients: (k,) the cohort.
        steps: T.
        batch: samples per step; None = all. Clients with no more than ``batch`` samples use all of them.
        key: the purpose's key.
        first: the number of client 0.
    """
    sizes = rows.sizes[clients]
    counts = sizes if batch is None else sizes.clamp(max=batch)
    if bool((counts == sizes).all()):
        local = torch.arange(int(counts.max())).expand(len(clients), 1, -1)
    else:
        local = torch.from_numpy(_places(sizes.numpy(), (clients + first).tolist(), steps, int(batch or 0), key))
    local = torch.where(local < sizes[:, None, None], local, 0)  # fillers
    return Batches(rows.index[rows.starts[clients][:, None, None] + local], counts)


def _places(sizes: np.ndarray, numbers: list[int], steps: int, width: int, key: Key) -> np.ndarray:
    """(k, T, B) distinct places among each client's samples; beyond a client's size they are fillers."""
    uniforms = np.zeros((len(numbers), steps, width))
    drawing = np.flatnonzero(sizes > width)
    generators = key.generators("client", [numbers[j] for j in drawing])
    for j, generator in zip(drawing, generators, strict=True):
        generator.random(out=uniforms[j])
    return distinct(uniforms, np.maximum(sizes, width))
