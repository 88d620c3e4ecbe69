"""Functions traced once and replayed, on the CPU by torch.fx and on a GPU as a CUDA graph."""

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
from drfl.task.task import Task

Function = Callable[..., Sequence[Tensor]]
"""Tensors → tensors, pure."""

KEPT = 64
"""Shapes remembered for each task where nothing else is said."""

STRUCTURES = 8
"""Structures of tasks whose traces are kept, the latest used: runs at other seeds have tasks of their own."""

Made = OrderedDict[Hashable, Function | None]
"""By name and shapes; None = it cannot be made."""

_made: WeakKeyDictionary[Task, Made] = WeakKeyDictionary()
_traced: OrderedDict[bytes, Made] = OrderedDict()
"""By structure: those of tasks that are the same function of their tensors at any time."""

UNCHANGING = ("torch", "drfl", "builtins", "collections", "functools")
"""Packages whose code is the same as long as the process lives; that of a notebook or of a user's module may not be."""

_structures: WeakKeyDictionary[Task, bytes | None] = WeakKeyDictionary()

_warned: WeakKeyDictionary[Task, set[Hashable]] = WeakKeyDictionary()

LOG = logging.getLogger("drfl.engine")


def replayed(
    task: Task,
    name: Hashable,
    function: Function,
    arguments: Sequence[Tensor],
    make: Callable[[Function, Sequence[Tensor]], Function],
    kept: int = KEPT,
) -> Function:
    """The version of the function that ``make`` gives for tensors of these shapes, made when they are first seen.

    What is called depends on the shapes alone, not on what was called before: the same rounds give the same bits, in
    whatever process and order they are run.

    Args:
        task: whose function it is; what was made is dropped along with it, but for traces of torch's and drfl's own
            models and losses, which serve every task of the same structure.
        name: distinguishes the task's functions.
        function: to be called with tensors like ``arguments``.
        arguments: an example.
        make: makes the faster one for tensors of exactly these shapes; may fail.
        kept: for how many names and shapes, the latest used, it is kept.
    """
    structure = structure_of(task) if make is traced else None
    if structure is not None:
        shapes = _traced.setdefault(structure, OrderedDict())
        _traced.move_to_end(structure)
        if len(_traced) > STRUCTURES:
            # The first structure is the least recently used one.
            _traced.popitem(last=False)
    else:
        shapes = _made.setdefault(task, OrderedDict())
    # Strides too: a trace holds views that are only possible with the strides it was made with.
    key = (name, *((a.shape, a.stride(), a.dtype, a.device) for a in arguments))
    if key not in shapes:
        shapes[key] = _attempt(task, name, make, function, arguments)
        if len(shapes) > kept:
            # The least recently used one: the newest is at the end already.
            shapes.popitem(last=False)
    shapes.move_to_end(key)
    # Not the function that was called first, which holds on to its task and its data.
    return shapes[key] or function


def structure_of(task: Task) -> bytes | None:
    """What the task's losses and metrics are as functions of parameters, inputs, targets and seeds.

    Tasks of equal structure compute the same. None = the task cannot be pickled, or code of the user's is behind it.
    """
    if task not in _structures:
        file = io.BytesIO()
        pickler = _StructurePickler(file, task)
        try:
            with torch.no_grad():
                pickler.dump((task.layout.names, task.model, task.loss, task.augment, task.measures))
            _structures[task] = file.getvalue()
        except Exception:  # a model may hold anything, and pickling it may raise anything
            _structures[task] = None
    return _structures[task]


class _StructurePickler(cloudpickle.Pickler):
    """Writes a trained parameter as its place among the parameters, and any other tensor as its digest."""

    def __init__(self, file: io.BytesIO, task: Task) -> None:
        super().__init__(file)
        self._places = {id(p): place for place, p in enumerate(task.model.parameters()) if p.requires_grad}

    def persistent_id(self, obj: object) -> object:
        """What stands for a tensor; None = the object itself is written."""
        if not isinstance(obj, Tensor):
            return None
        # The place tells which layers share a parameter, which is part of the function.
        place = self._places.get(id(obj))
        # torch would write where a tensor lies in memory.
        described = (tuple(obj.shape), str(obj.dtype), str(obj.device), obj.requires_grad)
        return (*described, digest_of([obj]) if place is None else place)

    def reducer_override(self, obj: Any) -> Any:  # noqa: ANN401 - as cloudpickle declares it
        """Refuse code that may change."""
        module = str(getattr(obj, "__module__", None))
        if (isinstance(obj, type) or callable(obj)) and module.partition(".")[0] not in UNCHANGING:
            raise TypeError(f"code of {module} may change")
        return super().reducer_override(obj)


def _attempt(
    task: Task,
    name: Hashable,
    make: Callable[[Function, Sequence[Tensor]], Function],
    function: Function,
    arguments: Sequence[Tensor],
) -> Function | None:
    """What ``make`` gives, if its results agree with the function's; else None: the function itself is slower."""
    try:
        made = make(function, arguments)
        for a, b in zip(made(*arguments), function(*arguments), strict=True):
            # The tolerance is half the digits of the largest entry. A trace may sum in another order, so its bits may
            # differ, while a wrong trace is off by far more. The tolerance leaves out NaN and ∞, which allclose
            # compares.
            close = torch.finfo(b.dtype).eps ** 0.5 * float(b.abs().nan_to_num(0, 0).max()) if b.numel() else 0.0
            if a.shape != b.shape or not torch.allclose(a, b, rtol=0, atol=close, equal_nan=True):
                reason = "it gives other numbers"
                break
        else:
            return made
    # A model may contain anything, and tracing it may raise anything: the function itself still works.
    except Exception as error:
        reason = first_line(error)
    # One warning for each task and name, not one for each shape.
    if name not in (warned := _warned.setdefault(task, set())):
        warned.add(name)
        text = f"{model_of(task)} cannot be {make.__name__} ({reason}): its steps run as they are, slower"
        LOG.warning(Notice(text, "slow-model", "model"))
    return None


def model_of(task: Task) -> str:
    """The task's model for a line of the log."""
    return f"the model {type(task.model).__name__}"


def traced(function: Function, arguments: Sequence[Tensor]) -> Function:
    """The function as a flat list of tensor operations, which no Python runs between."""
    from torch.fx.experimental.proxy_tensor import make_fx  # brings a second's worth of modules along

    with warnings.catch_warnings():  # about the inside of torch, not about the model
        warnings.simplefilter("ignore")
        # make_fx runs the function once on the example and records every operation, those of autograd and vmap
        # included.
        graph = simplify(make_fx(function, decomposition_table=DECOMPOSED)(*arguments))
        # torch's interpreter takes four fifths of the time of Python's. torch.compile is not faster here, and needs
        # seconds and a C++ compiler. torch.jit.trace is as fast, but never frees the memory of its traces. The two
        # functions below are not public: in a version of torch without them, Python calls the operations, with results
        # equal to the bit.
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
    LOG.info("torch's interpreter does not take a traced step (%s): Python calls its operations, slower", reason)


_ATEN = torch.ops.aten
_VIEWS = (_ATEN.view.default, _ATEN.expand.default, _ATEN._unsafe_view.default)
_CONSTANTS = (_ATEN.scalar_tensor.default,)
_FEW = 32
"""Classes up to which softmax along the last dimension, row by row, takes many times as long as along another one,
where torch's kernel computes neighbouring rows side by side."""


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    if not _last_of_few(x, dim) or half_to_float:
        return NotImplemented  # leaves the operation as it is
    return _ATEN._log_softmax(x.transpose(-2, -1), x.dim() - 2, False).transpose(-2, -1)


def _log_softmax_backward(g: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
    if not _last_of_few(output, dim) or g.dtype != dtype:
        return NotImplemented
    turned = g.transpose(-2, -1), output.transpose(-2, -1)
    return _ATEN._log_softmax_backward_data(*turned, output.dim() - 2, dtype).transpose(-2, -1)


def _last_of_few(x: Tensor, dim: int) -> bool:
    return x.dim() > 1 and dim % x.dim() == x.dim() - 1 and x.shape[-1] <= _FEW


def _argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    # Of transposed products the classes lie far apart, where argmax takes ten times as long as the maximum's place.
    return NotImplemented if dim is None else x.max(dim, keepdim).indices


DECOMPOSED = {
    _ATEN.argmax.default: _argmax,
    _ATEN._log_softmax.default: _log_softmax,
    _ATEN._log_softmax_backward_data.default: _log_softmax_backward,
}
"""Operations that a trace writes in another way."""


def simplify(traced: GraphModule) -> GraphModule:
    """Remove operations without effect, repeated calls and unused results; transpose narrow products; fold constants.

    A graph that writes to its tensors is returned unchanged: there, equal calls need not give equal results.
    """
    schemas = [getattr(node.target, "_schema", None) for node in _calls(traced)]
    if any(schema is not None and schema.is_mutable for schema in schemas):
        return traced
    seen: dict[tuple[object, ...], Node] = {}
    for node in _calls(traced):
        # A node prints as its name, which no other node has. Nodes come in the order of execution, so the arguments of
        # a later one already name the survivors of the earlier ones.
        same = _unchanged(node) or seen.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if same is not node:
            node.replace_all_uses_with(same)
            traced.graph.erase_node(node)
    for number, node in enumerate(_calls(traced)):
        _turn(traced, node)
        if node.target in _CONSTANTS:
            # Constants are computed once, when the graph is made.
            name = f"_constant_{number}"
            assert callable(node.target)
            traced.register_buffer(name, node.target(*node.args, **node.kwargs))
            with traced.graph.inserting_before(node):
                node.replace_all_uses_with(traced.graph.get_attr(name))
            traced.graph.erase_node(node)
    # Safe, as nothing in this graph writes.
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def _calls(traced: GraphModule) -> list[Node]:
    return [node for node in traced.graph.nodes if node.op == "call_function"]


def _unchanged(node: Node) -> Node | None:
    """The argument that a call returns unchanged: of a view of the same shape and strides, or a product with 1."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    before, after = source.meta.get("tensor_meta"), node.meta.get("tensor_meta")
    if before is None or after is None or (before.shape, before.dtype) != (after.shape, after.dtype):
        return None
    if node.target in _VIEWS:
        # With other strides than the trace has seen a later view of the result might be impossible.
        return source if before.stride == after.stride else None
    return source if node.target is _ATEN.mul.Scalar and node.args[1] == 1 else None


def _turn(traced: GraphModule, node: Node) -> None:
    """Write A·B with fewer columns than rows as (Bᵀ·Aᵀ)ᵀ, which products on a CPU take half the time for."""
    if node.target is not _ATEN.bmm.default or any(user.target in _VIEWS for user in node.users):
        return  # views need the strides that they were traced with
    stack, rows, columns = node.meta["tensor_meta"].shape
    if columns >= rows:
        return
    # Only nodes of the trace have shapes: `first` may be a node that an earlier call of this function added.
    first, source = node.args[0], None
    if isinstance(first, Node) and first.target is _ATEN.expand.default and isinstance(first.args[0], Node):
        # The expanded matrix, unless a stack was expanded.
        same = first.args[0].meta["tensor_meta"].shape == first.meta["tensor_meta"].shape[1:]
        source = first.args[0] if same else None
    with traced.graph.inserting_before(node):
        call = traced.graph.call_function
        left, right = (call(_ATEN.transpose.int, (factor, 1, 2)) for factor in node.args)
        if source is None:
            product = call(_ATEN.bmm.default, (right, left))
        else:
            # One A for the whole stack: it is read once where all the stack's Bᵀ stand below each other.
            flat = call(_ATEN.reshape.default, (right, [stack * columns, -1]))
            product = call(_ATEN.mm.default, (flat, call(_ATEN.t.default, (source,))))
            product = call(_ATEN.view.default, (product, [stack, columns, rows]))
        turned = call(_ATEN.transpose.int, (product, 1, 2))
    node.replace_all_uses_with(turned)
    traced.graph.erase_node(node)


WARM_UP = 2
"""Calls before the capture, in which libraries choose their kernels and take their work space."""


def captured(function: Function, arguments: Sequence[Tensor]) -> Function:
    """The function as a CUDA graph, for tensors like ``arguments``, all on one CUDA device.

    Inputs are copied into the graph's memory and results out of it, so that what is returned is the caller's own.

    Args:
        function: pure, without a synchronisation in it.
        arguments: an example.

    Raises:
        RuntimeError: the function cannot be captured.
    """
    with torch.cuda.device(arguments[0].device):
        # The graph's own memory for its inputs: a replay reads the addresses that were captured.
        inputs = [a.clone() for a in arguments]
        aside, here = torch.cuda.Stream(), torch.cuda.current_stream()
        # torch asks for the warm-up before a capture on a stream of its own; each stream waits for what the other has
        # queued.
        aside.wait_stream(here)
        with torch.cuda.stream(aside):
            for _ in range(WARM_UP):
                function(*inputs)
        here.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            outputs = function(*inputs)

    def replay(*arguments: Tensor) -> Sequence[Tensor]:
        for mine, given in zip(inputs, arguments, strict=True):
            mine.copy_(given)
        graph.replay()
        # The next replay writes to the same outputs.
        return [output.clone() for output in outputs]

    return replay
