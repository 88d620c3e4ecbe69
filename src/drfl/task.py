"""What is learned: a model, its loss and its score, as pure functions of a flat parameter vector."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from drfl.errors import InputError
from drfl.layout import Layout

SampleFn = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, …), targets (B, …)) → one value per sample, (B,)."""


def argmax_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest of the outputs (B, classes) is the target (B,), else 0."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the sign of the logit (B,) or (B, 1) agrees with the target in {0, 1}, else 0."""
    return ((outputs.flatten() > 0) == (targets.flatten() > 0.5)).to(outputs.dtype)


def per_sample(loss: SampleFn) -> SampleFn:
    """The loss with ``reduction="none"`` where it has such an option: drfl weighs the samples itself.

    Args:
        loss: ``nn.CrossEntropyLoss()``, ``F.mse_loss`` or any function that returns one value per sample.
    """
    if isinstance(loss, nn.Module):
        if hasattr(loss, "reduction"):
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 - torch types attributes as tensors
        return loss
    try:
        known = inspect.signature(loss).parameters
    except (TypeError, ValueError):
        return loss
    if "reduction" not in known:
        return loss
    reduced: Callable[..., Tensor] = loss
    return functools.partial(reduced, reduction="none")


def _mean_of_rest(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


@dataclass(frozen=True)
class Task:
    """A model with its loss and its score.

    The loss of a client is the mean of the per-sample losses: f_i(w) = (1/n_i) Σ_j ℓ(model_w(x_j), y_j).

    Args:
        model: any module without running statistics; used in the mode (train/eval) that it is given in. Its present
            parameters are the initial model.
        loss: a torch loss (its reduction is switched to "none" on a copy) or a function that returns one value per
            sample. Further dimensions are averaged.
        score: one value in [0, 1] per sample, reported as accuracy.

    Raises:
        InputError: see :meth:`drfl.layout.Layout.of`.
    """

    model: nn.Module
    loss: SampleFn = field(default_factory=nn.CrossEntropyLoss)
    score: SampleFn = argmax_accuracy
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout.of(self.model))
        object.__setattr__(self, "loss", per_sample(self.loss))

    @property
    def w0(self) -> Tensor:
        """The model's present parameters, a new vector (d,)."""
        return self.layout.flatten(self.model)

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """The model's outputs for inputs ``x`` (B, …) under the named parameters."""
        return functional_call(self.model, dict(parameters), (x,))

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per sample, (B,)."""
        return _mean_of_rest(self.loss(outputs, y))

    def sample_scores(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One score per sample, (B,)."""
        return _mean_of_rest(self.score(outputs, y))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Task:
        """The same task on another device or in another floating-point type; the given model stays untouched."""
        model, loss = copy.deepcopy(self.model).to(device=device, dtype=dtype), self.loss
        if isinstance(loss, nn.Module):  # its class weights go along
            loss = copy.deepcopy(loss).to(device=device, dtype=dtype)
        return Task(model, loss, self.score)

    def check(self, x: Tensor, y: Tensor) -> None:
        """Try the model and the loss on a few samples; torch's global generator is left as it was.

        Raises:
            InputError: they do not fit the data, the loss is not per-sample, the samples of a batch influence each
                other, or the forward pass is random or changes a buffer.
        """
        before = {name: b.clone() for name, b in self.model.named_buffers()}
        try:
            with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
                outputs = self.outputs(self.layout.views(self.w0), x)
                self._check_labels(outputs, y)
                values, scores = self.loss(outputs, y), self.score(outputs, y)
                self._check_shapes(values, scores, len(x))
                self._check_alone(self.sample_losses(outputs, y), x, y)
        except InputError:
            raise
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise InputError(
                f"the model and its loss do not fit the data (inputs {tuple(x.shape)} {x.dtype}, "
                f"targets {tuple(y.shape)} {y.dtype}): {reason}"
            ) from error
        if any(not torch.equal(b, before[name]) for name, b in self.model.named_buffers()):
            raise InputError(
                "the model changes its own buffers in the forward pass: only parameters are federated; "
                "use a layer without state, or .eval()"
            )

    def _check_shapes(self, values: Tensor, scores: Tensor, samples: int) -> None:
        for what, value in (("loss", values), ("score", scores)):
            if value.dim() == 0 or value.shape[0] != samples:
                raise InputError(
                    f"the {what} must give one value per sample, shape ({samples}, …), not "
                    f"{tuple(value.shape)}: return it without reduction"
                )

    def _check_alone(self, losses: Tensor, x: Tensor, y: Tensor) -> None:
        """A sample's loss must be the same again, and the same without the rest of the batch."""
        w = self.layout.views(self.w0)
        if not torch.equal(self.sample_losses(self.outputs(w, x), y), losses):
            raise InputError(
                "the model draws from a global generator in the forward pass, so results would depend on the engine: "
                "make it a function of its parameters and its input, or switch that off with .eval()"
            )
        alone = [self.sample_losses(self.outputs(w, x[j : j + 1]), y[j : j + 1]) for j in range(len(x))]
        if not torch.allclose(torch.cat(alone), losses, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                "the loss of a sample depends on the other samples of its batch: see that the loss does not broadcast "
                "outputs against targets of another shape, and normalise with nn.GroupNorm, not over the batch"
            )

    def _check_labels(self, outputs: Tensor, y: Tensor) -> None:
        if self.score is argmax_accuracy:
            if y.is_floating_point():
                raise InputError(
                    "targets are floating-point but the score is argmax_accuracy: pass score=binary_accuracy, or your "
                    "own function that gives one value per sample"
                )
            if outputs.dim() < 2:
                raise InputError(f"the model must give (B, classes) outputs, not {tuple(outputs.shape)}")
            _check_range(y, outputs.shape[1])

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Refuse labels (n,) that the model has no output for; ``x`` holds at least one input.

        Raises:
            InputError: naming the largest label and the number of outputs.
        """
        if self.score is not argmax_accuracy or y.numel() == 0 or y.is_floating_point():
            return
        with torch.no_grad():
            _check_range(y, self.outputs(self.layout.views(self.w0), x[:1]).shape[1])


def _check_range(y: Tensor, classes: int) -> None:
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise InputError(
            f"labels run from {low} to {high} but the model has {classes} outputs: they must lie in 0…{classes - 1}"
        )
