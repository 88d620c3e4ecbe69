"""How a site has answered so far, and for how long one that does not is left alone."""

from __future__ import annotations

from dataclasses import asdict, dataclass

TOLERATED = 2
"""Exchanges in a row without a usable reply before a site is left out that at least keeps nobody waiting."""

LONGEST = 64
"""Exchanges at most that a site is left out of."""


@dataclass
class SiteHealth:
    """What is known of one site. It is forgotten with the server program.

    A site that gives no usable reply gets a strike, and is then left out of 1, 2, 4, … exchanges: at once where it was
    silent, as everybody has waited for it, else from the third strike in a row on. One usable reply clears it.

    Args:
        answered: exchanges in which it gave a usable reply.
        silent: exchanges in which nothing came in time.
        failed: exchanges in which its program raised.
        rejected: exchanges in which what came could not be used.
        left_out: exchanges in which it was not asked although it was wanted.
        data_changed: whether a reply was computed on other data than those it had told of before the run.
        strikes: exchanges without a usable reply since the last one with.
        backoff: exchanges that it is still left out of.
    """

    answered: int = 0
    silent: int = 0
    failed: int = 0
    rejected: int = 0
    left_out: int = 0
    data_changed: bool = False
    strikes: int = 0
    backoff: int = 0

    def good(self) -> None:
        """It gave a usable reply."""
        self.answered += 1
        self.strikes = self.backoff = 0

    def bad(self, how: str) -> None:
        """It gave none: "silent", "failed" or "rejected"."""
        setattr(self, how, getattr(self, how) + 1)
        self.strikes += 1
        free = 0 if how == "silent" else TOLERATED
        if self.strikes > free:
            self.backoff = min(LONGEST, 2 ** (self.strikes - free - 1))

    def skip(self) -> None:
        """An exchange goes by without it."""
        self.left_out += 1
        self.backoff -= 1

    def counts(self) -> dict[str, int | bool]:
        """For ``traffic.json``."""
        return asdict(self)
