"""Traffic between the server and the sites, and how long it took."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass
class Traffic:
    """Counters of all messages since the program was started, without what Flower and HTTP add.

    Args:
        exchanges: how often the server asked the sites.
        messages: both ways, tests and repetitions included.
        bytes_down: from the server to the sites.
        bytes_up: from the sites to the server.
        test_bytes_down: those of ``bytes_down`` that only tested a model, alone or along with a request.
        test_bytes_up: those of ``bytes_up`` that came back from that.
        seconds: duration of the exchanges.
        site_seconds: working time of the sites, summed over messages.
        answers: how many messages that is.
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
        """Count a message to a site: its bytes, and those of them that only test a model."""
        self.messages += 1
        self.bytes_down += size
        self.test_bytes_down += tests

    def up(self, size: int, tests: int) -> None:
        """Count a reply in the same way."""
        self.messages += 1
        self.bytes_up += size
        self.test_bytes_up += tests

    def worked(self, seconds: float) -> None:
        """Count the working time that a site reports for a message."""
        self.answers += 1
        self.site_seconds += seconds

    def totals(self) -> dict[str, int | float]:
        """All counters by name."""
        return asdict(self)

    def told(self) -> str:
        """One line for the log."""
        work = self.site_seconds / max(1, self.answers)
        return (
            f"{self.exchanges} exchanges, {self.messages} messages in {self.seconds:.1f} s, of which a site worked "
            f"{work:.2f} s on each; {self.bytes_down} bytes to the sites, {self.bytes_up} from them, "
            f"{self.test_bytes_down} and {self.test_bytes_up} of these in tests alone"
        )
