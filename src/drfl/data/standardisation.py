"""Columns of mean 0 and standard deviation 1, by statistics that clients report of their own training rows.

Counts, means and variances of groups of rows are combined without a sum of raw squares, which would lose all digits
where a mean is large against its spread (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from drfl.core.checks import AT_A_TIME
from drfl.core.errors import InputError

LARGEST = 1e100
"""Mean or standard deviation at most: no square or product with a number of rows overflows."""


def is_table(inputs: Tensor) -> bool:
    """Whether a pool is one of floating-point vectors, (n, p): what can be standardised."""
    return inputs.ndim == 2 and inputs.is_floating_point()


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of the columns of a group of rows.

    Args:
        count: how many rows, at least 1.
        mean: (p,) float64.
        variance: (p,) float64, over the rows themselves (divided by their number); exactly 0 if all values are equal.
        counts: (p,) float64, values of each column that are not missing; None = all. A column without any has mean and
            variance 0.
    """

    count: int
    mean: Tensor
    variance: Tensor
    counts: Tensor | None = None

    @classmethod
    def of(cls, inputs: Tensor, rows: Tensor) -> Moments:
        """Of some rows (k,) of a pool (n, p), read a few at a time; in float64 whatever the pool's type.

        NaN is a missing value and does not count.
        """
        size = max(1, AT_A_TIME // max(1, inputs.shape[1]))
        parts = []
        for some in rows.split(size):
            x = inputs[some].double()
            known = ~x.isnan()
            if not bool(known.all()):
                parts.append(_of_known(x, known))
                continue
            # Differences to the first row make the variance of a constant column exactly 0.
            difference = x - x[0]
            mean = difference.mean(0)
            variance = (difference - mean).square().mean(0)
            parts.append(Moments(len(x), (x[0] + mean).cpu(), variance.cpu()))
        return combined(parts)

    def check(self, name: str) -> None:
        """Refuse what no rows can have.

        Raises:
            InputError: a mean or variance is not finite or beyond :data:`LARGEST`, or a variance is negative; names
                whose they are, and the column.
        """
        good = (self.mean.abs() <= LARGEST) & (self.variance >= 0) & (self.variance <= LARGEST**2)
        if self.counts is not None:
            good &= (self.counts >= 0) & (self.counts <= self.count)
        if self.count >= 1 and bool(good.all()):
            return
        column = int((~good).int().argmax())
        raise InputError(
            f"{name} reports {self.count} rows, and for its column {column + 1} the mean {float(self.mean[column]):g} "
            f"and the variance {float(self.variance[column]):g}: see its data, or switch standardise off",
            code="invalid-statistics",
            field=name,
        )


def _of_known(x: Tensor, known: Tensor) -> Moments:
    """Of the values of x (k, p) that are known."""
    counts = known.sum(0).double()
    first = torch.where(counts > 0, x[known.int().argmax(0), torch.arange(x.shape[1], device=x.device)], 0.0)
    difference = torch.where(known, x - first, 0.0)
    mean = difference.sum(0) / counts.clamp(min=1)
    variance = torch.where(known, difference - mean, 0.0).square().sum(0) / counts.clamp(min=1)
    return Moments(len(x), (first + mean).cpu(), variance.cpu(), counts.cpu())


def combined(parts: Sequence[Moments]) -> Moments:
    """The moments of the rows of several groups together, at least one."""
    return parts[0] if len(parts) == 1 else _combined_moments(parts, _counts(parts))


def _counts(parts: Sequence[Moments]) -> Tensor:
    """Values per group and column, (k, p) float64; (k, 1) if none is missing."""
    if all(part.counts is None for part in parts):
        return torch.tensor([[part.count] for part in parts], dtype=torch.float64)
    return torch.stack(
        [torch.full_like(part.mean, part.count) if part.counts is None else part.counts for part in parts]
    )


def _combined_moments(parts: Sequence[Moments], counts: Tensor) -> Moments:
    """The moments of several groups together, of which each counts for these values, (k, p) or (k, 1)."""
    means, variances = (torch.stack([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
    of_columns = None if all(part.counts is None for part in parts) else counts.sum(0)
    return Moments(sum(part.count for part in parts), *_combined(counts, means, variances), of_columns)


def of_all(inputs: Tensor, clients: Sequence[Tensor], names: Sequence[str]) -> Moments:
    """The moments of all clients' rows together, from each client's own.

    Args:
        inputs: (n, p) a pool.
        clients: per client, its rows of the pool.
        names: of the clients.

    Raises:
        InputError: a client's are what no rows can have, see :meth:`Moments.check`.
    """
    n, p = len(clients), inputs.shape[1]
    # Not a list of moments: a million of them would take gigabytes.
    counts, means = torch.empty(n, 1, dtype=torch.float64), torch.empty(n, p, dtype=torch.float64)
    variances, has_missing = torch.empty_like(means), False
    for i, (name, rows) in enumerate(zip(names, clients, strict=True)):
        own = Moments.of(inputs, rows)
        own.check(f"client '{name}'")
        if own.counts is not None and not has_missing:
            has_missing, counts = True, counts.expand(n, p).clone()
        counts[i] = own.count if own.counts is None else own.counts
        means[i], variances[i] = own.mean, own.variance
    rows, of_columns = sum(map(len, clients)), counts.sum(0) if has_missing else None
    if n == 1:
        return Moments(rows, means[0], variances[0], of_columns)
    return Moments(rows, *_combined(counts, means, variances), of_columns)


def _combined(counts: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance (p,) from counts (k, p) or (k, 1), means and variances (k, p): Chan's formula for k groups."""
    weights = counts / counts.sum(0).clamp(min=1)
    # Relative to the first group's mean: where all means are equal the result is that number, to the last digit.
    first = means[0] if bool((counts > 0).all()) else means.gather(0, (counts > 0).int().argmax(0)[None])[0]
    mean = first + (weights * (means - first)).sum(0)
    return mean, (weights * (variances + (means - mean).square())).sum(0)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """The mean and the scale of each column, in raw units: x becomes (x − mean)/scale.

    Args:
        mean: (p,) float64, finite.
        scale: (p,) float64, finite and positive: the standard deviation, 1 for a column that is constant.

    Raises:
        InputError: they are not such vectors.
    """

    mean: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            if values.ndim != 1 or values.dtype != torch.float64 or values.shape != self.mean.shape:
                raise InputError(
                    f"a standardisation's {name} must be a float64 vector with a number a column, not {values.dtype} "
                    f"of shape {tuple(values.shape)}",
                    code="wrong-type",
                    field=name,
                )
        if not bool((self.mean.isfinite() & self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(
                "a standardisation's means must be finite, and its scales finite and positive",
                code="invalid-statistics",
            )

    @classmethod
    def of(cls, moments: Moments) -> Standardisation:
        """By mean and standard deviation of these rows."""
        return cls(moments.mean, _positive(moments.variance.sqrt()))

    def apply(self, inputs: Tensor) -> Tensor:
        """The pool (n, p) in standard units, a new tensor of the same type; computed in float64.

        Raises:
            InputError: the pool has another number of columns, or is not floating-point.
        """
        if not is_table(inputs) or inputs.shape[1] != len(self.mean):
            raise InputError(
                f"only floating-point inputs (n, {len(self.mean)}) can be standardised, not {inputs.dtype} of shape "
                f"{tuple(inputs.shape)}",
                code="wrong-shape",
                field="inputs",
            )
        # The layer that is saved with a model also scales here, so that both round alike.
        layer, scaled = Standardise(self).to(inputs.device), torch.empty_like(inputs)
        size = max(1, AT_A_TIME // max(1, inputs.shape[1]))
        for part, out in zip(inputs.split(size), scaled.split(size), strict=True):
            out.copy_(layer(part))
        return scaled

    def before(self, model: nn.Module) -> nn.Sequential:
        """The model behind the layer that standardises: it takes rows (B, p) in raw units.

        The layer is frozen, so that the trainable parameters are the model's own, in the same order.
        """
        # The layer goes to the device of the model's parameters, if it has any.
        parameter = next(model.parameters(), self.mean)
        layer = Standardise(self).to(parameter.device)
        found = nn.Sequential(OrderedDict(standardise=layer, model=model))
        # By hand, as train() would reach into layers that the user has put into eval().
        found.training = model.training
        return found


class Standardise(nn.Module):
    """The layer (x − mean)/scale, in float64 and back to the type of x; nothing in it is trained.

    A missing value (NaN) becomes 0, the mean of its column.

    Args:
        by: mean and scale.
    """

    def __init__(self, by: Standardisation) -> None:
        super().__init__()
        self.mean = nn.Parameter(by.mean.clone(), requires_grad=False)
        self.scale = nn.Parameter(by.scale.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (B, p) in standard units; whole numbers become torch's default type."""
        # The scaling is in float64: subtracting a large mean in float32 would lose most digits.
        kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        scaled = (x.to(self.mean.dtype) - self.mean) / self.scale
        return torch.where(scaled.isnan(), 0.0, scaled).to(kind)


class Bounded(NamedTuple):
    """A standardisation in which no single site has too large a say.

    Args:
        standardisation: the result.
        outlier: (p,) int64: the site whose answer was not followed to the full, as it alone would more than double the
            column's scale; −1 where there is none.
        factor: (p,) float64: how many times the scale that the other sites give it would have made it.
    """

    standardisation: Standardisation
    outlier: Tensor
    factor: Tensor


def bounded(parts: Sequence[Moments]) -> Bounded:
    """Combine the moments that N sites claim, so that no site alone decides a column's scale.

    For every column and site i, let sᵢ be the standard deviation that the other N − 1 answers give. The scale is that
    of all answers, raised to max sᵢ/2 where it is below, then lowered to min 2sᵢ where it is above: no answer makes it
    more than twice what the others give without it, nor less than half, unless the first bound asks for that on
    account of another site. In each of these a site counts for at most three quarters of the rows, so that a claim of
    many rows cannot do what a claim of a large variance cannot. Where a scale is lowered, the mean lies within one
    scale of what the others give.

    Where all others are constant they give no scale to compare with, and the answer is taken as it is: after scaling,
    the constant of the others lies within √3 of 0, whatever was answered. Of two sites neither can be held against the
    other: where their own scales are more than fourfold apart, the geometric mean of the two is taken.

    Args:
        parts: (N,) at least one, each checked (:meth:`Moments.check`), all of p columns.

    Returns:
        See :class:`Bounded`; with N = 1 that site's own mean and standard deviation.
    """
    whole, n = _capped(parts), len(parts)
    scale = whole.variance.sqrt()
    if n == 1:
        return Bounded(Standardisation.of(whole), torch.full(scale.shape, -1), torch.ones_like(scale))
    # Each client's bound comes from the scale of the others: it may at most double or halve that.
    others = [_capped([*parts[:i], *parts[i + 1 :]]) for i in range(n)]
    alone = torch.stack([other.variance.sqrt() for other in others])
    # If a column is constant at all other clients, they give no scale to compare with.
    known = alone > 0
    if n == 2:
        known &= known.all(0)
    low = torch.where(known, alone, 0.0).amax(0) / 2
    least, outlier = torch.where(known, alone, torch.inf).min(0)
    high = 2 * least
    limited = scale.maximum(low).minimum(high)
    mean, moved = whole.mean, scale > high
    if n == 2:
        # If two clients contradict each other, the data do not show which is wrong. The geometric mean treats both
        # alike.
        limited = torch.where(low > high, (low * high).sqrt(), limited)
    else:
        near = torch.stack([other.mean for other in others]).gather(0, outlier[None])[0]
        mean = torch.where(moved, mean.maximum(near - limited).minimum(near + limited), mean)
    found = Standardisation(mean, _positive(limited))
    return Bounded(found, torch.where(moved, outlier, -1), torch.where(moved, scale / least, 1.0))


def _capped(parts: Sequence[Moments]) -> Moments:
    """The combined moments, in which one group counts for at most three times the rows of the others."""
    if len(parts) == 1:
        return parts[0]
    counts = _counts(parts)
    # A client that claims very many rows must not determine the scale alone.
    most = 3 * (counts.sum(0) - counts.amax(0))
    return _combined_moments(parts, torch.where(most > 0, counts.minimum(most), counts))


def _positive(scale: Tensor) -> Tensor:
    """1 in place of 0: a column that is constant becomes 0."""
    return torch.where(scale > 0, scale, 1.0)
