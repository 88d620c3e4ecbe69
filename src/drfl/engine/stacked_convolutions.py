"""Convolutions of a stack of models on a CUDA device, as batched matrix products of columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, FunctionCtx
from torch.nn import functional
from torch.overrides import TorchFunctionMode


@contextmanager
def convolutions_as_products(*, active: bool) -> Iterator[None]:
    """Compute two-dimensional convolutions in the block as matrix products, if ``active``.

    Under ``vmap``, torch turns the convolutions of k models into one convolution with k groups, which cuDNN computes
    more slowly. Convolutions with groups or dilation are left to torch.
    """
    if not active:
        yield
        return
    with _AsProducts():
        yield


class _AsProducts(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Any,  # noqa: ANN401 - a function of torch, which has no public type
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Replace calls of ``conv2d``."""
        if func is torch.conv2d:
            replaced = _convolved(*args, **(kwargs or {}))
            if replaced is not None:
                return replaced
        return func(*args, **(kwargs or {}))


def _convolved(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return ``torch.conv2d`` of the same arguments; None if the products do not cover it."""
    if isinstance(padding, str) or groups != 1 or _pair(dilation) != (1, 1) or input.dim() != 4:
        return None
    if torch.is_autocast_enabled(input.device.type):
        dtype = torch.get_autocast_dtype(input.device.type)
        input, weight, bias = input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    output, _ = _Convolution.apply(input, weight, _pair(padding), _pair(stride))
    return output if bias is None else output + bias[:, None, None]


def _pair(value: int | Sequence[int]) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *rest = value
    return first, rest[0] if rest else first


class _ConvolutionContext(FunctionCtx):
    size: torch.Size
    padding: tuple[int, int]
    stride: tuple[int, int]
    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, bool, bool, bool]


class _Convolution(Function):
    """The convolution of images (B, C, H, W), with channels last in the memory of its results.

    The columns are stored for the gradient of the weights, because computing them again would write them to memory a
    second time.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, padding: tuple[int, int], stride: tuple[int, int]) -> tuple[Tensor, Tensor]:
        columns = _columns(x, weight.shape[2:], padding, stride)
        return _product(columns, weight), columns

    @staticmethod
    def setup_context(ctx: _ConvolutionContext, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, weight, ctx.padding, ctx.stride = inputs
        ctx.size = x.shape[2:]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1], weight)

    @staticmethod
    def backward(ctx: _ConvolutionContext, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        g, (columns, weight) = grad_outputs[0], ctx.saved_tensors
        of_x = of_weight = None
        if ctx.needs_input_grad[1]:
            # Sum one product per image, because a product over all pixels of a minibatch has too few entries to occupy
            # a GPU.
            per_image = columns.flatten(1, 2).mT @ g.flatten(2).mT
            of_weight = per_image.sum(0).view(*weight.shape[2:], weight.shape[1], len(weight)).permute(3, 2, 0, 1)
        if ctx.needs_input_grad[0]:
            # The convolution of the gradient g (B, O, H', W') of the outputs with the flipped kernels.
            kernel, padding, stride = weight.shape[2:], ctx.padding, ctx.stride
            if stride != (1, 1):
                # Gradients of the outputs that a stride of 1 would have had in between are 0.
                full = [ctx.size[i] + 2 * padding[i] - kernel[i] + 1 for i in (0, 1)]
                spread = g.new_zeros(*g.shape[:2], *full)
                spread[:, :, :: stride[0], :: stride[1]] = g
                g = spread
            margin = (kernel[0] - 1 - padding[0], kernel[1] - 1 - padding[1])
            # A padding wider than the kernel has outputs that no input affects; a negative margin cuts them off.
            of_x = _product(_columns(g, kernel, margin, (1, 1)), weight.flip(2, 3).transpose(0, 1))
        return of_x, of_weight, None, None


def _columns(x: Tensor, kernel: Sequence[int], padding: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Return (B, H', W', kh·kw·C): for each output pixel, the inputs that the kernel (kh, kw) covers."""
    x = functional.pad(x, (padding[1], padding[1], padding[0], padding[0])) if any(padding) else x
    windows = x.unfold(2, kernel[0], stride[0]).unfold(3, kernel[1], stride[1])  # (B, C, H', W', kh, kw)
    return windows.permute(0, 2, 3, 4, 5, 1).flatten(3)


def _product(columns: Tensor, weight: Tensor) -> Tensor:
    """Return the outputs (B, O, H', W') for columns (B, H', W', kh·kw·C) and a weight (O, C, kh, kw)."""
    outputs = columns.flatten(0, 2) @ weight.permute(2, 3, 1, 0).flatten(0, 2)
    return outputs.view(*columns.shape[:3], len(weight)).permute(0, 3, 1, 2)
