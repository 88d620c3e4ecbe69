"""Checks of a task on data: whether model, loss and metrics fit them, and treat each sample separately."""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from drfl.core.errors import InputError, Notice, first_line
from drfl.core.global_rng import is_random
from drfl.task.losses import BINARY, BINARY_FUNCTIONS, LABELLED, LABELLED_FUNCTIONS
from drfl.task.metrics import BUILT_IN, is_of_classes
from drfl.task.model_checks import CLOSE, ForwardPass, check_forward, check_gradient, differs, place_of
from drfl.task.outputs import are_classes
from drfl.task.scikit_learn_metrics import scikit_learn_function

if TYPE_CHECKING:
    from drfl.task.task import Task

LEAST_ROWS = 20
"""Rows from which on the model's outputs are checked for probabilities."""


def check_task(task: Task, x: Tensor, y: Tensor, alone: int | None = None) -> bool:
    """Try out the model, loss and metrics on a few samples without changing the samples or torch's generators.

    Args:
        task: The task.
        x: Inputs (B, …).
        y: Targets (B, …).
        alone: Number of samples, from the first, to compute also as a batch of one; None = all.

    Returns:
        Whether the forward pass reads values of tensors, for example for a branch.

    Raises:
        InputError: If the model and loss do not fit the data, the loss is not per sample, the samples of a batch
            influence each other, the forward pass is random or has side effects, or the loss has no gradient.
    """
    with torch.inference_mode(False), torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
        # A model that works in place would change the clients' data, so it gets copies.
        trained, x, y = task.layout.views(task.w0), x.clone(), y.clone()
        trial = check_forward(task.model, trained, x, len(x) if alone is None else alone)
        try:
            _check_losses(task, trial, y, len(x))
            if task.noisy:
                four, version = x[:4], x._version
                seeds = torch.arange(len(four), device=x.device)
                try:
                    task.augmented(four, seeds)
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
                task.outputs(trained, four, seeds)
                if x._version != version:
                    raise InputError(
                        "augment changes its inputs in place. Let it work on x.clone().",
                        code="unsupported-model",
                        field="augment",
                    )
                if is_random(lambda: task.augmented(four, seeds)):
                    raise InputError(
                        "augment draws from a global generator, so results would depend on the engine. Use the "
                        "random numbers of its second argument: lambda x, uniform: x + uniform(*x.shape[1:]).",
                        code="unsupported-model",
                        field="augment",
                    )
            few = slice(None) if task.criterion.of_batch else slice(2)
            check_gradient(
                task.model,
                trained,
                lambda leaves: task.outputs(leaves, x[few]),
                lambda outputs: task.sample_losses(outputs, y[few]),
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
        task.outputs(trained, x[:1])
    return trial.reads


def check_targets(task: Task, x: Tensor, y: Tensor) -> None:
    """Check that the targets suit the model's outputs and the metrics.

    Args:
        task: The task.
        x: Inputs (n, …); only the first is used.
        y: All targets.

    Raises:
        InputError: If a label has no output, a metric needs labels and the targets are other numbers, or targets
            are unknown and the loss cannot exclude them.
    """
    unknown = int(y.isnan().sum()) if y.is_floating_point() else 0
    of_classes = _metric_of_classes(task)
    if (of_classes is None and task.criterion.ignored is None and not unknown) or y.numel() == 0:
        return
    with torch.no_grad():
        outputs = task.outputs(task.layout.views(task.w0), x[:1])
    # A loss derived from one of labels may return a value per row instead of one per label.
    if unknown and not (
        task.criterion.allows_unknown and task.criterion.elements(outputs, y[:1]).numel() == y[:1].numel()
    ):
        raise InputError(
            f"{unknown} targets are unknown (NaN), but the loss cannot exclude them. Use nn.BCEWithLogitsLoss with "
            "labels 0 and 1, or remove these rows.",
            code="missing-values",
            field="targets",
        )
    if are_classes(outputs, y[:1]):
        _check_range(task, y, outputs.shape[1])
    elif of_classes is not None and bool(((y != 0) & (y != 1) & ~task.criterion.ignores(y)).any()):
        raise InputError(
            f"'{of_classes}' needs targets 0 and 1, but there are other numbers. Pass score='rmse', 'mae', 'r2' or "
            "your own function.",
            code="wrong-task",
            field=of_classes,
        )


def output_notice(task: Task, x: Tensor, y: Tensor) -> Notice | None:
    """Return a notice if the outputs for rows (n, …) are not what loss or metrics need; None if they may be.

    Metrics of classes and torch's losses of logits need logits, and ``nn.NLLLoss`` needs log-probabilities.
    """
    # A class that the user derives from torch's may compute something else.
    takes_logs = type(task.criterion.given) is nn.NLLLoss or task.criterion.is_one_of((), (functional.nll_loss,))
    is_torchs = takes_logs or task.criterion.is_one_of((*LABELLED, *BINARY), (*LABELLED_FUNCTIONS, *BINARY_FUNCTIONS))
    if len(x) < LEAST_ROWS or not (is_torchs or _metric_of_classes(task)):
        return None

    def columns(w: Tensor) -> Tensor:
        with torch.no_grad(), torch.random.fork_rng([x.device] if x.is_cuda else []):
            outputs = task.outputs(task.layout.views(w), x.clone()).double()
        return outputs.movedim(1, -1).flatten(0, -2) if are_classes(outputs, y) else outputs.reshape(-1, 1)

    def are_probabilities(p: Tensor) -> bool:
        in_range = bool(((p >= 0) & (p <= 1)).all())
        return in_range and (p.shape[1] == 1 or bool(((p.sum(1) - 1).abs() < CLOSE).all()))

    outputs, model, w = columns(task.w0), f"the model {type(task.model).__name__}", task.w0
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


def _check_losses(task: Task, trial: ForwardPass, y: Tensor, samples: int) -> None:
    """Check that losses have one value per sample, independent of the batch; check metrics and in-place changes."""
    outputs = trial.outputs
    versions = outputs._version, y._version
    of_classes, is_labelled = _metric_of_classes(task), task.criterion.is_one_of(LABELLED, LABELLED_FUNCTIONS)
    # A class that the user derives from torch's may compute something else.
    given = task.criterion.given
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
        _check_range(task, y, outputs.shape[1])
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
    if not task.criterion.of_batch:
        remedy = ", or wrap a loss of a whole batch: drfl.BatchLoss(loss)"
        _check_shape("the loss", task.criterion.elements(outputs, y), samples, remedy)
    elif (value := task.sample_losses(outputs, y)).dim():
        raise InputError(
            f"a BatchLoss must return one number, shape (), got {tuple(value.shape)}. Pass a function with one "
            "value per sample without BatchLoss.",
            code="wrong-shape",
            field="the loss",
        )
    losses = task.sample_losses(outputs, y)
    if (outputs._version, y._version) != versions:
        raise InputError(
            "the loss changes outputs or targets in place. Let it work on outputs.clone() and targets.clone().",
            code="unsupported-model",
            field="loss",
        )
    _check_metrics(task, outputs, y)
    if is_random(lambda: task.sample_losses(outputs, y)):
        raise InputError(
            "the loss draws from a global generator, or changes when it is called again, so results would depend "
            "on the engine. Make it a function of outputs and targets.",
            code="unsupported-model",
            field="loss",
        )
    if task.criterion.of_batch:
        return
    alone = [task.sample_losses(output, y[j : j + 1]) for j, output in enumerate(trial.alone)]
    if not torch.allclose(torch.cat(alone), losses[: len(alone)], rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            "the loss of a sample depends on the other samples in its batch. Check that the loss does not "
            "broadcast outputs against targets of another shape and does not average over the batch. Wrap a loss "
            "that is meant to be of the whole batch: drfl.BatchLoss(loss).",
            code="unsupported-model",
            field="loss",
        )
    task.criterion.check_reduction(outputs, y)


def _check_metrics(task: Task, outputs: Tensor, y: Tensor) -> None:
    """Check that metrics with a value per sample return one, and that no metric changes its arguments.

    All metrics get the same tensors, so such a change would affect the metrics after it.
    """
    for metric in task.measures:
        if not metric.per_sample and (metric.function in BUILT_IN or scikit_learn_function(metric.function)):
            continue
        targets = y.where(~task.criterion.ignores(y), 0) if is_of_classes(metric.function) else y
        if metric.per_sample:
            scored, copied = outputs.clone(), targets.clone()
            values = torch.as_tensor(metric.function(scored, copied))
            _check_shape(f"metric '{metric.name}'", values, len(y))
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


def _check_shape(name: str, values: Tensor, samples: int, remedy: str = "") -> None:
    if values.dim() == 0 or values.shape[0] != samples:
        raise InputError(
            f"{name} must return one value per sample, shape ({samples}, …), got {tuple(values.shape)}. Return the "
            f"values without reduction{remedy}.",
            code="wrong-shape",
            field=name,
        )


def _check_range(task: Task, y: Tensor, classes: int) -> None:
    """Refuse labels without an output, if the loss or a metric treats targets as classes."""
    ignored = task.criterion.ignored
    if _metric_of_classes(task) is None and ignored is None:
        return
    low, high = int(y.min()), int(y.max())
    # Most data have no ignored targets, and then no copy is needed.
    if low < 0 or high >= classes:
        y = y[~task.criterion.ignores(y)]
        low, high = (int(y.min()), int(y.max())) if y.numel() else (0, 0)
    if low < 0 or high >= classes:
        exception = "" if ignored is None else f", or {ignored}, which the loss ignores"
        raise InputError(
            f"labels range from {low} to {high}, but the model has {classes} outputs. Labels must be in "
            f"0…{classes - 1}{exception}.",
            code="out-of-range",
            field="targets",
        )


def _metric_of_classes(task: Task) -> str | None:
    """Return the name of the first metric that treats targets as classes."""
    return next((metric.name for metric in task.measures if is_of_classes(metric.function)), None)
