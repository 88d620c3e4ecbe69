"""Floyd's sampling without replacement, for many samples at once."""

from __future__ import annotations

import numpy as np


def distinct(uniforms: np.ndarray, sizes: np.ndarray) -> np.ndarray:
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
    return _settled(picks, last).reshape(k, T, B)


def _settled(picks: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Floyd's rule for all rows of (R, B).

    Where a pick repeats an earlier pick of its row it becomes its last_b. If the row is then without repetition, that
    is Floyd's answer: no pick can have hit an earlier last_b. The few rows left over go entry by entry.
    """
    row, b = _repetitions(picks)
    if not row.size:
        return picks
    chosen = picks.copy()
    chosen[row, b] = last[row, b]
    touched = np.unique(row)
    left = touched[np.unique(_repetitions(chosen[touched])[0])]
    chosen[left] = _entry_by_entry(picks[left], last[left])
    return chosen


def _repetitions(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where an entry repeats an earlier one of its row: rows and columns."""
    B = rows.shape[1]
    packed = np.sort(rows * B + np.arange(B), axis=1)
    values = packed // B
    row, at = np.nonzero(values[:, 1:] == values[:, :-1])
    return row, packed[row, at + 1] % B


def _entry_by_entry(picks: np.ndarray, last: np.ndarray) -> np.ndarray:
    chosen = picks.copy()
    for b in range(1, picks.shape[1]):
        taken = (chosen[:, :b] == picks[:, b, None]).any(1)
        chosen[:, b] = np.where(taken, last[:, b], picks[:, b])
    return chosen
