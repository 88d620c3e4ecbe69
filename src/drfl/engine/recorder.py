"""Record a function's tensor operations, those of autograd and vmap included, as a graph."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from drfl.task.dispatch_mode import DispatchMode

META = "tensor_meta"
"""Key of a node's metadata with the :class:`TensorMeta` of its result."""

VALUES = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operations after which code may depend on a tensor's values."""


class TensorMeta(NamedTuple):
    """What is known about the result of an operation."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


def record(
    function: Callable[..., Sequence[Tensor]],
    arguments: Sequence[Tensor],
    replacements: Mapping[OpOverload, Callable[..., Any]],
) -> GraphModule:
    """Execute the function once on an example, and return the operations that it executed.

    ``make_fx`` of torch records the same graph, and takes longer because it also computes each operation's symbolic
    result.

    Args:
        function: A function from tensors to tensors whose operations do not depend on the tensors' values.
        arguments: The example.
        replacements: Functions that replace operations; they may return ``NotImplemented`` to keep one.

    Raises:
        ValueError: If the function reads the values of a tensor.
    """
    # Use aliases, because one tensor may be passed as two arguments.
    recorder, inputs = _OperationRecorder(replacements), [a.detach() for a in arguments]
    for number, tensor in enumerate(inputs):
        recorder.keep(tensor, recorder.graph.placeholder(f"input_{number}"))
    with recorder:
        outputs = function(*inputs)
    recorder.graph.output(tuple(recorder.node_of(tensor) for tensor in outputs))
    return GraphModule(recorder.constants, recorder.graph)


class _OperationRecorder(DispatchMode):
    """Writes operations into a graph while they are executed."""

    def __init__(self, replacements: Mapping[OpOverload, Callable[..., Any]]) -> None:
        super().__init__()
        self.graph, self.constants = Graph(), nn.Module()
        self._replacements = replacements
        # Use weak keys, so that intermediate results are freed as without a recorder.
        self._nodes = WeakTensorKeyDictionary()

    def keep(self, tensor: Tensor, node: Node) -> None:
        """Note which node computes a tensor."""
        node.meta[META] = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
        self._nodes[tensor] = node

    def node_of(self, tensor: Tensor) -> Node:
        """Return the node that computes a tensor; for a tensor from outside, a new constant."""
        if tensor not in self._nodes:
            name = f"_tensor_{len(self.constants._buffers)}"
            self.constants.register_buffer(name, tensor)
            self.keep(tensor, self.graph.get_attr(name))
        return self._nodes[tensor]

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func in self._replacements:
            with self:
                result = self._replacements[func](*args, **kwargs)
            if result is not NotImplemented:
                return result
        if VALUES.intersection(func.tags):
            raise ValueError(f"{func} makes the next operations depend on values")
        node = self.graph.call_function(func, *tree_map_only(Tensor, self.node_of, (args, kwargs)))
        result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            self.keep(result, node)
        elif isinstance(result, list | tuple):
            for place, each in enumerate(result):
                if isinstance(each, Tensor):
                    self.keep(each, self.graph.call_function(operator.getitem, (node, place)))
        return result
