"""Metrics: accuracy, AUC, calibration error, RMSE, and any function of a client's outputs and targets."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from drfl.core.errors import InputError, unknown
from drfl.core.ranks import average_ranks
from drfl.task.losses import equals
from drfl.task.measure import NAME, Measure, Rows
from drfl.task.model_checks import place_of
from drfl.task.outputs import (
    are_classes,
    flat_positions,
    log_odds,
    predicted_and_true,
    probabilities_and_truth,
    truth_columns,
)
from drfl.task.scikit_learn_metrics import (
    SMALLER_IS_BETTER,
    TRUE,
    scikit_learn_function,
    scikit_learn_value,
    takes_outputs,
)

MetricFn = Callable[[Tensor, Tensor], Tensor | float]
"""Function of a client's outputs (n, …) and targets (n, …) that returns a number, or one value per sample."""


@dataclass(frozen=True)
class Metric(Measure):
    """A number that measures the quality of a model's outputs on one client's rows.

    Args:
        name: Name in files and tables: lower-case letters, digits and _.
        function: Function of the client's outputs (n, …), float64 on the CPU, and targets (n, …) on the CPU. It returns
            a number, which is NaN if the metric is undefined on these rows, or one value per sample (n, …), which are
            averaged. It may also be a function of :mod:`sklearn.metrics`, or a :class:`functools.partial` of one; see
            :func:`drfl.task.scikit_learn_metrics.scikit_learn_value`.
        more_is_better: Whether larger values are better, so that the worst client has the smallest value. It is False
            for functions of :mod:`sklearn.metrics` whose names end in "_error", "_loss" or "_deviance".
        percent: Whether the metric is a fraction in [0, 1] to be displayed in percent.
        rows: Information that the metric gives about a single row, needed for confidence intervals and paired
            differences. Unless it is ``WHOLE``, the function must return one value per sample that depends on no other
            sample.
        per_sample: Whether the function always returns one value per sample. Then it is computed together with the
            losses, in the model's type and for all clients at once.
        ignored: Target whose positions do not count; NaN for unknown labels. :func:`resolved` sets it for built-in
            metrics and those of scikit-learn.

    Raises:
        InputError: If the name is invalid, the function is not callable, or it is a function of :mod:`sklearn.metrics`
            that does not compare predictions with targets.
    """

    function: MetricFn
    per_sample: bool = field(default=False, kw_only=True)
    ignored: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(
                f"metric '{self.name}' must be a function, got an object of type {type(self.function).__name__}",
                code="wrong-type",
                field="metric",
            )
        if (self.rows is Rows.RANKS and self.function is not auc) or (
            self.rows is Rows.RATE and self.function not in RATES
        ):
            raise InputError(
                f"metric '{self.name}': rows='{self.rows}' is reserved for built-in metrics. Use another value, or "
                "omit rows.",
                code="invalid-value",
                field="rows",
            )
        known = scikit_learn_function(self.function)
        if known is None:
            return
        if not set(list(inspect.signature(self.function).parameters)[:1]) & set(TRUE):
            raise InputError(
                f"sklearn.metrics.{known.__name__} cannot be a metric, because it does not compare predictions with "
                "targets. Pass another function, or your own one of outputs and targets.",
                code="unsupported-metric",
                field=self.name,
            )
        if known.__name__.endswith(SMALLER_IS_BETTER):
            object.__setattr__(self, "more_is_better", False)

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """Compute the metric on a client's rows; NaN if it is undefined or an output is not finite.

        Args:
            outputs: Outputs (n, …), float64 on the CPU.
            targets: Targets (n, …) on the CPU.

        Raises:
            InputError: If the function fails, or returns neither a number nor one value per sample.
        """
        if self.ignored is not None and math.isnan(self.ignored) and not self.rows.mean:
            if not bool(torch.isfinite(outputs).all()):
                return math.nan
            # Average over the labels (n, L) for which the metric is defined, each on the rows in which it is known.
            each, counted = replace(self, ignored=None), self.counts(targets).reshape(len(targets), -1)
            columns = zip(outputs.reshape(counted.shape).T, targets.reshape(counted.shape).T, counted.T, strict=True)
            values = [each.of(output[known], label[known]) for output, label, known in columns]
            return float(torch.tensor(values, dtype=torch.float64).nanmean())
        if self.ignored is not None:
            outputs, targets = self._counted(outputs, targets)
        # A diverged model has no score, although argmax of NaN would give a class.
        if not len(outputs) or not bool(torch.isfinite(outputs).all()):
            return math.nan
        return float(self._values(outputs, targets).mean())

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the metric's k numbers for each row, (n, k) float64; NaN for rows with an output that is not finite.

        The number k depends on ``rows``. It is 1 if the metric has a number per row, averaged over further dimensions.
        It is 2 for ranks and rates: the log-odds, and whether the row is of the positive class. It is 0 for ``WHOLE``.

        Args:
            outputs: Outputs (n, …), float64 on the CPU.
            targets: Targets (n, …) on the CPU.

        Raises:
            InputError: If the function fails, or its values contradict ``rows``.
        """
        if self.ignored is not None and self.rows.mean:
            # Average over the positions of each row that count.
            counted = self.counts(targets)
            values = replace(self, ignored=None).of_rows(*self._counted(outputs, targets))
            rows = counted.nonzero()[:, 0]
            total = torch.zeros(len(outputs), 1, dtype=torch.float64).index_add(0, rows, values)
            return total / counted.reshape(len(outputs), -1).sum(1, keepdim=True)
        # Check finiteness per row, because a NaN in one row must not remove the scores of the others.
        finite = torch.isfinite(outputs if outputs.dim() > 1 else outputs[:, None]).flatten(1).all(1)
        if self.rows in (Rows.RANKS, Rows.RATE):
            flat = flat_positions(outputs, targets)
            score, truth = log_odds(*flat), truth_columns(*flat)
            return torch.cat([score.where(finite[:, None], math.nan), truth.double()], 1)
        if not self.rows.mean:
            return torch.empty(len(outputs), 0, dtype=torch.float64)
        if not bool(finite.all()):
            values = torch.full((len(outputs), 1), math.nan, dtype=torch.float64)
            if bool(finite.any()):
                values[finite] = self.of_rows(outputs[finite], targets[finite])
            return values
        values = self._values(outputs, targets)
        if not values.dim():
            raise InputError(
                f"metric '{self.name}' has rows='{self.rows}' but returned a single number. Omit rows.",
                code="invalid-value",
                field=self.name,
            )
        return self.checked(values.flatten(1).mean(1) if values.dim() > 1 else values)[:, None]

    def counts(self, targets: Tensor) -> Tensor:
        """Return a mask of the targets (n, …) that count, bool of the same shape."""
        return torch.ones_like(targets, dtype=torch.bool) if self.ignored is None else ~equals(targets, self.ignored)

    def _counted(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Select outputs (P, C), or (P,) of labels, and targets (P,) of the positions that count, row by row."""
        counted = self.counts(targets)
        if self.ignored is not None and math.isnan(self.ignored):
            return outputs.reshape(targets.shape)[counted], targets[counted]
        return outputs.movedim(1, -1)[counted], targets[counted]

    def checked(self, values: Tensor) -> Tensor:
        """Check that values of rows (n,) are in the range that ``rows`` declares, and return them; NaN is allowed.

        Raises:
            InputError: If a value is out of range.
        """
        if self.rows not in (Rows.BINARY, Rows.UNIT):
            return values
        invalid = (values != 0) & (values != 1) if self.rows is Rows.BINARY else (values < 0) | (values > 1)
        # Look for NaN only if a value is invalid, which saves a pass over the values in the usual case.
        if bool(invalid.any()) and bool((invalid & ~values.isnan()).any()):
            first = float(values[invalid & ~values.isnan()][0])
            kind = "0 or 1" if self.rows is Rows.BINARY else "in [0, 1]"
            raise InputError(
                f"metric '{self.name}' has rows='{self.rows}', so its values must be {kind}, but it returned "
                f"{first:g}. Declare another value of rows.",
                code="out-of-range",
                field=self.name,
            )
        return values

    def _values(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Call the function and convert its result to a float64 tensor.

        Raises:
            InputError: If the function fails, or returns neither a number nor one value per sample.
        """
        try:
            if scikit_learn_function(self.function) is None:
                value = self.function(outputs, targets)
            else:
                value = scikit_learn_value(self.function, self.name, outputs, targets)
            values = torch.as_tensor(value, dtype=torch.float64)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"metric '{self.name}' failed for outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
                f"{place_of(error)}: {type(error).__name__}: {' '.join(str(error).split())}",
                code="user-code-failed",
                field=self.name,
            ) from error
        if values.dim() and values.shape[0] != len(outputs):
            raise InputError(
                f"metric '{self.name}' must return a number or one value per sample, got shape {tuple(values.shape)} "
                f"for {len(outputs)} samples",
                code="wrong-shape",
                field=self.name,
            )
        return values


def argmax_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 if the largest of the outputs (B, classes, …) is the target (B, …), and 0 otherwise."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 if the sign of a logit agrees with the target in {0, 1}, and 0 otherwise.

    Outputs and targets have shape (B,), (B, 1) or (B, L). With L labels, a sample's value is the share of correct
    labels.
    """
    correct = ((outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]) > 0) == (
        (targets.flatten(1) if targets.dim() > 1 else targets[:, None]) > 0.5
    )
    return correct.to(outputs.dtype).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute :func:`argmax_accuracy` for class labels and :func:`binary_accuracy` for targets 0 or 1; (B,)."""
    return argmax_accuracy(outputs, targets) if are_classes(outputs, targets) else binary_accuracy(outputs, targets)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Compute the mean recall over the classes that occur; for labels, the mean over labels."""
    outputs, targets = flat_positions(outputs, targets)
    if are_classes(outputs, targets):
        truth = targets[:, None] == torch.arange(outputs.shape[1])
        # Average the recalls of the classes; nanmean excludes classes without a row.
        correct = truth & (outputs.argmax(1) == targets)[:, None]
        return float((correct.sum(0) / truth.sum(0).double()).nanmean())
    truth = truth_columns(outputs, targets)
    both = torch.stack([truth, ~truth])
    recalls = (both & ((log_odds(outputs, targets) > 0) == truth)).sum(1) / both.sum(1).double()  # (2, K)
    return float(recalls.nanmean(0).mean())


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Compute the area under the ROC curve; for more than two classes, the mean of one against the rest.

    Classes and labels that all rows or no rows have are excluded. The result is NaN if none remains.
    """
    outputs, targets = flat_positions(outputs, targets)
    scores, truth = log_odds(outputs, targets), truth_columns(outputs, targets)
    positive = truth.sum(0).double()
    # Use Mann and Whitney's count of the pairs in order, with half a pair for a tie, for all columns at once.
    # scikit-learn spends milliseconds per column on checking its input, which is more than a small client's training.
    ranks = torch.stack([torch.from_numpy(average_ranks(column)) for column in scores.T.numpy()], 1)
    in_order = (ranks * truth).sum(0) - positive * (positive + 1) / 2
    # An excluded class gives 0/0, which nanmean ignores.
    return float((in_order / (positive * (len(scores) - positive))).nanmean())


def f1(outputs: Tensor, targets: Tensor) -> float:
    """Compute F1 of the second of two classes.

    For more classes, and for labels, the result is the mean over those that occur or are predicted.
    """
    predicted, truth = predicted_and_true(outputs, targets)
    return float((2 * (predicted & truth).sum(0) / (predicted.sum(0) + truth.sum(0)).double()).nanmean())


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the negative log-probability of the true class or label, (n, …)."""
    if are_classes(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    y = targets.reshape(outputs.shape).to(outputs.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the Brier score: the squared distance of the probabilities from the truth (Brier 1950).

    For more than two classes, it is the sum over classes. For two classes or one logit, it is the square for the second
    class. For L labels, it is the mean over labels. The shape is (n,), or (n, …) for class labels at several positions.
    """
    p, truth = probabilities_and_truth(*flat_positions(outputs, targets))
    squares = (p - truth.to(p.dtype)).square()
    return squares.sum(1).view(targets.shape) if are_classes(outputs, targets) else squares.mean(1)


BINS = 15
"""Number of confidence bins of the calibration error."""


def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Compute the expected calibration error (Guo et al. 2017, eq. 3): mean |accuracy − confidence| over 15 bins.

    Bins are weighted by their number of rows. For labels, the result is the mean over labels. The error is biased
    upwards if there are few rows, so take the numbers of rows into account when you compare clients.
    """
    outputs, targets = flat_positions(outputs, targets)
    if are_classes(outputs, targets):
        confidence, predicted = outputs.softmax(1).max(1)
        return _calibration(confidence, predicted == targets)
    columns = zip(*(matrix.T for matrix in probabilities_and_truth(outputs, targets)), strict=True)
    errors = [_calibration(torch.maximum(p, 1 - p), (p > 0.5) == truth) for p, truth in columns]
    return math.fsum(errors) / len(errors)


def _calibration(confidence: Tensor, correct: Tensor) -> float:
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # bins ((b−1)/B, b/B]
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, correct.double() - confidence.double())
    return float(gaps.abs().sum() / len(confidence))


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute absolute errors, (n, …)."""
    return (outputs - targets.reshape(outputs.shape)).abs()


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Compute the root mean squared error; for several outputs, the mean over outputs as in scikit-learn."""
    squares = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1)
    return float(squares.mean(0).sqrt().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Compute the coefficient of determination; NaN for fewer than two rows."""
    from sklearn.metrics import r2_score

    if len(outputs) < 2:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about constant targets.
        return float(r2_score(targets.reshape(len(outputs), -1).numpy(), outputs.reshape(len(outputs), -1).numpy()))


def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Compute Σ (R_k − R_{k−1})·P_k over distinct scores; for more than two classes, the mean over those that occur."""
    outputs, targets = flat_positions(outputs, targets)
    scores, truth = log_odds(outputs, targets), truth_columns(outputs, targets)
    precisions = []
    for score, is_positive in zip(scores.T, truth.T, strict=True):
        order = score.argsort(descending=True)
        ranked, hits = score[order], is_positive[order].double().cumsum(0)
        last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])  # marks the last of tied rows
        hits, predicted = hits[last], (last.nonzero().flatten() + 1).double()
        gained = torch.cat([hits[:1], hits.diff()])
        # Without positive rows this is NaN, which nanmean ignores.
        precisions.append(float((gained * hits / predicted).sum() / hits[-1]))
    return float(torch.tensor(precisions, dtype=torch.float64).nanmean())


Rate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function of (predicted positive, truly positive) that returns (correct rows, rows that count), all bool."""


def _rate(outputs: Tensor, targets: Tensor, rate: Rate) -> float:
    """Compute a rate at probability 1/2; for more than two classes, use the largest output and average over classes."""
    correct, among = rate(*predicted_and_true(outputs, targets))
    return float(((correct & among).sum(0) / among.sum(0).double()).nanmean())


def sensitivity(outputs: Tensor, targets: Tensor) -> float:
    """Compute the share of positive rows that are predicted positive; NaN if there are none."""
    return _rate(outputs, targets, RATES[sensitivity])


def specificity(outputs: Tensor, targets: Tensor) -> float:
    """Compute the share of negative rows that are predicted negative; NaN if there are none."""
    return _rate(outputs, targets, RATES[specificity])


def ppv(outputs: Tensor, targets: Tensor) -> float:
    """Compute the positive predictive value: the share of rows predicted positive that are; NaN if there are none."""
    return _rate(outputs, targets, RATES[ppv])


RATES: Mapping[MetricFn, Rate] = {
    sensitivity: lambda predicted, truth: (predicted, truth),
    specificity: lambda predicted, truth: (~predicted, ~truth),
    ppv: lambda predicted, truth: (truth, predicted),
}
"""Rates among some of the rows. For these, a threshold is chosen on validation rows."""

ACCURACY = Metric("accuracy", accuracy, percent=True, per_sample=True, rows=Rows.BINARY)

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        Metric("balanced_accuracy", balanced_accuracy, percent=True),
        Metric("auc", auc, rows=Rows.RANKS),
        Metric("f1", f1),
        Metric("log_loss", log_loss, more_is_better=False, rows=Rows.REAL),
        Metric("brier", brier, more_is_better=False, rows=Rows.UNIT),
        Metric("calibration_error", calibration_error, more_is_better=False),
        Metric("mae", mae, more_is_better=False, rows=Rows.REAL),
        Metric("rmse", rmse, more_is_better=False),
        Metric("r2", r2),
        Metric("sensitivity", sensitivity, percent=True, rows=Rows.RATE),
        Metric("specificity", specificity, percent=True, rows=Rows.RATE),
        Metric("ppv", ppv, percent=True, rows=Rows.RATE),
        Metric("average_precision", average_precision),
    )
}
"""All built-in metrics by name."""

OF_CLASSES = (
    argmax_accuracy,
    binary_accuracy,
    accuracy,
    balanced_accuracy,
    auc,
    f1,
    log_loss,
    brier,
    calibration_error,
    sensitivity,
    specificity,
    ppv,
    average_precision,
)
"""Functions that treat targets as classes or as labels 0 or 1. This is not a set, because a user's metric, which may
not be hashable, is searched in it."""


def is_of_classes(function: MetricFn) -> bool:
    """Return whether a metric's function treats targets as classes or as labels 0 or 1."""
    known = scikit_learn_function(function)
    return function in OF_CLASSES or (known is not None and not takes_outputs(known))


def metric_of(given: Metric | MetricFn | str, unnamed: str = "") -> Metric:
    """Convert a metric, a name or a function to :class:`Metric`.

    Args:
        given: A metric, the name of one of :data:`METRICS`, or a function. A function or a partial of one is named
            after the function. Larger values are better, unless :class:`Metric` knows otherwise.
        unnamed: The name of a lambda; "" refuses it.

    Raises:
        InputError: If the name is unknown, or the function has no name, like a lambda, or one that files cannot use.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        key = given.strip().lower().replace("-", "_")
        if key not in METRICS:
            raise unknown("metric", given, METRICS)
        return METRICS[key]
    # The built-in accuracies are known to be 0 or 1 per row and are displayed in percent.
    if given in (argmax_accuracy, binary_accuracy, accuracy):
        return Metric("accuracy", given, percent=True, per_sample=True, rows=Rows.BINARY)
    function = given.func if isinstance(given, functools.partial) else given
    name = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>" and unnamed:
        return Metric(unnamed, given)
    if isinstance(function, type) or NAME.fullmatch(str(name)) is None:
        raise InputError(
            f"metric name '{name}' cannot be used in files. Choose a name with drfl.Metric('name', function).",
            code="invalid-name",
            field="metric",
        )
    return Metric(str(name), given)


BUILT_IN = (*OF_CLASSES, *(metric.function for metric in METRICS.values()))
"""Functions that exclude unknown labels."""


def resolved(metric: Metric, outputs: Tensor, targets: Tensor, ignored: float | None = None) -> Metric:
    """Adapt a metric's ``rows`` to the shapes of outputs and targets.

    With several labels, the share of correct ones is no longer 0 or 1. With more than two classes, the Brier score can
    be up to 2. In both cases, AUC, sensitivity and similar metrics are means of several values without a common count.

    Args:
        metric: Any metric.
        outputs: Outputs (n, …) of at least one row; only their shape matters.
        targets: Targets (n, …) of the same rows; only their shape and type matter.
        ignored: Target whose positions do not count, NaN for unknown labels. If rows have several positions, only the
            others are averaged.
    """
    classes = are_classes(outputs, targets)
    many = classes and outputs.shape[1] > 2
    labels = targets[:1].numel() > 1 or (not classes and outputs[:1].numel() > 1)
    excludes = is_of_classes(metric.function) if classes else labels and metric.function in BUILT_IN
    if ignored is not None and excludes:
        rows = Rows.REAL if labels and metric.rows.mean else metric.rows
        metric = replace(metric, ignored=ignored, rows=rows)
    # A mean over several labels or positions is no longer 0 or 1.
    if metric.rows is Rows.BINARY and labels:
        return replace(metric, rows=Rows.UNIT)
    # With more than two classes, the sum of squares can be up to 2.
    if metric.function is brier and metric.rows is Rows.UNIT and many:
        return replace(metric, rows=Rows.REAL)
    # A mean over classes or labels has no single ranking of rows and no single denominator.
    if metric.rows in (Rows.RANKS, Rows.RATE) and (many or labels):
        return replace(metric, rows=Rows.WHOLE)
    return metric


def check_distinct(measures: Sequence[Metric]) -> None:
    """Refuse two metrics of the same name, which files and tables could not distinguish.

    Raises:
        InputError: If a name occurs twice. The message contains the name.
    """
    names = [metric.name for metric in measures]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"the metric name '{twice}' occurs twice among score and metrics. Remove one of the two, or name it with "
            "drfl.Metric('name', function).",
            code="given-twice",
            field="metrics",
        )
