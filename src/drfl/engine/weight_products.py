"""Gradients of the weights of linear layers as products that a step adds to the weight, without being written out."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx
from torch.nn import functional

from drfl.engine.image_layers import transformed

LARGE = 2**19
"""Entries of a weight from which on its gradient stays a product; below, a Python function costs more than it saves."""


class OuterProduct(NamedTuple):
    """Σ_b outputs_b ⊗ inputs_b, the gradient (n, m) of a linear layer's weight as its two factors.

    Args:
        outputs: (B, n) the gradients in the layer's outputs.
        inputs: (B, m) the layer's inputs.
    """

    outputs: Tensor
    inputs: Tensor

    def add_to(self, u: Tensor, scale: float = 1.0) -> None:
        """u ← u + scale·Σ, in one pass over u (n, m)."""
        u.addmm_(self.outputs.t(), self.inputs, alpha=scale)


Gradient = Tensor | OuterProduct
"""Of one parameter."""


def written_out(g: Gradient) -> Tensor:
    """A gradient as one tensor."""
    return g.outputs.t() @ g.inputs if isinstance(g, OuterProduct) else g


def total(p: Tensor, rest: Tensor | None, products: Sequence[OuterProduct]) -> Gradient:
    """The gradient of a parameter p: the sum of its products and of the rest, 0 where there is neither."""
    if not products and rest is not None:
        return rest
    if len(products) == 1 and rest is None:
        return products[0]
    # New memory: two parameters may have one and the same tensor as their gradient.
    found = torch.zeros_like(p) if rest is None else rest.clone()
    for product in products:
        product.add_to(found)
    return found


class LinearWeights:
    """The large weights of a model's linear layers, and their gradients as products while they are collected.

    Args:
        model: its layers' ``forward`` is replaced; use it for nothing else.
    """

    def __init__(self, model: nn.Module) -> None:
        self._found: dict[Tensor, list[OuterProduct]] | None = None
        self._memory = {_memory(p) for p in model.parameters()}
        for layer in model.modules():
            # Not where a subclass, a parametrisation or the user says what the layer computes.
            if type(layer) is not nn.Linear or "forward" in vars(layer):
                continue
            weight = layer._parameters.get("weight")
            if weight is not None and weight.requires_grad and weight.numel() >= LARGE:
                layer.forward = functools.partial(self._forward, layer, weight)

    @contextmanager
    def collected(self) -> Iterator[dict[Tensor, list[OuterProduct]]]:
        """Meanwhile a backward pass leaves the products here, and gives a weight the rest of its gradient or None."""
        self._found = found = {}
        try:
            yield found
        finally:
            self._found = None

    def take(self, weight: Tensor, product: OuterProduct) -> bool:
        """Keep a product of the backward pass, unless they are not collected."""
        # A factor that is a parameter would change with it before its product is added.
        if self._found is None or not self._memory.isdisjoint(map(_memory, product)):
            return False
        # A number, not a function of the parameters: the graph behind it is not to stay alive.
        self._found.setdefault(weight, []).append(OuterProduct(*(factor.detach() for factor in product)))
        return True

    def _forward(self, layer: nn.Linear, weight: Tensor, input: Tensor) -> Tensor:
        # The weight is another where somebody calls the layer with parameters that he computes.
        if layer.weight is not weight or torch.is_autocast_enabled(input.device.type) or transformed():
            return functional.linear(input, layer.weight, layer.bias)
        return _Linear.apply(input, weight, layer.bias, self)


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


class _Context(FunctionCtx):
    weights: LinearWeights
    parameter: Tensor
    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, bool, bool, bool]


class _Linear(Function):
    """``functional.linear`` that leaves the gradient of its weight where it is collected."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor | None, weights: LinearWeights) -> Tensor:
        ctx.save_for_backward(x, weight)
        # What is saved may come back as another tensor, and the products are found by the parameter itself.
        ctx.parameter, ctx.weights = weight, weights
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: _Context, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x, _, of_bias, _ = ctx.needs_input_grad
        outputs = grad_outputs[0].reshape(-1, len(weight))
        product = OuterProduct(outputs, x.reshape(-1, x.shape[-1]))
        kept = ctx.weights.take(ctx.parameter, product)
        return (
            (outputs @ weight).view(x.shape) if of_x else None,
            None if kept else written_out(product),
            outputs.sum(0) if of_bias else None,
            None,
        )
