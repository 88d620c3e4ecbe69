"""Track how each site of a deployment answers, and for how long a site that does not answer is skipped."""

from __future__ import annotations

from dataclasses import dataclass

TOLERATED = 2
"""Number of failed or rejected exchanges in a row after which a site is skipped."""

LONGEST = 64
"""Maximum number of exchanges for which a site is skipped."""


@dataclass
class SiteHealth:
    """The history of one site's answers. It is not part of a checkpoint.

    A site that gives no usable reply gets a strike, and is then skipped for 1, 2, 4, … exchanges. A silent site, which
    makes the server wait, is skipped from the first strike; other sites from the third strike in a row. One usable
    reply resets the strikes.

    Args:
        answered: Number of exchanges with a usable reply.
        silent: Number of exchanges without a reply in time.
        failed: Number of exchanges in which the site's program raised an exception.
        rejected: Number of exchanges in which the reply was rejected.
        left_out: Number of exchanges in which the site was skipped although it was in the cohort.
        data_changed: Whether a reply was computed from other data than those described before the run.
        strikes: Number of exchanges without a usable reply since the last usable one.
        backoff: Number of exchanges for which the site is still skipped.
    """

    answered: int = 0
    silent: int = 0
    failed: int = 0
    rejected: int = 0
    left_out: int = 0
    data_changed: bool = False
    strikes: int = 0
    backoff: int = 0

    def record_usable(self) -> None:
        """Record a usable reply."""
        self.answered += 1
        self.strikes = self.backoff = 0

    def record_unusable(self, how: str) -> None:
        """Record that there was no usable reply, because the site was "silent", "failed" or "rejected"."""
        setattr(self, how, getattr(self, how) + 1)
        self.strikes += 1
        # A silent site costs the whole timeout; an error costs no time.
        tolerated = 0 if how == "silent" else TOLERATED
        if self.strikes > tolerated:
            # The backoff doubles up to a limit, so that a site that recovers takes part again.
            self.backoff = min(LONGEST, 2 ** (self.strikes - tolerated - 1))
