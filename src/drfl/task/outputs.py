"""Classes, labels, probabilities and log-odds from the outputs of a model."""

from __future__ import annotations

import torch
from torch import Tensor


def are_classes(outputs: Tensor, targets: Tensor) -> bool:
    """Return whether outputs (n, C, …) are logits of classes and targets (n, …) are class labels."""
    return outputs.dim() == targets.dim() + 1 and outputs.shape[1] > 1 and not targets.is_floating_point()


def flat_positions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Flatten outputs (n, C, …) and class labels (n, …) over positions to (P, C) and (P,); leave others unchanged."""
    if targets.dim() < 2 or not are_classes(outputs, targets):
        return outputs, targets
    return outputs.movedim(1, -1).reshape(-1, outputs.shape[1]), targets.reshape(-1)


def probabilities_and_truth(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the probability and truth (n, K) of each class or label; for two classes, only of the second."""
    if are_classes(outputs, targets):
        return outputs.softmax(1)[:, _first_column(outputs) :], truth_columns(outputs, targets)
    return outputs.reshape(len(outputs), -1).sigmoid(), truth_columns(outputs, targets)


def truth_columns(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return whether each row is of each class or has each label, (n, K); for two classes, only for the second."""
    if are_classes(outputs, targets):
        return targets[:, None] == torch.arange(_first_column(outputs), outputs.shape[1])
    return targets.reshape(len(outputs), -1) > 0.5


def _first_column(outputs: Tensor) -> int:
    """Return the first class that has a column. For two classes, the column of the second is enough."""
    return 0 if outputs.shape[1] > 2 else 1


def log_odds(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the log-odds (n, K) of each class or label. They order rows like probabilities but never saturate.

    In float64, the sigmoid of every logit above 37 is 1, so all rows of a confident model would be tied.
    """
    if not are_classes(outputs, targets):
        return outputs.reshape(len(outputs), -1)
    if outputs.shape[1] == 2:
        return outputs[:, 1:] - outputs[:, :1]
    # log(p / (1 − p)) = z − log Σ_{others} exp(z). For the largest class, the sum is computed over the other classes,
    # so that nothing cancels. For the rest, p ≤ 1/2, so log(1 − p) loses no accuracy. The sums are over sorted
    # distances from the largest logit. Therefore, rows whose logits differ by a constant, or by a permutation of the
    # other classes, tie exactly.
    z, order = outputs.sort(1)
    z = z - z[:, -1:]
    log_p = z.log_softmax(1)
    odds = torch.where(z == 0, -z[:, :-1].logsumexp(1, keepdim=True), log_p - torch.log1p(-log_p.exp()))
    return torch.empty_like(odds).scatter(1, order, odds)


def predicted_and_true(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return which classes or labels are predicted at probability 1/2, and which are true, both bool."""
    outputs, targets = flat_positions(outputs, targets)
    if are_classes(outputs, targets):
        # Exactly one class is predicted, although several classes or none may have log-odds above 0.
        return truth_columns(outputs, outputs.argmax(1)), truth_columns(outputs, targets)
    return log_odds(outputs, targets) > 0, truth_columns(outputs, targets)
