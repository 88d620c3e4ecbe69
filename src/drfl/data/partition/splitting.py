"""Dividing rows: whole numbers by shares, by class, by Dirichlet draws, into training and test rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key


def largest_remainder(total: int, weights: np.ndarray, minimum: int = 0) -> np.ndarray:
    """Round numbers in proportion to weights so that they sum exactly to a total (method of largest remainders).

    A part that would be below the minimum is raised to it, and the others share the rest in proportion. Ties between
    remainders go to the lower index.

    Args:
        total: Number to distribute, at least ``minimum * n``.
        weights: (n,) finite, non-negative, not all zero.
        minimum: Smallest part.

    Returns:
        (n,) int64, each at least `minimum`, of sum `total`.

    Raises:
        InputError: If the weights do not meet these requirements, or the total is too small.
    """
    checks.integer("total", total, low=0)
    checks.integer("minimum", minimum, low=0)
    w = np.asarray(weights, dtype=np.float64)
    top = w.max(initial=0.0)
    if w.ndim != 1 or not np.isfinite(w).all() or not top > 0 or w.min() < 0:
        raise InputError("weights must be finite, non-negative and not all zero", code="invalid-value", field="weights")
    if total < minimum * len(w):
        raise InputError(f"cannot divide {total} into {len(w)} parts of at least {minimum} each", code="few-rows")
    w = w / top  # so that their sum cannot overflow
    parts = np.full(len(w), minimum, dtype=np.int64)
    free = np.arange(len(w))
    while len(free):
        rest = int(total) - minimum * (len(w) - len(free))
        quota = rest * (w[free] / w[free].sum())
        above = quota >= minimum
        if above.all():
            whole = np.floor(quota).astype(np.int64)
            short = rest - int(whole.sum())
            if short:
                whole[np.argsort(whole - quota, kind="stable")[:short]] += 1
            parts[free] = whole
            break
        # Parts below the minimum are set to it. The others then share less, so more of them may fall below.
        free = free[above]
    return parts


def zipf_weights(n: int, exponent: float) -> np.ndarray:
    """Return Zipf weights i^-exponent for i = 1..n, (n,) float64; exponent 0 gives equal ones (DRDM paper, §IV.A.4)."""
    return np.arange(1, n + 1, dtype=np.float64) ** -float(exponent)


def by_class(targets: np.ndarray, classes: int) -> list[np.ndarray]:
    """Return the indices of the samples of each class in ascending order."""
    order = np.argsort(targets, kind="stable")
    return np.split(order, np.cumsum(np.bincount(targets, minlength=classes))[:-1])


def assign_by_class(targets: np.ndarray, counts: np.ndarray, key: Key) -> tuple[np.ndarray, ...]:
    """Distribute the samples of each class at random, by the numbers (N, C) that each client gets.

    Returns:
        Per client, the sorted int64 indices of its samples.
    """
    N, C = counts.shape
    owner = np.full(len(targets), -1, dtype=np.int64)
    rng = key.generator()
    for c, pool in enumerate(by_class(targets, C)):
        receivers = np.repeat(np.arange(N), counts[:, c])
        owner[rng.permutation(pool)[: len(receivers)]] = receivers
    # A stable sort by owner leaves the indices of each client ascending.
    order = np.argsort(owner, kind="stable").astype(np.int64)[int((owner < 0).sum()) :]
    return tuple(np.split(order, np.cumsum(counts.sum(axis=1))[:-1]))


def holdings(train: tuple[np.ndarray, ...], targets: np.ndarray, classes: int) -> np.ndarray:
    """Count the samples of each class at each client, (N, C) int64."""
    N = len(train)
    owner = np.repeat(np.arange(N), [len(indices) for indices in train])
    cells = np.bincount(owner * classes + targets[np.concatenate(train)], minlength=N * classes)
    return cells.reshape(N, classes)


def dirichlet(alpha: float, rows: int, columns: int, key: Key) -> np.ndarray:
    """Draw rows of Dir(alpha·1); infinite alpha gives equal shares.

    A Gamma(alpha) variable is a Gamma(alpha + 1) one times U^(1/alpha) (Marsaglia and Tsang 2000, §6). In
    logarithms, and relative to the largest in the row, nothing underflows to a row of zeros however small
    alpha is.

    Returns:
        (rows, columns) float64; each row is non-negative and sums to 1.
    """
    if math.isinf(alpha):
        return np.full((rows, columns), 1 / columns)
    rng = key.generator()
    # A gamma variable with small α underflows to 0. Its logarithm does not: it is drawn as that of the product
    # Gamma(α + 1)·U^(1/α).
    minus_log_u = rng.standard_exponential((rows, columns))
    gamma = rng.standard_gamma(alpha + 1, (rows, columns))
    with np.errstate(over="ignore"):  # an infinite distance is a share of zero, as it should be
        distance = (minus_log_u - minus_log_u.min(axis=1, keepdims=True)) / alpha
    logits = np.log(gamma) - distance
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return shares / shares.sum(axis=1, keepdims=True)


def split_rows(
    rows: np.ndarray,
    targets: np.ndarray | None,
    key: Key,
    test_fraction: float,
    name: str = "the data",
    patients: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split rows at random so that each class keeps its share as nearly as integers allow.

    With patients, whole patients are split instead, each by the most frequent class of its rows.

    Returns:
        Training rows and test rows, each sorted.
    """
    checks.inner_fraction("test_fraction", test_fraction)
    if patients is not None:
        units, members = np.unique(patients, return_inverse=True)
        if len(units) == len(rows) > 1:  # rows are independent, so they are split as if no column named the patient
            return split_rows(rows, targets, key, test_fraction)
        classes = None if targets is None else most_frequent(members, targets)
        if len(units) < 2:
            raise too_few(f"{name} has {len(units)} patient{'s' * (len(units) != 1)}")
        parts = split_rows(np.arange(len(units)), classes, key, test_fraction)
        return rows[np.isin(members, parts[0])], rows[np.isin(members, parts[1])]
    n = len(rows)
    if n < 2:
        raise too_few(f"{name} has {n} row{'s' * (n != 1)}")
    rng = key.generator()
    # Each part gets at least one row.
    held = min(max(round(test_fraction * n), 1), n - 1)
    if targets is None:
        order = rng.permutation(n)
        return np.sort(rows[order[held:]]), np.sort(rows[order[:held]])
    _, codes, counts = np.unique(targets, return_inverse=True, return_counts=True)
    # Use a random order of classes, because ties would otherwise favour the same classes for every client.
    shuffled = rng.permutation(len(counts))
    quota = np.empty(len(counts), dtype=np.int64)
    quota[shuffled] = largest_remainder(held, counts[shuffled])
    order = rng.permutation(n)
    order = order[np.argsort(codes[order], kind="stable")]
    # A row's rank is its place in the random order of its class.
    rank = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    test = rank < quota[codes[order]]
    return np.sort(rows[order[~test]]), np.sort(rows[order[test]])


def too_few(what: str) -> InputError:
    """Return the error for a client with a single row or patient."""
    return InputError(
        f"{what}: at least two are needed to train and to test. Remove the client (`min_rows = 2` in a simulation), or "
        "give it test data (`test_csv` at a site)",
        code="few-rows",
    )


def most_frequent(units: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the most frequent class among the rows of each unit 0, 1, …; if there are several, the smallest."""
    kinds, codes = np.unique(targets, return_inverse=True)
    pairs, counts = np.unique(units * len(kinds) + codes, return_counts=True)
    # Within each unit the most frequent pair comes first, and np.unique returns the first place of each unit.
    order = np.lexsort((pairs, -counts, pairs // len(kinds)))
    first = np.unique(pairs[order] // len(kinds), return_index=True)[1]
    return kinds[pairs[order][first] % len(kinds)]


def share_test_set(counts: np.ndarray, test_targets: np.ndarray, key: Key) -> tuple[np.ndarray, ...]:
    """Give each client test samples of the classes that it trains on, from the numbers (N, C) that it trains on.

    The test samples of a class are divided in proportion to the clients' training samples of this class. Each client is
    thus tested on its own mix, and every test sample is used once. Test samples of a class that no client trains on are
    shared in proportion to the clients' sizes. A client that would be left without any gets one sample, drawn at
    random, of its most common class that has test samples; another client holds it too.

    Returns:
        Per client, sorted int64 indices into the test pool, at least one.
    """
    N, C = counts.shape
    pools = by_class(test_targets, C)
    supply = np.array([len(pool) for pool in pools])
    mine = np.zeros((N, C), dtype=np.int64)
    for c in np.flatnonzero(supply):
        # If no client trains on a class, its test rows are divided by the clients' sizes.
        weights = counts[:, c] if counts[:, c].any() else counts.sum(axis=1)
        mine[:, c] = largest_remainder(int(supply[c]), weights)
    test = list(assign_by_class(test_targets, mine, key.fold("deal")))
    empty = np.flatnonzero(mine.sum(axis=1) == 0)
    held = np.where(supply > 0, counts[empty], 0)
    if len(empty) and held.max(axis=1).min() == 0:
        i = empty[held.max(axis=1).argmin()]
        classes = np.flatnonzero(counts[i]).tolist()
        raise InputError(
            f"client {i} cannot be tested: the test part has no sample of its classes {classes}. Add test "
            "samples of these classes",
            code="no-rows",
            field="test",
        )
    # A client without test rows borrows one of its most frequent class.
    borrowed = held.argmax(axis=1)
    draws = key.fold("borrow").generator().integers(0, supply[borrowed])
    for i, c, draw in zip(empty, borrowed, draws, strict=True):
        test[i] = pools[c][draw : draw + 1].astype(np.int64)
    return tuple(test)


def split_validation(
    targets: Tensor, rows: Tensor, fraction: float, key: Key, patients: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return one client's training rows and validation rows. With patients (n,), all rows of one go to one part."""
    units = None if patients is None else patients[rows].numpy(force=True)
    # A single row or patient cannot be divided, so it is used for both.
    if len(rows) == 1 or (units is not None and (units == units[0]).all()):
        return rows, rows
    kept, held = split_rows(rows.numpy(force=True), labels_of(targets[rows]), key, fraction, patients=units)
    return torch.from_numpy(kept).to(rows.device), torch.from_numpy(held).to(rows.device)


def labels_of(targets: Tensor) -> np.ndarray | None:
    """Return class labels (n,), by which rows can be split; None if the targets are not class labels."""
    return None if targets.is_floating_point() or targets.ndim > 1 else targets.numpy(force=True)


def join(parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Copy the parts into one piece of memory: a hundred thousand small tensors would take more."""
    return pieces(torch.cat(list(parts)), lengths(parts))


def as_tensors(lists: Sequence[np.ndarray]) -> tuple[Tensor, ...]:
    """Convert row numbers to tensors in one piece of memory: a hundred thousand small tensors would take more."""
    return pieces(torch.from_numpy(np.concatenate(lists).astype(np.int64)), lengths(lists))


def pieces(index: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
    """Return consecutive pieces of one tensor, as views."""
    return index.split(lengths.tolist())


def lengths(lists: Sequence[Tensor] | Sequence[np.ndarray]) -> Tensor:
    """Return the length of each list of rows, (N,) int64."""
    return torch.tensor([len(indices) for indices in lists], dtype=torch.int64)


def blocks(sizes: Sequence[int]) -> list[np.ndarray]:
    """Return the row numbers of clients whose rows are stored one client after the other."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def split_clients(
    names: Sequence[str],
    rows: Sequence[np.ndarray],
    labels: np.ndarray | None,
    key: Key,
    test_fraction: float,
    patients: np.ndarray | None = None,
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Return each client's training and test rows, which do not depend on the other clients."""
    parts = []
    for name, mine in zip(names, rows, strict=True):
        own = None if labels is None else labels[mine]
        units = None if patients is None else patients[mine]
        parts.append(split_rows(mine, own, key.fold("group", name), test_fraction, f"client '{name}'", units))
    return tuple(kept for kept, _ in parts), tuple(held for _, held in parts)
