"""Counters of the traffic between the server and the sites."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Traffic:
    """Counters of all messages since the start of the program, without the overhead of Flower and HTTP.

    Args:
        exchanges: Number of exchanges with the sites.
        messages: Number of messages in both directions, tests and repetitions included.
        bytes_down: Bytes from the server to the sites.
        bytes_up: Bytes from the sites to the server.
        test_bytes_down: Part of ``bytes_down`` that was needed only for tests, whether sent alone or with a request.
        test_bytes_up: Part of ``bytes_up`` in replies to messages that only requested a test.
        seconds: Total duration of the exchanges.
        site_seconds: Working time of the sites, summed over replies.
        answers: Number of replies in ``site_seconds``.
    """

    exchanges: int = 0
    messages: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    test_bytes_down: int = 0
    test_bytes_up: int = 0
    seconds: float = 0.0
    site_seconds: float = 0.0
    answers: int = 0

    def down(self, size: int, tests: int) -> None:
        """Count a message to a site, of which ``tests`` bytes are needed only for a test."""
        self.messages += 1
        self.bytes_down += size
        self.test_bytes_down += tests

    def up(self, size: int, tests: int) -> None:
        """Count a reply, of which ``tests`` bytes are needed only for a test."""
        self.messages += 1
        self.bytes_up += size
        self.test_bytes_up += tests

    def summary_line(self) -> str:
        """Summarise the counters in one line for the log."""
        work = self.site_seconds / max(1, self.answers)
        return (
            f"{self.exchanges} exchanges with {self.messages} messages took {self.seconds:.1f} s; sites worked "
            f"{work:.2f} s per reply; {self.bytes_down} bytes to the sites ({self.test_bytes_down} only for tests), "
            f"{self.bytes_up} bytes from the sites ({self.test_bytes_up} only for tests)"
        )
