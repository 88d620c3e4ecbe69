"""How good a client's outputs are: accuracy, AUC, calibration error, RMSE, or any function of outputs and targets."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from drfl.core.errors import InputError, unknown
from drfl.task.measure import NAME, Measure, Rows

MetricFn = Callable[[Tensor, Tensor], Tensor | float]
"""(a client's outputs (n, …), its targets (n, …)) → a number, or one value per sample, whose mean counts."""


@dataclass(frozen=True)
class Metric(Measure):
    """A number that says how good a model's outputs are on one client's rows.

    Args:
        name: What files and tables call it: small letters, digits and _.
        function: Of the client's outputs (n, …) and targets (n, …), both on the CPU, outputs float64: a number, NaN
            where it is not defined on these rows, or one value per sample (n, …), whose mean counts.
        more_is_better: Whether the worst client is the one with the smallest value.
        percent: Whether it is a fraction in [0, 1] that readers want in percent.
        rows: What it says of a single row. Of one that says something, intervals and paired differences are known: its
            function must then give one value per sample, which depends on no other sample.
        per_sample: Whether the function is known to give one value per sample, which is then computed along with the
            losses, in the model's type, and for all clients at once.
        ignored: The target whose positions do not count; set by :func:`resolved`, of metrics in :data:`OF_CLASSES`.

    Raises:
        InputError: If the name is none, or the function cannot be called.
    """

    function: MetricFn
    per_sample: bool = field(default=False, kw_only=True)
    ignored: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            raise InputError(
                f"metric '{self.name}' is a {type(self.function).__name__}, not a function",
                code="wrong-type",
                field="metric",
            )
        if (self.rows is Rows.RANKS and self.function is not auc) or (
            self.rows is Rows.RATE and self.function not in RATES
        ):
            raise InputError(
                f"metric '{self.name}' has rows='{self.rows}', which drfl's own metrics have: declare another, or none",
                code="invalid-value",
                field="rows",
            )

    def of(self, outputs: Tensor, targets: Tensor) -> float:
        """The metric on a client's rows; NaN where it is not defined, or an output is not finite.

        Args:
            outputs: (n, …) float64 on the CPU.
            targets: (n, …) on the CPU.

        Raises:
            InputError: If the function failed, or gave neither a number nor one value per sample.
        """
        if self.ignored is not None:
            outputs, targets = self._counted(outputs, targets)
        # A diverged model has no score, although argmax of NaN would give a class.
        if not len(outputs) or not bool(torch.isfinite(outputs).all()):
            return math.nan
        return float(self._found(outputs, targets).mean())

    def of_rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(n, k) float64, what it says of each row; NaN where an output is not finite.

        k is 1 where it has a number for each row, further dimensions averaged; 2 where it ranks rows or a threshold
        decides: the log-odds and whether the row is of the positive class; 0 where it says nothing.

        Args:
            outputs: (n, …) float64 on the CPU.
            targets: (n, …) on the CPU.

        Raises:
            InputError: If the function failed, or its values are not what ``rows`` says.
        """
        if self.ignored is not None and self.rows.mean:
            # Each row's mean over the positions that count.
            counted = targets != self.ignored
            found = replace(self, ignored=None).of_rows(*self._counted(outputs, targets))
            rows = counted.nonzero()[:, 0]
            total = torch.zeros(len(outputs), 1, dtype=torch.float64).index_add(0, rows, found)
            return total / counted.reshape(len(outputs), -1).sum(1, keepdim=True)
        # Rows are judged one by one: a NaN must not remove the scores of the others.
        finite = torch.isfinite(outputs if outputs.dim() > 1 else outputs[:, None]).flatten(1).all(1)
        if self.rows in (Rows.RANKS, Rows.RATE):
            flat = _flat(outputs, targets)
            score, truth = _scores(*flat), _truth(*flat)
            return torch.cat([score.where(finite[:, None], math.nan), truth.double()], 1)
        if not self.rows.mean:
            return torch.empty(len(outputs), 0, dtype=torch.float64)
        if not bool(finite.all()):
            found = torch.full((len(outputs), 1), math.nan, dtype=torch.float64)
            if bool(finite.any()):
                found[finite] = self.of_rows(outputs[finite], targets[finite])
            return found
        found = self._found(outputs, targets)
        if not found.dim():
            raise InputError(
                f"metric '{self.name}' has rows='{self.rows}' but gave a number: leave rows out",
                code="invalid-value",
                field=self.name,
            )
        return self.checked(found.flatten(1).mean(1) if found.dim() > 1 else found)[:, None]

    def _counted(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (P, C) and targets (P,) of the positions that count, row by row."""
        counted = targets != self.ignored
        return outputs.movedim(1, -1)[counted], targets[counted]

    def checked(self, values: Tensor) -> Tensor:
        """Values (n,) of rows, which must be what ``rows`` says; NaN may be.

        Raises:
            InputError: If one is not.
        """
        if self.rows not in (Rows.BINARY, Rows.UNIT):
            return values
        wrong = (values != 0) & (values != 1) if self.rows is Rows.BINARY else (values < 0) | (values > 1)
        # NaN is looked for only where something is wrong.
        if bool(wrong.any()) and bool((wrong & ~values.isnan()).any()):
            first = float(values[wrong & ~values.isnan()][0])
            kind = "0 or 1" if self.rows is Rows.BINARY else "in [0, 1]"
            raise InputError(
                f"metric '{self.name}' has rows='{self.rows}' but gave {first:g}, which is not {kind}: declare another",
                code="out-of-range",
                field=self.name,
            )
        return values

    def _found(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """What the function gives, float64.

        Raises:
            InputError: If it failed, or gave neither a number nor one value per sample.
        """
        try:
            value = self.function(outputs, targets)
            found = torch.as_tensor(value, dtype=torch.float64)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"metric '{self.name}' of outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}: "
                f"{type(error).__name__}: {' '.join(str(error).split())}",
                code="user-code-failed",
                field=self.name,
            ) from error
        if found.dim() and found.shape[0] != len(outputs):
            raise InputError(
                f"metric '{self.name}' gave values of shape {tuple(found.shape)} for {len(outputs)} samples: return a "
                "number, or one value per sample",
                code="wrong-shape",
                field=self.name,
            )
        return found


def are_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Whether outputs (n, C, …) are the logits of classes, one of which is each target (n, …)."""
    return outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1 and not targets.is_floating_point()


def _flat(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, C, …) and classes (n, …) as those of every position, (P, C) and (P,); others as they are."""
    if targets.dim() < 2 or not are_classes(outputs, targets):
        return outputs, targets
    return outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), targets.reshape(-1)


def argmax_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest of the outputs (B, classes, …) is the target (B, …), else 0."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the sign of a logit agrees with the target in {0, 1}, else 0; outputs and targets (B,), (B, 1) or (B, L).

    With L labels a sample's value is the share of labels that are right.
    """
    right = ((outputs.flatten(1) if outputs.dim() > 1 else outputs[:, None]) > 0) == (
        (targets.flatten(1) if targets.dim() > 1 else targets[:, None]) > 0.5
    )
    return right.to(outputs.dtype).mean(1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """:func:`argmax_accuracy` where targets are classes, :func:`binary_accuracy` where they are 0 or 1; (B,)."""
    return argmax_accuracy(outputs, targets) if are_classes(outputs, targets) else binary_accuracy(outputs, targets)


def _columns(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities and truths (n, K) of each class or label; of two classes or one logit, of the second alone."""
    if are_classes(outputs, targets):
        return outputs.softmax(1)[:, _first(outputs) :], _truth(outputs, targets)
    return outputs.reshape(len(outputs), -1).sigmoid(), _truth(outputs, targets)


def _truth(outputs: Tensor, targets: Tensor) -> Tensor:
    """(n, K) whether a row is of each class or has each label; of two classes, of the second alone."""
    if are_classes(outputs, targets):
        return targets[:, None] == torch.arange(_first(outputs), outputs.shape[1])
    return targets.reshape(len(outputs), -1) > 0.5


def _first(outputs: Tensor) -> int:
    """The first class that has a column: of two classes the second says all."""
    return 0 if outputs.shape[1] > 2 else 1


def _scores(outputs: Tensor, targets: Tensor) -> Tensor:
    """(n, K) log-odds of each class or label, which order rows as probabilities do but never saturate.

    In float64 the sigmoid of every logit above 37 is 1: a confident model's rows would all be tied.
    """
    if not are_classes(outputs, targets):
        return outputs.reshape(len(outputs), -1)
    if outputs.shape[1] == 2:
        return outputs[:, 1:] - outputs[:, :1]
    # log(p / (1 - p)) = z - log Σ_{others} exp(z). The largest class is left out of its own sum exactly; for the rest
    # p ≤ 1/2, so that log(1 - p) loses nothing. Sums are of distances from the largest, in order: rows that differ by a
    # constant, or in which class has which of the other logits, tie to the bit.
    z, order = outputs.sort(1)
    z = z - z[:, -1:]
    log_p = z.log_softmax(1)
    odds = torch.where(z == 0, -z[:, :-1].logsumexp(1, keepdim=True), log_p - torch.log1p(-log_p.exp()))
    return torch.empty_like(odds).scatter(1, order, odds)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean recall over the classes that occur; over labels, the mean of each label's."""
    outputs, targets = _flat(outputs, targets)
    if are_classes(outputs, targets):
        truth = targets[:, None] == torch.arange(outputs.shape[1])
        # These are the recalls of the classes; nanmean leaves out classes without a row.
        right = truth & (outputs.argmax(1) == targets)[:, None]
        return float((right.sum(0) / truth.sum(0).double()).nanmean())
    truth = _truth(outputs, targets)
    both = torch.stack([truth, ~truth])
    recalls = (both & ((_scores(outputs, targets) > 0) == truth)).sum(1) / both.sum(1).double()  # (2, K)
    return float(recalls.nanmean(0).mean())


def auc(outputs: Tensor, targets: Tensor) -> float:
    """Area under the ROC curve; of more than two classes the mean over classes, one against the rest.

    Classes and labels that all rows have, or none, are left out; NaN where none is left.
    """
    from scipy.stats import rankdata

    outputs, targets = _flat(outputs, targets)
    scores, truth = _scores(outputs, targets), _truth(outputs, targets)
    positive = truth.sum(0).double()
    # Mann and Whitney's count of the pairs in order, ties for half: all columns at once, where scikit-learn spends
    # milliseconds a column on checking its input, more than a small client's training takes
    ranks = torch.from_numpy(rankdata(scores.numpy(), axis=0))
    in_order = (ranks * truth).sum(0) - positive * (positive + 1) / 2
    return float((in_order / (positive * (len(scores) - positive))).nanmean())  # 0/0 where all are so, or none


def f1(outputs: Tensor, targets: Tensor) -> float:
    """F1 of the second of two classes; of more classes, or labels, the mean over those that occur or are predicted."""
    outputs, targets = _flat(outputs, targets)
    guess, truth = _scores(outputs, targets) > 0, _truth(outputs, targets)
    if are_classes(outputs, targets):
        # Exactly one class is predicted, although several may score above 0 or none may.
        guess = _truth(outputs, outputs.argmax(1))
    return float((2 * (guess & truth).sum(0) / (guess.sum(0) + truth.sum(0)).double()).nanmean())


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """−log of the probability of what is so, (n, …)."""
    if are_classes(outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    y = targets.reshape(outputs.shape).to(outputs.dtype)
    return torch.nn.functional.binary_cross_entropy_with_logits(outputs, y, reduction="none")


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of the probabilities from what is so (Brier 1950), (n,), or (n, …) of several positions.

    Summed over classes where there are more than two; of two classes, one logit and each of L labels, the second's.
    """
    p, truth = _columns(*_flat(outputs, targets))
    squares = (p - truth.to(p.dtype)).square()
    return squares.sum(1).view(targets.shape) if are_classes(outputs, targets) else squares.mean(1)


BINS = 15


def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error (Guo et al. 2017, eq. 3): |accuracy − confidence| in 15 bins of confidence, weighted.

    Of few rows it is biased upwards: compare clients with their numbers of rows in mind. Of labels, their mean.
    """
    outputs, targets = _flat(outputs, targets)
    if are_classes(outputs, targets):
        confidence, chosen = outputs.softmax(1).max(1)
        return _calibration(confidence, chosen == targets)
    columns = zip(*(each.T for each in _columns(outputs, targets)), strict=True)
    errors = [_calibration(torch.maximum(p, 1 - p), (p > 0.5) == truth) for p, truth in columns]
    return math.fsum(errors) / len(errors)


def _calibration(confidence: Tensor, right: Tensor) -> float:
    place = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # bins ((b−1)/B, b/B]
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, place, right.double() - confidence.double())
    return float(gaps.abs().sum() / len(confidence))


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Absolute errors, (n, …)."""
    return (outputs - targets.reshape(outputs.shape)).abs()


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root of the mean squared error; of several outputs, the mean of each one's, as scikit-learn has it."""
    squares = (outputs - targets.reshape(outputs.shape)).square().reshape(len(outputs), -1)
    return float(squares.mean(0).sqrt().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Coefficient of determination; NaN for fewer than two rows."""
    from sklearn.metrics import r2_score

    if len(outputs) < 2:
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant targets
        return float(r2_score(targets.reshape(len(outputs), -1).numpy(), outputs.reshape(len(outputs), -1).numpy()))


def average_precision(outputs: Tensor, targets: Tensor) -> float:
    """Σ (R_k − R_{k−1})·P_k over the distinct scores; of more than two classes the mean over those that occur."""
    outputs, targets = _flat(outputs, targets)
    scores, truth = _scores(outputs, targets), _truth(outputs, targets)
    found = []
    for score, is_so in zip(scores.T, truth.T, strict=True):
        order = score.argsort(descending=True)
        ranked, hits = score[order], is_so[order].double().cumsum(0)
        last = torch.cat([ranked[1:] != ranked[:-1], torch.ones(1, dtype=torch.bool)])  # marks the last of tied rows
        hits, called = hits[last], (last.nonzero().flatten() + 1).double()
        gained = torch.cat([hits[:1], hits.diff()])
        # Without positive rows this is NaN, which nanmean leaves out.
        found.append(float((gained * hits / called).sum() / hits[-1]))
    return float(torch.tensor(found, dtype=torch.float64).nanmean())


Rate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(who is called positive, who is) → (who counts as right, among whom); all bool of one shape."""


def _rate(outputs: Tensor, targets: Tensor, rate: Rate) -> float:
    """At probability 1/2; of more than two classes, the largest is called, and the mean is over those with a value."""
    outputs, targets = _flat(outputs, targets)
    called, truth = _scores(outputs, targets) > 0, _truth(outputs, targets)
    if are_classes(outputs, targets):
        called = _truth(outputs, outputs.argmax(1))
    right, among = rate(called, truth)
    return float(((right & among).sum(0) / among.sum(0).double()).nanmean())


def sensitivity(outputs: Tensor, targets: Tensor) -> float:
    """Share of the positive rows that are called so; NaN where there is none."""
    return _rate(outputs, targets, RATES[sensitivity])


def specificity(outputs: Tensor, targets: Tensor) -> float:
    """Share of the negative rows that are called so; NaN where there is none."""
    return _rate(outputs, targets, RATES[specificity])


def ppv(outputs: Tensor, targets: Tensor) -> float:
    """Positive predictive value, the share of the rows called positive that are; NaN where none is called so."""
    return _rate(outputs, targets, RATES[ppv])


RATES: Mapping[MetricFn, Rate] = {
    sensitivity: lambda called, truth: (called, truth),
    specificity: lambda called, truth: (~called, ~truth),
    ppv: lambda called, truth: (truth, called),
}
"""Shares of right answers among some of the rows, for which a threshold on validation rows is chosen."""


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
"""Every metric by the name that the command, the files and the tables know it by."""

OF_CLASSES = frozenset(
    {
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
    }
)
"""The functions that take targets for classes, or for labels that are there or not."""


def metric_of(given: Metric | MetricFn | str) -> Metric:
    """A metric, whichever way it was given.

    Args:
        given: A metric; the name of one of :data:`METRICS`; or a function, which is called by its name ("score" where
            it has none) and of which more is better.

    Raises:
        InputError: If there is none of that name, or a function has no name that files could use.
    """
    if isinstance(given, Metric):
        return given
    if isinstance(given, str):
        plain = given.strip().lower().replace("-", "_")
        if plain not in METRICS:
            raise unknown("metric", given, METRICS)
        return METRICS[plain]
    # drfl's own functions are known to be 0 or 1 for each row, and are shown in percent.
    if given in (argmax_accuracy, binary_accuracy, accuracy):
        return Metric("accuracy", given, percent=True, per_sample=True, rows=Rows.BINARY)
    name = getattr(given, "__name__", type(given).__name__)
    if name == "<lambda>":
        return Metric("score", given)
    if isinstance(given, type) or NAME.fullmatch(str(name)) is None:
        raise InputError(
            f"a metric is called '{name}', which no file can: wrap it as drfl.Metric('name', function)",
            code="invalid-name",
            field="metric",
        )
    return Metric(str(name), given)


def resolved(metric: Metric, outputs: Tensor, targets: Tensor, ignored: int | None = None) -> Metric:
    """The metric with what it says of a row with such outputs (n, …) and targets (n, …); their values do not matter.

    Of several labels a share of right ones is no longer 0 or 1; of more than two classes the Brier score is up to 2;
    of both the AUC, sensitivity and the like are means of several, of which no count is known.

    Args:
        metric: Any.
        outputs: A row's.
        targets: A row's.
        ignored: The target whose positions do not count. Rows of several positions then count by how many are left.
    """
    classes = are_classes(outputs, targets)
    many = classes and outputs.shape[1] > 2
    labels = targets[:1].numel() > 1 or (not classes and outputs[:1].numel() > 1)
    if classes and ignored is not None and metric.function in OF_CLASSES:
        rows = Rows.REAL if labels and metric.rows.mean else metric.rows
        metric = replace(metric, ignored=ignored, rows=rows)
    # A mean over several labels or positions is no longer 0 or 1.
    if metric.rows is Rows.BINARY and labels:
        return replace(metric, rows=Rows.UNIT)
    # With more than two classes the sum of squares goes up to 2.
    if metric.function is brier and metric.rows is Rows.UNIT and many:
        return replace(metric, rows=Rows.REAL)
    # A mean over classes or labels has no single ranking or denominator to pair clients by.
    if metric.rows in (Rows.RANKS, Rows.RATE) and (many or labels):
        return replace(metric, rows=Rows.WHOLE)
    return metric


def check_distinct(measures: Sequence[Metric]) -> None:
    """Refuse two metrics of one name, as files and tables would mix them up.

    Raises:
        InputError: If naming the metric.
    """
    names = [metric.name for metric in measures]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(
            f"the metric '{twice}' is given twice, as score and among metrics: keep one",
            code="given-twice",
            field="metrics",
        )
