"""Memory layouts of images in the layers of a replica on a CPU; results equal torch's own up to rounding."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor, nn

from drfl.core.vmap import is_transformed

BLOCK = 16
"""Channels that oneDNN stores contiguously in its own layout; other numbers are padded to a multiple of it."""

LARGE = 4096
"""With at least this many pixels in a minibatch (B·H·W), that layout saves more than the conversion costs."""


def use_onednn_layout(model: nn.Module) -> None:
    """Use oneDNN's own layout between the convolutions and pooling layers at the start of an ``nn.Sequential``.

    Images are then not converted between these layers, and pooling is several times faster than torch's own.

    Args:
        model: The model, which is modified.
    """
    if not has_onednn():
        return
    for layer in model.modules():
        if type(layer) is nn.Sequential and "forward" not in vars(layer):
            head = list(takewhile(_in_onednn, layer))
            # Convolutions alone would not be faster.
            if {nn.Conv2d, nn.MaxPool2d} <= set(map(type, head)):
                layer.forward = functools.partial(_forward, head, list(layer)[len(head) :])


def has_onednn() -> bool:
    """Return whether torch has oneDNN, and its layout is known to be fast: on processors with AVX."""
    return torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability().startswith("AVX")


def _forward(head: Sequence[nn.Module], rest: Sequence[nn.Module], input: Tensor) -> Tensor:
    # oneDNN's tensors have no second derivatives, which callers may need if the inputs require gradients.
    fits = (
        input.dim() == 4
        and not input.is_cuda
        and input.dtype == torch.float32
        and input.numel() >= LARGE * input.shape[1]
        and not (input.requires_grad or is_transformed() or torch.is_autocast_enabled(input.device.type))
    )
    x = input.to_mkldnn() if fits else input
    for layer in head:
        x = layer(x)
    x = x.to_dense() if fits else x
    for layer in rest:
        x = layer(x)
    return x


def _in_onednn(layer: nn.Module) -> bool:
    """Return whether oneDNN supports the layer and its gradients, and no hook observes its inputs or outputs."""
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
    """Give max-pooling its gradients channels-last, like its inputs; otherwise it converts its inputs first.

    Args:
        model: The model, which is modified.
    """

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        # With return_indices the layer has several outputs.
        if not isinstance(output, Tensor) or not output.requires_grad:
            return
        if not is_transformed() and output.is_contiguous(memory_format=torch.channels_last):
            output.register_hook(lambda g: g.contiguous(memory_format=torch.channels_last))

    for layer in model.modules():
        if isinstance(layer, nn.MaxPool2d):
            layer.register_forward_hook(hook)
