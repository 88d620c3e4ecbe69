"""Clients' objectives in closed form, and as modules that an engine can train."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own custom
from torch import Tensor, nn


class Functions(Protocol):
    """N twice differentiable, strongly convex functions f_i of w (d,)."""

    @property
    def n(self) -> int:
        """The number of functions, N."""
        ...

    @property
    def d(self) -> int:
        """The number of parameters."""
        ...

    def losses(self, w: Tensor) -> Tensor:
        """Return the (N,) values f_i(w)."""
        ...

    def gradients(self, w: Tensor) -> Tensor:
        """Return the (N, d) gradients ∇f_i(w)."""
        ...

    def hessian(self, w: Tensor, lam: Tensor) -> Tensor:
        """Return the (d, d) matrix Σ_i λ_i ∇²f_i(w)."""
        ...


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """f_i(w) = ½‖A_i w − b_i‖² + (ridge/2)‖w‖².

    Args:
        A: (N, rows, d) matrices.
        b: (N, rows) vectors.
        ridge: Weight of the penalty, ≥ 0.
    """

    A: Tensor
    b: Tensor
    ridge: float = 0.0

    @property
    def n(self) -> int:
        """The number of functions, N."""
        return self.A.shape[0]

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.A.shape[2]

    @property
    def hessians(self) -> Tensor:
        """The (N, d, d) constant Hessians."""
        return self.A.mT @ self.A + self.ridge * torch.eye(self.d, dtype=self.A.dtype)

    @property
    def linear(self) -> Tensor:
        """The (N, d) vectors A_iᵀb_i: the gradients are hessians·w − linear."""
        return torch.einsum("nrd,nr->nd", self.A, self.b)

    def losses(self, w: Tensor) -> Tensor:
        """Return the (N,) values."""
        return self._residuals(w).square().sum(1) / 2 + self.ridge / 2 * w.square().sum()

    def gradients(self, w: Tensor) -> Tensor:
        """Return the (N, d) gradients."""
        return torch.einsum("nrd,nr->nd", self.A, self._residuals(w)) + self.ridge * w

    def hessian(self, w: Tensor, lam: Tensor) -> Tensor:
        """Return the (d, d) matrix Σ_i λ_i ∇²f_i."""
        return torch.einsum("n,nij->ij", lam, self.hessians)

    def _residuals(self, w: Tensor) -> Tensor:
        return self.A @ w - self.b


@dataclass(frozen=True, eq=False)
class Softmax:
    """f_i(W) = mean_j [log Σ_c exp(⟨W_c, x_j⟩) − ⟨W_{y_j}, x_j⟩] + (ridge/2)‖W‖², multinomial logistic regression.

    Args:
        x: Per client, (n_i, p) inputs.
        y: Per client, (n_i,) int64 labels.
        classes: C; the parameters are W (C, p), row after row.
        ridge: Weight of the penalty, > 0.
    """

    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    classes: int
    ridge: float

    @property
    def n(self) -> int:
        """The number of functions, N."""
        return len(self.x)

    @property
    def d(self) -> int:
        """The number of parameters."""
        return self.classes * self.x[0].shape[1]

    def losses(self, w: Tensor) -> Tensor:
        """Return the (N,) values."""
        W = w.view(self.classes, -1)
        means = []
        for x, y in zip(self.x, self.y, strict=True):
            logits = x @ W.T
            means.append((logits.logsumexp(1) - logits.gather(1, y[:, None])[:, 0]).mean())
        return torch.stack(means) + self.ridge / 2 * w.square().sum()

    def gradients(self, w: Tensor) -> Tensor:
        """Return the (N, d) gradients."""
        W, rows = w.view(self.classes, -1), []
        for x, y in zip(self.x, self.y, strict=True):
            error = (x @ W.T).softmax(1)
            # The gradient with respect to the logits is softmax − one-hot.
            error[torch.arange(len(y)), y] -= 1
            rows.append((error.T @ x / len(y)).flatten())
        return torch.stack(rows) + self.ridge * w

    def hessian(self, w: Tensor, lam: Tensor) -> Tensor:
        """Return the (d, d) matrix Σ_i λ_i ∇²f_i."""
        W, C, p = w.view(self.classes, -1), self.classes, self.x[0].shape[1]
        # One class at a time: the Hessians of all rows, (n_i, C·p, C·p), would not fit in memory.
        H = torch.zeros(C, p, C, p, dtype=w.dtype)
        for x, weight in zip(self.x, lam.tolist(), strict=True):
            P = (x @ W.T).softmax(1)
            for c in range(C):
                S = -P[:, c, None] * P * (weight / len(x))  # (n_i, C): row c of weight·(diag P − P Pᵀ)/n_i
                S[:, c] += P[:, c] * (weight / len(x))
                H[c] += torch.einsum("jk,ja,jb->akb", S, x, x)
        return H.view(self.d, self.d) + lam.sum() * self.ridge * torch.eye(self.d, dtype=w.dtype)


class Bowl(nn.Module):
    """Residuals R·w − r for samples (R, r); with the loss ½‖·‖², each sample is a quadratic bowl.

    Args:
        d: Number of parameters, which start at 0.

    Inputs are (B, rows, d + 1): the matrix R with r as its last column. Outputs are (B, rows).
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(d, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """Return the residuals (B, rows)."""
        return x[..., :-1] @ self.w - x[..., -1]


class Ridge(nn.Module):
    """Predictions ⟨a, w⟩ of a linear model without intercept, each with the penalty (μ/2)‖w‖².

    Args:
        d: Number of parameters, which start at 0.
        mu: Weight of the penalty.

    Inputs are (B, d), outputs (B, 2).
    """

    def __init__(self, d: int, mu: float) -> None:
        super().__init__()
        self.w, self.mu = nn.Parameter(torch.zeros(d, dtype=torch.float64)), mu

    def forward(self, x: Tensor) -> Tensor:
        """Return predictions and penalty (B, 2)."""
        predictions = x @ self.w
        return torch.stack([predictions, _penalty(self.w, self.mu).expand_as(predictions)], dim=-1)


class Logits(nn.Module):
    """Logits of a linear classifier without intercept, with the penalty (μ/2)‖W‖².

    Args:
        classes: C.
        features: p; the parameters, (C, p), start at 0.
        mu: Weight of the penalty.

    Inputs are (B, p), outputs (B, C + 1).
    """

    def __init__(self, classes: int, features: int, mu: float) -> None:
        super().__init__()
        self.w, self.mu = nn.Parameter(torch.zeros(classes, features, dtype=torch.float64)), mu

    def forward(self, x: Tensor) -> Tensor:
        """Return logits and penalty (B, C + 1)."""
        logits = x @ self.w.T
        return torch.cat([logits, _penalty(self.w, self.mu).expand_as(logits[..., :1])], dim=-1)


def _penalty(w: Tensor, mu: float) -> Tensor:
    return mu / 2 * w.square().sum()


def half_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return ½‖outputs‖² per sample; the targets are ignored."""
    return outputs.square().sum(-1) / 2


def square(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return (prediction − target)² + penalty per sample, for :class:`Ridge`."""
    return (outputs[..., 0] - targets).square() + outputs[..., 1]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return cross-entropy + penalty per sample, for :class:`Logits`."""
    return F.cross_entropy(outputs[..., :-1], targets, reduction="none") + outputs[..., -1]


def hit(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 if the largest logit is the target's, else 0, for :class:`Logits`."""
    return (outputs[..., :-1].argmax(-1) == targets).to(outputs.dtype)


def bowl_fit(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1/(1 + loss) per sample, in (0, 1]: bowls have no accuracy."""
    return 1 / (1 + half_squares(outputs, targets))


def ridge_fit(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1/(1 + loss) per sample, in (0, 1]: regressions have no accuracy."""
    return 1 / (1 + square(outputs, targets))
