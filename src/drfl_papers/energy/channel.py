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
"""Points of the quadrature behind the expected time; the integrand is smooth in the variable chosen."""

TAIL = 60.0
"""Where the quadrature ends: gains this far above the threshold have probability e^-60."""

WIDEST_DB = 300.0
"""A larger SNR, up or down, is taken for a slip: the ratio in dB, not linear, is asked for."""


class Link(Protocol):
    """A way from N clients to the server, or back."""

    def seconds(self, bits: Tensor) -> Tensor:
        """(N,) float64 seconds that it takes each client to send so many bits (N,) or ()."""
        ...


@dataclass(frozen=True, eq=False)
class Channel:
    """N channels of constant quality with capacity R_i = B_i·log₂(1 + SNR_i) (Shannon 1948).

    Args:
        bandwidth: (N,) B_i in Hz, each above 0.
        snr_db: (N,) signal-to-noise ratios in dB; 0 dB is a ratio of 1.

    Raises:
        InputError: the two differ in length, or a value is out of range.
    """

    bandwidth: Tensor
    snr_db: Tensor

    def __post_init__(self) -> None:
        for name in ("bandwidth", "snr_db"):
            object.__setattr__(self, name, torch.as_tensor(getattr(self, name), dtype=torch.float64))
        if self.bandwidth.dim() != 1 or self.bandwidth.shape != self.snr_db.shape or not self.bandwidth.numel():
            raise InputError(
                f"bandwidth and snr_db must be two vectors of one length, a value a client, not of shapes "
                f"{tuple(self.bandwidth.shape)} and {tuple(self.snr_db.shape)}",
                code="wrong-shape",
                field="bandwidth",
            )
        for hertz, db in zip(self.bandwidth.tolist(), self.snr_db.tolist(), strict=True):
            check(hertz, db)

    @classmethod
    def uniform(cls, n: int, bandwidth: float, snr_db: float) -> Channel:
        """The same channel, with this bandwidth in Hz and SNR in dB, for each of n clients."""
        checks.whole("clients", n)
        return cls(*(torch.full((n,), float(x), dtype=torch.float64) for x in (bandwidth, snr_db)))

    @property
    def snr(self) -> Tensor:
        """(N,) the ratios themselves, not in dB."""
        return 10 ** (self.snr_db / 10)

    def rates(self) -> Tensor:
        """(N,) R_i in bit/s."""
        return self.bandwidth * torch.log1p(self.snr) / math.log(2)

    def seconds(self, bits: Tensor) -> Tensor:
        """(N,) seconds that it takes each client to send so many bits, (N,) or ()."""
        return bits / self.rates()


def check(bandwidth: float, snr_db: float) -> None:
    """Raise an InputError unless the bandwidth in Hz is above 0 and the SNR in dB is finite and believable."""
    checks.positive("bandwidth", bandwidth)
    if not (math.isfinite(snr_db) and abs(snr_db) <= WIDEST_DB):
        raise InputError(
            f"snr must be a number of dB between -{WIDEST_DB:.0f} and {WIDEST_DB:.0f}, not {snr_db}",
            code="out-of-range",
            field="snr",
        )


@dataclass(frozen=True, eq=False)
class Rayleigh:
    """Rayleigh block fading: in a round client i has the SNR g_i·SNR_i, with g_i exponential of mean 1.

    The gains of different clients and rounds are independent. A client whose capacity is below ``rate_min`` is in
    outage; the others send at capacity (Tse and Viswanath 2005, §5.4).

    Args:
        channel: the N channels at gain 1.
        rate_min: the rate in bit/s below which nothing arrives, above 0. Without such a bound the expected time to
            send anything would be infinite.

    Raises:
        InputError: ``rate_min`` is not a finite number above 0.
    """

    channel: Channel
    rate_min: float

    def __post_init__(self) -> None:
        checks.positive("rate_min", self.rate_min)

    def thresholds(self) -> Tensor:
        """(N,) the gains (2^{R/B} − 1)/SNR below which clients are in outage."""
        return torch.expm1(self.rate_min / self.channel.bandwidth * math.log(2)) / self.channel.snr

    def outage(self) -> Tensor:
        """(N,) probability of an outage, 1 − exp(−(2^{R/B} − 1)/SNR)."""
        return -torch.expm1(-self.thresholds())

    def gains(self, key: Key) -> Tensor:
        """(N,) the gains g_i of the round with this key."""
        return torch.from_numpy(key.fold("fading").generator().standard_exponential(len(self.channel.snr)))

    def absent(self, key: Key) -> Tensor:
        """(N,) bool, who is in outage in the round with this key."""
        return self.gains(key) < self.thresholds()

    def seconds(self, bits: Tensor) -> Tensor:
        """(N,) expected seconds to send so many bits, (N,) or (), for a client that is not in outage.

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
        # A threshold so high that only gains at the threshold occur: they just reach the rate.
        found = np.where(np.isfinite(mean) & (mean > 0), mean, 1 / self.rate_min)
        return bits * torch.from_numpy(found)


class LinkConditions(NamedTuple):
    """A cell of the grid: what kind of channel all clients have.

    Args:
        snr_db: signal-to-noise ratio in dB.
        bandwidth: Hz.
        rate_min: with Rayleigh fading, the rate in bit/s below which a client is in outage; None = no fading.
    """

    snr_db: float
    bandwidth: float
    rate_min: float | None = None

    def fading(self, n: int) -> Rayleigh | None:
        """The fading channels of n such clients; None where nothing fades."""
        if self.rate_min is None:
            return None
        return Rayleigh(Channel.uniform(n, self.bandwidth, self.snr_db), self.rate_min)

    def link(self) -> Link:
        """The link of one such client."""
        return self.fading(1) or Channel.uniform(1, self.bandwidth, self.snr_db)

    @property
    def outage(self) -> float:
        """Probability that a client is in outage, rounded to six digits; 0 without fading."""
        fading = self.fading(1)
        return 0.0 if fading is None else round(float(fading.outage()[0]), 6)


@dataclass(frozen=True)
class OverChannel(WrappedAlgorithm[S]):
    """An algorithm whose clients drop out with their fading channels: one draw per client and round.

    The draw belongs to the round, not to a request: a client in outage in round r answers nothing in round r. Only the
    algorithm sees the key of the round, a federation sees what was folded from it, so the draw is made here and each
    round gets a federation of its own. Nothing is remembered from one round to the next.

    Args:
        algorithm: the algorithm inside.
        fading: the channels of all N clients.

    The draws depend on the seed, the round and the client, not on the algorithm: two of them lose the same clients.
    """

    fading: Rayleigh

    def round(self, state: S, fed: Federation, key: Key) -> tuple[S, Info]:
        """One round of the algorithm inside, without the answers of those in outage."""
        lossy = UnreliableFederation(fed, lost=LostReplies(self.fading.absent(key)))
        return self.algorithm.round(state, lossy, key)
