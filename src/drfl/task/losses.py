"""Losses as torch reduces them: the sum of the rows' values, divided by what the rows count."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.errors import InputError

SampleFn = Callable[[Tensor, Tensor], Tensor]
"""(outputs (B, …), targets (B, …)) → one value per sample, (B,)."""

REGRESSION = (nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss)
REGRESSION_FUNCTIONS = (functional.mse_loss, functional.l1_loss, functional.huber_loss, functional.smooth_l1_loss)
"""torch's losses of numbers, whose score is the RMSE unless another is given."""

ELEMENTWISE = (*REGRESSION, nn.BCEWithLogitsLoss, nn.BCELoss, nn.SoftMarginLoss, nn.PoissonNLLLoss)
ELEMENTWISE_FUNCTIONS = (
    *REGRESSION_FUNCTIONS,
    functional.binary_cross_entropy_with_logits,
    functional.binary_cross_entropy,
)
"""torch's losses that compare every output with a target, and would broadcast (B, 1) against (B,)."""

LABELLED = (nn.CrossEntropyLoss, nn.NLLLoss)
LABELLED_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
"""torch's losses of class labels. Their mean is over the labels other than ``ignore_index``, by class weight."""

PASS = 2**16
"""Rows whose masses are computed at a time."""


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss on rows j is Σ_j v_j / Σ_j a_j, which is what torch gives for these rows.

    v_j is the mean over a row's further dimensions of the values without reduction. The mass a_j is a function of the
    targets alone: with the losses of :data:`LABELLED` and integer targets it is the mean over the row's positions of
    the target's class weight, 0 where the target is ``ignore_index``. With all other losses it is 1.

    ``reduction="batchmean"`` sums over further dimensions. So does ``reduction="sum"``, which divides by nothing.

    Args:
        given: ``nn.CrossEntropyLoss()``, ``functional.mse_loss``, a partial of one, or any function that returns one
            value per sample.

    Attributes:
        reduction: The option of that name; None if the loss has none.
        ignored: The label that does not count; None if the loss is not one of :data:`LABELLED`.
        function: The loss without reduction.
    """

    given: SampleFn
    reduction: str | None = field(init=False)
    ignored: int | None = field(init=False)
    function: SampleFn = field(init=False)

    def __post_init__(self) -> None:
        loss, reduction = self.given, self._option("reduction")
        if reduction is not None and isinstance(loss, nn.Module):
            # The copy is shallow: the user's loss keeps its reduction, and both share weights.
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 - torch types attributes as tensors
        elif reduction is not None:
            reduced: Callable[..., Tensor] = loss
            loss = functools.partial(reduced, reduction="none")
        object.__setattr__(self, "reduction", reduction)
        labelled = self.is_one_of(LABELLED, LABELLED_FUNCTIONS)
        object.__setattr__(self, "ignored", self._option("ignore_index") if labelled else None)
        object.__setattr__(self, "function", loss)

    @classmethod
    def of(cls, loss: SampleFn) -> Loss:
        """A loss, whichever way it was given."""
        return loss if isinstance(loss, Loss) else cls(loss)

    def _option(self, name: str) -> object:
        """An option of the given loss; None if there is none of that name."""
        if isinstance(self.given, nn.Module):
            return getattr(self.given, name, None)
        try:
            # That of a partial has the partial's values as defaults.
            option = inspect.signature(self.given).parameters.get(name)
        except (TypeError, ValueError):
            return None
        return None if option is None else "none" if option.default is option.empty else option.default

    def is_one_of(self, modules: tuple[type[nn.Module], ...], functions: tuple[Callable[..., Tensor], ...]) -> bool:
        """Whether the given loss is one of these modules, or one of these functions or a partial of it."""
        return isinstance(self.given, modules) or self._code in functions

    @property
    def _code(self) -> object:
        return self.given.func if isinstance(self.given, functools.partial) else self.given

    @property
    def summed(self) -> bool:
        """Whether the loss is the sum over rows, whatever their masses."""
        return self.reduction == "sum"

    def ignores(self, targets: Tensor) -> Tensor:
        """Which of the targets (n, …) do not count, bool of the same shape."""
        if self.ignored is None or targets.is_floating_point():
            return torch.zeros(targets.shape, dtype=torch.bool, device=targets.device)
        return targets == self.ignored

    def masses(self, targets: Tensor) -> Tensor | None:
        """(n,) float64 on the CPU, the masses of rows with targets (n, …); None if all are 1."""
        if self.ignored is None or targets.is_floating_point():
            return None
        # Without weights and ignored targets every mass is 1.
        weight = self._option("weight")
        if not isinstance(weight, Tensor) and not bool((targets == self.ignored).any()):
            return None

        def of(targets: Tensor) -> Tensor:
            mass = (~self.ignores(targets)).double()
            if isinstance(weight, Tensor):
                # An ignored target, such as −100, is not a valid index. Class 0 replaces it, with mass 0.
                mass *= weight.to(targets.device).double()[targets.where(mass > 0, 0)]
            return mass.flatten(1).mean(1) if mass.dim() > 1 else mass

        return torch.cat([of(part).cpu() for part in targets.split(PASS)])

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B, …) the values without reduction."""
        return self.function(*self._aligned(outputs, targets))

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(B,) the values v_j of rows."""
        values = self.elements(outputs, targets)
        if values.dim() < 2:
            return values
        # A sample's loss has the scale of the given reduction: it is a sum over positions if the reduction sums.
        return values.flatten(1).sum(1) if self.reduction in ("sum", "batchmean") else values.flatten(1).mean(1)

    def check_reduction(self, outputs: Tensor, targets: Tensor) -> None:
        """Compare the loss on a few rows with what a loss of the user's own makes of them when it reduces by itself.

        Raises:
            InputError: If they differ: it normalises by something that cannot be seen from outside.
        """
        code = type(self.given) if isinstance(self.given, nn.Module) else self._code
        if self.reduction in (None, "none") or str(getattr(code, "__module__", None)).startswith("torch."):
            return
        # A user's loss may divide by something else, and drfl's mean then differs from the loss that the user meant.
        value, masses = self.given(*self._aligned(outputs, targets)), self.masses(targets)
        count = len(targets) if masses is None else float(masses.sum())
        ours = self(outputs, targets).sum() / (1 if self.summed else count)
        if value.dim() == 0 and not torch.allclose(value, ours, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                f"the loss is {float(value):.6g} with reduction='{self.reduction}' on {len(targets)} rows, and its "
                f"values per row give {float(ours):.6g}: it divides by something else than the number of rows. Give it "
                "with reduction='none', so that the client's loss is the mean of these values",
                code="unsupported-loss",
                field="loss",
            )

    def _aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (B, 1) and targets (B,), or the other way round, as (B,), targets in the outputs' type.

        Raises:
            InputError: If torch would broadcast them.
        """
        if not self.is_one_of(ELEMENTWISE, ELEMENTWISE_FUNCTIONS):
            return outputs, targets
        if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        elif targets.dim() == outputs.dim() + 1 and targets.shape[-1] == 1:
            targets = targets.squeeze(-1)
        if outputs.shape != targets.shape:
            raise InputError(
                f"the loss compares outputs {tuple(outputs.shape)} with targets {tuple(targets.shape)}: make them "
                "alike",
                code="wrong-shape",
                field="loss",
            )
        return outputs, targets if targets.is_floating_point() else targets.to(outputs.dtype)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Loss:
        """The same loss with its tensors, such as class weights, on another device and in another type."""

        def moved(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

        if isinstance(self.given, nn.Module):
            return Loss(copy.deepcopy(self.given).to(device=device, dtype=dtype))
        if isinstance(self.given, functools.partial):
            keywords = {name: moved(value) for name, value in self.given.keywords.items()}
            return Loss(functools.partial(self.given.func, *map(moved, self.given.args), **keywords))
        return self
