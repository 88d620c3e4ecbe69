"""Compare, save, load and change an algorithm's state as named tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import cast

import torch
from safetensors.torch import load, save
from torch import Tensor

from drfl.federation.algorithm import State, lam_of
from drfl.federation.client_table import ClientTable
from drfl.testing.report import CheckError

CLIENTS, ROWS = ".clients", ".rows"
"""Suffixes in a file for the clients of a table's written rows, and for these rows."""


def leaves(state: State) -> dict[str, Tensor]:
    """Return all tensors of a state by their paths, e.g. ``"reports.losses"``; None fields are skipped.

    A :class:`ClientTable` becomes one dense (N, d) tensor.

    Raises:
        CheckError: If a field is not a tensor, table, None or NamedTuple of these: a checkpoint would lose it.
    """
    return {path: leaf.dense() if isinstance(leaf, ClientTable) else leaf for path, leaf in _walk(state, "")}


def _parts(node: object) -> dict[str, object] | None:
    """Return the fields of a NamedTuple; None for anything else."""
    names = getattr(node, "_fields", None)
    return dict(zip(names, node, strict=True)) if isinstance(node, tuple) and names is not None else None


def _walk(node: object, path: str) -> Iterator[tuple[str, Tensor | ClientTable]]:
    parts = _parts(node)
    if isinstance(node, Tensor | ClientTable):
        yield path, node
    elif parts is not None:
        for name, child in parts.items():
            yield from _walk(child, f"{path}.{name}" if path else name)
    elif node is not None:
        kind = type(node).__name__
        raise CheckError(
            f"the state's {path or 'type'} is a {kind}: keep it as a tensor or a ClientTable in a NamedTuple"
        )


def rebuild(like: State, tensors: Mapping[str, Tensor]) -> State:
    """Replace the tensors of ``like`` by these, by path; rows of tables that are 0 stay unwritten."""

    def replaced(path: str, leaf: Tensor | ClientTable) -> Tensor | ClientTable:
        dense = tensors[path]
        if isinstance(leaf, Tensor):
            return dense
        # A dense tensor does not distinguish unwritten rows from rows of zeros.
        clients = (dense != 0).any(1).nonzero().flatten()
        return ClientTable.of(len(dense), clients, dense[clients], leaf.folder)

    return _mapped(like, replaced)


def _mapped(state: State, change: Callable[[str, Tensor | ClientTable], Tensor | ClientTable]) -> State:
    """Return the state with every tensor and table changed by a function of its path and value."""

    def walk(node: object, path: str) -> object:
        parts = _parts(node)
        if isinstance(node, Tensor | ClientTable):
            return change(path, node)
        if parts is None:
            return node
        make = cast("Callable[..., object]", type(node))
        return make(*(walk(part, f"{path}.{name}" if path else name) for name, part in parts.items()))

    return cast("State", walk(state, ""))


def copy_of(state: State) -> State:
    """Copy the state without sharing memory."""

    def copy(path: str, leaf: Tensor | ClientTable) -> Tensor | ClientTable:
        return (
            ClientTable.of(leaf.n, leaf.clients, leaf[leaf.clients], leaf.folder)
            if isinstance(leaf, ClientTable)
            else leaf.clone()
        )

    return _mapped(state, copy)


def through_a_file(state: State) -> State:
    """Save the state to a safetensors file, which holds the written rows of tables, and load it again."""
    tensors: dict[str, Tensor] = {}
    for path, leaf in _walk(state, ""):
        if isinstance(leaf, ClientTable):
            tensors |= {path + CLIENTS: leaf.clients, path + ROWS: leaf[leaf.clients]}
        else:
            # safetensors rejects tensors that share memory or have gaps.
            tensors[path] = leaf.detach().clone().contiguous()
    loaded = load(save(tensors))

    def read(path: str, leaf: Tensor | ClientTable) -> Tensor | ClientTable:
        if isinstance(leaf, Tensor):
            return loaded[path]
        return ClientTable.of(leaf.n, loaded[path + CLIENTS], loaded[path + ROWS], leaf.folder)

    return _mapped(state, read)


def with_mixture(state: State, lam: Tensor) -> State:
    """Return the state with another λ (N,), if it has one."""
    return rebuild(state, leaves(state) | {"lam": lam}) if lam_of(state) is not None else state


def of_model_shape(state: State) -> dict[str, Tensor]:
    """Return the leaves that hold models or tables of models: the last dimension is d."""
    d = state.w.numel()
    return {path: t for path, t in leaves(state).items() if t.dim() and t.shape[-1] == d}


def by_client(state: State, n: int) -> dict[str, Tensor]:
    """Return the leaves with one entry or row for each of n clients; n must differ from d to exclude models."""
    return {path: t for path, t in leaves(state).items() if t.dim() and t.shape[0] == n}


def tables(state: State, n: int) -> dict[str, Tensor]:
    """Return the leaves of two or more dimensions with one row for each of n clients, but not those of pairs."""
    return {path: t for path, t in by_client(state, n).items() if t.dim() >= 2 and t.shape != (n, n)}


def permuted(leaf: Tensor, order: list[int]) -> Tensor:
    """Return a leaf of :func:`by_client` for clients in another order; pairs of clients change on both sides."""
    return leaf[order][:, order] if leaf.shape == (len(order), len(order)) else leaf[order]


def bits_differ(a: State, b: State) -> list[str]:
    """List the paths at which two states are not equal bit for bit (NaN equals NaN)."""

    def same(x: Tensor, y: Tensor) -> bool:
        if x.dtype != y.dtype or x.shape != y.shape:
            return False
        # NaN is the only value that differs from itself.
        return bool(((x == y) | ((x != x) & (y != y))).all())

    return _differing(leaves(a), leaves(b), same)


def far_apart(a: State, b: State, tolerance: float) -> list[str]:
    """List the paths at which two states differ by more than ``tolerance`` × (1 + size), with the differences."""
    first, second = leaves(a), leaves(b)

    def close(x: Tensor, y: Tensor) -> bool:
        # Compare relative to the largest entry, because the rounding of a sum grows with its largest term.
        size = float(x.double().nan_to_num().abs().max()) if x.numel() else 0.0
        return gap(x, y) <= tolerance * (1 + size)

    return [f"{path} by {gap(first[path], second[path]):.1e}" for path in _differing(first, second, close)]


def gap(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinite if shapes or finiteness differ."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    a, b = a.double(), b.double()
    # ∞ − ∞ is NaN, so entries that are not finite must be equal, and then count as no difference.
    both = torch.isfinite(a) & torch.isfinite(b)
    if not bool((both | (a == b) | (a.isnan() & b.isnan())).all()):
        return float("inf")
    return float(torch.where(both, (a - b).abs(), 0.0).max())


def _differing(a: dict[str, Tensor], b: dict[str, Tensor], same: Callable[[Tensor, Tensor], bool]) -> list[str]:
    missing = sorted(set(a) ^ set(b))
    return missing + [path for path in a if path in b and not same(a[path], b[path])]
