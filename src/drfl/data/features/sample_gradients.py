"""Selected coordinates of each sample's gradient, from one forward and one backward pass for all samples."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn

ROOM = 2**22
"""Number of products that are stored before they are summed over an image's positions."""


def sample_gradients(model: nn.Module, x: Tensor, direction: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
    """Compute coordinates of the gradients of ``model(x)[b] @ direction`` with respect to the parameters.

    Samples do not interact. The gradients of the sum over samples with respect to a layer's outputs are therefore each
    sample's own gradients. The gradient of a weight is a sum of products of these with the layer's inputs, and is
    computed only at the requested positions.

    Args:
        model: Model in eval mode. Its parameters belong to convolutions, linear layers, or batch and group
            normalisations, each used once.
        x: Inputs (B, …).
        direction: (C,) One number per output.
        kept: For each parameter, positions in the flattened parameter.

    Returns:
        (B, p), positions in the order of ``kept``.
    """
    owners = {name: name.rpartition(".") for name in kept}
    layers = {path: model.get_submodule(path) for path, _, _ in owners.values()}
    seen: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def remember(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen[layer] = inputs[0].detach(), output

    handles = [layer.register_forward_hook(remember) for layer in layers.values()]
    try:
        with torch.enable_grad():
            total = (model(x.detach().requires_grad_()) @ direction).sum()
    finally:
        for handle in handles:
            handle.remove()
    found = torch.autograd.grad(total, [seen[layer][1] for layer in layers.values()])
    outer = dict(zip(layers, found, strict=True))
    parts = []
    for (path, _, parameter), places in zip(owners.values(), kept.values(), strict=True):
        layer, g = layers[path], outer[path]
        if parameter == "bias":
            parts.append(g.flatten(2).sum(2)[:, places] if g.dim() == 4 else g[:, places])
        else:
            parts.append(_of_weight(layer, seen[layer][0], g, places))
    return torch.cat(parts, 1)


def _of_weight(layer: nn.Module, x: Tensor, g: Tensor, places: Tensor) -> Tensor:
    """Return the gradients (B, n) of a layer's weight, from its inputs and the gradients of its outputs."""
    if isinstance(layer, nn.Linear):
        outputs, inputs = torch.unravel_index(places, layer.weight.shape)
        return g[:, outputs] * x[:, inputs]
    if isinstance(layer, nn.Conv2d):
        # The gradient of entry (o, i, r, s) of the kernel is a sum over positions: the gradient of output o times the
        # entry of input i under (r, s). Compute it for a few entries at a time, because all products would fill the
        # memory.
        vertical, horizontal = layer.padding
        (height, width), (down, across) = layer.kernel_size, layer.stride
        padded = F.pad(x, (int(horizontal), int(horizontal), int(vertical), int(vertical)))
        under = padded.unfold(2, height, down).unfold(3, width, across)  # (B, c, h, w, k, k), a view
        parts = []
        for few in places.split(max(1, ROOM // g[:, 0].numel())):
            outputs, inputs, row, column = torch.unravel_index(few, layer.weight.shape)
            inputs = inputs + outputs // (layer.out_channels // layer.groups) * (layer.in_channels // layer.groups)
            products = under[:, inputs, :, :, row, column] * g[:, outputs].transpose(0, 1)  # (n, B, h, w)
            parts.append(products.sum((2, 3)).T)
        return torch.cat(parts, 1)
    if isinstance(layer, nn.BatchNorm2d):
        normal = F.batch_norm(x, layer.running_mean, layer.running_var, eps=layer.eps)
    elif isinstance(layer, nn.GroupNorm):
        normal = F.group_norm(x, layer.num_groups, eps=layer.eps)
    else:
        raise TypeError(f"sample gradients do not support the layer {type(layer).__name__}")
    return (g * normal).sum((2, 3))[:, places]
