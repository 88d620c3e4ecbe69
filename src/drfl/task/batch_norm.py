"""Batch normalisation with running statistics per client: parameters that local steps update without a gradient."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError

BatchNorm = nn.modules.batchnorm._BatchNorm


class FederatedBatchNorm(nn.Module):
    """A BatchNorm whose running mean and variance are entries of the model's parameter vector.

    In a local step, the layer normalises with the statistics of the minibatch and records them; drfl then updates the
    running statistics as torch does. Everywhere else it uses the running statistics, and their gradient is 0. The
    tensors have the names that torch gives them.

    Args:
        norm: The layer to replace.

    Attributes:
        is_step: Whether the pass belongs to a local step.
        recorded: New running mean and variance after the last such pass; None before.
    """

    num_batches_tracked: Tensor

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        if norm.momentum is None:
            raise InputError(
                "a BatchNorm with momentum=None averages over all batches of a run, which clients do not know. Set "
                "momentum=0.1.",
                code="unsupported-model",
                field="model",
            )
        assert norm.running_mean is not None
        assert norm.running_var is not None
        self.eps, self.momentum = norm.eps, norm.momentum
        self.weight, self.bias = norm.weight, norm.bias
        self.running_mean = nn.Parameter(norm.running_mean.detach().clone())
        self.running_var = nn.Parameter(norm.running_var.detach().clone())
        # Unused, but torch's layer has it too, so that state_dicts fit both ways.
        self.register_buffer("num_batches_tracked", torch.zeros((), dtype=torch.int64))
        self.is_step, self.recorded = False, None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the channels of x (B, C, …)."""
        mean, variance = self.running_mean.detach(), self.running_var.detach()
        if self.is_step:
            # The second use in a pass continues from the statistics of the first.
            mean, variance = self.recorded or (mean, variance)
            rows = x.transpose(0, 1).flatten(1)
            count = rows.shape[1]
            kept = 1 - self.momentum
            batch_mean, batch_variance = rows.mean(1), rows.var(1, unbiased=False)
            # As in torch, the running variance is of the unbiased estimate.
            unbiased = batch_variance.detach() * (count / max(count - 1, 1))
            self.recorded = (
                kept * mean + self.momentum * batch_mean.detach(),
                kept * variance + self.momentum * unbiased,
            )
            mean, variance = batch_mean, batch_variance
        # A server optimiser may extrapolate a variance below 0.
        scale = torch.rsqrt(variance.clamp(min=0) + self.eps)
        shape = (-1, *[1] * (x.dim() - 2))
        y = (x - mean.reshape(shape)) * scale.reshape(shape)
        return y if self.weight is None else y * self.weight.reshape(shape) + self.bias.reshape(shape)

    def extra_repr(self) -> str:
        """Return the number of channels, for printing."""
        return str(len(self.running_mean))


def with_federated_batch_norm(model: nn.Module) -> nn.Module:
    """Copy a model with every BatchNorm in training mode replaced by :class:`FederatedBatchNorm`.

    :class:`drfl.FedBN` keeps these layers at the clients. Algorithms without drift terms, such as FedAvg, average their
    running statistics like parameters. Layers in ``eval()`` mode remain constant.

    Args:
        model: The model, which does not change.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> [name for name, _ in with_federated_batch_norm(model).named_parameters()][2:]
        ['1.weight', '1.bias', '1.running_mean', '1.running_var']

    Raises:
        InputError: If a layer has no running statistics, does not know its channels yet, or has momentum None.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, BatchNorm) and (not layer.num_features or layer.running_mean is None):
            raise InputError(
                f"{name or 'the model'} ({type(layer).__name__}) has no running statistics. Build it with its number "
                "of channels and track_running_stats=True.",
                code="unsupported-model",
                field="model",
            )
    model = copy.deepcopy(model)
    # A layer may be used in several places, which share its statistics.
    layers = list(model.modules())
    norms = {layer: FederatedBatchNorm(layer) for layer in layers if isinstance(layer, BatchNorm) and layer.training}
    if isinstance(model, BatchNorm):
        return norms.get(model, model)
    for layer in layers:
        for name, child in layer._modules.items():
            if isinstance(child, BatchNorm) and child in norms:
                setattr(layer, name, norms[child])
    return model


def federated_norms(model: nn.Module) -> dict[str, FederatedBatchNorm]:
    """Return the layers with running statistics per client, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, FederatedBatchNorm)}
