"""Which samples of the pool each client takes in each local step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from drfl.core.key import Key
from drfl.task.training_noise import draw_seeds


@dataclass(frozen=True)
class ClientRows:
    """The rows of all clients, one client after the other.

    Args:
        index: (Σ_i n_i,) int64 rows of the pool.
        starts: (N,) where each client's begin in ``index``.
        sizes: (N,) n_i ≥ 1.
    """

    index: Tensor
    starts: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, lists: Sequence[Tensor]) -> ClientRows:
        """From one tensor of rows a client."""
        sizes = torch.tensor([len(rows) for rows in lists])
        # On the CPU whatever the device: indices are drawn there, so that no draw depends on the backend.
        return cls(torch.cat(list(lists)).cpu(), sizes.cumsum(0) - sizes, sizes)

    @property
    def n(self) -> int:
        """Number of clients."""
        return len(self.sizes)

    def of_client(self, i: int) -> Tensor:
        """(n_i,) rows of client i."""
        return self.index[int(self.starts[i]) : int(self.starts[i] + self.sizes[i])]

    def only(self, there: Tensor) -> ClientRows:
        """The same clients with some of their rows, each with at least one.

        Args:
            there: (Σ_i n_i,) bool, which.
        """
        sizes = self.totals(there.double()).long()
        return ClientRows(self.index[there], sizes.cumsum(0) - sizes, sizes)

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """The distinct rows, ascending, and for each entry of ``index`` its place among them."""
        rows, at = self.index.unique(return_inverse=True)
        return rows, at

    def totals(self, values: Tensor) -> Tensor:
        """(N,) float64 sum over each client of values (Σ_i n_i,) float64."""
        return torch.segment_reduce(values, "sum", lengths=self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """(N,) float64 mean over each client of values (Σ_i n_i,) float64."""
        return self.totals(values) / self.sizes


def sample_without_replacement(uniforms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Uniform subsets of {0, …, size − 1}.

    Floyd's rule: entry b is a uniform pick of {0, …, last_b} with last_b = size − B + b, or last_b itself where the
    pick has been chosen before.

    Args:
        uniforms: (k, T, B) in [0, 1).
        sizes: (k,) how many there are to choose from, each ≥ B.

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
    # A pick that repeats an earlier one of its row becomes its last_b. If the row is then without repetition, that is
    # Floyd's answer: no pick can have hit an earlier last_b.
    chosen = picks.copy()
    chosen[row, place] = last[row, place]
    touched = np.unique(row)
    # A row still has a repetition only if a later pick equals a last_b that was just put in. These few rows are done
    # entry by entry. Picks are compared with the chosen entries, so that an earlier last_b counts as taken.
    left = touched[np.unique(_repetitions(chosen[touched])[0])]
    picks, last, by_entry = picks[left], last[left], picks[left]
    for b in range(1, B):
        taken = (by_entry[:, :b] == picks[:, b, None]).any(1)
        by_entry[:, b] = np.where(taken, last[:, b], picks[:, b])
    chosen[left] = by_entry
    return chosen.reshape(k, T, B)


def _repetitions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where an entry repeats an earlier one of its row: rows and columns."""
    B = rows.shape[1]
    # Value and column as one number: sorted, equal values are neighbours in the order of their columns, so that all but
    # the first of them are repetitions.
    packed = np.sort(rows * B + np.arange(B), axis=1)
    values = packed // B
    row, at = np.nonzero(values[:, 1:] == values[:, :-1])
    return row, packed[row, at + 1] % B


class Batches(NamedTuple):
    """Samples for k clients and T steps.

    Args:
        samples: (k, T, B) int64 rows of the pool; T is 1 where every step uses the same samples (full batch). Beyond a
            client's count the row repeats one of its own samples.
        counts: (k,) int64, how many of the B entries are real.
        by_step: (k, T) int64, how many of them are real in each step, where steps differ: 0 once a client has taken all
            of its own, and ``counts`` is then the largest; None = ``counts`` in all steps.
        seeds: (k, T, B) int64, of each sample in each step of a task with dropout or augmentation; T is the number of
            steps also where all use the same samples. None = the task has neither.
    """

    samples: Tensor
    counts: Tensor
    by_step: Tensor | None = None
    seeds: Tensor | None = None

    def seeded(self, clients: Tensor, steps: int, key: Key, first: int = 0) -> Batches:
        """The same samples with seeds, see :func:`drfl.task.training_noise.draw_seeds`."""
        T = steps if self.by_step is None else self.by_step.shape[1]
        return self._replace(seeds=draw_seeds((clients + first).tolist(), T, self.counts, key))

    def at(self, step: int) -> Tensor:
        """(k, B) rows of the pool for this step, counted from 0."""
        return self.samples[:, step if self.samples.shape[1] > 1 else 0]

    def of_client(self, j: int, steps: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The rows of the pool of each step of client j, without fillers, and their seeds.

        Args:
            j: its place in the cohort.
            steps: how many, where all clients take as many.
        """
        counts = [int(self.counts[j])] * steps if self.by_step is None else self.by_step[j].tolist()
        for t, count in enumerate(counts):
            if count:
                yield self.at(t)[j, :count], None if self.seeds is None else self.seeds[j, t, :count]

    def total(self, steps: int) -> Tensor:
        """(k,) int64, samples in all steps; ``steps`` where all clients take as many."""
        return self.counts * steps if self.by_step is None else self.by_step.sum(1)

    @property
    def real(self) -> Tensor:
        """(k, B) whether an entry is a sample of its own, not a filler."""
        return torch.arange(self.samples.shape[2]) < self.counts[:, None]

    def weights(self, like: Tensor) -> Tensor:
        """(k, B) weight of each entry in its client's mean: 1/count, 0 beyond it; in the type and place of ``like``.

        (k, T, B) where steps differ; those that a client does not take any more have no weight at all.
        """
        if self.by_step is not None:
            own = self.by_step[:, :, None]
            return ((torch.arange(self.samples.shape[2]) < own).double() / own.clamp(min=1)).to(like)
        return (self.real.double() / self.counts[:, None]).to(like)

    def rows(self, part: Tensor) -> Batches:
        """The batches of these rows (clients) only, without most of the columns that none of them needs.

        Minibatches keep a power of two of columns, so that few shapes occur.
        """
        counts = self.counts[part]
        # Minibatches of several steps are traced, and traces are kept by shape: with powers of two few shapes occur.
        # With T = 1 nothing is traced, and the columns are cut to what is needed.
        width = int(counts.max())
        kept = width if self.samples.shape[1] == 1 else 1 << (width - 1).bit_length()
        seeds = None if self.seeds is None else self.seeds[part, :, :kept]
        if self.by_step is None:
            return Batches(self.samples[part, :, :kept], counts, None, seeds)
        by_step = self.by_step[part]
        T = int((by_step > 0).sum(1).max())
        seeds = None if seeds is None else seeds[:, :T]
        return Batches(self.samples[part, :T, :kept], counts, by_step[:, :T], seeds)


def draw(rows: ClientRows, clients: Tensor, steps: int, batch: int | None, key: Key, first: int = 0) -> Batches:
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
        # Everybody uses all samples: nothing is drawn, and one step (T = 1) stands for all of them.
        local = torch.arange(int(counts.max())).expand(len(clients), 1, -1)
    else:
        numbers, width = (clients + first).tolist(), int(batch or 0)
        uniforms = np.zeros((len(numbers), steps, width))
        # Clients with no more samples than `width` need no draw: for uniforms of 0 Floyd's rule gives 0, 1, …,
        # width − 1, which are all of their samples and then fillers.
        drawing = np.flatnonzero(sizes.numpy() > width)
        generators = key.generators("client", [numbers[j] for j in drawing])
        for j, generator in zip(drawing, generators, strict=True):
            generator.random(out=uniforms[j])
        local = torch.from_numpy(sample_without_replacement(uniforms, np.maximum(sizes.numpy(), width)))
    # Fillers repeat the client's first sample: an index that exists, with a finite loss where the sample's is.
    local = torch.where(local < sizes[:, None, None], local, 0)
    return Batches(rows.index[rows.starts[clients][:, None, None] + local], counts)


def draw_epochs(rows: ClientRows, clients: Tensor, epochs: int, batch: int | None, key: Key, first: int = 0) -> Batches:
    """All samples of each client in a new order in every epoch, cut into minibatches; the last may be smaller.

    Client number i draws its orders from ``key.fold("client", i)``, one epoch after the other.

    Args:
        rows: all clients' rows of the pool.
        clients: (k,) the cohort.
        epochs: E.
        batch: samples per step; None = all.
        key: the purpose's key.
        first: the number of client 0.
    """
    sizes = rows.sizes[clients]
    counts = sizes if batch is None else sizes.clamp(max=batch)
    per_epoch = -(-sizes // counts)
    B, T = int(counts.max()), epochs * int(per_epoch.max())
    if epochs == T:
        # Everybody uses all samples in every step: an order among them means nothing.
        return draw(rows, clients, epochs, None, key, first)
    samples, by_step = np.zeros((len(clients), T, B), dtype=np.int64), np.zeros((len(clients), T), dtype=np.int64)
    generators = key.generators("client", (clients + first).tolist())
    for j, (n, b, own, generator) in enumerate(
        zip(sizes.tolist(), counts.tolist(), per_epoch.tolist(), generators, strict=True)
    ):
        order = np.arange(n)
        # Sorted uniforms: another NumPy may shuffle otherwise. An order within one minibatch would mean nothing, and
        # round otherwise than where the client is alone.
        if own > 1:
            order = generator.random((epochs, n)).argsort(axis=1, kind="stable")
        padded = np.zeros((epochs, own * b), dtype=np.int64)
        padded[:, :n] = order
        samples[j, : epochs * own, :b] = padded.reshape(epochs * own, b)
        by_step[j, : epochs * own] = np.tile([b] * (own - 1) + [n - (own - 1) * b], epochs)
    at = rows.starts[clients][:, None, None] + torch.from_numpy(samples)
    return Batches(rows.index[at], counts, torch.from_numpy(by_step))
