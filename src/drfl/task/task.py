"""The learning task: a model, its loss and its metrics, as pure functions of a flat parameter vector."""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.described import described, is_of_package
from drfl.core.errors import InputError, Notice, first_line
from drfl.core.global_rng import is_random
from drfl.core.short_repr import stable_repr
from drfl.task.batch_norm import federated_norms
from drfl.task.functional import functional_call
from drfl.task.input_fields import InputFields
from drfl.task.layout import Layout
from drfl.task.losses import (
    BINARY,
    BINARY_FUNCTIONS,
    LABELLED,
    LABELLED_FUNCTIONS,
    REGRESSION,
    REGRESSION_FUNCTIONS,
    Loss,
    SampleFn,
)
from drfl.task.metrics import (
    ACCURACY,
    BUILT_IN,
    METRICS,
    Metric,
    MetricFn,
    are_classes,
    check_distinct,
    is_of_classes,
    metric_of,
    resolved,
    scikit_learn_function,
)
from drfl.task.model_checks import (
    CLOSE,
    ForwardPass,
    check_forward,
    check_gradient,
    differs,
    place_of,
    twin_of,
    without_compilation,
)
from drfl.task.training_noise import Augmentation, Uniform, dropout_layers, with_keyed_dropout

LOG = logging.getLogger("drfl.task.task")


LEAST_ROWS = 20
"""Rows from which on the model's outputs are checked for probabilities."""


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

    def check(self, x: Tensor, y: Tensor, alone: int | None = None) -> bool:
        """Try out the model, loss and metrics on a few samples without changing the samples or torch's generators.

        Args:
            x: Inputs (B, …).
            y: Targets (B, …).
            alone: Number of samples, from the first, to compute also as a batch of one; None = all.

        Returns:
            Whether the forward pass reads values of tensors, for example for a branch.

        Raises:
            InputError: If the model and loss do not fit the data, the loss is not per sample, the samples of a batch
                influence each other, the forward pass is random or has side effects, or there is no gradient.
        """
        with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            # A model that works in place would change the clients' data, so it gets copies.
            trained, x, y = self.layout.views(self.w0), x.clone(), y.clone()
            trial = check_forward(self.model, trained, x, len(x) if alone is None else alone)
            try:
                self._check_losses(trial, y, len(x))
                if self.noisy:
                    four, version = x[:4], x._version
                    seeds = torch.arange(len(four), device=x.device)
                    try:
                        self.augmented(four, seeds)
                    except (InputError, torch.OutOfMemoryError):
                        raise
                    except Exception as error:
                        raise InputError(
                            f"augment failed for inputs {tuple(four.shape)} {x.dtype}{place_of(error)}: "
                            f"{first_line(error)}. It must be a function of the inputs and of uniform: def "
                            "augment(x, uniform).",
                            code="user-code-failed",
                            field="augment",
                        ) from error
                    self.outputs(trained, four, seeds)
                    if x._version != version:
                        raise InputError(
                            "augment changes its inputs in place. Let it work on x.clone().",
                            code="unsupported-model",
                            field="augment",
                        )
                    if is_random(lambda: self.augmented(four, seeds)):
                        raise InputError(
                            "augment draws from a global generator, so results would depend on the engine. Use the "
                            "random numbers of its second argument: lambda x, uniform: x + uniform(*x.shape[1:]).",
                            code="unsupported-model",
                            field="augment",
                        )
                few = slice(None) if self.criterion.of_batch else slice(2)
                check_gradient(
                    self.model,
                    trained,
                    lambda leaves: self.outputs(leaves, x[few]),
                    lambda outputs: self.sample_losses(outputs, y[few]),
                )
            except (InputError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # The user's code can raise anything.
                raise InputError(
                    f"the model and its loss do not fit the data (inputs {tuple(x.shape)} {x.dtype}, "
                    f"targets {tuple(y.shape)} {y.dtype}{place_of(error)}): {first_line(error)}",
                    code="model-data-mismatch",
                    field="model",
                ) from error
            # A layer may store a tensor of its last pass. With a gradient graph, the model could not be copied, so run
            # a last pass without gradients.
            self.outputs(trained, x[:1])
        return trial.reads

    def _check_shape(self, name: str, values: Tensor, samples: int, remedy: str = "") -> None:
        if values.dim() == 0 or values.shape[0] != samples:
            raise InputError(
                f"{name} must return one value per sample, shape ({samples}, …), got {tuple(values.shape)}. Return the "
                f"values without reduction{remedy}.",
                code="wrong-shape",
                field=name,
            )

    def _check_losses(self, trial: ForwardPass, y: Tensor, samples: int) -> None:
        """Check that losses have one value per sample, independent of the batch; check metrics and in-place changes."""
        outputs = trial.outputs
        versions = outputs._version, y._version
        of_classes, is_labelled = self._of_classes(), self.criterion.is_one_of(LABELLED, LABELLED_FUNCTIONS)
        # A class that the user derives from torch's may compute something else.
        given = self.criterion.given
        is_torchs = is_labelled and (not isinstance(given, nn.Module) or type(given) in LABELLED)
        if is_torchs and y.is_floating_point() and y[:1].numel() == 1:
            raise InputError(
                f"the loss needs class labels, which are integers, but the targets {tuple(y.shape)} are {y.dtype}. "
                "Convert labels with .long(), or pass loss=nn.MSELoss() for regression.",
                code="wrong-task",
                field="loss",
            )
        if is_torchs and (outputs.dim() == 1 or outputs.shape[1] == 1):
            raise InputError(
                "cross-entropy cannot train a model with one output, whose probability is always 1. Use a model with "
                "one output per class, two for labels 0 and 1, or pass loss=nn.BCEWithLogitsLoss().",
                code="unsupported-loss",
                field="loss",
            )
        if are_classes(outputs, y):
            self._check_range(y, outputs.shape[1])
        elif of_classes is not None and y.is_floating_point() and is_labelled:
            raise InputError(
                f"'{of_classes}' needs class labels, but the targets {tuple(y.shape)} are class probabilities. Pass "
                "your own score, such as lambda outputs, y: (outputs.argmax(1) == y.argmax(1)).float().",
                code="wrong-task",
                field=of_classes,
            )
        elif of_classes is not None and outputs.reshape(len(y), -1).shape != y.reshape(len(y), -1).shape:
            raise InputError(
                f"'{of_classes}' cannot be computed from outputs {tuple(outputs.shape)} and targets {tuple(y.shape)} "
                f"{y.dtype}. It needs outputs (B, classes) with integer targets (B,), or one output per label 0 or 1.",
                code="wrong-task",
                field=of_classes,
            )
        if not self.criterion.of_batch:
            remedy = ", or wrap a loss of a whole batch: drfl.BatchLoss(loss)"
            self._check_shape("the loss", self.criterion.elements(outputs, y), samples, remedy)
        elif (value := self.sample_losses(outputs, y)).dim():
            raise InputError(
                f"a BatchLoss must return one number, shape (), got {tuple(value.shape)}. Pass a function with one "
                "value per sample without BatchLoss.",
                code="wrong-shape",
                field="the loss",
            )
        losses = self.sample_losses(outputs, y)
        if (outputs._version, y._version) != versions:
            raise InputError(
                "the loss changes outputs or targets in place. Let it work on outputs.clone() and targets.clone().",
                code="unsupported-model",
                field="loss",
            )
        self._check_metrics(outputs, y)
        if is_random(lambda: self.sample_losses(outputs, y)):
            raise InputError(
                "the loss draws from a global generator, or changes when it is called again, so results would depend "
                "on the engine. Make it a function of outputs and targets.",
                code="unsupported-model",
                field="loss",
            )
        if self.criterion.of_batch:
            return
        alone = [self.sample_losses(output, y[j : j + 1]) for j, output in enumerate(trial.alone)]
        if not torch.allclose(torch.cat(alone), losses[: len(alone)], rtol=1e-3, atol=1e-5, equal_nan=True):
            raise InputError(
                "the loss of a sample depends on the other samples in its batch. Check that the loss does not "
                "broadcast outputs against targets of another shape and does not average over the batch. Wrap a loss "
                "that is meant to be of the whole batch: drfl.BatchLoss(loss).",
                code="unsupported-model",
                field="loss",
            )
        self.criterion.check_reduction(outputs, y)

    def _check_metrics(self, outputs: Tensor, y: Tensor) -> None:
        """Check that metrics with a value per sample return one, and that no metric changes its arguments.

        All metrics get the same tensors, so such a change would affect the metrics after it.
        """
        for metric in self.measures:
            if not metric.per_sample and (metric.function in BUILT_IN or scikit_learn_function(metric.function)):
                continue
            targets = y.where(~self.criterion.ignores(y), 0) if is_of_classes(metric.function) else y
            if metric.per_sample:
                scored, copied = outputs.clone(), targets.clone()
                values = torch.as_tensor(metric.function(scored, copied))
                self._check_shape(f"metric '{metric.name}'", values, len(y))
            else:
                scored, copied = outputs.to("cpu", torch.float64, copy=True), targets.to("cpu", copy=True)
                # The metric may be undefined on so few rows. The first test reports other errors.
                with warnings.catch_warnings(), suppress(InputError):
                    warnings.simplefilter("ignore")
                    metric.of(scored, copied)
            # NumPy's changes do not count as a new version of a tensor.
            changed = differs(scored, outputs.to(scored)) or differs(copied, targets.to(copied))
            if changed or scored._version or copied._version:
                raise InputError(
                    f"metric '{metric.name}' changes outputs or targets in place, which other metrics need. Let it "
                    "work on outputs.clone() and targets.clone().",
                    code="unsupported-metric",
                    field=metric.name,
                )

    def output_notice(self, x: Tensor, y: Tensor) -> Notice | None:
        """Return a notice if the outputs for rows (n, …) are not what loss or metrics need; None if they may be.

        Metrics of classes and torch's losses of logits need logits, and ``nn.NLLLoss`` needs log-probabilities.
        """
        # A class that the user derives from torch's may compute something else.
        takes_logs = type(self.criterion.given) is nn.NLLLoss or self.criterion.is_one_of((), (functional.nll_loss,))
        is_torchs = takes_logs or self.criterion.is_one_of(
            (*LABELLED, *BINARY), (*LABELLED_FUNCTIONS, *BINARY_FUNCTIONS)
        )
        if len(x) < LEAST_ROWS or not (is_torchs or self._of_classes()):
            return None

        def columns(w: Tensor) -> Tensor:
            with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
                outputs = self.outputs(self.layout.views(w), x.clone()).double()
            return outputs.movedim(1, -1).flatten(0, -2) if are_classes(outputs, y) else outputs.reshape(-1, 1)

        def are_probabilities(p: Tensor) -> bool:
            in_range = bool(((p >= 0) & (p <= 1)).all())
            return in_range and (p.shape[1] == 1 or bool(((p.sum(1) - 1).abs() < CLOSE).all()))

        outputs, model, w = columns(self.w0), f"the model {type(self.model).__name__}", self.w0
        if takes_logs:
            if bool(((outputs.exp().sum(1) - 1).abs() < CLOSE).all()):
                return None
            text = (
                f"nn.NLLLoss needs log-probabilities, but the outputs of {model} are not: use nn.CrossEntropyLoss, or "
                "end the model with nn.LogSoftmax(1)"
            )
            return Notice(text, "unexpected-outputs", "model")
        # Outputs of a model that has not been trained may be in [0, 1] by chance, but not with other parameters too.
        others = (10 * w, -10 * w, 10 * w.flip(0), -10 * w.flip(0))
        if bool((outputs == outputs[0]).all()) or not are_probabilities(outputs):
            return None
        if not all(are_probabilities(columns(other)) for other in others):
            return None
        text = (
            f"the outputs of {model} are probabilities, but metrics and model files need logits (log-odds): remove the "
            "sigmoid or softmax at its end, and use it inside a loss of your own"
        )
        return Notice(text, "unexpected-outputs", "model")

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Check that the targets suit the model's outputs and the metrics.

        Args:
            x: Inputs (n, …); only the first is used.
            y: All targets.

        Raises:
            InputError: If a label has no output, a metric needs labels and the targets are other numbers, or targets
                are unknown and the loss cannot exclude them.
        """
        unknown = int(y.isnan().sum()) if y.is_floating_point() else 0
        of_classes = self._of_classes()
        if (of_classes is None and self.criterion.ignored is None and not unknown) or y.numel() == 0:
            return
        with torch.no_grad():
            outputs = self.outputs(self.layout.views(self.w0), x[:1])
        # A loss derived from one of labels may return a value per row instead of one per label.
        if unknown and not (
            self.criterion.allows_unknown and self.criterion.elements(outputs, y[:1]).numel() == y[:1].numel()
        ):
            raise InputError(
                f"{unknown} targets are unknown (NaN), but the loss cannot exclude them. Use nn.BCEWithLogitsLoss with "
                "labels 0 and 1, or remove these rows.",
                code="missing-values",
                field="targets",
            )
        if are_classes(outputs, y[:1]):
            self._check_range(y, outputs.shape[1])
        elif of_classes is not None and bool(((y != 0) & (y != 1) & ~self.criterion.ignores(y)).any()):
            raise InputError(
                f"'{of_classes}' needs targets 0 and 1, but there are other numbers. Pass score='rmse', 'mae', 'r2' or "
                "your own function.",
                code="wrong-task",
                field=of_classes,
            )

    def _of_classes(self) -> str | None:
        """Return the name of the first metric that treats targets as classes."""
        return next((metric.name for metric in self.measures if is_of_classes(metric.function)), None)

    def _check_range(self, y: Tensor, classes: int) -> None:
        """Refuse labels without an output, if the loss or a metric treats targets as classes."""
        ignored = self.criterion.ignored
        if self._of_classes() is None and ignored is None:
            return
        low, high = int(y.min()), int(y.max())
        # Most data have no ignored targets, and then no copy is needed.
        if low < 0 or high >= classes:
            y = y[~self.criterion.ignores(y)]
            low, high = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
        if low < 0 or high >= classes:
            exception = "" if ignored is None else f", or {ignored}, which the loss ignores"
            raise InputError(
                f"labels range from {low} to {high}, but the model has {classes} outputs. Labels must be in "
                f"0…{classes - 1}{exception}.",
                code="out-of-range",
                field="targets",
            )
