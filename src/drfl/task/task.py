"""What is learned: a model, its loss and its score, as pure functions of a flat parameter vector."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from drfl.core.errors import InputError, Notice, first_line
from drfl.task.layout import Layout
from drfl.task.losses import REGRESSION, REGRESSION_FUNCTIONS, Loss, SampleFn
from drfl.task.metrics import (
    ACCURACY,
    METRICS,
    OF_CLASSES,
    Metric,
    MetricFn,
    are_classes,
    check_distinct,
    metric_of,
    resolved,
)
from drfl.task.model_checks import ForwardPass, check_forward, check_gradient, place_of, plain
from drfl.task.training_noise import Augmentation, Uniform, dropout_layers, keyed

LOG = logging.getLogger("drfl.task.task")


def default_score(loss: SampleFn) -> Metric:
    """The score of a task that is given none: RMSE where the loss is one of numbers, such as MSE, else accuracy."""
    return METRICS["rmse"] if Loss.of(loss).is_one_of(REGRESSION, REGRESSION_FUNCTIONS) else ACCURACY


@dataclass(frozen=True)
class Task:
    """A model with its loss and its score.

    The loss of a client is what torch gives for its rows: f_i(w) = Σ_j ℓ(model_w(x_j), y_j) / Σ_j a_j. The mass a_j of
    a row is 1, or with ``ignore_index`` and class weights what the row counts, see :class:`drfl.task.losses.Loss`.

    Args:
        model: Any module without running statistics; used in the mode (train/eval) that it is given in. Its present
            parameters are the initial model. Dropout in training mode is keyed, see :mod:`drfl.task.training_noise`: it
            is there in local steps alone, in a copy of the model.
        loss: A torch loss (its reduction is switched to "none" on a copy) or a function that returns one value per
            sample. Further dimensions are averaged. torch's losses of numbers take outputs (B, 1) with targets (B,).
            Kept as a :class:`drfl.task.losses.Loss`.
        score: What says how well a client is served, so which is the worst, the best round, what tables show: the name
            of one of :data:`drfl.task.metrics.METRICS`, a :class:`drfl.task.metrics.Metric`, or a function of a
            client's outputs and targets. None = accuracy; RMSE where the loss is one of numbers, such as
            ``nn.MSELoss``.
        metrics: What else is measured on every client's test rows, given in the same ways.
        augment: A function of the inputs (B, …) of a minibatch and of :class:`drfl.task.training_noise.Uniform` numbers
            that gives inputs of the same shape, in local steps alone; see :mod:`drfl.task.augmentations` for some.

    Raises:
        InputError: See :meth:`drfl.task.layout.Layout.of`; there is no such metric, or two have one name.
    """

    model: nn.Module
    loss: SampleFn = field(default_factory=nn.CrossEntropyLoss)
    score: Metric | MetricFn | str | None = None
    metrics: tuple[Metric | MetricFn | str, ...] = ()
    augment: Augmentation | None = None
    layout: Layout = field(init=False)
    measures: tuple[Metric, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", Layout.of(model := plain(self.model)))
        object.__setattr__(self, "model", keyed(model))
        if not isinstance(self.loss, Loss):
            object.__setattr__(self, "loss", Loss(self.loss))
            if self.criterion.summed:
                text = (
                    "the loss has reduction='sum': it grows with the number of rows, so the largest client counts as "
                    "the worst. Use reduction='mean' to compare clients"
                )
                LOG.warning(Notice(text, "summed-loss", "loss"))
        score = default_score(self.loss) if self.score is None else self.score
        others = (self.metrics,) if isinstance(self.metrics, str | Metric) else tuple(self.metrics)
        measures = tuple(metric_of(given) for given in (score, *others))
        check_distinct(measures)
        object.__setattr__(self, "measures", measures)

    @property
    def criterion(self) -> Loss:
        """The loss with what it divides by; ``loss`` is the same object."""
        assert isinstance(self.loss, Loss)
        return self.loss

    @property
    def w0(self) -> Tensor:
        """The model's present parameters, a new vector (d,)."""
        return self.layout.flatten(self.model)

    @functools.cached_property
    def noisy(self) -> bool:
        """Whether local steps need seeds: there is dropout or augmentation."""
        return self.augment is not None or bool(dropout_layers(self.model))

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor, seeds: Tensor | None = None) -> Tensor:
        """The model's outputs for inputs ``x`` (B, …) under the named parameters.

        Args:
            parameters: Of the model, by name.
            x: The inputs.
            seeds: (B,) the samples' in a local step of a ``noisy`` task; None = no dropout, no augmentation.
        """
        if seeds is None:
            return functional_call(self.model, dict(parameters), (x,))
        layers = dropout_layers(self.model)
        for layer in layers.values():
            # The counter restarts with each forward pass, so that equal seeds give equal noise.
            layer.calls = 0
        seeded = {f"{name}.seeds" if name else "seeds": seeds for name in layers}
        return functional_call(self.model, {**parameters, **seeded}, (self.augmented(x, seeds),))

    def augmented(self, x: Tensor, seeds: Tensor) -> Tensor:
        """The inputs (B, …) of a local step.

        Raises:
            InputError: If the augmentation changes their shape or type.
        """
        if self.augment is None:
            return x
        found = self.augment(x, Uniform(seeds))
        if found.shape != x.shape or found.dtype != x.dtype:
            raise InputError(
                f"augment made {found.dtype} of shape {tuple(found.shape)} of inputs {x.dtype} of shape "
                f"{tuple(x.shape)}: it must keep both",
                code="wrong-shape",
                field="augment",
            )
        return found

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """One loss per sample, (B,)."""
        return self.loss(outputs, y)

    def sample_values(self, metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
        """One value per sample, (B,), of a metric that has them: a mean over the positions that count."""
        if metric.ignored is None:
            values = torch.as_tensor(metric.function(outputs, y))
            return values.flatten(1).mean(1) if values.dim() > 1 else values
        counted = y != metric.ignored
        values = torch.as_tensor(metric.function(outputs, y.where(counted, 0))).where(counted, 0)
        return values.reshape(len(y), -1).sum(1) / counted.reshape(len(y), -1).sum(1).clamp(min=1)

    def resolved(self, x: Tensor, y: Tensor, *, ignoring: bool = False) -> Task:
        """The task with measures that know what they say of a row of these data, see
        :func:`drfl.task.metrics.resolved`.

        Args:
            x: (n, …) inputs; the first is enough.
            y: (n, …) their targets.
            ignoring: Whether there are targets that the loss ignores.
        """
        # One row suffices, as only the shape of the outputs matters.
        with torch.no_grad():
            outputs = self.outputs(self.layout.views(self.w0), x[:1])
        ignored = self.criterion.ignored if ignoring else None
        score, *others = found = tuple(resolved(metric, outputs, y[:1], ignored) for metric in self.measures)
        return self if found == self.measures else replace(self, score=score, metrics=tuple(others))

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Task:
        """The same task on another device or in another floating-point type; the given model stays untouched."""
        # Frozen parameters and buffers keep types of their own unless the type changes.
        model = copy.deepcopy(self.model).to(device)
        model = model if dtype == self.layout.dtype else model.to(dtype)
        return replace(self, model=model, loss=self.criterion.to(device, dtype))

    def check(self, x: Tensor, y: Tensor, alone: int | None = None) -> bool:
        """Try the model and the loss on a few samples; torch's global generator and the samples stay as they are.

        Args:
            x: (B, …) inputs.
            y: (B, …) their targets.
            alone: How many of them, the first ones, are computed by themselves too; None = all.

        Returns:
            Whether the forward pass reads values of tensors, as for a branch.

        Raises:
            InputError: If they do not fit the data, the loss is not per-sample, the samples of a batch influence each
                other, the forward pass is random or has effects, or no gradient comes back.
        """
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            # A model that works in place would change the clients' rows, so it gets copies.
            trained, x, y = self.layout.views(self.w0), x.clone(), y.clone()
            trial = check_forward(self.model, trained, x, len(x) if alone is None else alone)
            try:
                self._check_losses(trial, y, len(x))
                if self.noisy:
                    few, version = x[:4], x._version
                    self.outputs(trained, few, torch.arange(len(few), device=x.device))
                    if x._version != version:
                        raise InputError(
                            "augment works in place on the inputs: let it work on x.clone()",
                            code="unsupported-model",
                            field="augment",
                        )
                check_gradient(trained, lambda leaves: self.sample_losses(self.outputs(leaves, x[:2]), y[:2]))
            except InputError:
                raise
            except Exception as error:  # of the user's code
                raise InputError(
                    f"the model and its loss do not fit the data (inputs {tuple(x.shape)} {x.dtype}, "
                    f"targets {tuple(y.shape)} {y.dtype}{place_of(error)}): {first_line(error)}",
                    code="model-data-mismatch",
                    field="model",
                ) from error
            # A layer may keep a tensor of its last pass, which could not be copied with the gradient's graph behind it.
            self.outputs(trained, x[:1])
        return trial.reads

    def _check_shape(self, what: str, values: Tensor, samples: int) -> None:
        if values.dim() == 0 or values.shape[0] != samples:
            raise InputError(
                f"{what} must give one value per sample, shape ({samples}, …), not {tuple(values.shape)}: return it "
                "without reduction",
                code="wrong-shape",
                field=what,
            )

    def _check_losses(self, trial: ForwardPass, y: Tensor, samples: int) -> None:
        """Check that loss and metrics give one value per sample, independent of the batch, and change no tensor."""
        outputs = trial.outputs
        versions = outputs._version, y._version
        of_classes = self._of_classes()
        if are_classes(outputs, y):
            self._check_range(y, outputs.shape[1])
        elif of_classes is not None and outputs.reshape(len(y), -1).shape != y.reshape(len(y), -1).shape:
            raise InputError(
                f"'{of_classes}' does not go with outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} "
                f"{y.dtype}: give outputs (B, classes) with integer targets (B,), or an output for every label 0 or 1",
                code="wrong-task",
                field=of_classes,
            )
        self._check_shape("the loss", self.criterion.elements(outputs, y), samples)
        for metric in self.measures:
            if metric.per_sample:
                targets = y.where(~self.criterion.ignores(y), 0) if metric.function in OF_CLASSES else y
                values = torch.as_tensor(metric.function(outputs, targets))
                self._check_shape(f"metric '{metric.name}'", values, samples)
        losses = self.sample_losses(outputs, y)
        if (outputs._version, y._version) != versions:
            raise InputError(
                "the loss or a metric works in place on outputs or targets: let it work on outputs.clone() and "
                "targets.clone()",
                code="unsupported-model",
                field="loss",
            )
        alone = [self.sample_losses(own, y[j : j + 1]) for j, own in enumerate(trial.alone)]
        if not torch.allclose(torch.cat(alone), losses[: len(alone)], rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                "the loss of a sample depends on the other samples of its batch: see that the loss does not broadcast "
                "outputs against targets of another shape, and takes no mean over the batch",
                code="unsupported-model",
                field="loss",
            )
        self.criterion.check_reduction(outputs, y)

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Refuse labels (n,) that the model has no output for, and numbers that are none; ``x`` holds an input or more.

        Raises:
            InputError: If naming the largest label and the number of outputs, or the metric that takes labels.
        """
        of_classes = self._of_classes()
        if (of_classes is None and self.criterion.ignored is None) or y.numel() == 0:
            return
        with torch.no_grad():
            outputs = self.outputs(self.layout.views(self.w0), x[:1])
        if are_classes(outputs, y[:1]):
            self._check_range(y, outputs.shape[1])
        elif of_classes is not None and bool(((y != 0) & (y != 1)).any()):
            raise InputError(
                f"targets are numbers other than 0 and 1, of which '{of_classes}' says nothing: pass score='rmse', "
                "'mae', 'r2' or a function of your own",
                code="wrong-task",
                field=of_classes,
            )

    def _of_classes(self) -> str | None:
        """The first metric that takes targets for classes."""
        return next((metric.name for metric in self.measures if metric.function in OF_CLASSES), None)

    def _check_range(self, y: Tensor, classes: int) -> None:
        """Refuse labels without an output, if the loss or a metric takes targets for classes."""
        ignored = self.criterion.ignored
        if self._of_classes() is None and ignored is None:
            return
        low, high = int(y.min()), int(y.max())
        # Most data have nothing that is ignored: then no copy of the targets is made.
        if low < 0 or high >= classes:
            y = y[~self.criterion.ignores(y)]
            low, high = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
        if low < 0 or high >= classes:
            besides = "" if ignored is None else f", or be {ignored}, which the loss ignores"
            raise InputError(
                f"labels run from {low} to {high} but the model has {classes} outputs: they must lie in "
                f"0…{classes - 1}{besides}",
                code="out-of-range",
                field="targets",
            )
