"""Whether a model can be federated, and the reason if it cannot: each refusal names the layer and the remedy."""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from drfl.core.errors import InputError, first_line

CLOSE = 1e-3
"""Share of a sample's largest output by which its outputs may differ when it is computed in another batch."""

COMPILED = "_orig_mod"
"""Where ``torch.compile`` keeps the module that it was given."""


def plain(model: nn.Module) -> nn.Module:
    """The model without ``torch.compile`` and sparse gradients; itself if it has neither, else a copy.

    drfl traces local steps itself, and no engine adds up sparse gradients; the numbers are the same. Names lose the
    prefix ``_orig_mod.``, so that they are those of the module that was compiled.
    """
    while COMPILED in model._modules:
        model = model.get_submodule(COMPILED)
    layers = list(model.modules())
    compiled = any(COMPILED in layer._modules or layer._compiled_call_impl is not None for layer in layers)
    if not compiled and not any(map(_is_sparse, layers)):
        return model
    model = copy.deepcopy(model)  # which leaves out what module.compile() has made
    for layer in list(model.modules()):
        for name, child in layer.named_children():
            while COMPILED in child._modules:
                child = child.get_submodule(COMPILED)
                setattr(layer, name, child)
        if _is_sparse(layer):
            setattr(layer, "sparse", False)  # noqa: B010 - torch types attributes as tensors
    return model


def _is_sparse(layer: nn.Module) -> bool:
    return isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.sparse


def refused(problem: str) -> InputError:
    """The error that a model cannot be federated."""
    return InputError(problem, code="unsupported-model", field="model")


INSTEAD = "use nn.GroupNorm, which drfl.models.without_batch_norm(model) puts in its place"


def check_module(module: nn.Module) -> None:
    """Refuse a module whose output depends on more than its parameters and its input, as far as its layers tell.

    Raises:
        InputError: If a layer cannot be federated, or the module cannot be called with other parameters or saved.
    """
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise refused(f"{type(module).__name__} spreads batches over devices by itself: pass model.module")
    for name, layer in module.named_modules():
        _check_layer(_named(name, layer), layer)
    devices = {str(tensor.device) for tensor in (*module.parameters(), *module.buffers())}
    if "meta" in devices:
        raise refused("the model's parameters are on device 'meta', where they have no values: build it on 'cpu'")
    if len(devices) > 1:
        raise refused(f"the model's parameters are on several devices ({', '.join(sorted(devices))}): call model.cpu()")
    # The final model is saved from its state_dict. An error is better now than after hours of training.
    for name, value in module.state_dict().items():
        if not isinstance(value, Tensor) or value.layout != torch.strided:
            kind = f"a {value.layout} tensor" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise refused(
                f"'{name}' in the model's state_dict is {kind}, which a model file cannot hold: make it a dense "
                "tensor, or register it with persistent=False"
            )


def _check_layer(where: str, layer: nn.Module) -> None:
    """Refuse a layer that cannot be federated.

    Running statistics are not parameters: averaging them over clients is undefined (BatchNorm's counter is even an
    integer). Randomised activations and dropout with noise draw from a global generator, so results would depend on the
    engine; a :class:`drfl.task.task.Task` keys plain dropout. Both are fine in ``eval()`` mode, where they are
    constant.
    """
    if isinstance(layer, torch.jit.ScriptModule):
        raise refused(f"{where} is compiled by torch.jit, which fixes its parameters: pass the nn.Module itself")
    if any(map(nn.parameter.is_lazy, (*layer.parameters(recurse=False), *layer.buffers(recurse=False)))):
        raise refused(
            f"{where} does not know its sizes yet: call the model once on a batch of inputs before, or build it with "
            "sizes"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise refused(f"{where} rescales its weight in the forward pass: build it without max_norm")
    running = getattr(layer, "running_mean", None) is not None
    if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not running:
        raise refused(f"{where} mixes the samples of a batch: {INSTEAD}")
    if running and layer.training:
        instance = isinstance(layer, nn.modules.instancenorm._InstanceNorm)
        remedy = "build it with track_running_stats=False" if instance else INSTEAD
        raise refused(
            f"{where} keeps running statistics, which cannot be averaged over clients: {remedy}, or freeze them with "
            ".eval()"
        )
    random = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0
    if layer.training and (random or isinstance(layer, nn.RReLU)):
        raise refused(
            f"{where} draws from a global generator, so results would depend on the engine: take nn.Dropout, which "
            "drfl keys, or switch it off with .eval()"
        )


class ForwardPass(NamedTuple):
    """What a forward pass gave on a batch.

    Args:
        outputs: Of the whole batch.
        alone: Of its first samples, each computed by itself.
        reads: Whether the pass reads values of tensors, as for a branch.
    """

    outputs: Tensor
    alone: list[Tensor]
    reads: bool


def check_forward(model: nn.Module, trained: Mapping[str, Tensor], x: Tensor, count: int) -> ForwardPass:
    """Refuse a model whose outputs depend on more than parameters and a sample, or whose forward pass has effects.

    Args:
        model: The model; its own parameters and buffers are left as they are.
        trained: Its trainable parameters by name, in memory that nobody else uses.
        x: (B, …) inputs, which are left as they are.
        count: How many samples, the first ones, are computed alone too.

    Raises:
        InputError: If the model fails on these inputs, changes them or its own tensors, gives no tensor, gives other
            outputs when it is called again, or if a sample's outputs depend on the rest of its batch.
    """
    # The buffers are copies, as a forward pass that writes to them must not change the user's model.
    state = {**trained, **{name: buffer.clone() for name, buffer in model.named_buffers()}}
    before = {name: value.clone() for name, value in state.items()}
    frozen = {name: p for name, p in model.named_parameters() if name not in trained and not p.is_inference()}
    # torch counts in-place changes of a tensor, so no values need comparing.
    versions, own = {name: p._version for name, p in frozen.items()}, f"the model {type(model).__name__}"
    rows, after = x.clone(), dict(state)
    start, drawn = rows._version, _generators(x)

    def call(rows: Tensor) -> Tensor:
        try:
            return functional_call(model, after, (rows,))
        except Exception as error:
            _fail(error, _layer(model, lambda: functional_call(model, dict(state), (rows,))), rows)

    # Only this pass is watched, as watching slows every operation down.
    with (reading := _Reading()):
        outputs = call(rows)
    if rows._version != start or _differs(rows, x):
        rows = x.clone()
        layer = _layer(model, lambda: call(rows), lambda: rows._version != start or _differs(rows, x))
        raise refused(
            f"{layer or own} works in place on the model's inputs, which are the clients' own rows: set inplace=False, "
            "or let it work on x.clone()"
        )
    changed = [name for name, value in state.items() if after[name] is not value or _differs(value, before[name])]
    changed += [name for name, p in frozen.items() if p._version != versions[name]]
    if changed:
        raise refused(
            f"{own} changes its own '{changed[0]}' in the forward pass, and only parameters are federated, by training "
            "alone: use a layer without state, or .eval()"
        )
    _check_output(own, outputs, len(x))
    if _differs(outputs, call(rows)):
        # If no generator moved, the model keeps a state between calls.
        if torch.equal(drawn, _generators(x)):
            raise refused(
                f"{own} gives other outputs when it is called again: it keeps something between calls, or draws random "
                "numbers outside torch. Make it a function of its parameters and its input"
            )
        drawn = _generators(x)
        layer = _layer(model, lambda: call(rows), lambda: not torch.equal(drawn, _generators(x)))
        raise refused(
            f"{layer or own} draws from a global generator in the forward pass, so results would depend on the engine: "
            "take nn.Dropout, which drfl keys, or switch it off with .eval()"
        )
    alone = [call(x[j : j + 1].clone()) for j in range(min(count, len(x)))]
    if outputs.shape[0] == len(x):  # else the loss knows where the samples are
        for j, each in enumerate(alone):
            _check_alone(own, outputs, each, j, reading.found)
    return ForwardPass(outputs, alone, reading.found)


def _check_output(own: str, outputs: object, samples: int) -> None:
    if isinstance(outputs, Tensor) and outputs.dim() and not outputs.is_complex():
        return
    if isinstance(outputs, Mapping):
        kind, remedy = f"a {type(outputs).__name__} with {', '.join(map(repr, outputs))}", "one of its tensors"
    elif isinstance(outputs, tuple | list):
        kind, remedy = f"a {type(outputs).__name__} of {len(outputs)}", "one of its tensors, as LSTM(…)[0][:, -1]"
    elif isinstance(outputs, Tensor):
        kind = f"a {outputs.dtype} tensor of shape {tuple(outputs.shape)} for {samples} samples"
        remedy = "real numbers for each sample"
    else:
        kind, remedy = f"a {type(outputs).__name__}", "a tensor"
    raise refused(f"{own} returns {kind}: let its forward return {remedy}")


def _check_alone(own: str, outputs: Tensor, alone: Tensor, j: int, reads: bool) -> None:
    """Compare the outputs for a sample by itself with those for it in the batch; ``reads`` helps to say why."""
    expected = outputs[j : j + 1]
    if alone.shape != expected.shape:
        raise refused(
            f"{own} gives outputs of shape {tuple(outputs.shape)} for {len(outputs)} samples, and of shape "
            f"{tuple(alone.shape)} for one: keep the batch as the first dimension, as with squeeze(-1), not squeeze()"
        )
    if not outputs.is_floating_point():
        return
    # On a GPU convolutions round to the 10 bits of TF32.
    near = max(CLOSE, 8 * torch.finfo(outputs.dtype).eps, 2**-7 if outputs.is_cuda else 0.0)
    size = float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
    if not torch.allclose(alone, expected, rtol=0, atol=near * size + 1e-5, equal_nan=True):
        why = (
            "its forward pass branches on values of the whole batch: decide for each sample, with torch.where"
            if reads
            else "normalise with nn.GroupNorm, not over the batch, and do not branch on its size"
        )
        raise refused(
            f"the outputs of {own} for a sample depend on the other samples of its batch, so results would depend on "
            f"the engine: {why}"
        )


def check_gradient(trained: Mapping[str, Tensor], losses: Callable[[Mapping[str, Tensor]], Tensor]) -> None:
    """Refuse a model or a loss through which no gradient comes back, or one that is sparse.

    Args:
        trained: The trainable parameters by name.
        losses: (B,) of the parameters.

    Raises:
        InputError: If there is no gradient, or one is sparse.
    """
    # Gradients cannot be computed in inference mode.
    leaves = {name: value.detach().clone().requires_grad_() for name, value in trained.items()}
    with torch.inference_mode(False), torch.enable_grad():
        found = losses(leaves)
        if not found.requires_grad:
            raise refused(
                "no gradient comes back from the loss to the model's parameters: leave out detach(), numpy() and "
                "no_grad() in model and loss"
            )
        # A parameter may be unused, as in a head for another task.
        gradients = torch.autograd.grad(found.sum(), list(leaves.values()), allow_unused=True)
    for name, g in zip(leaves, gradients, strict=True):
        if g is not None and g.layout != torch.strided:
            raise refused(f"the gradient of '{name}' is sparse, which drfl does not add up: pass sparse=False")


class _Reading(TorchDispatchMode):
    """Notices what ``if x > 0``, ``x.item()`` and ``torch.equal`` call."""

    CALLS = ("aten._local_scalar_dense.default", "aten.is_nonzero.default", "aten.equal.default")

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN204 - as torch calls it
        self.found |= str(func) in self.CALLS
        return func(*args, **(kwargs or {}))


def _generators(x: Tensor) -> Tensor:
    """The state of torch's global generators where ``x`` is."""
    return torch.cat([torch.get_rng_state()] + ([torch.cuda.get_rng_state(x.device)] if x.is_cuda else []))


def _differs(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors differ anywhere; NaN equals NaN."""
    return a.shape != b.shape or bool(((a != b) & ~((a != a) & (b != b))).any())


def _named(name: str, layer: nn.Module) -> str:
    return f"{name or 'the model'} ({type(layer).__name__})"


def _layer(model: nn.Module, call: Callable[[], object], changed: Callable[[], bool] = lambda: False) -> str | None:
    """The innermost layer in whose forward pass an error is raised, or something has ``changed``."""
    entered: list[str] = []
    found: list[str] = []

    def watched(name: str, layer: nn.Module) -> Iterator[RemovableHandle]:
        def look() -> None:
            if entered and not found and changed():
                found.append(entered[-1])

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
    return found[0] if found else None


def _fail(error: Exception, layer: str | None, x: Tensor) -> NoReturn:
    if isinstance(error, InputError):
        raise error
    reason = first_line(error)
    hints = {
        "mat1 and mat2": "; put torch.nn.Flatten() in front of it" if x.dim() > 2 else "",
        "must be Tensor, not tuple": "; the layer before returns a tuple, as nn.LSTM does: take its part",
        "'Half'": "; on a CPU take model.float()",
        "Expected all tensors to be on the same device": "; move the model to the device of the simulation",
    }
    raise InputError(
        f"the model fails on {len(x)} inputs of shape {tuple(x.shape[1:])} and {x.dtype}, in {layer}{place_of(error)}: "
        f"{reason}" + next((hint for part, hint in hints.items() if part in reason), ""),
        code="model-data-mismatch",
        field="model",
    ) from error


def place_of(error: Exception) -> str:
    """Where in the user's code an error was raised, as ", FILE.py, line 3"; "" if it was in none."""
    frames = traceback.extract_tb(error.__traceback__)
    # Lines of torch and drfl do not help the user.
    own = [frame for frame in frames if not {"torch", "drfl"} & set(Path(frame.filename).parts)]
    return f", {Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
