"""Gradients of linear layers' weights in factored form: a step adds the product to the weight without storing it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx
from torch.nn import functional

from drfl.core.vmap import is_transformed

LARGE = 2**19
"""Gradients of weights with at least this many entries stay factored. Below, the Python function costs too much."""


class OuterProduct(NamedTuple):
    """Σ_b outputs_b ⊗ inputs_b: the gradient (n, m) of a linear layer's weight, as its two factors.

    Args:
        outputs: (B, n) gradients with respect to the layer's outputs.
        inputs: (B, m) the layer's inputs.
    """

    outputs: Tensor
    inputs: Tensor

    def add_to(self, u: Tensor, scale: float = 1.0) -> None:
        """Update u ← u + scale·Σ in one pass over u (n, m)."""
        u.addmm_(self.outputs.t(), self.inputs, alpha=scale)


Gradient = Tensor | OuterProduct
"""The gradient of one parameter."""


def write_out(g: Gradient) -> Tensor:
    """Return a gradient as one tensor."""
    return g.outputs.t() @ g.inputs if isinstance(g, OuterProduct) else g


def total(p: Tensor, rest: Tensor | None, products: Sequence[OuterProduct]) -> Gradient:
    """Return the gradient of a parameter p: the sum of its products and the rest, or 0 if there is neither."""
    if not products and rest is not None:
        return rest
    if len(products) == 1 and rest is None:
        return products[0]
    # Allocate new memory, because two parameters may have the same tensor as their gradient.
    gradient = torch.zeros_like(p) if rest is None else rest.clone()
    for product in products:
        product.add_to(gradient)
    return gradient


class LinearWeights:
    """Collects the gradients of the large weights of a model's linear layers as products.

    Args:
        model: A model for this purpose only, because the ``forward`` of its layers is replaced.
    """

    def __init__(self, model: nn.Module) -> None:
        self._products: dict[Tensor, list[OuterProduct]] | None = None
        self._memory = {_memory(p) for p in model.parameters()}
        for layer in model.modules():
            # Skip layers whose computation is changed by a subclass, a parametrisation or the user.
            if type(layer) is not nn.Linear or "forward" in vars(layer):
                continue
            weight = layer._parameters.get("weight")
            if weight is not None and weight.requires_grad and weight.numel() >= LARGE:
                layer.forward = functools.partial(self._forward, layer, weight)

    @contextmanager
    def collected(self) -> Iterator[dict[Tensor, list[OuterProduct]]]:
        """Store products of backward passes in the yielded mapping; a weight gets the rest of its gradient, or None."""
        self._products = products = {}
        try:
            yield products
        finally:
            self._products = None

    def take(self, weight: Tensor, product: OuterProduct) -> bool:
        """Store a product of the backward pass; return False if it cannot be stored or products are not collected."""
        # A factor that shares memory with a parameter would change with it before the product is added.
        if self._products is None or not self._memory.isdisjoint(map(_memory, product)):
            return False
        # Detach, so that the graph behind the factors is freed.
        self._products.setdefault(weight, []).append(OuterProduct(*(factor.detach() for factor in product)))
        return True

    def _forward(self, layer: nn.Linear, weight: Tensor, input: Tensor) -> Tensor:
        # The weight differs if the layer is called with computed parameters, as by torch.func.functional_call.
        if layer.weight is not weight or torch.is_autocast_enabled(input.device.type) or is_transformed():
            return functional.linear(input, layer.weight, layer.bias)
        return _Linear.apply(input, weight, layer.bias, self)


def _memory(t: Tensor) -> int:
    return t.untyped_storage().data_ptr()


class _LinearContext(FunctionCtx):
    weights: LinearWeights
    parameter: Tensor
    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: tuple[bool, bool, bool, bool]


class _Linear(Function):
    """``functional.linear`` that stores the gradient of its weight as a product, if products are collected."""

    @staticmethod
    def forward(ctx: _LinearContext, x: Tensor, weight: Tensor, bias: Tensor | None, weights: LinearWeights) -> Tensor:
        ctx.save_for_backward(x, weight)
        # Saved tensors may come back as other objects, but products are stored under the parameter itself.
        ctx.parameter, ctx.weights = weight, weights
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(
        ctx: _LinearContext, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        of_x, _, of_bias, _ = ctx.needs_input_grad
        outputs = grad_outputs[0].reshape(-1, len(weight))
        product = OuterProduct(outputs, x.reshape(-1, x.shape[-1]))
        is_stored = ctx.weights.take(ctx.parameter, product)
        return (
            (outputs @ weight).view(x.shape) if of_x else None,
            None if is_stored else write_out(product),
            outputs.sum(0) if of_bias else None,
            None,
        )
