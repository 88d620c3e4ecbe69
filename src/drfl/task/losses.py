"""Losses with torch's reduction over rows: a sum of values divided by a sum of masses."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.errors import InputError
from drfl.core.vmap import is_transformed

SampleFn = Callable[[Tensor, Tensor], Tensor]
"""Function of outputs (B, …) and targets (B, …) that returns one value per sample, (B,)."""

POISSON = (nn.PoissonNLLLoss,)
POISSON_FUNCTIONS = (functional.poisson_nll_loss,)
"""torch's losses of counts. Their outputs must be rates, not logarithms of rates."""

REGRESSION = (nn.MSELoss, nn.L1Loss, nn.HuberLoss, nn.SmoothL1Loss, *POISSON)
REGRESSION_FUNCTIONS = (
    functional.mse_loss,
    functional.l1_loss,
    functional.huber_loss,
    functional.smooth_l1_loss,
    *POISSON_FUNCTIONS,
)
"""torch's regression losses, for which the default score is the RMSE."""

BINARY = (nn.BCEWithLogitsLoss,)
BINARY_FUNCTIONS = (functional.binary_cross_entropy_with_logits,)
"""torch's losses of the log-odds of labels 0 or 1. drfl excludes unknown labels (NaN) from them."""

ELEMENTWISE = (*REGRESSION, *BINARY, nn.SoftMarginLoss)
ELEMENTWISE_FUNCTIONS = (*REGRESSION_FUNCTIONS, *BINARY_FUNCTIONS)
"""torch's elementwise losses, which would broadcast (B, 1) against (B,)."""

LABELLED = (nn.CrossEntropyLoss, nn.NLLLoss)
LABELLED_FUNCTIONS = (functional.cross_entropy, functional.nll_loss)
"""torch's losses of class labels. Their mean is weighted by class weight and excludes ``ignore_index``."""

PASS = 2**16
"""Number of rows whose masses are computed at a time."""


def equals(targets: Tensor, ignored: float) -> Tensor:
    """Return a mask of the targets that equal ``ignored``; NaN equals NaN."""
    return targets.isnan() if math.isnan(ignored) else targets == ignored


def ignores(targets: Tensor, ignored: float | None) -> Tensor:
    """Return a mask of the targets (n, …) that do not count, bool of the same shape; see :attr:`Loss.ignored`."""
    if ignored is None or targets.is_floating_point() != math.isnan(ignored):
        return torch.zeros(targets.shape, dtype=torch.bool, device=targets.device)
    return equals(targets, ignored)


def label_losses(outputs: Tensor, targets: Tensor, ignored: float | None) -> Tensor:
    """Compute the same bits as torch's cross-entropy, (B,), for outputs (B, C) and class labels (B,).

    Inside ``vmap``, torch's function loads SymPy, which takes 0.4 s in each process.
    """
    counts = targets != ignored
    logarithms = functional.log_softmax(outputs, 1).gather(1, targets.where(counts, 0)[:, None]).squeeze(1)
    return (-logarithms).where(counts, 0)


@dataclass(frozen=True, eq=False)
class Loss:
    """A loss on rows j, Σ_j v_j / Σ_j a_j, which equals torch's value for these rows.

    The value v_j is the mean of the unreduced loss over the further dimensions of row j. The mass a_j depends only on
    the targets. For the losses in :data:`LABELLED` with integer targets, it is the mean of the target's class weight
    over the row's positions, with weight 0 for ``ignore_index``. For the losses in :data:`BINARY`, it is the share of
    the row's labels that are known, that is, not NaN; unknown labels have value 0. For all other losses, it is 1.

    ``reduction="batchmean"`` and ``reduction="sum"`` sum over the further dimensions instead. ``reduction="sum"`` does
    not divide by the masses.

    Args:
        given: A loss such as ``nn.CrossEntropyLoss()`` or ``functional.mse_loss``, a partial of one, or any function
            that returns one value per sample.

    Attributes:
        reduction: The loss's option ``reduction``; None if it has none.
        ignored: The target that does not count: ``ignore_index`` for :data:`LABELLED`, NaN for :data:`BINARY`, and None
            for all other losses.
        function: The loss without reduction.
        is_plain: Whether this is torch's cross-entropy without class weights and label smoothing.
        of_batch: Whether this is a :class:`BatchLoss`.
    """

    of_batch: ClassVar[bool] = False

    given: SampleFn
    reduction: str | None = field(init=False)
    ignored: float | None = field(init=False)
    function: SampleFn = field(init=False)
    is_plain: bool = field(init=False)

    def __post_init__(self) -> None:
        loss, reduction = self.given, self._option("reduction")
        if reduction is not None and isinstance(loss, nn.Module):
            # With a shallow copy, the user's loss keeps its reduction and both share class weights.
            loss = copy.copy(loss)
            setattr(loss, "reduction", "none")  # noqa: B010 - torch types attributes as tensors
        elif reduction is not None:
            reduced: Callable[..., Tensor] = loss
            loss = functools.partial(reduced, reduction="none")
        object.__setattr__(self, "reduction", reduction)
        labelled = self.is_one_of(LABELLED, LABELLED_FUNCTIONS)
        binary = self.is_one_of(BINARY, BINARY_FUNCTIONS)
        object.__setattr__(self, "ignored", self._option("ignore_index") if labelled else math.nan if binary else None)
        object.__setattr__(self, "function", loss)
        plain = type(self.given) is nn.CrossEntropyLoss or self._code is functional.cross_entropy
        plain = plain and not isinstance(self._option("weight"), Tensor) and not self._option("label_smoothing")
        object.__setattr__(self, "is_plain", plain)

    @classmethod
    def of(cls, loss: SampleFn) -> Loss:
        """Convert a loss to :class:`Loss`, unless it already is one."""
        return loss if isinstance(loss, Loss) else cls(loss)

    def _option(self, name: str) -> object:
        """Return the value of an option of the loss; None if the loss has no such option."""
        if isinstance(self.given, nn.Module):
            return getattr(self.given, name, None)
        try:
            # The signature of a partial has the partial's values as defaults.
            option = inspect.signature(self.given).parameters.get(name)
        except (TypeError, ValueError):
            return None
        return None if option is None else "none" if option.default is option.empty else option.default

    def is_one_of(self, modules: tuple[type[nn.Module], ...], functions: tuple[Callable[..., Tensor], ...]) -> bool:
        """Return whether the loss is an instance of one of the modules, or one of the functions or a partial of it."""
        return isinstance(self.given, modules) or self._code in functions

    @property
    def _code(self) -> object:
        return self.given.func if isinstance(self.given, functools.partial) else self.given

    @property
    def of_log_rates(self) -> bool:
        """Whether the outputs are logarithms of the rates of counts."""
        return self.is_one_of(POISSON, POISSON_FUNCTIONS) and bool(self._option("log_input"))

    @property
    def summed(self) -> bool:
        """Whether the loss is a plain sum over rows, not divided by the masses."""
        return self.reduction == "sum"

    @property
    def allows_unknown(self) -> bool:
        """Whether targets may be NaN, which means that a label is unknown."""
        return self.ignored is not None and math.isnan(self.ignored)

    def ignores(self, targets: Tensor) -> Tensor:
        """Return a mask of the targets (n, …) that do not count, bool of the same shape."""
        return ignores(targets, self.ignored)

    def masses(self, targets: Tensor) -> Tensor | None:
        """Compute the masses (n,) of rows with targets (n, …), in float64 on the CPU; None if all are 1."""
        if self.ignored is None or targets.is_floating_point() != self.allows_unknown:
            return None
        # The weights of labels 0 or 1 scale the values only, as in torch.
        weight = None if self.allows_unknown else self._option("weight")
        # Without class weights and ignored targets, every mass is 1.
        if not isinstance(weight, Tensor) and not bool(equals(targets, self.ignored).any()):
            return None

        def of(targets: Tensor) -> Tensor:
            mass = (~self.ignores(targets)).double()
            if isinstance(weight, Tensor):
                # An ignored target such as −100 is not a valid index. It is replaced by class 0, and its mass stays 0.
                mass *= weight.to(targets.device).double()[targets.where(mass > 0, 0)]
            return mass.flatten(1).mean(1) if mass.dim() > 1 else mass

        return torch.cat([of(part).cpu() for part in targets.split(PASS)])

    def elements(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the unreduced values (B, …); 0 for unknown labels."""
        outputs, targets = self._aligned(outputs, targets)
        if self.is_plain and outputs.dim() == 2 and not targets.is_floating_point() and is_transformed():
            return label_losses(outputs, targets, self.ignored)
        if not self.allows_unknown:
            return self.function(outputs, targets)
        # The loss gets 0 in place of NaN, because the gradient of a masked NaN would be NaN.
        unknown = targets.isnan()
        values = self.function(outputs, targets.masked_fill(unknown, 0))
        return values.masked_fill(unknown, 0) if values.shape == unknown.shape else values

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the values v_j of rows, (B,)."""
        values = self.elements(outputs, targets)
        if values.dim() < 2:
            return values
        # A sample's loss has the scale of the original reduction: a sum over positions if the reduction is a sum.
        return values.flatten(1).sum(1) if self.reduction in ("sum", "batchmean") else values.flatten(1).mean(1)

    def check_reduction(self, outputs: Tensor, targets: Tensor) -> None:
        """Check on a few rows that a user-defined loss with its own reduction gives the same value as this class.

        Raises:
            InputError: If the values differ, because the loss divides by something other than the number of rows.
        """
        code = type(self.given) if isinstance(self.given, nn.Module) else self._code
        if self.reduction in (None, "none") or str(getattr(code, "__module__", None)).startswith("torch."):
            return
        # If the user's loss divided by something else, drfl's mean would differ from the loss that the user intends.
        # A loss derived from one of labels 0 or 1 need not know unknown labels.
        targets = targets.nan_to_num(0) if self.allows_unknown else targets
        value, masses = self.given(*self._aligned(outputs, targets)), self.masses(targets)
        count = len(targets) if masses is None else float(masses.sum())
        from_rows = self(outputs, targets).sum() / (1 if self.summed else count)
        if value.dim() == 0 and not torch.allclose(value, from_rows, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                f"the loss is {float(value):.6g} with reduction='{self.reduction}' on {len(targets)} rows, but its "
                f"values per row give {float(from_rows):.6g}: it divides by something other than the number of rows. "
                "Use reduction='none' to make a client's loss the mean of the values per row.",
                code="unsupported-loss",
                field="loss",
            )

    def _aligned(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Squeeze outputs or targets (B, 1) if the other is (B,), and convert the targets to the outputs' type.

        Raises:
            InputError: If torch would broadcast the shapes.
        """
        if not self.is_one_of(ELEMENTWISE, ELEMENTWISE_FUNCTIONS):
            return outputs, targets
        if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
            outputs = outputs.squeeze(-1)
        elif targets.dim() == outputs.dim() + 1 and targets.shape[-1] == 1:
            targets = targets.squeeze(-1)
        if outputs.shape != targets.shape:
            raise InputError(
                f"the loss needs outputs and targets of the same shape, got outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)}",
                code="wrong-shape",
                field="loss",
            )
        return outputs, targets if targets.is_floating_point() else targets.to(outputs.dtype)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Loss:
        """Copy the loss with its tensors, such as class weights, to another device and type."""

        def moved(value: object) -> object:
            if not isinstance(value, Tensor):
                return value
            return value.to(device=device, dtype=dtype if value.is_floating_point() else None)

        if isinstance(self.given, nn.Module):
            return type(self)(copy.deepcopy(self.given).to(device=device, dtype=dtype))
        if isinstance(self.given, functools.partial):
            keywords = {name: moved(value) for name, value in self.given.keywords.items()}
            return type(self)(functools.partial(self.given.func, *map(moved, self.given.args), **keywords))
        return self


@dataclass(frozen=True, eq=False)
class BatchLoss(Loss):
    """A loss of a whole batch that is not a mean over rows, such as a Dice or a contrastive loss.

    The loss of a set of rows is the value of the function for these rows as one batch: the minibatch in a local step,
    the drawn rows of a loss report, and all of a client's rows in an evaluation or without a batch size. So the
    objective of a client is f_i(w) = given(model_w(x_i), y_i) for all of its rows. The mean over minibatches is
    different, as in any training loop with such a loss.

    Local steps are vectorised over clients with minibatches of equal size if ``torch.func`` supports the function.
    Everything else is computed for one client after another, each in one pass.

    Args:
        given: A function of outputs (B, …) and targets (B, …) that returns a number, a tensor of shape ().

    Example:
        >>> import torch, drfl
        >>> def dice(outputs, targets):
        ...     p = outputs.sigmoid()
        ...     return 1 - 2 * (p * targets).sum() / (p.sum() + targets.sum())
        >>> rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> data = drfl.ClientData.from_arrays([(x, (x > 0).float()) for x in rows.split(20)])
        >>> task = drfl.Task(torch.nn.Linear(3, 3), loss=drfl.BatchLoss(dice), score="auc")
        >>> drfl.run(drfl.DRFA(m=2), drfl.Simulation(data, task), rounds=2).rounds
        2
    """

    of_batch: ClassVar[bool] = True

    def __post_init__(self) -> None:
        # The function keeps its own reduction and decides itself which targets count.
        for name, value in (("reduction", None), ("ignored", None), ("function", self.given), ("is_plain", False)):
            object.__setattr__(self, name, value)
