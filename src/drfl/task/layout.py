"""Convert a model's trainable parameters to one flat vector (d,) and back."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError
from drfl.task.model_checks import COMPILED, check_module, model_error


@dataclass(frozen=True)
class Layout:
    """The position of each trainable parameter of a module in the flat vector.

    Parameters with ``requires_grad=False`` are constants of the model: they are neither trained nor sent.

    Args:
        names: Names of the parameters, in the module's order.
        shapes: Shapes of the parameters, in the same order.
        dtype: Common floating-point type of the parameters.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """Create the layout of a module.

        Raises:
            InputError: If the module cannot be federated (see :func:`drfl.task.model_checks.check_module`), has no
                trainable parameter, or mixes floating-point types.
        """
        check_module(module)
        trainable = {name: p for name, p in _parameters(module).items() if p.requires_grad}
        if not trainable:
            raise model_error(f"the model {type(module).__name__} has no trainable parameter")
        dtypes = {p.dtype for p in trainable.values()}
        if len(dtypes) > 1 or not next(iter(dtypes)).is_floating_point:
            raise model_error(
                f"the model's parameters must share one floating-point type, got {sorted(map(str, dtypes))}. "
                "Convert the model with model.float() or model.double(), and store a complex parameter as two real ones"
            )
        return cls(tuple(trainable), tuple(tuple(p.shape) for p in trainable.values()), dtypes.pop())

    @property
    def d(self) -> int:
        """Number of trainable parameters."""
        return sum(map(prod, self.shapes))

    @property
    def named_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the parameters by name."""
        return dict(zip(self.names, self.shapes, strict=True))

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy the module's parameters to a new vector (d,)."""
        parameters = _parameters(module)
        # Use the order of the layout, which may differ from the order in which the module lists its parameters.
        return torch.cat([parameters[name].detach().reshape(-1) for name in self.names])

    def views(self, w: Tensor) -> dict[str, Tensor]:
        """Return views of the parameters in ``w`` (…, d) by name, each (…, *shape). They share memory with ``w``."""
        ends = list(accumulate(map(prod, self.shapes)))
        starts = [0, *ends[:-1]]
        return {
            # Leading dimensions remain, for example for the models of several clients.
            name: w[..., a:b].view((*w.shape[:-1], *shape))
            for name, shape, a, b in zip(self.names, self.shapes, starts, ends, strict=True)
        }

    def load(self, module: nn.Module, w: Tensor) -> None:
        """Write the vector ``w`` (d,) into the module's parameters.

        Raises:
            InputError: If ``w`` does not have length d.
        """
        if w.shape != (self.d,):
            raise InputError(
                f"the vector must have shape ({self.d},), the number of trainable parameters, got {tuple(w.shape)}",
                code="wrong-shape",
                field="w",
            )
        parameters = _parameters(module)
        with torch.no_grad():
            for name, value in self.views(w).items():
                parameters[name].copy_(value)


def _parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the module's parameters by the names that they have without ``torch.compile``."""
    return {name.replace(f"{COMPILED}.", ""): p for name, p in module.named_parameters()}
