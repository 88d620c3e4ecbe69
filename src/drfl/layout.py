"""A model's trainable parameters as one flat vector (d,), and back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

from drfl.errors import InputError


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter of a module lies in the flat vector.

    Parameters with ``requires_grad=False`` are constants of the model: they are neither trained nor sent.

    Args:
        names: the parameters' names, in the module's order.
        shapes: their shapes, in the same order.
        dtype: their common floating-point type.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """The layout of a module.

        Raises:
            InputError: the module keeps running statistics or draws random masks (see :func:`check_stateless`), has
                nothing to train, or mixes floating-point types.
        """
        check_stateless(module)
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise InputError(
                f"the model {type(module).__name__} has no trainable parameter", code="unsupported-model", field="model"
            )
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            raise InputError(
                f"the model's parameters must share one floating-point type, not {sorted(map(str, dtypes))}: "
                "convert it with model.float() or model.double()",
                code="unsupported-model",
                field="model",
            )
        return cls(tuple(trainable), tuple(tuple(p.shape) for p in trainable.values()), dtypes.pop())

    @property
    def d(self) -> int:
        """The number of trainable parameters."""
        return sum(map(prod, self.shapes))

    def flatten(self, module: nn.Module) -> Tensor:
        """The module's parameters as a new vector (d,)."""
        parameters = dict(module.named_parameters())
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """The parameters inside ``w`` (…, d), by name, each (…, *shape). They share memory with ``w``."""
        ends = list(accumulate(map(prod, self.shapes)))
        starts = [0, *ends[:-1]]
        return {
            name: w[..., a:b].view((*w.shape[:-1], *shape))
            for name, shape, a, b in zip(self.names, self.shapes, starts, ends, strict=True)
        }

    def load(self, module: nn.Module, w: Tensor) -> None:
        """Write the vector ``w`` (d,) into the module's parameters.

        Raises:
            InputError: ``w`` is not of length d.
        """
        if w.shape != (self.d,):
            raise InputError(
                f"the model has {self.d} trainable parameters, the vector has shape {tuple(w.shape)}",
                code="wrong-shape",
                field="w",
            )
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, value in self.views(w).items():
                parameters[name].copy_(value)


INSTEAD = "use nn.GroupNorm, which drfl.models.without_batch_norm(model) puts in its place"


def check_stateless(module: nn.Module) -> None:
    """Refuse a model whose output depends on more than its parameters and its input.

    Running statistics are not parameters: averaging them over clients is undefined (BatchNorm's counter is even an
    integer). Randomised activations and dropout with noise draw from a global generator, so results would depend on the
    engine; a :class:`drfl.task.Task` keys plain dropout. Both are fine in ``eval()`` mode, where they are constant.

    Raises:
        InputError: naming the layer and what to use instead.
    """
    for name, layer in module.named_modules():
        where = f"{name or 'the model'} ({type(layer).__name__})"
        running = getattr(layer, "running_mean", None) is not None
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not running:
            raise InputError(
                f"{where} mixes the samples of a batch: {INSTEAD}", code="unsupported-model", field="model"
            )
        if not layer.training:
            continue
        if running:
            raise InputError(
                f"{where} keeps running statistics, which cannot be averaged over clients: "
                f"{INSTEAD}, or freeze them with .eval()",
                code="unsupported-model",
                field="model",
            )
        random = isinstance(layer, nn.AlphaDropout | nn.FeatureAlphaDropout) and layer.p > 0
        if isinstance(layer, nn.RReLU) or random:
            raise InputError(
                f"{where} draws from a global generator, so results would depend on the engine: "
                "take nn.Dropout, which drfl keys, or switch it off with .eval()",
                code="unsupported-model",
                field="model",
            )
