"""Check whether a model can be federated. Each error names the layer and the remedy."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from drfl.core.described import is_of_package
from drfl.core.errors import InputError, first_line
from drfl.task.dispatch_mode import DispatchMode
from drfl.task.functional import functional_call
from drfl.task.input_fields import fields_of

CLOSE = 1e-3
"""Tolerated difference between outputs in different batches or modes, as a share of the largest output."""

COMPILED = "_orig_mod"
"""Name under which ``torch.compile`` stores the original module."""


def without_compilation(model: nn.Module) -> nn.Module:
    """Undo ``torch.compile`` and sparse gradients in a copy of the model; return the model itself if it has neither.

    drfl traces local steps itself, and no engine can add sparse gradients. The results are the same. Parameter names
    lose the prefix ``_orig_mod.``, so that they equal those of the original module.
    """
    while COMPILED in model._modules:
        model = model.get_submodule(COMPILED)
    layers = list(model.modules())
    is_compiled = any(COMPILED in layer._modules or layer._compiled_call_impl is not None for layer in layers)
    if not is_compiled and not any(map(_is_sparse, layers)):
        return model
    model = copy.deepcopy(model)  # The copy does not include the results of module.compile().
    for layer in list(model.modules()):
        for name, child in layer._modules.items():  # named_children() omits the second place of a layer
            while child is not None and COMPILED in child._modules:
                child = child.get_submodule(COMPILED)
                setattr(layer, name, child)
        if _is_sparse(layer):
            setattr(layer, "sparse", False)  # noqa: B010 - torch types attributes as tensors
    return model


def _is_sparse(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse


def model_error(problem: str) -> InputError:
    """Create the error for a model that cannot be federated."""
    return InputError(problem, code="unsupported-model", field="model")


GROUP_NORM_REMEDY = "Replace it by nn.GroupNorm with drfl.models.without_batch_norm(model)"


def check_module(module: nn.Module) -> None:
    """Check by the types of its layers that a module's output depends only on its parameters and its input.

    Raises:
        InputError: If a layer cannot be federated, or the module cannot be called with other parameters or saved.
    """
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise model_error(f"{type(module).__name__} distributes batches over devices itself. Pass model.module.")
    # Running statistics are not parameters, and averaging them over clients is undefined (BatchNorm's counter is even
    # an integer). Randomised activations and alpha dropout draw from a global generator, so results would depend on the
    # engine; plain dropout gets keyed random numbers. In eval() mode, all these layers are constant and allowed.
    for module_name, layer in module.named_modules():
        name = _named(module_name, layer)
        if isinstance(layer, torch.jit.ScriptModule):
            raise model_error(
                f"{name} is compiled by torch.jit, which fixes its parameters. Pass the nn.Module itself."
            )
        if any(map(nn.parameter.is_lazy, (*layer.parameters(recurse=False), *layer.buffers(recurse=False)))):
            raise model_error(
                f"{name} has no sizes yet. Call the model once on a batch of inputs, or build it with explicit sizes."
            )
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
            raise model_error(f"{name} rescales its weight in the forward pass. Build it without max_norm.")
        # Statistics that are parameters, as in drfl.task.batch_norm, change only in local steps.
        has_statistics = (
            isinstance(getattr(layer, "running_mean", None), Tensor) and "running_mean" not in layer._parameters
        )
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not has_statistics:
            raise model_error(f"{name} mixes the samples of a batch. {GROUP_NORM_REMEDY}.")
        if has_statistics and layer.training:
            is_instance_norm = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
            remedy = "Build it with track_running_stats=False" if is_instance_norm else GROUP_NORM_REMEDY
            keep = "" if is_instance_norm else "keep them with drfl.models.with_federated_batch_norm(model) and FedBN, "
            raise model_error(
                f"{name} has running statistics, which this layer cannot average over clients. {remedy}, {keep}or "
                "freeze them with .eval()."
            )
        is_random = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0
        if layer.training and (is_random or isinstance(layer, nn.RReLU)):
            raise model_error(
                f"{name} draws from a global generator, so results would depend on the engine. Use nn.Dropout, for "
                "which drfl supplies keyed random numbers, or turn the layer off with .eval()."
            )
    devices = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    if "meta" in devices:
        raise model_error("the model's parameters are on device 'meta' and have no values. Build the model on 'cpu'.")
    if len(devices) > 1:
        raise model_error(
            f"the model's parameters are on several devices ({', '.join(sorted(devices))}). Call model.cpu() first."
        )
    # The final model is saved from its state_dict. An error now is better than one after hours of training.
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            kind = f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise model_error(
                f"'{name}' in the model's state_dict is {kind}, which cannot be saved in a model file. Make it a dense "
                "tensor, or register it with persistent=False."
            )


class ForwardPass(NamedTuple):
    """The result of a forward pass on a batch.

    Args:
        outputs: Outputs of the whole batch.
        alone: Outputs of the first samples, each computed as a batch of one.
        reads: Whether the pass reads values of tensors, for example for a branch.
    """

    outputs: Tensor
    alone: list[Tensor]
    reads: bool


def check_forward(model: nn.Module, trained: Mapping[str, Tensor], x: Tensor, count: int) -> ForwardPass:
    """Check that a sample's outputs depend only on the parameters and the sample, without side effects.

    Args:
        model: The model. Its parameters and buffers do not change.
        trained: Trainable parameters by name, in memory that is not shared.
        x: Inputs (B, …), which do not change.
        count: Number of samples, from the first, to compute also as a batch of one.

    Raises:
        InputError: If the model fails on these inputs, changes them or its tensors, returns anything but a tensor,
            returns other outputs when it is called again, or if a sample's outputs depend on the rest of its batch.
    """
    # Copy the buffers, because a forward pass that writes to them must not change the user's model.
    state = {**trained, **{name: buffer.clone() for name, buffer in model.named_buffers()}}
    before = {name: value.clone() for name, value in state.items()}
    frozen = {name: p for name, p in model.named_parameters() if name not in trained and not p.is_inference()}
    # torch counts in-place changes of a tensor in _version, so there is no need to compare values.
    versions, label = {name: p._version for name, p in frozen.items()}, f"the model {type(model).__name__}"
    rows, after = x.clone(), dict(state)
    start, generators = rows._version, _generators(x)

    def call(rows: Tensor) -> Tensor:
        try:
            return functional_call(model, after, (rows,))
        except (InputError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            layer, fields = _layer(model, lambda: functional_call(model, dict(state), (rows,))), fields_of(model)
            reason = first_line(error)
            hints = {
                "mat1 and mat2": ". Put torch.nn.Flatten() before this layer." if rows.dim() > 2 else "",
                "must be Tensor, not tuple": (
                    ". The previous layer returns a tuple, as nn.LSTM does. Select the tensor."
                ),
                "'Half'": ". On a CPU, use model.float().",
                "'indices'": ". An embedding needs integers: convert the inputs to int64.",
                "Expected all tensors to be on the same device": ". Move the model to the device of the simulation.",
            }
            of = f"of shape {tuple(rows.shape[1:])} and {rows.dtype}" if fields is None else f"with the fields {fields}"
            raise InputError(
                f"the model fails on {len(rows)} inputs {of}, in {layer}{place_of(error)}: "
                f"{reason}" + next((hint for part, hint in hints.items() if part in reason), ""),
                code="model-data-mismatch",
                field="model",
            ) from error

    # Watch only this pass for reads, because watching slows down every operation.
    with (watcher := _ReadWatcher()):
        outputs = call(rows)
    if rows._version != start or differs(rows, x):
        rows = x.clone()
        layer = _layer(model, lambda: call(rows), lambda: rows._version != start or differs(rows, x))
        raise model_error(
            f"{layer or label} changes the model's inputs, which are the clients' data, in place. Set inplace=False, "
            "or work on x.clone()."
        )
    changed = [name for name, value in state.items() if after[name] is not value or differs(value, before[name])]
    changed += [name for name, p in frozen.items() if p._version != versions[name]]
    if changed:
        raise model_error(
            f"{label} changes its tensor '{changed[0]}' in the forward pass, but only training may change a model. "
            "Use a layer without state, or .eval()."
        )
    if not isinstance(outputs, Tensor) or not outputs.dim() or outputs.is_complex():
        if isinstance(outputs, Mapping):
            kind, remedy = f"a {type(outputs).__name__} with {', '.join(map(repr, outputs))}", "one of its tensors"
        elif isinstance(outputs, tuple | list):
            kind = f"a {type(outputs).__name__} of {len(outputs)}"
            remedy = "one of its tensors, as in LSTM(…)[0][:, -1]"
        elif isinstance(outputs, Tensor):
            kind = f"a {outputs.dtype} tensor of shape {tuple(outputs.shape)} for {len(x)} samples"
            remedy = "real numbers for each sample"
        else:
            kind, remedy = f"a {type(outputs).__name__}", "a tensor"
        raise model_error(f"{label} returns {kind}. Its forward method must return {remedy}.")
    if differs(outputs, call(rows)):
        # If the state of the generators is the same, the model has a state that changes between calls.
        if torch.equal(generators, _generators(x)):
            raise model_error(
                f"{label} returns different outputs when it is called again: it has a state, or draws random numbers "
                "outside torch. Make it a function of its parameters and its input."
            )
        generators = _generators(x)
        layer = _layer(model, lambda: call(rows), lambda: not torch.equal(generators, _generators(x)))
        raise model_error(
            f"{layer or label} draws from a global generator in the forward pass, so results would depend on the "
            "engine. Use nn.Dropout, for which drfl supplies keyed random numbers, or turn the layer off with .eval()."
        )
    _check_mode(model, outputs, lambda twin: functional_call(twin, after, (rows,)))
    alone = [call(x[j : j + 1].clone()) for j in range(min(count, len(x)))]
    if outputs.shape[0] == len(x):  # Otherwise only the loss knows which dimension holds the samples.
        for j, output in enumerate(alone):
            _check_alone(label, outputs, output, j, watcher.has_read)
    return ForwardPass(outputs, alone, watcher.has_read)


def twin_of(model: nn.Module) -> nn.Module:
    """Copy the model's layers, which share their parameters and buffers with it; fails if they cannot be copied."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())})


def _check_mode(model: nn.Module, outputs: Tensor, call: Callable[[nn.Module], object]) -> None:
    """Check that the model has the same outputs in eval() mode; ``call`` runs a copy of the model."""
    # The layers of torch and drfl do so, or check_module refuses them.
    if not any(layer.training and not is_of_package(type(layer)) for layer in model.modules()):
        return
    try:
        # The model itself may be in use in another thread.
        twin = twin_of(model)
    except Exception:  # engines that need copies refuse such a model
        return
    tested = call(twin.eval())
    if not (isinstance(tested, Tensor) and tested.shape == outputs.shape and _is_close(tested, outputs)):
        raise model_error(
            f"the model {type(model).__name__} has other outputs in eval() mode, but drfl trains and tests in one "
            "mode. Remove the branch on self.training (use nn.Dropout for noise), or pass model.eval() to train and "
            "test in that mode."
        )


def _is_close(outputs: Tensor, expected: Tensor) -> bool:
    """Return whether outputs agree up to rounding."""
    if not expected.is_floating_point():
        return True
    # On a GPU, the algorithm of a convolution, and so its rounding, depends on the size of the batch.
    tolerance = max(CLOSE, 8 * torch.finfo(expected.dtype).eps, 2**-7 if expected.is_cuda else 0.0)
    size = float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
    return torch.allclose(outputs, expected, rtol=0, atol=tolerance * size + 1e-5, equal_nan=True)


def _check_alone(label: str, outputs: Tensor, alone: Tensor, j: int, reads: bool) -> None:
    """Compare the outputs for sample j alone with those in the batch; ``reads`` helps to explain a difference."""
    expected = outputs[j : j + 1]
    if alone.shape != expected.shape:
        raise model_error(
            f"{label} returns outputs of shape {tuple(outputs.shape)} for {len(outputs)} samples, but of shape "
            f"{tuple(alone.shape)} for one. Keep the batch as the first dimension; use squeeze(-1), not squeeze()."
        )
    if not _is_close(alone, expected):
        advice = (
            "The forward pass branches on values of the whole batch. Decide per sample, with torch.where."
            if reads
            else "Normalise with nn.GroupNorm, not over the batch, and do not branch on the batch size."
        )
        raise model_error(
            f"the outputs of {label} for a sample depend on the other samples in its batch, so results would depend on "
            f"the engine. {advice}"
        )


def check_gradient(
    model: nn.Module,
    trained: Mapping[str, Tensor],
    outputs: Callable[[Mapping[str, Tensor]], Tensor],
    losses: Callable[[Tensor], Tensor],
) -> None:
    """Check that gradients reach the parameters, are dense, and reach no other tensor that is meant to be trained.

    Args:
        model: The model.
        trained: Trainable parameters by name.
        outputs: Function of the parameters that returns the model's outputs.
        losses: Function of the outputs that returns the losses (B,).

    Raises:
        InputError: If the losses have no gradient, one is sparse, or one reaches a tensor that is not in ``trained``.
    """
    # Gradients cannot be computed in inference mode.
    leaves = {name: value.detach().clone().requires_grad_() for name, value in trained.items()}
    with torch.inference_mode(False), torch.enable_grad():
        values = losses(predicted := outputs(leaves))
        other = _other_leaf(leaves, predicted, lambda: outputs(leaves))
        if other is not None:
            name = next((f"'{name}'" for name, p in model.named_parameters() if p is other), "a tensor")
            raise model_error(
                f"the model {type(model).__name__} uses {name} of shape {tuple(other.shape)} in a way that would "
                "not train it. Use a method instead of a lambda that captures self, nn.ParameterList or "
                "nn.ModuleList instead of a list, or requires_grad=False."
            )
        other = _other_leaf(leaves, values, lambda: losses(outputs(leaves)))
        if other is not None:
            raise InputError(
                f"the loss uses a trainable tensor of shape {tuple(other.shape)}, but only the model is trained. Move "
                "the tensor into the model, or set requires_grad=False.",
                code="unsupported-loss",
                field="loss",
            )
        if not values.requires_grad:
            raise model_error(
                "the loss has no gradient with respect to the model's parameters. Remove detach(), numpy() and "
                "no_grad() from model and loss."
            )
        # A parameter may be unused, for example in a head for another task.
        gradients = torch.autograd.grad(values.sum(), list(leaves.values()), allow_unused=True)
    for name, g in zip(leaves, gradients, strict=True):
        if g is not None and g.layout != torch.strided:
            raise model_error(f"the gradient of '{name}' is sparse, which drfl does not support. Pass sparse=False.")


def _other_leaf(leaves: Mapping[str, Tensor], values: Tensor, again: Callable[[], Tensor]) -> Tensor | None:
    """Return a tensor other than ``leaves`` to which a gradient of values flows; None if there is none.

    A forward pass may make tensors with gradients, such as a first state. ``again``, which repeats it, excludes these.
    """
    own = set(map(id, leaves.values()))
    found = {id(leaf): leaf for leaf in _graph_leaves(values) if id(leaf) not in own}
    return next((leaf for leaf in _graph_leaves(again()) if id(leaf) in found), None) if found else None


def _graph_leaves(values: Tensor) -> list[Tensor]:
    """Return the leaves of the graph of values."""
    waiting, seen, leaves = [values.grad_fn], set[object](), list[Tensor]()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves.append(getattr(node, "variable"))  # noqa: B009 - torch does not declare this attribute
        waiting += [following for following, _ in node.next_functions]
    return leaves


class _ReadWatcher(DispatchMode):
    """Records whether code reads values of tensors, as ``if x > 0``, ``x.item()`` and ``torch.equal`` do."""

    CALLS = ("aten._local_scalar_dense.default", "aten.is_nonzero.default", "aten.equal.default")

    def __init__(self) -> None:
        super().__init__()
        self.has_read = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - as torch calls it
        self.has_read |= str(func) in self.CALLS
        return func(*args, **(kwargs or {}))


def _generators(x: Tensor) -> Tensor:
    """Return the states of torch's global generators on the CPU and the device of ``x``."""
    return torch.cat([torch.get_rng_state()] + ([torch.cuda.get_rng_state(x.device)] if x.is_cuda else []))


def differs(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors differ anywhere; NaN equals NaN."""
    return a.shape != b.shape or bool(((a != b) & ~((a != a) & (b != b))).any())


def _named(name: str, layer: nn.Module) -> str:
    return f"{name or 'the model'} ({type(layer).__name__})"


def _layer(model: nn.Module, call: Callable[[], object], changed: Callable[[], bool] = lambda: False) -> str | None:
    """Find the innermost layer whose forward pass raises an error, or makes ``changed`` return True."""
    entered: list[str] = []
    culprits: list[str] = []

    def watched(name: str, layer: nn.Module) -> Iterator[RemovableHandle]:
        def look() -> None:
            if entered and not culprits and changed():
                culprits.append(entered[-1])

        def enter(*_: object) -> None:
            look()
            entered.append(_named(name, layer))

        def leave(*_: object) -> None:
            look()
            entered.pop()

        yield layer.register_forward_pre_hook(enter)
        yield layer.register_forward_hook(leave)

    handles = [handle for name, layer in model.named_modules() for handle in watched(name, layer)]
    try:
        call()
    except Exception:
        return entered[-1] if entered else None
    finally:
        for handle in handles:
            handle.remove()
    return culprits[0] if culprits else None


def place_of(error: Exception) -> str:
    """Locate an error in the user's code, as ", FILE.py, line 3"; "" if it was raised elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    # Lines of drfl and of packages such as torch do not help the user. A user's folder may have one of these names.
    packages = [Path(__file__).parents[1], Path(torch.__file__).parents[1]]
    frames = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(own) for own in packages)]
    return f", {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
