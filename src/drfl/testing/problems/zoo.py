"""Problems with known optima: quadratic and logistic."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData, Natural, PartitionMethod, ZipfDirichlet, load, make_partition
from drfl.optim.local import LocalSGD
from drfl.testing.problems.objectives import (
    Bowl,
    LeastSquares,
    Logits,
    Ridge,
    Softmax,
    bowl_fit,
    cross_entropy,
    half_squares,
    hit,
    ridge_fit,
    square,
)
from drfl.testing.problems.problem import Problem


@dataclass(frozen=True, eq=False)
class Quadratic(Problem):
    """A problem with quadratic f_i, for which more is known in closed form."""

    def fedavg_fixed_point(self, local: LocalSGD, weights: Tensor | None = None) -> Tensor:
        """Return the fixed point of FedAvg with full participation and exact gradients.

        With S_i = I − (I − ηH_i)^τ and a_i the optimum of client i, the client moves from w to w − S_i(w − a_i). So the
        fixed point solves Σ_i p_i S_i (w − a_i) = 0. It is the average optimum only if τ = 1 or all H_i are equal.

        Args:
            local: τ steps of size η, of plain gradient descent on all data.
            weights: (N,) p, weights of the clients' models in the average; None for equal weights.

        Raises:
            InputError: If the local solver is another one, or the weights are not a mixture of N clients.
        """
        if local != LocalSGD(local.steps, local.lr, None):
            raise InputError(
                "the fixed point is known only for plain local gradient descent, LocalSGD(steps, lr, batch=None)",
                code="unsupported-combination",
                field="local",
            )
        p = torch.full((self.N,), 1 / self.N, dtype=torch.float64)
        p = p if weights is None else self.check_mixture("weights", weights)
        functions = cast(LeastSquares, self.functions)
        H, b = functions.hessians, functions.linear
        power, total = torch.eye(self.d, dtype=torch.float64).expand_as(H), torch.zeros_like(H)
        for _ in range(local.tau):  # S_i = η Σ_{k<τ} (I − ηH_i)^k H_i, and H_i a_i = b_i
            total = total + local.eta * power
            power = power - local.eta * power @ H
        left, right = torch.einsum("n,nij->ij", p, total @ H), torch.einsum("n,nij,nj->i", p, total, b)
        return torch.linalg.solve(left, right)


def quadratics(n: int = 8, d: int = 4, seed: int = 0) -> Quadratic:
    """f_i(w) = ½‖w − a_i‖² with a_i ~ N(0, I): L = μ = 1.

    All clients have the same curvature, so local steps do not drift. The average optimum is the mean of the a_i; the
    saddle point over the whole simplex is the centre of the smallest ball that contains them.

    Args:
        n: N, number of clients.
        d: Number of parameters.
        seed: Seed of the draw.

    Raises:
        InputError: If a number is out of range.
    """
    checks.integer("n", n)
    checks.integer("d", d)
    a = _normal(Key(seed).fold("quadratics"), n, d)
    return _bowls("quadratics", np.broadcast_to(np.eye(d), (n, d, d)), a, 1.0)


def curved_quadratics(n: int = 6, d: int = 4, seed: int = 0, ratio: float = 10.0) -> Quadratic:
    """f_i(w) = ½(w − a_i)ᵀH_i(w − a_i) with a_i ~ N(0, I) and a different H_i for each client: local steps drift apart.

    The H_i have random axes. Their eigenvalues are log-uniform and scaled so that the smallest of all is 1 and the
    largest is `ratio`: μ = 1 and L = ratio.

    Args:
        n: N, number of clients.
        d: Number of parameters; n·d must be at least 2.
        seed: Seed of the draw.
        ratio: Condition number L/μ, above 1.

    Raises:
        InputError: If a number is out of range.
    """
    checks.integer("n", n)
    checks.integer("d", d, low=1 if n > 1 else 2)
    checks.positive("ratio", ratio)
    if ratio <= 1:
        raise InputError(f"ratio = L/μ must be above 1, got {ratio}", code="out-of-range", field="ratio")
    key = Key(seed).fold("curved_quadratics")
    logs = key.fold("curvature").generator().random((n, d))
    eigenvalues = ratio ** ((logs - logs.min()) / np.ptp(logs))
    axes = np.linalg.qr(_normal(key.fold("axes"), n, d, d)).Q
    # RᵀR = H_i.
    R = np.sqrt(eigenvalues)[:, :, None] * axes.transpose(0, 2, 1)
    return _bowls("curved_quadratics", R, _normal(key.fold("centres"), n, d), ratio)


def robust_regression(
    sigma: float = 0.5, seed: int = 0, n: int = 5, d: int = 10, samples: int = 100, c: float = 1.0, mu: float = 0.01
) -> Quadratic:
    """SCAFF-PD's synthetic problem (Yu et al. 2023, C.1): linear regression with a true model that differs by client.

    f_i(w) = (1/m) Σ_j (⟨a_ij, w⟩ − y_ij)² + (μ/2)‖w‖² with a_ij ~ N(0, I), y_ij = ⟨a_ij, x̂ + δ_i⟩, x̂ ~ N(0, c²I) and
    δ_i ~ N(0, σ²I). The paper gives N = 5, d = 10 and m = 100; it does not give c, σ or μ.

    Args:
        sigma: σ, how far the clients' true models lie apart.
        seed: Seed of the draw.
        n: N, number of clients.
        d: Number of parameters.
        samples: m per client.
        c: Scale of the common true model.
        mu: μ, weight of the penalty, positive.

    Raises:
        InputError: If a number is out of range.
    """
    for name, value in (("n", n), ("d", d), ("samples", samples)):
        checks.integer(name, value)
    checks.non_negative("sigma", sigma)
    checks.non_negative("c", c)
    checks.positive("mu", mu)
    key = Key(seed).fold("robust_regression")
    a = torch.from_numpy(_normal(key.fold("inputs"), n, samples, d))
    truth = c * _normal(key.fold("truth"), d) + sigma * _normal(key.fold("shift"), n, d)
    y = torch.einsum("nmd,nd->nm", a, torch.from_numpy(truth))
    # With rows scaled by √(2/m), ½‖Aw − b‖² is the mean of the squares.
    functions = LeastSquares(a * (2 / samples) ** 0.5, y * (2 / samples) ** 0.5, mu)
    eigenvalues = torch.linalg.eigvalsh(functions.hessians)
    return Quadratic(
        "robust_regression", functions, _pool(a.reshape(-1, d), y.reshape(-1), n), partial(Ridge, d, mu), square,
        ridge_fit, float(eigenvalues.max()), float(eigenvalues.min()),
    )  # fmt: skip


def _bowls(name: str, R: np.ndarray, a: np.ndarray, smoothness: float) -> Quadratic:
    """Make f_i(w) = ½‖R_i(w − a_i)‖² from R (N, d, d) and a (N, d), with μ = 1; each client has one sample."""
    A = torch.from_numpy(np.array(R))
    b = (A @ torch.from_numpy(a)[:, :, None])[:, :, 0]
    samples = torch.cat([A, b[:, :, None]], dim=2)
    data = _pool(samples, torch.zeros(len(a), dtype=torch.float64), len(a))
    return Quadratic(name, LeastSquares(A, b), data, partial(Bowl, A.shape[2]), half_squares, bowl_fit, smoothness, 1.0)


def _pool(inputs: Tensor, targets: Tensor, n: int) -> ClientData:
    """Split one pool into equal blocks; it also serves as test set, because there is nothing to generalise to."""
    rows = tuple(torch.arange(len(targets)).chunk(n))
    return ClientData(inputs, targets, rows, inputs, targets, rows, tuple(f"client-{i}" for i in range(n)))


def _normal(key: Key, *shape: int) -> np.ndarray:
    return key.generator().standard_normal(shape)


def logistic(
    dataset: str = "heart-disease",
    *,
    seed: int = 0,
    mu: float = 0.01,
    method: PartitionMethod | Natural | None = None,
    samples: int | None = None,
) -> Problem:
    """Multinomial logistic regression with the penalty (μ/2)‖W‖², including intercepts, on real data.

    Args:
        dataset: A name that :func:`drfl.data.load` knows. Images are averaged over 2×2 pixels, so that the Hessians
            stay small.
        seed: Seed of the partition and of the choice of samples.
        mu: μ, positive; every f_i is μ-strongly convex.
        method: The partition. None for the data's natural clients, such as the four hospitals, or else six clients of
            equal size with classes from Dir(0.1).
        samples: Number of samples, drawn at random; None for all of a table, or 300 training images.

    Raises:
        InputError: If the data set is unknown or missing, the partition does not fit, or a number is out of range.
    """
    checks.positive("mu", mu)
    source, key = load(dataset), Key(seed).fold("logistic")
    if samples is None and source.inputs.ndim > 2:
        samples = 300
    if samples is not None:
        checks.integer("samples", samples)
        total = len(source.targets)
        if samples > total:
            raise InputError(
                f"samples must be at most {total} (the samples of {source.name}), got {samples}",
                code="out-of-range",
                field="samples",
            )
        rows = np.sort(key.fold("samples").generator().permutation(total)[:samples])
        inputs, targets = source.inputs[rows], source.targets[rows]
        cut = dataclasses.replace(source, inputs=inputs, targets=targets, groups=None, test_groups=None)
        if source.is_one_pool:  # otherwise the separate test set is used whole
            groups = None if source.groups is None else tuple(source.groups[row] for row in rows)
            cut = dataclasses.replace(cut, test_inputs=inputs, test_targets=targets, groups=groups)
        source = cut
    if method is None:
        method = ZipfDirichlet(6, 0.1) if source.groups is None else Natural()
    data = ClientData.from_dataset(source, make_partition(source, method, key))
    inputs = _features(data.inputs)
    test_inputs = inputs if data.test_inputs is data.inputs else _features(data.test_inputs)
    data = dataclasses.replace(data, inputs=inputs, test_inputs=test_inputs, standardisation=None)
    x, y = (tuple(pool[rows] for rows in data.train) for pool in (data.inputs, data.targets))
    # Smoothness of the cross-entropies without the penalty: the softmax's Hessian diag(p) − ppᵀ is at most ½.
    smoothness = max(float(torch.linalg.matrix_norm(part, 2)) ** 2 / len(part) for part in x) / 2
    return Problem(
        f"logistic on {source.name}", Softmax(x, y, source.classes, mu), data,
        partial(Logits, source.classes, inputs.shape[1], mu), cross_entropy, hit, smoothness + mu, mu,
    )  # fmt: skip


def _features(inputs: Tensor) -> Tensor:
    """Return (n, p) float64 features, with a last column of 1 for the intercept."""
    if inputs.ndim > 2:
        inputs = torch.nn.functional.avg_pool2d(inputs, 2)
    return torch.cat([inputs.flatten(1).double(), torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)
