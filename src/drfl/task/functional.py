"""Calls of a model with other parameters than its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def functional_call(
    model: nn.Module, tensors: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> Any:  # noqa: ANN401
    """Call a model with other parameters and buffers, given by the first of their names.

    Unlike torch's function, this one restores the tensors of a layer that is used in several places. torch replaces
    them once for each of the layer's names, and takes the first replacement for the layer's own tensor.
    """
    replaced, first = dict(tensors), dict[Tensor, str]()
    for place, layer in model.named_modules():
        for name, own in (*layer._parameters.items(), *layer._buffers.items()):
            if own is not None:
                full = f"{place}.{name}" if place else name
                # Layers may share a tensor, such as the embedding and the output of a language model.
                original = first.setdefault(own, full)
                if original in tensors:
                    replaced[full] = tensors[original]
    outputs = torch.func.functional_call(model, replaced, args, kwargs, tie_weights=False)
    # torch's function also returns buffers that the forward pass has set.
    tensors.update({name: replaced[name] for name in tensors})
    return outputs
