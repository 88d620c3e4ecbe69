"""Functions of tensors that are called again and again with the same shapes: traced once, then replayed.

Tracing takes Python, autograd and vmap out of every further call: what is left is the list of tensor operations.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule

from drfl.task import Task

Function = Callable[..., Sequence[Tensor]]
"""Tensors → tensors, pure."""

KEPT = 64
"""Shapes remembered for each task where nothing else is said."""

_made: WeakKeyDictionary[Task, OrderedDict[Hashable, Function]] = WeakKeyDictionary()


def replayed(
    task: Task,
    name: Hashable,
    function: Function,
    arguments: Sequence[Tensor],
    make: Callable[[Function, Sequence[Tensor]], Function],
    kept: int = KEPT,
) -> Function:
    """What ``make`` makes of the function for tensors of these shapes, made when they are first seen.

    What is called depends on the shapes alone, not on what was called before: the same rounds give the same bits, in
    whatever process and order they are run.

    Args:
        task: whose function it is; what was made is dropped along with it.
        name: tells the task's functions from each other.
        function: to be called with tensors like ``arguments``.
        arguments: an example.
        make: makes the faster one for tensors of exactly these shapes; may fail.
        kept: for how many names and shapes, the latest used, it is kept.
    """
    shapes = _made.setdefault(task, OrderedDict())
    key = (name, *((a.shape, a.stride(), a.dtype, a.device) for a in arguments))
    if key not in shapes:
        shapes[key] = _attempt(make, function, arguments)
        if len(shapes) > kept:
            shapes.popitem(last=False)
    shapes.move_to_end(key)
    return shapes[key]


def _attempt(
    make: Callable[[Function, Sequence[Tensor]], Function], function: Function, arguments: Sequence[Tensor]
) -> Function:
    """What is made, if it gives what the function gives; else the function, which works, only slower."""
    try:
        made = make(function, arguments)
        return made if _agree(made(*arguments), function(*arguments)) else function
    except Exception:  # whatever a model has that cannot be traced
        return function


def _agree(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether results are the same up to rounding."""
    for a, b in zip(results, expected, strict=True):
        close = torch.finfo(b.dtype).eps ** 0.5 * float(b.abs().nan_to_num(0, 0).max()) if b.numel() else 0.0
        if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=close, equal_nan=True):
            return False
    return True


def traced(function: Function, arguments: Sequence[Tensor]) -> Function:
    """The function as a flat list of tensor operations, which no Python runs between."""
    from torch.fx.experimental.proxy_tensor import make_fx  # brings a second's worth of modules along

    from drfl.engine.tidy import DECOMPOSED, tidy

    with warnings.catch_warnings():  # about the inside of torch, not about the model
        warnings.simplefilter("ignore")
        graph = tidy(make_fx(function, decomposition_table=DECOMPOSED)(*arguments))
        return _scripted(graph, arguments)


def _scripted(graph: GraphModule, arguments: Sequence[Tensor]) -> Function:
    """The same operations run by torch's interpreter, which takes four fifths of the time that Python's takes.

    ``torch.compile`` is no faster here and needs seconds and a C++ compiler; ``torch.jit.trace`` is the same, but never
    gives back the memory of what it has traced. These two functions are not public. Where they are gone, Python calls
    the operations; the results are the same to the bit.
    """
    try:
        recorded, _ = torch._C._create_graph_by_tracing(
            lambda *tensors: tuple(graph(*tensors)), tuple(arguments), lambda value: "", True, False, None, []
        )
        return torch._C._create_function_from_graph("replay", recorded)
    except Exception:
        return graph.forward
