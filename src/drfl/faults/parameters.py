"""What can happen to clients in a round, and how it is drawn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from drfl import checks
from drfl.errors import InputError
from drfl.key import Key

JITTER = 0.5
"""Standard deviation of the logarithm of a client's time, where times matter and none is given."""

MOST = {
    "outage_rounds": (1_000_000, "more is an outage for good"),
    "slowdown": (1_000_000, "who is slower is as good as dropped"),
    "deadline": (1_000_000_000, "leave it out to wait for everybody"),
    "jitter": (10, "e^10 is a factor of 22026 either way"),
}
"""The largest values, far beyond any use, with which no time overflows; and what they mean."""


@dataclass(frozen=True)
class Faults:
    """How clients fail; without arguments nothing does.

    Every draw belongs to a seed, a round and a client, and those by request to its kind as well, never to the
    algorithm. One uniform number decides each: whoever is lost at a probability is lost at every larger one too.

    Args:
        drop: probability that a client does not take part in a round: no request reaches it, it answers none and does
            no work. One number, or a tuple of N, one a client.
        crash: probability that a client trains in a round and its local model is lost; its other answers arrive.
        outage: probability that a group of clients that is up goes down in a round; its clients are then dropped.
        groups: how many groups; client i is in group i mod ``groups``.
        outage_rounds: how many rounds an outage lasts, the one it begins in included; at most 1,000,000.
        slow: share of the clients that are slow, the same ones throughout a run: of N, ``slow``·N to the nearest.
        slowdown: how many times as long as the others they take, in [1, 10⁶].
        deadline: when the server stops waiting for replies to a request, in local steps of an ordinary client, at
            most 10⁹; None = never. See :class:`drfl.faults.Timed`.
        jitter: standard deviation of the logarithm of the time that a client takes, around a mean of its own, in
            [0, 10]; None = 0.5 where there are slow clients or a deadline, and else nobody's time is drawn.
        duplicate: probability that a reply arrives twice. No algorithm takes that: something in between must remove
            the second.

    Where times are drawn replies are delivered in the order of their arrival, and else in that of the request.

    Raises:
        InputError: a value is out of range, or does not fit the number of clients (when first used).
    """

    drop: float | tuple[float, ...] = 0.0
    crash: float = 0.0
    outage: float = 0.0
    groups: int = 1
    outage_rounds: int = 1
    slow: float = 0.0
    slowdown: float = 10.0
    deadline: float | None = None
    jitter: float | None = None
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        for i, probability in enumerate(self.drop if isinstance(self.drop, tuple) else ()):
            checks.fraction(f"drop of client {i}", probability)
        shares = {"crash": self.crash, "outage": self.outage, "slow": self.slow, "duplicate": self.duplicate}
        if not isinstance(self.drop, tuple):
            shares["drop"] = self.drop
        for name, share in shares.items():
            checks.fraction(name, share)
        checks.whole("groups", self.groups)
        checks.whole("outage_rounds", self.outage_rounds)
        checks.positive("slowdown", self.slowdown)
        if self.slowdown < 1:
            raise InputError(f"slowdown must be at least 1, not {self.slowdown}: 1 is an ordinary client's pace")
        if self.deadline is not None:
            checks.positive("deadline", self.deadline)
        if self.jitter is not None:
            checks.non_negative("jitter", self.jitter)
        for name, (high, why) in MOST.items():
            value = getattr(self, name)
            if value is not None:
                checks.at_most(name, value, high, why)

    def check(self, n: int) -> None:
        """Raise an :class:`InputError` unless this fits n clients."""
        if isinstance(self.drop, tuple) and len(self.drop) != n:
            raise InputError(f"drop has {len(self.drop)} probabilities, but there are {n} clients: give one for each")
        if self.groups > n:
            raise InputError(f"groups={self.groups} must be at most the number of clients, {n}")

    def dropped(self, n: int, key: Key) -> Tensor:
        """(n,) bool, who does not take part in the round with this key."""
        return _uniform(n, key.fold("drop")) < torch.tensor(self.drop, dtype=torch.float64)

    def crashed(self, n: int, key: Key) -> Tensor:
        """(n,) bool, whose local model is lost in the round with this key."""
        return _uniform(n, key.fold("crash")) < self.crash

    def struck(self, down: Tensor, key: Key) -> Tensor:
        """(groups,) int64, how many rounds each group's outage still lasts, that of this key included; 0 = it is up.

        Args:
            down: (groups,) int64, the same without any outage that begins in this round.
            key: the round's.
        """
        begins = (down == 0) & (_uniform(len(down), key.fold("outage")) < self.outage)
        return torch.where(begins, self.outage_rounds, down)

    def pace(self, n: int, key: Key) -> Tensor:
        """(n,) float64, how many times as long as an ordinary client each takes; all keys of a seed give the same."""
        rank = _uniform(n, Key(key.seed).fold("slow")).argsort().argsort()
        return torch.where(rank < int(self.slow * n + 0.5), self.slowdown, 1.0).double()

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm of a client's time; None where nobody's time is drawn."""
        if self.jitter is None:
            return JITTER if self.slow > 0 or self.deadline is not None else None
        return self.jitter


def _uniform(n: int, key: Key) -> Tensor:
    return torch.from_numpy(key.generator().random(n))
