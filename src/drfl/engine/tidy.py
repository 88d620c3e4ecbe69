"""A traced graph, made shorter: fewer calls to the same effect."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN.expand.default, _ATEN._unsafe_view.default)
_CONSTANTS = (_ATEN.scalar_tensor.default,)
_FEW = 32
"""Classes up to which softmax in steps takes half the time of torch's kernel, which goes row by row."""


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if x.shape[dim] > _FEW or half_to_float:
        return NotImplemented
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _log_softmax_backward(g: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if output.shape[dim] > _FEW or g.dtype != dtype:
        return NotImplemented
    return g - output.exp() * g.sum(dim, keepdim=True)


DECOMPOSED = {
    _ATEN._log_softmax.default: _log_softmax,
    _ATEN._log_softmax_backward_data.default: _log_softmax_backward,
}
"""Operations that a trace writes as several."""


def tidy(traced: GraphModule) -> GraphModule:
    """Take out what changes nothing, repeated calls, and calls whose results nobody uses; turn narrow products.

    Constants are worked out now.

    A graph that writes to its tensors is left alone: there, equal calls need not give equal results.
    """
    if any(_writes(node) for node in _calls(traced)):
        return traced
    seen: dict[tuple[object, ...], Node] = {}
    for node in _calls(traced):
        same = _unchanged(node) or seen.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            traced.graph.erase_node(node)
    for number, node in enumerate(_calls(traced)):
        _turn(traced, node)
        if node.target in _CONSTANTS:
            _fold(traced, node, f"_constant_{number}")
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _calls(traced: GraphModule) -> list[Node]:
    return [node for node in traced.graph.nodes if node.op == "call_function"]


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _unchanged(node: Node) -> Node | None:
    """What a call only repeats: a view of the same shape and strides as its source, a product with 1."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    before, after = source.meta.get("tensor_meta"), node.meta.get("tensor_meta")
    if before is None or after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return None
    if node.target in _VIEWS:
        return source if before.stride == after.stride else None
    return source if node.target is _ATEN.mul.Scalar and node.args[1] == 1 else None


def _fold(traced: GraphModule, node: Node, name: str) -> None:
    """Work a constant out once."""
    assert callable(node.target)
    traced.register_buffer(name, node.target(*node.args, **node.kwargs))
    with traced.graph.inserting_before(node):
        node.replace_all_uses_with(traced.graph.get_attr(name))
    traced.graph.erase_node(node)


def _turn(traced: GraphModule, node: Node) -> None:
    """Write A·B with fewer columns than rows as (Bᵀ·Aᵀ)ᵀ, which batched products on a CPU take half the time for."""
    if node.target is not _ATEN.bmm.default or any(user.target in _VIEWS for user in node.users):
        return  # views need the strides that they were traced with
    _, rows, columns = node.meta["tensor_meta"].shape
    if columns >= rows:
        return
    with traced.graph.inserting_before(node):
        call = traced.graph.call_function
        left, right = (call(_ATEN.transpose.int, (factor, 1, 2)) for factor in node.args)
        turned = call(_ATEN.transpose.int, (call(_ATEN.bmm.default, (right, left)), 1, 2))
    node.replace_all_uses_with(turned)
    traced.graph.erase_node(node)
