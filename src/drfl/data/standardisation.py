"""Standardisation of columns to mean 0 and standard deviation 1, from statistics that clients report.

Counts, means and variances of groups of rows are combined without a sum of raw squares, which would lose all digits if
a mean is large relative to the spread (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").
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
from drfl.core.mapped_files import empty_in_file, is_mapped

SCALED_AT_A_TIME = 2**20
"""Number of entries scaled at a time. Parts of four times this size do not fit into a cache, and take 1.7 times as
long.
"""

LARGEST = 1e100
"""Largest mean or standard deviation, so that no square and no product with a number of rows overflows."""


def is_table(inputs: Tensor) -> bool:
    """Return whether a pool consists of floating-point vectors (n, p), which can be standardised."""
    return inputs.ndim == 2 and inputs.is_floating_point()


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of the columns of a group of rows.

    Args:
        count: Number of rows, at least 1.
        mean: (p,) float64 means.
        variance: (p,) float64 variances over the known values, with their number as divisor; exactly 0 for constant
            columns.
        counts: (p,) float64 number of values of each column that are not missing; None if no value is missing. A column
            without values has mean and variance 0.
    """

    count: int
    mean: Tensor
    variance: Tensor
    counts: Tensor | None = None

    @classmethod
    def of(cls, inputs: Tensor, rows: Tensor) -> Moments:
        """Compute the moments of rows (k,) of a pool (n, p) in float64, a few rows at a time.

        Missing values (NaN) do not count.
        """
        size = max(1, AT_A_TIME // max(1, inputs.shape[1]))
        parts = []
        for some in rows.split(size):
            x = inputs[some].double()
            known = ~x.isnan()
            # Differences from the first row make the variance of a constant column exactly 0.
            if bool(known.all()):
                first = x[0].clone()
                difference = x.sub_(first)  # in place, because of the memory for large chunks
                mean = difference.mean(0)
                variance = difference.sub_(mean).square_().mean(0)
                parts.append(Moments(len(x), (first + mean).cpu(), variance.cpu()))
                continue
            # With missing values, they are differences from the first known value of each column.
            counts = known.sum(0).double()
            first = torch.where(counts > 0, x[known.int().argmax(0), torch.arange(x.shape[1], device=x.device)], 0.0)
            difference = torch.where(known, x - first, 0.0)
            mean = difference.sum(0) / counts.clamp(min=1)
            variance = torch.where(known, difference - mean, 0.0).square().sum(0) / counts.clamp(min=1)
            parts.append(Moments(len(x), (first + mean).cpu(), variance.cpu(), counts.cpu()))
        return combine(parts)

    def check(self, name: str) -> None:
        """Raise InputError if no rows could have these moments."""
        good = (self.mean.abs() <= LARGEST) & (self.variance >= 0) & (self.variance <= LARGEST**2)
        if self.counts is not None:
            good &= (self.counts >= 0) & (self.counts <= self.count)
        if self.count >= 1 and bool(good.all()):
            return
        column = int((~good).int().argmax())
        raise InputError(
            f"{name}: invalid statistics of column {column + 1}: mean {float(self.mean[column]):g}, "
            f"variance {float(self.variance[column]):g}, {self.count} rows. Check its data, or set "
            "standardise to false",
            code="invalid-statistics",
            field=name,
        )


def combine(parts: Sequence[Moments], capped: bool = False) -> Moments:
    """Combine the moments of at least one group of rows into those of all rows.

    If ``capped``, one group counts for at most three times the rows of the others.
    """
    if len(parts) == 1:
        return parts[0]
    has_missing = any(part.counts is not None for part in parts)
    # The number of values per group and column, (k, p); (k, 1) if none is missing.
    counts = torch.tensor([[part.count] for part in parts], dtype=torch.float64)
    if has_missing:
        known = [torch.full_like(part.mean, part.count) if part.counts is None else part.counts for part in parts]
        counts = torch.stack(known)
    if capped:
        # A site that claims very many rows must not determine the scale alone.
        most = 3 * (counts.sum(0) - counts.amax(0))
        counts = torch.where(most > 0, counts.minimum(most), counts)
    means, variances = (torch.stack([getattr(part, name) for part in parts]) for name in ("mean", "variance"))
    rows, of_columns = sum(part.count for part in parts), counts.sum(0) if has_missing else None
    return Moments(rows, *_combine(counts, means, variances), of_columns)


def client_moments(inputs: Tensor, clients: Sequence[Tensor], names: Sequence[str]) -> Moments:
    """Compute the moments of all clients' rows together, from each client's moments."""
    n, p = len(clients), inputs.shape[1]
    # Use tensors, not a list of moments: a million of them would take gigabytes.
    counts, means = torch.empty(n, 1, dtype=torch.float64), torch.empty(n, p, dtype=torch.float64)
    variances, has_missing = torch.empty_like(means), False
    for i, (name, rows) in enumerate(zip(names, clients, strict=True)):
        own = Moments.of(inputs, rows)
        own.check(f"client '{name}'")
        if own.counts is not None and not has_missing:
            has_missing, counts = True, counts.expand(n, p).clone()
        counts[i] = own.count if own.counts is None else own.counts
        means[i], variances[i] = own.mean, own.variance
    of_columns = counts.sum(0) if has_missing else None
    return Moments(sum(map(len, clients)), *_combine(counts, means, variances), of_columns)


def _combine(counts: Tensor, means: Tensor, variances: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance (p,) from counts (k, p) or (k, 1), means and variances (k, p), by Chan's formula."""
    weights = counts / counts.sum(0).clamp(min=1)
    # Compute relative to the first group's mean, so that equal means give exactly this mean.
    first = means[0] if bool((counts > 0).all()) else means.gather(0, (counts > 0).int().argmax(0)[None])[0]
    mean = first + (weights * (means - first)).sum(0)
    return mean, (weights * (variances + (means - mean).square())).sum(0)


@dataclass(frozen=True, eq=False)
class Standardisation:
    """Mean and scale of each column in raw units: x becomes (x − mean)/scale.

    Args:
        mean: (p,) float64, finite.
        scale: (p,) float64, finite and positive: the standard deviation, or 1 for a constant column.

    Raises:
        InputError: If a vector does not match this description.
    """

    mean: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        for name, values in (("mean", self.mean), ("scale", self.scale)):
            if values.ndim != 1 or values.dtype != torch.float64 or values.shape != self.mean.shape:
                raise InputError(
                    f"the {name} of a standardisation must be a float64 vector with one number per "
                    f"column, got {values.dtype} of shape {tuple(values.shape)}",
                    code="wrong-type",
                    field=name,
                )
        if not bool((self.mean.isfinite() & self.scale.isfinite() & (self.scale > 0)).all()):
            raise InputError(
                "the means of a standardisation must be finite, and its scales finite and positive",
                code="invalid-statistics",
            )

    @classmethod
    def of(cls, moments: Moments) -> Standardisation:
        """Standardise by the mean and the standard deviation of these moments."""
        return cls(moments.mean, _positive(moments.variance.sqrt()))

    def apply(self, inputs: Tensor) -> Tensor:
        """Return a standardised copy of the pool (n, p) with the same type; computations are in float64.

        The copy of a pool in a file that is mapped into memory is in a temporary file, which is mapped too.

        Raises:
            InputError: If the number of columns differs, or the pool is not floating-point.
        """
        if not is_table(inputs) or inputs.shape[1] != len(self.mean):
            raise InputError(
                f"cannot standardise inputs of type {inputs.dtype} and shape {tuple(inputs.shape)}: "
                f"expected floating-point inputs (n, {len(self.mean)})",
                code="wrong-shape",
                field="inputs",
            )
        # Scale with the layer that is saved with a model, so that both round in the same way.
        layer = Standardise(self).to(inputs.device)
        scaled = empty_in_file(inputs) if is_mapped(inputs) else torch.empty_like(inputs)
        size = max(1, SCALED_AT_A_TIME // max(1, inputs.shape[1]))
        for part, out in zip(inputs.split(size), scaled.split(size), strict=True):
            out.copy_(layer(part))
        return scaled

    def before(self, model: nn.Module) -> nn.Sequential:
        """Put the standardising layer in front of a model, so that it takes rows (B, p) in raw units.

        The layer is frozen: the trainable parameters are the model's own, in the same order.
        """
        # Put the layer on the device of the model's parameters, if it has any.
        parameter = next(model.parameters(), self.mean)
        layer = Standardise(self).to(parameter.device)
        found = nn.Sequential(OrderedDict(standardise=layer, model=model))
        # Set the mode directly, because train() would also change layers that the user has put into eval mode.
        found.training = model.training
        return found


class Standardise(nn.Module):
    """The layer (x − mean)/scale, computed in float64. It has no trainable parameters.

    A missing value (NaN) becomes 0, the mean of its column.

    Args:
        by: Mean and scale.
        dtype: Type of the result; None for that of x.
    """

    def __init__(self, by: Standardisation, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        self.mean = nn.Parameter(by.mean.clone(), requires_grad=False)
        self.scale = nn.Parameter(by.scale.clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Standardise rows (B, p); integers become torch's default type."""
        # Scale in float64: subtracting a large mean in float32 would lose most digits.
        kind = self.dtype or (x.dtype if x.is_floating_point() else torch.get_default_dtype())
        scaled = (x.to(self.mean.dtype) - self.mean) / self.scale
        return torch.where(scaled.isnan(), 0.0, scaled).to(kind)


class BoundedStandardisation(NamedTuple):
    """A standardisation with a bounded influence of each site.

    Args:
        standardisation: The result.
        outlier: (p,) int64 The site whose statistics were limited, because they alone would more than double the
            column's scale; −1 if there is none.
        factor: (p,) float64 Scale with this site, as a multiple of the scale of the other sites.
    """

    standardisation: Standardisation
    outlier: Tensor
    factor: Tensor


def bound_standardisation(parts: Sequence[Moments]) -> BoundedStandardisation:
    """Combine the moments reported by N sites, so that no single site determines a column's scale.

    For each column and site i, let sᵢ be the standard deviation over the other N − 1 sites. The scale is first computed
    over all sites, then raised to at least max sᵢ/2, then lowered to at most min 2sᵢ. The scale with a site is
    therefore at most twice the scale without it. It is also at least half of it, unless the upper bound of another site
    requires less. In each of these statistics a site counts for at most three quarters of the rows, so that claiming
    many rows has no more effect than claiming a large variance. If a scale is lowered, the mean is limited to one scale
    from the mean of the other sites.

    If a column is constant at all other sites, there is no scale to compare with, and the statistics are used as
    reported. After scaling, the constant of the other sites is then within √3 of 0. With two sites, neither can be
    judged by the other: if their scales differ by more than a factor of four, the geometric mean is used.

    Args:
        parts: (N,) Moments of p columns, at least one, each checked with :meth:`Moments.check`.

    Returns:
        See :class:`BoundedStandardisation`; for N = 1, that site's mean and standard deviation.
    """
    whole, n = combine(parts, capped=True), len(parts)
    scale = whole.variance.sqrt()
    if n == 1:
        return BoundedStandardisation(Standardisation.of(whole), torch.full(scale.shape, -1), torch.ones_like(scale))
    # Each site is bounded by the scale of the others: it may at most double or halve it.
    others = [combine([*parts[:i], *parts[i + 1 :]], capped=True) for i in range(n)]
    alone = torch.stack([other.variance.sqrt() for other in others])
    # If a column is constant at all other sites, there is no scale to compare with.
    known = alone > 0
    if n == 2:
        known &= known.all(0)
    low = torch.where(known, alone, 0.0).amax(0) / 2
    least, outlier = torch.where(known, alone, torch.inf).min(0)
    high = 2 * least
    limited = scale.maximum(low).minimum(high)
    mean, moved = whole.mean, scale > high
    if n == 2:
        # If two sites contradict each other, the data do not show which is wrong. The geometric mean treats both
        # equally.
        limited = torch.where(low > high, (low * high).sqrt(), limited)
    else:
        near = torch.stack([other.mean for other in others]).gather(0, outlier[None])[0]
        mean = torch.where(moved, mean.maximum(near - limited).minimum(near + limited), mean)
    found = Standardisation(mean, _positive(limited))
    return BoundedStandardisation(found, torch.where(moved, outlier, -1), torch.where(moved, scale / least, 1.0))


def _positive(scale: Tensor) -> Tensor:
    """Replace 0 by 1, so that a constant column becomes 0."""
    return torch.where(scale > 0, scale, 1.0)
