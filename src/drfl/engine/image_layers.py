"""How the layers of a replica lay images out in memory, on a CPU: the results are torch's own up to rounding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor, nn

BLOCK = 16
"""Channels that oneDNN keeps next to each other in its own layout; others are padded to a multiple of it."""

LARGE = 4096
"""Pixels of a minibatch (B·H·W) from which on that layout saves more than the way into it costs."""


def use_onednn_layout(model: nn.Module) -> None:
    """Have convolutions and pooling at the head of an ``nn.Sequential`` pass images on in oneDNN's own layout.

    Between them nothing is laid out anew, and pooling is several times faster than torch's own.

    Args:
        model: written to.
    """
    if not available():
        return
    for layer in model.modules():
        if type(layer) is nn.Sequential and "forward" not in vars(layer):
            head = list(takewhile(_in_onednn, layer))
            # Convolutions alone gain nothing.
            if {nn.Conv2d, nn.MaxPool2d} <= set(map(type, head)):
                layer.forward = functools.partial(_forward, head, list(layer)[len(head) :])


def available() -> bool:
    """Whether torch has oneDNN, and its layout is known to be fast: on processors with AVX."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _forward(head: Sequence[nn.Module], rest: Sequence[nn.Module], input: Tensor) -> Tensor:
    # oneDNN's tensors have no second derivatives, which callers may need if inputs have a gradient.
    fits = (
        input.dim() == 4
        and not input.is_cuda
        and input.dtype == torch.float32
        and input.numel() >= LARGE * input.shape[1]
        and not (input.requires_grad or transformed() or torch.is_autocast_enabled(input.device.type))
    )
    x = input.to_mkldnn() if fits else input
    for layer in head:
        x = layer(x)
    x = x.to_dense() if fits else x
    for layer in rest:
        x = layer(x)
    return x


def _in_onednn(layer: nn.Module) -> bool:
    """Whether oneDNN has the layer, with its gradients, and nobody looks at what goes in and out."""
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return False
    if "forward" in vars(layer):
        return False
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return plain and layer.out_channels % BLOCK == 0
    if type(layer) is nn.MaxPool2d:
        return layer.dilation in (1, (1, 1)) and not layer.ceil_mode and not layer.return_indices
    return type(layer) is nn.ReLU


def lay_gradients_channels_last(model: nn.Module) -> None:
    """Have max-pooling get its gradients channels-last, as its inputs are: otherwise it lays its inputs out anew.

    Args:
        model: written to.
    """

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        # Several outputs are those of return_indices.
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if not transformed() and output.is_contiguous(memory_format=torch.channels_last):
            output.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))

    for layer in model.modules():
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_hook(hook)


def transformed() -> bool:
    """Whether torch.func or torch.compile works on the model at this place, and is to see torch's own functions."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
