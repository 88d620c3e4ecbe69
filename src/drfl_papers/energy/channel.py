"""Radio channels: Shannon rate, Rayleigh fading, and clients in outage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.federation.algorithm import Info
from drfl.federation.federation import Federation
from drfl.resilience.failures import LostReplies, UnreliableFederation
from drfl.resilience.wrappers import S, WrappedAlgorithm

NODES = 256
"""Nodes of the quadrature for the expected time; the integrand is smooth in the chosen variable."""

TAIL = 60.0
"""End of the quadrature: gains this far above the threshold have probability e^-60."""

WIDEST_DB = 300.0
"""A larger SNR, positive or negative, is rejected as a mistake: the ratio must be in dB, not linear."""


class Link(Protocol):
    """A link from N clients to the server, or back."""

    def seconds(self, bits: Tensor) -> Tensor:
        """Return the (N,) float64 seconds that each client takes to send a number of bits, (N,) or ()."""
        ...


@dataclass(frozen=True, eq=False)
class Channel:
    """N channels of constant quality with capacity R_i = B_i·log₂(1 + SNR_i) (Shannon 1948).

    Args:
        bandwidth: (N,) B_i in Hz, each above 0.
        snr_db: (N,) signal-to-noise ratios in dB; 0 dB is a ratio of 1.

    Raises:
        InputError: If the two differ in length, or a value is out of range.
    """

    bandwidth: Tensor
    snr_db: Tensor

    def __post_init__(self) -> None:
        for name in ("bandwidth", "snr_db"):
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name), dtype=torch.float64))
        if self.bandwidth.dim() != 1 or self.bandwidth.shape != self.snr_db.shape or not self.bandwidth.numel():
            raise InputError(
                f"bandwidth and snr_db must be vectors of equal length, one value per client, got shapes "
                f"{tuple(self.bandwidth.shape)} and {tuple(self.snr_db.shape)}",
                code="wrong-shape",
                field="bandwidth",
            )
        for hertz, db in zip(self.bandwidth.tolist(), self.snr_db.tolist(), strict=True):
            check(hertz, db)

    @classmethod
    def uniform(cls, n: int, bandwidth: float, snr_db: float) -> Channel:
        """Make the same channel, with this bandwidth in Hz and SNR in dB, for each of n clients."""
        checks.integer("clients", n)
        return cls(*(torch.full((n,), float(x), dtype=torch.float64) for x in (bandwidth, snr_db)))

    @property
    def snr(self) -> Tensor:
        """(N,) linear signal-to-noise ratios."""
        return 10 ** (self.snr_db / 10)

    def rates(self) -> Tensor:
        """Return (N,) R_i in bit/s."""
        # log1p, because 1 + SNR would round a very small ratio away.
        return self.bandwidth * torch.log1p(self.snr) / math.log(2)

    def seconds(self, bits: Tensor) -> Tensor:
        """Return the (N,) seconds that each client takes to send a number of bits, (N,) or ()."""
        return bits / self.rates()


def check(bandwidth: float, snr_db: float) -> None:
    """Raise an InputError unless the bandwidth in Hz is above 0 and the SNR in dB is finite and plausible."""
    checks.positive("bandwidth", bandwidth)
    if not (math.isfinite(snr_db) and abs(snr_db) <= WIDEST_DB):
        raise InputError(
            f"snr must be between -{WIDEST_DB:.0f} and {WIDEST_DB:.0f} dB, got {snr_db}",
            code="out-of-range",
            field="snr",
        )


@dataclass(frozen=True, eq=False)
class Rayleigh:
    """Rayleigh block fading: in each round client i has the SNR g_i·SNR_i, with g_i exponential of mean 1.

    The gains of different clients and rounds are independent. A client whose capacity is below ``rate_min`` is in
    outage; the others send at capacity (Tse and Viswanath 2005, §5.4).

    Args:
        channel: The N channels at gain 1.
        rate_min: Rate in bit/s below which nothing arrives, above 0. Without this bound the expected time to send
            anything would be infinite.

    Raises:
        InputError: If ``rate_min`` is not a finite number above 0.
    """

    channel: Channel
    rate_min: float

    def __post_init__(self) -> None:
        checks.positive("rate_min", self.rate_min)

    def thresholds(self) -> Tensor:
        """Return the (N,) gains (2^{R/B} − 1)/SNR below which clients are in outage."""
        # expm1, because 2^{R/B} − 1 would cancel if the rate is far below the bandwidth.
        return torch.expm1(self.rate_min / self.channel.bandwidth * math.log(2)) / self.channel.snr

    def outage(self) -> Tensor:
        """Return the (N,) probabilities of an outage, 1 − exp(−(2^{R/B} − 1)/SNR)."""
        return -torch.expm1(-self.thresholds())

    def gains(self, key: Key) -> Tensor:
        """Draw the (N,) gains g_i of the round with this key."""
        return torch.from_numpy(key.fold("fading").generator().standard_exponential(len(self.channel.snr)))

    def absent(self, key: Key) -> Tensor:
        """Return (N,) bool, whether each client is in outage in the round with this key."""
        return self.gains(key) < self.thresholds()

    def seconds(self, bits: Tensor) -> Tensor:
        """Return the (N,) expected seconds to send a number of bits, (N,) or (), for a client not in outage.

        E[1/R | g ≥ g₀] = e^{g₀} ∫_{g₀}^∞ e^{−g} / (B·log₂(1 + g·SNR)) dg, by Gauss–Legendre quadrature in
        z = ln(g/g₀), in which the pole at g = 0 is far away.
        """
        low, snr, bandwidth = (
            t.numpy()[:, None] for t in (self.thresholds(), self.channel.snr, self.channel.bandwidth)
        )
        nodes, weights = np.polynomial.legendre.leggauss(NODES)
        with np.errstate(invalid="ignore", over="ignore"):
            end = np.log1p(TAIL / low)
            above = low * np.expm1((nodes + 1) / 2 * end)  # g − g₀
            gain = low + above
            inverse = np.exp(-above) * gain * np.log(2) / (bandwidth * np.log1p(gain * snr))
            mean = (inverse * weights).sum(1) * end[:, 0] / 2
        # If the threshold is very high, only gains at the threshold occur: they just reach the rate.
        per_bit = np.where(np.isfinite(mean) & (mean > 0), mean, 1 / self.rate_min)
        return bits * torch.from_numpy(per_bit)


class LinkConditions(NamedTuple):
    """A cell of the grid: the channel that all clients have.

    Args:
        snr_db: Signal-to-noise ratio in dB.
        bandwidth: Bandwidth in Hz.
        rate_min: With Rayleigh fading, the rate in bit/s below which a client is in outage; None for no fading.
    """

    snr_db: float
    bandwidth: float
    rate_min: float | None = None

    def fading(self, n: int) -> Rayleigh | None:
        """Return the fading channels of n clients with these conditions; None without fading."""
        if self.rate_min is None:
            return None
        return Rayleigh(Channel.uniform(n, self.bandwidth, self.snr_db), self.rate_min)

    def link(self) -> Link:
        """Return the link of one client with these conditions."""
        return self.fading(1) or Channel.uniform(1, self.bandwidth, self.snr_db)

    @property
    def outage(self) -> float:
        """The probability that a client is in outage, rounded to six digits; 0 without fading."""
        fading = self.fading(1)
        return 0.0 if fading is None else round(float(fading.outage()[0]), 6)


@dataclass(frozen=True)
class OverChannel(WrappedAlgorithm[S]):
    """An algorithm with client dropout by fading channels: one draw per client and round.

    The draw belongs to the round, not to a request: a client in outage in a round answers nothing in that round. Only
    the algorithm sees the key of the round; a federation sees keys folded from it. So the draw is made here, and each
    round gets a new federation. Nothing is remembered from one round to the next.

    Args:
        algorithm: The wrapped algorithm.
        fading: The channels of all N clients.

    The draws depend on the seed, the round and the client, not on the algorithm: two algorithms lose the same clients.
    """

    fading: Rayleigh

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """Run one round of the wrapped algorithm without the replies of clients in outage."""
        lossy = UnreliableFederation(fed, lost=LostReplies(self.fading.absent(key)))
        return self.algorithm.round(state, lossy, key)
