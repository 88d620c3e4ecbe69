"""The architecture of a module as plain values, and modules made from such values, from names and from user code."""

from __future__ import annotations

import copy
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from drfl.core import user_code
from drfl.core.errors import InputError
from drfl.task.model_checks import COMPILED
from drfl.task.models import LSTM, MODELS
from drfl.task.training_noise import KeyedDropout

LAYERS: Mapping[str, type[nn.Module]] = {
    f"torch.nn.{kind.__name__}": kind
    for kind in (
        nn.Linear, nn.Bilinear, nn.Embedding, nn.Identity, nn.Flatten, nn.Unflatten,
        nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ZeroPad2d,
        nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
        nn.AdaptiveMaxPool2d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
        nn.BatchNorm1d, nn.BatchNorm2d, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d,
        nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus, nn.Softsign,
        nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Hardtanh, nn.Hardsigmoid, nn.LogSigmoid, nn.Softmax, nn.LogSoftmax,
    )
} | {"drfl.LSTM": LSTM}  # fmt: skip
"""The layers that a description may name. Each stores the arguments of its constructor under their names."""

SEQUENTIAL = "torch.nn.Sequential"

MOST_LAYERS = 10_000
"""Maximum number of layers of a description."""

LARGEST_OUTPUT = 2**28
"""Maximum number of values that a layer may return for one row."""


def describe(module: nn.Module) -> dict[str, Any] | None:
    """Describe a module that consists of layers of torch, or of drfl, in sequence.

    Args:
        module: The module.

    Returns:
        ``class`` with ``arguments``, or with ``layers`` by name; None if the module is anything else, has hooks, or is
        not what its description gives.
    """
    found = _described(module)
    if found is None:
        return None
    own = {name: (value.shape, value.dtype) for name, value in module.state_dict().items()}
    try:
        again = {name: value.shape for name, value in build(found).state_dict().items()}
    except InputError:
        return None
    # A parametrised layer, for example, has other tensors than its class.
    return found if {name: shape for name, (shape, _) in own.items()} == again else None


def _described(module: nn.Module) -> dict[str, Any] | None:
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    if type(module) is nn.Sequential:
        layers = {name: _described(child) for name, child in module._modules.items() if child is not None}
        return None if None in layers.values() else {"class": SEQUENTIAL, "layers": layers}
    if isinstance(module, KeyedDropout):
        return {"class": "torch.nn.Dropout", "arguments": {"p": module.p}}
    name = next((name for name, kind in LAYERS.items() if type(module) is kind), None)
    if name is None:
        return None
    if isinstance(module, LSTM):
        return {"class": name, "arguments": dict(module.arguments)}
    arguments = {}
    for argument in inspect.signature(type(module)).parameters:
        if _is_omitted(argument):
            continue
        value = getattr(module, argument, None)
        if argument == "bias" and not isinstance(value, bool):
            value = value is not None
        value = list(value) if isinstance(value, tuple) else value
        if not _is_plain(value):
            return None
        arguments[argument] = value
    return {"class": name, "arguments": arguments}


def _is_omitted(argument: str) -> bool:
    """Return whether a description omits an argument, because it would place tensors elsewhere or has no effect."""
    return argument in ("device", "dtype", "inplace") or argument.startswith("_")


def _is_plain(value: object) -> bool:
    is_number = type(value) in (bool, int, str, type(None)) or (type(value) is float and value - value == 0)
    return is_number or (isinstance(value, list) and all(type(part) in (int, float, type(None)) for part in value))


def build(description: Mapping[str, Any]) -> nn.Module:
    """Build the module of a description on the device "meta", where it takes no memory.

    Only the layers in :data:`LAYERS` are made, so an unknown description cannot run code.

    Args:
        description: From :func:`describe`, or from a file that may be damaged.

    Raises:
        InputError: If the description names another class, or impossible arguments.
    """
    count = [0]

    def made(part: object) -> nn.Module:
        count[0] += 1
        if not isinstance(part, dict) or count[0] > MOST_LAYERS:
            raise ValueError("a layer must be an object with a class")
        if part.get("class") == SEQUENTIAL:
            return nn.Sequential(OrderedDict((str(name), made(child)) for name, child in part["layers"].items()))
        name, arguments = str(part.get("class")), part.get("arguments", {})
        if name not in LAYERS:
            raise ValueError(f"{name!r:.60} is not a layer that drfl builds")
        if any(map(_is_omitted, arguments)):
            raise ValueError(f"{name} has an argument that descriptions do not have")
        if not isinstance(arguments, dict) or not all(map(_is_plain, arguments.values())):
            raise ValueError(f"the arguments of {name} must be numbers, texts or lists of numbers")
        # torch takes some pairs as tuples only.
        values = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
        with torch.device("meta"):
            return LAYERS[name](**values)

    try:
        return made(description)
    except InputError:
        raise
    except Exception as error:  # torch checks arguments with exceptions of any kind
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the description of the model is damaged: {reason}", code="damaged-model", field="module"
        ) from error


def check_sizes(module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check, on the device "meta", that a module from a file takes rows of a shape and needs reasonable memory.

    Args:
        module: From :func:`build`.
        shape: The shape of a row.
        dtype: The type of the inputs.

    Raises:
        InputError: If a layer refuses its input, or returns more than :data:`LARGEST_OUTPUT` values.
    """

    def check(layer: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor) and output.numel() > LARGEST_OUTPUT:
            raise ValueError(f"{type(layer).__name__} returns {output.numel():,} values for one row")

    hooks = [layer.register_forward_hook(check) for layer in module.modules()]
    try:
        if prod(shape) > LARGEST_OUTPUT:
            raise ValueError(f"a row has {prod(shape):,} values")
        with torch.no_grad():
            module(torch.zeros(1, *shape, dtype=dtype, device="meta"))
    except Exception as error:  # torch checks shapes with exceptions of any kind
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            f"the model does not take inputs of shape {shape}: {reason}", code="damaged-model", field="module"
        ) from error
    finally:
        for hook in hooks:
            hook.remove()


def make_model(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Make a model from its name, or from the user's function, class or module.

    Args:
        name: A name of :data:`drfl.task.models.MODELS`, or a reference.
        shape: The shape of an input.
        classes: The number of outputs.

    Raises:
        InputError: If the user's function fails, or does not return a module.
    """
    if not user_code.is_reference(name):
        return MODELS[name](shape, classes)
    loaded = user_code.load("model", name)
    if isinstance(loaded, nn.Module):
        # Copy the user's module, because runs at other seeds also start from it.
        return copy.deepcopy(loaded)
    if not callable(loaded):
        raise InputError(
            f"model '{name}' is a {type(loaded).__name__}: pass a function that returns a torch module",
            code="wrong-type",
            field="model",
        )
    # A function takes the input shape and the number of classes, or nothing.
    arguments = (shape, classes) if takes_both(loaded) else ()
    try:
        module = loaded(*arguments)
    except Exception as error:
        raise InputError(
            f"model '{name}' with {arguments or 'no arguments'}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}",
            code="user-code-failed",
            field="model",
        ) from error
    if not isinstance(module, nn.Module):
        raise InputError(
            f"model '{name}' returned a {type(module).__name__}, not a torch module", code="wrong-type", field="model"
        )
    return module


def takes_both(function: Callable[..., object]) -> bool:
    """Return whether a function takes an input shape and a number of classes; otherwise it takes nothing."""
    # Parameters with defaults are optional and do not count.
    return sum(p.default is p.empty for p in inspect.signature(function).parameters.values()) == 2


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a model file into a module. Names, shapes and types must be those of the module.

    Args:
        module: The module. Its parameters and buffers are overwritten.
        weights: Tensors by name.

    Raises:
        InputError: If they differ.
    """
    # torch.compile adds a prefix to names, which an uncompiled module does not have.
    own = {name.replace(f"{COMPILED}.", ""): (name, value) for name, value in module.state_dict().items()}
    for name in sorted(own.keys() ^ weights.keys()):
        lacking = "the file" if name in own else f"the module {type(module).__name__}"
        raise _mismatch(f"{lacking} has no '{name}'", name)
    for name, (_, value) in own.items():
        saved = weights[name]
        # A module on "meta" has no types of its own yet.
        if saved.shape != value.shape or (saved.dtype != value.dtype and not value.is_meta):
            raise _mismatch(
                f"'{name}' is {saved.dtype} of shape {tuple(saved.shape)} in the file, but "
                f"{value.dtype} of shape {tuple(value.shape)} in the module {type(module).__name__}",
                name,
            )
    state = {full: weights[name] for name, (full, _) in own.items()}
    module.load_state_dict(state, assign=any(value.is_meta for _, value in own.values()))


def _mismatch(problem: str, name: str) -> InputError:
    return InputError(
        f"the weights do not match the module: {problem}. Build the module as for the run",
        code="weights-mismatch",
        field=name,
    )
