"""The model of a client as a method of local training sees it: parameters, outputs and features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from drfl.core.errors import InputError
from drfl.task.batch_norm import federated_norms
from drfl.task.functional import functional_call
from drfl.task.task import Task
from drfl.task.training_noise import dropout_layers

PASS = 2**20
"""Numbers in the inputs of a pass over all rows of a client."""


class ClientModel:
    """The task's model with certain parameters. Call it with inputs (B, …) to get outputs.

    Args:
        task: The task.
        parameters: The trainable parameters by name.
        seeds: Seeds of the dropout layers, (B,); None = no dropout.
        autocast: Type for matrix products, see :class:`drfl.engine.base.PooledData`.
        is_step: Whether this is the model of a local step, whose passes update running statistics.

    Attributes:
        parameters: The trainable parameters by name.
        statistics: New running statistics after the passes so far, by name; only in a local step.
    """

    def __init__(
        self,
        task: Task,
        parameters: Mapping[str, Tensor],
        seeds: Tensor | None = None,
        autocast: torch.dtype | None = None,
        *,
        is_step: bool = False,
    ) -> None:
        self.task, self.parameters, self._seeds, self._autocast = task, dict(parameters), seeds, autocast
        self._norms = federated_norms(task.model) if is_step else {}
        self.statistics: dict[str, Tensor] = {}

    @classmethod
    def of(cls, task: Task, w: Tensor, autocast: torch.dtype | None = None) -> ClientModel:
        """Make the model with the parameters w (d,), without dropout."""
        return cls(task, task.layout.views(w), None, autocast)

    def at(self, w: Tensor) -> ClientModel:
        """Return the model with the parameters w (d,), without dropout."""
        return ClientModel.of(self.task, w, self._autocast)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the trainable parameters."""
        return self.task.layout.names

    @cached_property
    def vector(self) -> Tensor:
        """All parameters as one vector (d,)."""
        return torch.cat([self.parameters[name].reshape(-1) for name in self.names])

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the parameters of the head: the last layer that has trainable parameters."""
        return tuple(name for name in self.names if name.rpartition(".")[0] == self._head_layer)

    @cached_property
    def norms(self) -> tuple[str, ...]:
        """Names of the parameters and running statistics of BatchNorm layers, see :mod:`drfl.task.batch_norm`."""
        layers = federated_norms(self.task.model)
        return tuple(name for name in self.names if name.rpartition(".")[0] in layers)

    def below(self, layer: str) -> tuple[str, ...]:
        """Return the names of the parameters in a layer, such as ``"fc"``, or in several, separated by commas.

        Raises:
            InputError: If the model has no trainable parameters there.
        """
        layers = [part.strip() for part in layer.split(",")]
        names = tuple(name for name in self.names if any(name.startswith(f"{part}.") for part in layers))
        if not names:
            raise InputError(
                f"the model has no trainable parameters in the layer '{layer}': its parameters are "
                f"{', '.join(self.names)}",
                code="unknown-name",
                field="head",
            )
        return names

    def __call__(self, x: Tensor) -> Tensor:
        """Compute the outputs of inputs (B, …)."""
        tensors = dict(self.parameters)
        if self._seeds is not None:
            for name in dropout_layers(self.task.model):
                tensors[f"{name}.seeds" if name else "seeds"] = self._seeds
        # A second pass in a step continues from the statistics of the first.
        tensors |= self.statistics
        # The layers belong to the task's model, which tests use too, so they record statistics during this call only.
        for norm in self._norms.values():
            norm.is_step = True
        try:
            with (
                torch.autocast(x.device.type, self._autocast, cache_enabled=False) if self._autocast else nullcontext()
            ):
                outputs = functional_call(self.task.model, tensors, (x,))
        finally:
            for name, norm in self._norms.items():
                if norm.recorded is not None:
                    names = (f"{name}.{part}" if name else part for part in ("running_mean", "running_var"))
                    self.statistics |= zip(names, norm.recorded, strict=True)
                norm.is_step, norm.recorded = False, None
        return outputs if self._autocast is None else outputs.to(self.task.layout.dtype)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the features (B, …), which are the inputs of the head, and the outputs, in one pass."""
        inputs: list[Tensor] = []

        def record(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(arguments[0])

        hook = self.task.model.get_submodule(self._head_layer).register_forward_pre_hook(record)
        try:
            outputs = self(x)
        finally:
            hook.remove()
        # Use those of the last call, because a model may use its head several times.
        return inputs[-1], outputs

    def gradient(self, loss: Callable[[ClientModel], Tensor]) -> Tensor:
        """Compute the gradient (d,) of a loss () at these parameters, such as ``batch.loss``; it is a constant."""
        # torch.func.grad, because a method's loss may itself run under vmap over the clients.
        gradients = torch.func.grad(
            lambda parameters: loss(ClientModel(self.task, parameters, self._seeds, self._autocast))
        )(self.parameters)
        return torch.cat([gradients[name].detach().reshape(-1) for name in self.names])

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the task's loss of each sample, (B,)."""
        return self.task.sample_losses(outputs, targets)

    @cached_property
    def classes(self) -> int:
        """Number of outputs."""
        return int(self._widths[1])

    @cached_property
    def width(self) -> int:
        """Number of features."""
        return int(self._widths[0])

    @cached_property
    def _head_layer(self) -> str:
        return self.names[-1].rpartition(".")[0]

    @cached_property
    def _widths(self) -> tuple[int, int]:
        head = self.task.model.get_submodule(self._head_layer)
        weight = getattr(head, "weight", None)
        if not isinstance(weight, Tensor) or weight.dim() != 2:
            raise InputError(
                f"the last layer of the model, {type(head).__name__}, has no weight matrix that gives the numbers of "
                "features and classes. End the model with nn.Linear.",
                code="unsupported-model",
                field="model",
            )
        return weight.shape[1], weight.shape[0]
