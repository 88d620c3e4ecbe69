"""What a deployment consists of."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from drfl.errors import InputError

HOST, PORT = "localhost", 8000
"""Where the SuperLink is if nothing is said; the port is Flower's own default."""

FIRST_SITE_PORT = 9094
"""Port, on the site's loopback, of the first site's SuperNode; the next ones follow, as sites may share a machine."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True)
class Plan:
    """The sites, and where the SuperLink is.

    Args:
        sites: their names, in the order of the clients.
        host: name or address under which the sites reach the SuperLink.
        port: its port.
        insecure: without TLS and without keys.

    Raises:
        InputError: a name, the host or the port is impossible, or a name stands twice.
    """

    sites: tuple[str, ...]
    host: str = HOST
    port: int = PORT
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError("--sites is empty: give the sites' names with commas between, e.g. --sites a,b,c")
        for name in self.sites:
            if not _NAME.fullmatch(name):
                raise InputError(f"site '{name}': a name has letters, digits, - and _, starts with no sign, at most 63")
            if name.lower() == "superlink":
                raise InputError("a site cannot be named superlink: give it another name")
        if len({name.lower() for name in self.sites}) < len(self.sites):
            raise InputError("the names of sites must differ from each other, by more than capitals")
        if _address(self.host) is None and (
            len(self.host) > 253 or not all(_LABEL.fullmatch(label) for label in self.host.split("."))
        ):
            raise InputError(f"--host '{self.host}' is neither a name nor an address: give e.g. fl.example.org")
        if not 1 <= self.port <= 65535:
            raise InputError(f"--port must lie in 1..65535, not {self.port}")
        if self.port in self.site_ports:
            raise InputError(f"--port {self.port} is one of the sites' own ({FIRST_SITE_PORT} and on): give another")
        if self.site_ports[-1:] > (65535,):
            raise InputError(f"{len(self.sites)} sites are more than there are ports")

    @classmethod
    def of(cls, sites: str, host: str | None, port: int | None, insecure: bool) -> Plan:
        """The plan that the options of ``drfl deploy init`` say."""
        names: Sequence[str] = [name.strip() for name in sites.split(",")] if sites.strip() else []
        return cls(tuple(names), HOST if host is None else host, PORT if port is None else port, insecure)

    @property
    def address(self) -> str:
        """host:port, as Flower takes it."""
        found = _address(self.host)
        host = f"[{self.host}]" if isinstance(found, ipaddress.IPv6Address) else self.host
        return f"{host}:{self.port}"

    @property
    def bind(self) -> str:
        """The address that the SuperLink listens on: the loopback where no other machine can mean it anyway."""
        found = _address(self.host)
        if self.host == "localhost" or (found is not None and found.is_loopback):
            return "127.0.0.1" if found is None else str(found)
        return "::" if isinstance(found, ipaddress.IPv6Address) else "0.0.0.0"

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the SuperLink's certificate, as openssl takes them: also those used on its own machine."""
        own = f"IP:{self.host}" if _address(self.host) is not None else f"DNS:{self.host}"
        return tuple(dict.fromkeys((own, "DNS:localhost", "DNS:superlink", "IP:127.0.0.1", "IP:::1")))

    @property
    def site_ports(self) -> tuple[int, ...]:
        """For each site, the port of its SuperNode for its own child processes."""
        return tuple(FIRST_SITE_PORT + index for index in range(len(self.sites)))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
