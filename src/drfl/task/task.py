"""The learning task: a model, its loss and its metrics, as pure functions of a flat parameter vector."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.described import described, is_of_package
from drfl.core.errors import InputError, Notice
from drfl.core.short_repr import stable_repr
from drfl.task.batch_norm import federated_norms
from drfl.task.functional import functional_call
from drfl.task.input_fields import InputFields
from drfl.task.layout import Layout
from drfl.task.losses import (
    REGRESSION,
    REGRESSION_FUNCTIONS,
    Loss,
    SampleFn,
)
from drfl.task.metrics import (
    ACCURACY,
    METRICS,
    Metric,
    MetricFn,
    check_distinct,
    metric_of,
    resolved,
)
from drfl.task.model_checks import (
    twin_of,
    without_compilation,
)
from drfl.task.training_noise import Augmentation, Uniform, dropout_layers, with_keyed_dropout

LOG = logging.getLogger("drfl.task.task")


def default_score(loss: SampleFn) -> Metric:
    """Return the default score for a loss: RMSE for torch's regression losses, such as MSE, and accuracy otherwise."""
    return METRICS["rmse"] if Loss.of(loss).is_one_of(REGRESSION, REGRESSION_FUNCTIONS) else ACCURACY


# Compared and hashed by identity, because a metric or an augmentation may not be hashable.
@dataclass(frozen=True, eq=False)
class Task:
    """A model with its loss and its metrics.

    The loss of a client equals torch's value for its rows: f_i(w) = Σ_j ℓ(model_w(x_j), y_j) / Σ_j a_j. The mass a_j of
    a row is 1, or depends on ``ignore_index`` and class weights; see :class:`drfl.task.losses.Loss`.

    Args:
        model: Any module without running statistics. Its current parameters are the initial model, and its mode (train
            or eval) does not change. Dropout in training mode uses keyed random numbers in a copy of the model and acts
            only in local steps; see :mod:`drfl.task.training_noise`.
        loss: A torch loss or a function that returns one value per sample, with further dimensions averaged. drfl sets
            the reduction of a torch loss to "none" on a copy. torch's regression losses accept outputs (B, 1) with
            targets (B,). Wrap a loss of a whole batch in :class:`drfl.BatchLoss`. Stored as a
            :class:`drfl.task.losses.Loss`.
        score: The main metric: it determines the worst client and the best round, and tables show it. It is the name of
            one of :data:`drfl.task.metrics.METRICS`, a :class:`drfl.task.metrics.Metric`, or a function of a client's
            outputs and targets. None = RMSE for torch's regression losses such as ``nn.MSELoss``, accuracy otherwise.
        metrics: Additional metrics on every client's test rows, in the same forms as ``score``.
        augment: A function of the inputs (B, …) of a minibatch and of :class:`drfl.task.training_noise.Uniform` numbers
            that returns inputs of the same shape, used only in local steps. See :mod:`drfl.task.augmentations`.

    Raises:
        InputError: If the model cannot be federated (see :meth:`drfl.task.layout.Layout.of`), a metric is unknown, or
            two metrics have the same name.
    """

    model: nn.Module
    loss: SampleFn = field(default_factory=nn.CrossEntropyLoss)
    score: Metric | MetricFn | str | None = None
    metrics: tuple[Metric | MetricFn | str, ...] = ()
    augment: Augmentation | None = None
    layout: Layout = field(init=False)
    measures: tuple[Metric, ...] = field(init=False)

    def __repr__(self) -> str:
        score = self.measures[0].words
        return f"<Task: {type(self.model).__name__} with {self.layout.d:,} parameters, scored by {score}>"

    def __post_init__(self) -> None:
        for name, value in (("model", self.model), ("loss", self.loss)):
            if isinstance(value, type):
                text = f"{name} is the class {value.__name__}. Pass an object such as {value.__name__}(…)"
                raise InputError(text, code="wrong-type", field=name)
        if not isinstance(self.model, nn.Module):
            text = f"model must be a torch.nn.Module such as torch.nn.Linear(4, 2), got {self.model!r:.60}"
            raise InputError(text, code="wrong-type", field="model")
        if not callable(self.loss):
            text = f"loss must be a function such as torch.nn.CrossEntropyLoss(), got {self.loss!r:.60}"
            raise InputError(text, code="wrong-type", field="loss")
        object.__setattr__(self, "layout", Layout.of(model := without_compilation(self.model)))
        object.__setattr__(self, "model", with_keyed_dropout(model))
        if not isinstance(self.loss, Loss):
            object.__setattr__(self, "loss", Loss(self.loss))
            if self.criterion.is_one_of((nn.BCELoss,), (functional.binary_cross_entropy,)):
                text = (
                    "the loss takes probabilities, but metrics and model files need log-odds. Use "
                    "torch.nn.BCEWithLogitsLoss(), and remove the sigmoid at the end of the model"
                )
                raise InputError(text, code="unsupported-loss", field="loss")
            if self.criterion.of_log_rates:
                text = (
                    "the loss has log_input=True, but metrics and model files need rates, not their logarithms. Pass "
                    "torch.nn.PoissonNLLLoss(log_input=False), and end the model with torch.nn.Softplus()"
                )
                raise InputError(text, code="unsupported-loss", field="loss")
            if self.criterion.summed:
                text = (
                    "the loss has reduction='sum' and grows with the number of rows, so the largest client appears as "
                    "the worst. Use reduction='mean' to compare clients."
                )
                LOG.warning(Notice(text, "summed-loss", "loss"))
        score = default_score(self.loss) if self.score is None else self.score
        others = tuple(self.metrics) if isinstance(self.metrics, list | tuple) else (self.metrics,)
        object.__setattr__(self, "metrics", others)
        # Only the score needs no name of its own.
        measures = (metric_of(score, unnamed="score"), *map(metric_of, others))
        check_distinct(measures)
        object.__setattr__(self, "measures", measures)

    @property
    def criterion(self) -> Loss:
        """The attribute ``loss`` as a :class:`drfl.task.losses.Loss`."""
        assert isinstance(self.loss, Loss)
        return self.loss

    @functools.cached_property
    def description(self) -> dict[str, str]:
        """Model, loss, metrics and augmentation in words that differ if one of them computes something else."""
        # The weights of the layers are compared too, and functions that use the layers should not repeat them.
        layers = [*self.model.modules()]
        known = frozenset(map(id, layers))
        # The options of torch's layers are part of the model's repr, those of other layers need not be.
        own = dict.fromkeys(described(layer, known) for layer in layers if not is_of_package(type(layer)))
        return {
            "module": "; ".join([" ".join(stable_repr(self.model).split()), *own]),
            "loss": described(self.criterion.given, known),
            "metrics": ", ".join(f"{metric.name}: {described(metric.function, known)}" for metric in self.measures),
            "augment": "none" if self.augment is None else described(self.augment, known),
        }

    @property
    def w0(self) -> Tensor:
        """The model's current parameters as a new vector (d,)."""
        return self.layout.flatten(self.model)

    @functools.cached_property
    def noisy(self) -> bool:
        """Whether local steps need seeds for dropout or augmentation."""
        return self.augment is not None or bool(dropout_layers(self.model))

    @functools.cached_property
    def statistics(self) -> tuple[str, ...]:
        """Names of running statistics among the parameters, see :mod:`drfl.task.batch_norm`."""
        names, parts = federated_norms(self.model), ("running_mean", "running_var")
        return tuple(f"{name}.{part}" if name else part for name in names for part in parts)

    def outputs(self, parameters: Mapping[str, Tensor], x: Tensor, seeds: Tensor | None = None) -> Tensor:
        """Compute the model's outputs for inputs with given parameters.

        Args:
            parameters: Parameters of the model by name.
            x: Inputs (B, …).
            seeds: Seeds (B,) of the samples in a local step of a ``noisy`` task; None = no dropout and no augmentation.
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
        """Augment the inputs (B, …) of a local step.

        Raises:
            InputError: If the augmentation changes the shape or type.
        """
        if self.augment is None:
            return x
        augmented = self.augment(x, Uniform(seeds))
        if augmented.shape != x.shape or augmented.dtype != x.dtype:
            raise InputError(
                f"augment must keep type and shape of the inputs, {x.dtype} {tuple(x.shape)}, but returned "
                f"{augmented.dtype} {tuple(augmented.shape)}",
                code="wrong-shape",
                field="augment",
            )
        return augmented

    def sample_losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of each sample, (B,), or () that of a whole batch."""
        return self.loss(outputs, y)

    def sample_values(self, metric: Metric, outputs: Tensor, y: Tensor) -> Tensor:
        """Compute a ``per_sample`` metric for each sample, (B,), averaged over the positions that count.

        The value is NaN if an output of the sample is not finite.
        """
        finite = outputs.reshape(len(outputs), -1).isfinite().all(1)
        if metric.ignored is None:
            values = torch.as_tensor(metric.function(outputs, y))
            # A metric may return booleans, which have no mean.
            values = values if values.is_floating_point() else values.to(outputs.dtype)
            values = values.flatten(1).mean(1) if values.dim() > 1 else values
        else:
            counted = metric.counts(y)
            scored, targets = outputs, y.where(counted, 0)
            if y.is_floating_point():
                # Each label becomes a row, because the metrics average over the labels of a row.
                scored, targets = outputs.reshape(-1), targets.reshape(-1)
            values = torch.as_tensor(metric.function(scored, targets)).reshape(y.shape).where(counted, 0)
            values = values.reshape(len(y), -1).sum(1) / counted.reshape(len(y), -1).sum(1).clamp(min=1)
        return values.where(finite, torch.nan)

    def resolved(self, x: Tensor, y: Tensor, *, ignoring: bool = False) -> Task:
        """Return the task with metrics adapted to these data; see :func:`drfl.task.metrics.resolved`.

        Args:
            x: Inputs (n, …); only the first is used.
            y: Targets (n, …) of these inputs.
            ignoring: Whether there are targets that the loss ignores.
        """
        # One row is enough, because only the shape of the outputs matters.
        with torch.no_grad():
            outputs = self.outputs(self.layout.views(self.w0), x[:1])
        ignored = self.criterion.ignored if ignoring else None
        score, *others = measures = tuple(resolved(metric, outputs, y[:1], ignored) for metric in self.measures)
        return self if measures == self.measures else replace(self, score=score, metrics=tuple(others))

    def reading(self, fields: InputFields) -> Task:
        """Return the task with a model that takes packed rows, see :class:`InputFields`, and shares its parameters.

        Raises:
            InputError: If the task augments inputs, or the model's type rounds the integers in the rows.
        """
        if self.augment is not None:
            raise InputError(
                "augment takes inputs of one tensor, but the clients have dictionaries or tuples: augment in the model",
                code="unsupported-combination",
                field="augment",
            )
        dtype = self.layout.dtype
        if {"real", "integer"} <= set(fields.kinds) and torch.finfo(dtype).eps > torch.finfo(torch.float32).eps:
            raise InputError(
                f"inputs with real and integer fields ({fields}) need a float32 or float64 model, got {dtype}",
                code="unsupported-combination",
                field="model",
            )
        # Make a shallow copy, because frozen parameters may be large, and the user's model must not get the hook.
        model = copy.copy(self.model)
        for hooks in ("_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"):
            setattr(model, hooks, copy.copy(getattr(model, hooks)))
        # Use a hook, because engines call the model in several ways, and the names of parameters must not change.
        model.register_forward_pre_hook(fields, with_kwargs=True)
        return replace(self, model=model)

    def separate(self) -> Task:
        """Return the task with its own copy of the layers, which share their parameters, if they can be copied.

        :meth:`outputs` puts other parameters into the layers during a call, so two threads cannot share the layers.
        """
        try:
            return replace(self, model=twin_of(self.model))
        except Exception:  # raised by the user's modules; engines that need copies refuse such a model
            return self

    def state_dict(self, w: Tensor, *, trained: bool = False) -> dict[str, Tensor]:
        """Return a copy of the model's ``state_dict()`` at w (d,), with ``trained`` only of the trained parameters."""
        # A copy of the model would duplicate its frozen part, which may be large.
        before = self.w0
        self.layout.load(self.model, w)
        try:
            # A tied parameter has several names in the state_dict(), and each of them is needed to load it.
            parameters = self.model.named_parameters(remove_duplicate=False)
            own = {name: p for name, p in parameters if p.requires_grad} if trained else self.model.state_dict()
            return {name: value.detach().cpu().clone() for name, value in own.items()}
        finally:
            self.layout.load(self.model, before)

    def to(self, device: torch.device | str, dtype: torch.dtype) -> Task:
        """Copy the task to another device or floating-point type."""
        # Frozen parameters and buffers may have other types, which change only if the type of the task changes.
        model = copy.deepcopy(self.model).to(device)
        model = model if dtype == self.layout.dtype else model.to(dtype)
        return replace(self, model=model, loss=self.criterion.to(device, dtype))
