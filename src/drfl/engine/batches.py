"""The samples of the pool that each client uses in each local step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.core.key import Key


@dataclass(frozen=True)
class ClientRows:
    """The rows of all clients, one client after the other.

    Args:
        index: (Σ_i n_i,) int64 rows of the pool.
        starts: (N,) position of each client's first row in ``index``.
        sizes: (N,) n_i ≥ 1.
    """

    index: Tensor
    starts: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, lists: Sequence[Tensor]) -> ClientRows:
        """Build it from one tensor of rows per client."""
        sizes = torch.tensor([len(rows) for rows in lists])
        # Always on the CPU: indices are drawn there, so no draw depends on the backend.
        return cls(torch.cat(list(lists)).cpu(), sizes.cumsum(0) - sizes, sizes)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def of_client(self, i: int) -> Tensor:
        """Return the (n_i,) rows of client i."""
        return self.index[int(self.starts[i]) : int(self.starts[i] + self.sizes[i])]

    def only(self, there: Tensor) -> ClientRows:
        """Return the same clients with some of their rows, at least one each.

        Args:
            there: (Σ_i n_i,) bool, the rows to keep.
        """
        sizes = self.totals(there.double()).long()
        return ClientRows(self.index[there], sizes.cumsum(0) - sizes, sizes)

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """The distinct rows, ascending, and for each entry of ``index`` its position among them."""
        rows, places = self.index.unique(return_inverse=True)
        return rows, places

    def largest(self, patients: Tensor) -> Tensor:
        """Return (N,) int64, the number of rows of each client's patient with the most rows; patients are (pool,)."""
        return torch.stack(
            [own.unique(return_counts=True)[1].max() for own in patients[self.index].split(self.sizes.tolist())]
        )

    def totals(self, values: Tensor) -> Tensor:
        """Return (N,) float64: the sum over each client of values (Σ_i n_i,) float64."""
        return torch.segment_reduce(values, "sum", lengths=self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """Return (N,) float64: the mean over each client of values (Σ_i n_i,) float64."""
        return self.totals(values) / self.sizes


def sample_without_replacement(uniforms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Draw uniform subsets of {0, …, size − 1}.

    Floyd's algorithm: entry b is a uniform pick from {0, …, last_b} with last_b = size − B + b, or last_b itself if the
    pick has already been chosen.

    Args:
        uniforms: (k, T, B) in [0, 1).
        sizes: (k,) sizes of the sets, each ≥ B.

    Returns:
        (k, T, B) integers, distinct along the last axis.
    """
    k, T, B = uniforms.shape
    last = (sizes - B)[:, None, None] + np.arange(B)
    picks = np.minimum((uniforms * (last + 1)).astype(np.int64), last).reshape(k * T, B)
    last = np.repeat(last.reshape(k, B), T, axis=0)
    row, place = _repetitions(picks)
    if not row.size:
        return picks.reshape(k, T, B)
    # A pick that repeats an earlier pick of its row is replaced by its last_b. If the row is then free of repetitions,
    # it is the result of Floyd's algorithm, because no pick can have hit an earlier last_b.
    chosen = picks.copy()
    chosen[row, place] = last[row, place]
    affected = np.unique(row)
    # A row still has a repetition only if a later pick equals a last_b that was just inserted. These few rows are
    # processed entry by entry. Picks are compared with the chosen entries, so an earlier last_b counts as chosen.
    remaining = affected[np.unique(_repetitions(chosen[affected])[0])]
    picks, last, by_entry = picks[remaining], last[remaining], picks[remaining]
    for b in range(1, B):
        is_repeated = (by_entry[:, :b] == picks[:, b, None]).any(1)
        by_entry[:, b] = np.where(is_repeated, last[:, b], picks[:, b])
    chosen[remaining] = by_entry
    return chosen.reshape(k, T, B)


def _repetitions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows and columns of entries that repeat an earlier entry of their row."""
    B = rows.shape[1]
    # Value and column are packed into one number. After sorting, equal values are neighbours in the order of their
    # columns, so all but the first are repetitions.
    packed = np.sort(rows * B + np.arange(B), axis=1)
    values = packed // B
    row, place = np.nonzero(values[:, 1:] == values[:, :-1])
    return row, packed[row, place + 1] % B


class Batches(NamedTuple):
    """Samples for k clients and T steps.

    Args:
        samples: (k, T, B) int64 rows of the pool; T is 1 if every step uses the same samples (full batch). Entries
            beyond a client's count are fillers, which repeat one of its samples.
        counts: (k,) int64, number of the B entries that are real.
        by_step: (k, T) int64, number of real entries in each step, if steps differ. It is 0 once a client has used all
            of its samples; ``counts`` is then the largest value. None = ``counts`` in all steps.
        seeds: (k, T, B) int64, seed of each sample in each step for tasks with dropout or augmentation. T is the number
            of steps even if all steps use the same samples. None = the task has neither.
    """

    samples: Tensor
    counts: Tensor
    by_step: Tensor | None = None
    seeds: Tensor | None = None

    def step_rows(self, step: int) -> Tensor:
        """Return (k, B): the rows of the pool for a step, counted from 0."""
        return self.samples[:, step if self.samples.shape[1] > 1 else 0]

    def of_client(self, j: int, steps: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Iterate over the steps of client j: the rows of the pool without fillers, and their seeds.

        Args:
            j: Position of the client in the cohort.
            steps: Number of steps, if all clients take equally many.
        """
        counts = [int(self.counts[j])] * steps if self.by_step is None else self.by_step[j].tolist()
        for t, count in enumerate(counts):
            if count:
                yield self.step_rows(t)[j, :count], None if self.seeds is None else self.seeds[j, t, :count]

    def total(self, steps: int) -> Tensor:
        """Return (k,) int64: the number of samples in all steps; ``steps`` applies if all clients take equally many."""
        return self.counts * steps if self.by_step is None else self.by_step.sum(1)

    @property
    def real(self) -> Tensor:
        """(k, B) whether an entry is real and not a filler."""
        return torch.arange(self.samples.shape[2]) < self.counts[:, None]

    def weights(self, like: Tensor) -> Tensor:
        """Return (k, B): the weight of each entry in its client's mean, with the type and device of ``like``.

        The weight is 1/count, and 0 for fillers. The shape is (k, T, B) if steps differ; steps beyond a client's last
        one have weight 0 throughout.
        """
        if self.by_step is not None:
            counts = self.by_step[:, :, None]
            return ((torch.arange(self.samples.shape[2]) < counts).double() / counts.clamp(min=1)).to(like)
        return (self.real.double() / self.counts[:, None]).to(like)

    def rows(self, part: Tensor) -> Batches:
        """Return the batches of some clients, without most of the columns that none of them needs.

        Minibatches keep a power of two of columns, so that few shapes occur.
        """
        counts = self.counts[part]
        # Minibatches of several steps are traced, and traces are cached by shape. Powers of two limit the number of
        # shapes. With T = 1 nothing is traced, so the columns are cut to the width that is needed.
        width = int(counts.max())
        columns = width if self.samples.shape[1] == 1 else 1 << (width - 1).bit_length()
        seeds = None if self.seeds is None else self.seeds[part, :, :columns]
        if self.by_step is None:
            return Batches(self.samples[part, :, :columns], counts, None, seeds)
        by_step = self.by_step[part]
        T = int((by_step > 0).sum(1).max())
        seeds = None if seeds is None else seeds[:, :T]
        return Batches(self.samples[part, :T, :columns], counts, by_step[:, :T], seeds)


def draw(rows: ClientRows, clients: Tensor, steps: int, batch: int | None, key: Key, first: int = 0) -> Batches:
    """Draw min(batch, n_i) distinct samples for each client and step: uniform, independent over clients and steps.

    Client i draws from ``key.fold("client", i)``, so its samples do not depend on the rest of the cohort.

    Args:
        rows: All clients' rows of the pool.
        clients: (k,) the cohort.
        steps: T.
        batch: Samples per step; None = all. Clients with at most ``batch`` samples use all of them.
        key: Key for the purpose of the draw.
        first: The number of client 0.
    """
    sizes = rows.sizes[clients]
    counts = sizes if batch is None else sizes.clamp(max=batch)
    if bool((counts == sizes).all()):
        # All clients use all of their samples: nothing is drawn, and one step (T = 1) represents all steps.
        local = torch.arange(int(counts.max())).expand(len(clients), 1, -1)
    else:
        numbers, width = (clients + first).tolist(), int(batch or 0)
        uniforms = np.zeros((len(numbers), steps, width))
        # Clients with at most `width` samples need no draw: with uniforms of 0 Floyd's algorithm returns 0, 1, …,
        # width − 1, which are all of their samples followed by fillers.
        drawing = np.flatnonzero(sizes.numpy() > width)
        generators = key.generators("client", [numbers[j] for j in drawing])
        for j, generator in zip(drawing, generators, strict=True):
            generator.random(out=uniforms[j])
        local = torch.from_numpy(sample_without_replacement(uniforms, np.maximum(sizes.numpy(), width)))
    # Fillers repeat the client's first sample: the index exists, and the loss is finite if that sample's loss is.
    local = torch.where(local < sizes[:, None, None], local, 0)
    return Batches(rows.index[rows.starts[clients][:, None, None] + local], counts)


def draw_epochs(rows: ClientRows, clients: Tensor, epochs: int, batch: int | None, key: Key, first: int = 0) -> Batches:
    """Draw all samples of each client in a new order in every epoch, split into minibatches; the last may be smaller.

    Client i draws its orders from ``key.fold("client", i)``, one epoch after another.

    Args:
        rows: All clients' rows of the pool.
        clients: (k,) the cohort.
        epochs: E.
        batch: Samples per step; None = all.
        key: Key for the purpose of the draw.
        first: The number of client 0.
    """
    sizes = rows.sizes[clients]
    counts = sizes if batch is None else sizes.clamp(max=batch)
    per_epoch = -(-sizes // counts)
    B, T = int(counts.max()), epochs * int(per_epoch.max())
    if epochs == T:
        # All clients use all of their samples in every step, so their order has no effect.
        return draw(rows, clients, epochs, None, key, first)
    samples, by_step = np.zeros((len(clients), T, B), dtype=np.int64), np.zeros((len(clients), T), dtype=np.int64)
    generators = key.generators("client", (clients + first).tolist())
    for j, (n, b, steps, generator) in enumerate(
        zip(sizes.tolist(), counts.tolist(), per_epoch.tolist(), generators, strict=True)
    ):
        order = np.arange(n)
        # Uniforms are sorted because the shuffle of another NumPy version may differ. With a single minibatch the order
        # has no effect except on rounding, which would then differ from that of a cohort of this client alone.
        if steps > 1:
            order = generator.random((epochs, n)).argsort(axis=1, kind="stable")
        padded = np.zeros((epochs, steps * b), dtype=np.int64)
        padded[:, :n] = order
        samples[j, : epochs * steps, :b] = padded.reshape(epochs * steps, b)
        by_step[j, : epochs * steps] = np.tile([b] * (steps - 1) + [n - (steps - 1) * b], epochs)
    places = rows.starts[clients][:, None, None] + torch.from_numpy(samples)
    return Batches(rows.index[places], counts, torch.from_numpy(by_step))
