"""How each site of a deployment has answered so far, and for how long one that does not answer is skipped."""

from __future__ import annotations

from dataclasses import asdict, dataclass

TOLERATED = 2
"""Exchanges in a row without a usable reply after which a site that answers at once is skipped."""

LONGEST = 64
"""Exchanges at most for which a site is skipped."""


@dataclass
class SiteHealth:
    """How one site has answered so far. It is not part of a checkpoint.

    A site that gives no usable reply gets a strike, and is then skipped for 1, 2, 4, … exchanges: at once where it was
    silent, which made the server wait, else from the third strike in a row on. One usable reply clears it.

    Args:
        answered: exchanges in which it gave a usable reply.
        silent: exchanges in which no reply came in time.
        failed: exchanges in which its program raised.
        rejected: exchanges in which the reply could not be used.
        left_out: exchanges in which it was skipped though it was in the cohort.
        data_changed: whether a reply was computed on other data than those described before the run.
        strikes: exchanges without a usable reply since the last one with.
        backoff: exchanges for which it is still skipped.
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
        # A silent site costs the whole timeout; an error costs no time.
        free = 0 if how == "silent" else TOLERATED
        if self.strikes > free:
            # The backoff doubles up to a limit, so that a site that recovers takes part again.
            self.backoff = min(LONGEST, 2 ** (self.strikes - free - 1))

    def skip(self) -> None:
        """It is skipped in an exchange."""
        self.left_out += 1
        self.backoff -= 1

    def counts(self) -> dict[str, int | bool]:
        """For ``traffic.json``."""
        return asdict(self)
