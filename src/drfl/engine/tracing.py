"""Functions that are traced once and then replayed, on the CPU by torch.fx and on a GPU as a CUDA graph."""

from __future__ import annotations

import functools
import io
import logging
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from drfl.core.errors import Notice, first_line
from drfl.core.hashing import digest_of
from drfl.engine.recorder import META, record
from drfl.task.task import Task

Function = Callable[..., Sequence[Tensor]]
"""A pure function from tensors to tensors."""

MAX_SHAPES = 64
"""Number of shapes cached per task by default."""

MAX_STRUCTURES = 8
"""Number of task structures with cached traces, the most recently used. Runs at other seeds have their own tasks."""

Made = OrderedDict[Hashable, Function | None]
"""Functions by name and shapes; None = the function could not be made."""

_made: WeakKeyDictionary[Task, Made] = WeakKeyDictionary()
_traced: OrderedDict[bytes, Made] = OrderedDict()
"""Traces by structure, for tasks whose code cannot change."""

STABLE_PACKAGES = ("torch", "drfl", "builtins", "collections", "functools")
"""Packages whose code does not change while the process lives; that of a notebook or of a user's module may change."""

_structures: WeakKeyDictionary[Task, bytes | None] = WeakKeyDictionary()

_warned: WeakKeyDictionary[Task, set[Hashable]] = WeakKeyDictionary()

LOG = logging.getLogger("drfl.engine")


def replay(
    task: Task,
    name: Hashable,
    function: Function,
    arguments: Sequence[Tensor],
    make: Callable[[Function, Sequence[Tensor]], Function],
    limit: int = MAX_SHAPES,
) -> Function:
    """Return the faster version of a function that ``make`` creates when tensors of these shapes first occur.

    The returned function depends on the shapes alone, not on earlier calls. So the same rounds give the same bits, in
    any process and in any order. Only if the values do not allow a comparison of the two, because training diverges,
    the function itself is returned and the next call tries again.

    Args:
        task: The task of the function. The cached versions are dropped with the task, except traces of the models and
            losses of torch and drfl, which serve all tasks of the same structure.
        name: Distinguishes the task's functions.
        function: The function, to be called with tensors like ``arguments``.
        arguments: An example.
        make: Creates the faster version for tensors of exactly these shapes; may fail.
        limit: Number of names and shapes to cache, the most recently used.
    """
    structure = structure_of(task) if make is trace else None
    if structure is not None:
        shapes = _traced.setdefault(structure, OrderedDict())
        _traced.move_to_end(structure)
        if len(_traced) > MAX_STRUCTURES:
            # The first structure is the least recently used one.
            _traced.popitem(last=False)
    else:
        shapes = _made.setdefault(task, OrderedDict())
    # The key includes strides, because a trace contains views that are possible only with the strides it was made with.
    key = (name, *((a.shape, a.stride(), a.dtype, a.device) for a in arguments))
    if key not in shapes:
        made, is_decided = _attempt(task, name, make, function, arguments)
        if not is_decided:
            return function
        shapes[key] = made
        if len(shapes) > limit:
            # Drop the least recently used one; the newest is already at the end.
            shapes.popitem(last=False)
    shapes.move_to_end(key)
    # If there is no faster version, return the current function: the first one would keep its task and data alive.
    return shapes[key] or function


def structure_of(task: Task) -> bytes | None:
    """Return bytes that identify the task's losses and metrics as functions of parameters, inputs, targets and seeds.

    Tasks of equal structure compute the same. None = the task cannot be pickled, or depends on the user's code.
    """
    if task not in _structures:
        file = io.BytesIO()
        pickler = _StructurePickler(file, task)
        try:
            with torch.no_grad():
                pickler.dump((task.layout.names, task.model, task.loss, task.augment, task.measures))
            _structures[task] = file.getvalue()
        except Exception:  # a model may contain anything, and pickling it may raise anything
            _structures[task] = None
    return _structures[task]


class _StructurePickler(cloudpickle.Pickler):
    """Writes a trained parameter as its position among the parameters, and any other tensor as its digest."""

    def __init__(self, file: io.BytesIO, task: Task) -> None:
        super().__init__(file)
        self._places = {id(p): place for place, p in enumerate(task.model.parameters()) if p.requires_grad}

    def persistent_id(self, obj: object) -> object:
        """Return a substitute for a tensor; None = the object itself is written."""
        if not isinstance(obj, Tensor):
            return None
        # The position shows which layers share a parameter, which is part of the function.
        place = self._places.get(id(obj))
        # torch would also write the memory address of a tensor.
        described = (tuple(obj.shape), str(obj.dtype), str(obj.device), obj.requires_grad)
        return (*described, digest_of([obj]) if place is None else place)

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - type as in cloudpickle
        """Reject code that may change."""
        module = str(getattr(obj, "__module__", None))
        if (isinstance(obj, type) or callable(obj)) and module.partition(".")[0] not in STABLE_PACKAGES:
            raise TypeError(f"code of {module} may change")
        return super().reducer_override(obj)


def _attempt(
    task: Task,
    name: Hashable,
    make: Callable[[Function, Sequence[Tensor]], Function],
    function: Function,
    arguments: Sequence[Tensor],
) -> tuple[Function | None, bool]:
    """Return the function that ``make`` creates, or None if its results differ, and whether the values could decide."""
    try:
        made = make(function, arguments)
        results, expected = made(*arguments), function(*arguments)
        if _agree(results, expected):
            # Any two functions agree if all results are NaN.
            return made, all(not b.numel() or bool(b.isfinite().any()) for b in expected)
        # Near overflow, one order of a sum may be infinite and another finite. NaN fails the comparison.
        if not all(bool((b.abs() < torch.finfo(b.dtype).max ** 0.75).all()) for b in expected):
            return None, False
        # With huge logits, for example, the last digits of the parameters decide about the gradient.
        if not _agree(function(*map(_rounded, arguments)), expected):
            return None, False
        reason = "its results differ"
    # A model may contain anything, and tracing it may raise anything: the function itself still works.
    except Exception as error:
        reason = first_line(error)
    # Warn once for each task and name, not once for each shape.
    if name not in (warned := _warned.setdefault(task, set())):
        warned.add(name)
        text = f"{model_of(task)} cannot be {make.__name__}d ({reason}), so its steps run unoptimised and slower"
        LOG.warning(Notice(text, "slow-model", "model"))
    return None, True


def _agree(results: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Return whether results agree in half the digits of the largest entry of each tensor.

    A trace may sum in another order, so its last bits may differ, while a wrong trace is off by far more.
    """
    for a, b in zip(results, expected, strict=True):
        # NaN and ∞ are excluded from the tolerance, but allclose compares them.
        close = torch.finfo(b.dtype).eps ** 0.5 * float(b.abs().nan_to_num(0, 0).max()) if b.numel() else 0.0
        if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=close, equal_nan=True):
            return False
    return True


def _rounded(values: Tensor) -> Tensor:
    """Return values that differ in the last digits, up and down in turn."""
    if not values.is_floating_point():
        return values
    signs = 1 - 2 * (torch.arange(values.numel(), device=values.device).view(values.shape) % 2)
    return values * (1 + 4 * torch.finfo(values.dtype).eps * signs).to(values.dtype)


def model_of(task: Task) -> str:
    """Return the name of the task's model for a log message."""
    return f"the model {type(task.model).__name__}"


def trace(function: Function, arguments: Sequence[Tensor]) -> Function:
    """Convert the function to a flat list of tensor operations, without Python code between them."""
    with warnings.catch_warnings():  # these concern torch's internals, not the model
        warnings.simplefilter("ignore")
        graph = simplify(record(function, arguments, REPLACEMENTS))
        # torch's interpreter takes four fifths of the time of Python's. torch.compile is not faster here, and needs
        # seconds and a C++ compiler. torch.jit.trace is as fast, but never frees the memory of its traces. The two
        # functions below are not public. In a version of torch without them, Python calls the operations, with bitwise
        # equal results.
        try:
            recorded, _ = torch._C._create_graph_by_tracing(
                lambda *tensors: tuple(graph(*tensors)), tuple(arguments), lambda value: "", True, False, None, []
            )
            return torch._C._create_function_from_graph("replay", recorded)
        except Exception as error:
            _log_interpreter(first_line(error))
            return graph.forward


@functools.cache
def _log_interpreter(reason: str) -> None:
    LOG.info("torch's interpreter cannot run a traced step (%s), so Python calls its operations (slower)", reason)


_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN.expand.default, _ATEN._unsafe_view.default)
_CONSTANTS = (_ATEN.scalar_tensor.default,)
_FEW = 32
"""Maximum number of classes for which softmax along the last dimension is several times slower than along another one,
for which torch's kernel computes neighbouring rows side by side."""


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if not _last_of_few(x, dim) or half_to_float:
        return NotImplemented  # leaves the operation unchanged
    return _ATEN._log_softmax(x.transpose(-2, -1), x.dim() - 2, False).transpose(-2, -1)


def _log_softmax_backward(g: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if not _last_of_few(output, dim) or g.dtype != dtype:
        return NotImplemented
    transposed = g.transpose(-2, -1), output.transpose(-2, -1)
    return _ATEN._log_softmax_backward_data(*transposed, output.dim() - 2, dtype).transpose(-2, -1)


def _last_of_few(x: Tensor, dim: int) -> bool:
    return x.dim() > 1 and dim % x.dim() == x.dim() - 1 and x.shape[-1] <= _FEW


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    # In transposed products the classes are far apart in memory, and argmax takes ten times as long as max.
    return NotImplemented if dim is None else x.max(dim, keepdim).indices


REPLACEMENTS = {
    # Copy, because the function may write to a tensor that it has made from numbers.
    _ATEN.lift_fresh.default: _ATEN.clone.default,
    _ATEN.argmax.default: _argmax,
    _ATEN._log_softmax.default: _log_softmax,
    _ATEN._log_softmax_backward_data.default: _log_softmax_backward,
}
"""Operations that a trace replaces by others."""


def simplify(module: GraphModule) -> GraphModule:
    """Remove operations without effect, repeated calls and unused results; transpose narrow products; fold constants.

    A graph that writes to its tensors is returned unchanged, because equal calls in it need not give equal results.
    """
    schemas = [getattr(node.target, "_schema", None) for node in _calls(module)]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        return module
    unique: dict[tuple[object, ...], Node] = {}
    for node in _calls(module):
        # A node prints as its name, which is unique. Nodes are in the order of execution, so the arguments of a later
        # node already refer to the nodes that replaced earlier ones.
        same = _unchanged(node) or unique.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)
    for number, node in enumerate(_calls(module)):
        _transpose_narrow(module, node)
        if node.target in _CONSTANTS:
            # Constants are computed once, when the graph is made.
            name = f"_constant_{number}"
            assert callable(node.target)
            module.register_buffer(name, node.target(*node.args, **node.kwargs))
            with module.graph.inserting_before(node):
                node.replace_all_uses_with(module.graph.get_attr(name))
            module.graph.erase_node(node)
    # This is safe because nothing in this graph writes.
    module.graph.eliminate_dead_code()
    module.recompile()
    return module


def _calls(module: GraphModule) -> list[Node]:
    return [node for node in module.graph.nodes if node.op == "call_function"]


def _unchanged(node: Node) -> Node | None:
    """Return the argument that a call returns unchanged, for a view of equal shape and strides or a product with 1."""
    source = node.args[0] if node.args else None
    # The gradient of a weighted sum with respect to its terms is a tensor of 1, times the weights.
    is_product = node.target is _ATEN.mul.Tensor and _is_one(source)
    if is_product:
        source = node.args[1]
    if not isinstance(source, Node):
        return None
    before, after = source.meta.get(META), node.meta.get(META)
    if before is None or after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return None
    if is_product or node.target in _VIEWS:
        # With strides other than those in the trace, a later view of the result might be impossible.
        return source if before.stride == after.stride else None
    return source if node.target is _ATEN.mul.Scalar and node.args[1] == 1 else None


def _is_one(node: object) -> bool:
    while isinstance(node, Node) and node.target in _VIEWS:
        node = node.args[0]
    return isinstance(node, Node) and node.target is _ATEN.ones_like.default


def _transpose_narrow(module: GraphModule, node: Node) -> None:
    """Write A·B with fewer columns than rows as (Bᵀ·Aᵀ)ᵀ, which takes half the time on a CPU."""
    if node.target is not _ATEN.bmm.default or any(user.target in _VIEWS for user in node.users):
        return  # views require the strides with which they were traced
    stack, rows, columns = node.meta[META].shape
    if columns >= rows:
        return
    # Only nodes of the trace have shapes: `first` may be a node that an earlier call of this function added.
    first, source = node.args[0], None
    if isinstance(first, Node) and first.target is _ATEN.expand.default and isinstance(first.args[0], Node):
        # This is the expanded matrix, unless a stack was expanded.
        same = first.args[0].meta[META].shape == first.meta[META].shape[1:]
        source = first.args[0] if same else None
    with module.graph.inserting_before(node):
        call = module.graph.call_function
        left, right = (call(_ATEN.transpose.int, (factor, 1, 2)) for factor in node.args)
        if source is None:
            product = call(_ATEN.bmm.default, (right, left))
        else:
            # One A for the whole stack: it is read once if all Bᵀ of the stack are rows of one matrix.
            flat = call(_ATEN.reshape.default, (right, [stack * columns, -1]))
            product = call(_ATEN.mm.default, (flat, call(_ATEN.t.default, (source,))))
            product = call(_ATEN.view.default, (product, [stack, columns, rows]))
        transposed = call(_ATEN.transpose.int, (product, 1, 2))
    node.replace_all_uses_with(transposed)
    module.graph.erase_node(node)


WARM_UP = 2
"""Calls before the capture, in which libraries choose their kernels and allocate their workspace."""


def capture(function: Function, arguments: Sequence[Tensor]) -> Function:
    """Capture the function as a CUDA graph for tensors like ``arguments``, all on one CUDA device.

    Inputs are copied into the graph's memory and results out of it, so the caller owns the results.

    Args:
        function: A pure function without synchronisation.
        arguments: An example.

    Raises:
        RuntimeError: If the function cannot be captured.
    """
    with torch.cuda.device(arguments[0].device):
        # The graph owns memory for its inputs, because a replay reads the addresses that were captured.
        inputs = [a.clone() for a in arguments]
        side, main = torch.cuda.Stream(), torch.cuda.current_stream()
        # torch requires the warm-up before a capture to run on a separate stream; each stream waits for the work queued
        # on the other.
        side.wait_stream(main)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                function(*inputs)
        main.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = function(*inputs)

    def replay(*arguments: Tensor) -> Sequence[Tensor]:
        for input, value in zip(inputs, arguments, strict=True):
            input.copy_(value)
        graph.replay()
        # The next replay overwrites the outputs, so copies are returned.
        return [output.clone() for output in outputs]

    return replay
