"""The connection to a Ray cluster: a running one, or one of this machine's own. Nothing else imports Ray."""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import ModuleType
from typing import NamedTuple

from drfl.core.errors import InputError

LOCAL = "local"
"""The address that begins a cluster on this machine, which ends with the program."""

PATIENCE = 3.0
"""Seconds that a cluster's head has to answer; Ray itself would try for minutes."""

RETRIES = 3
"""How often what a lost worker was doing is begun anew elsewhere."""

LOST = "a Ray worker was lost again and again, perhaps for its memory"

MISSING = "a Ray cluster needs Ray: pip install 'drfl[ray]'"

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a client of gRPC says first (RFC 9113, section 3.4): the preface and empty settings."""

_SETTINGS = 4
"""The type of the frame that a server answers with."""


class Cluster(NamedTuple):
    """Where Ray's workers are.

    Args:
        address: "local" begins a cluster on this machine; HOST:PORT is that of a running one's head; None = the cluster
            that this program is connected to, else that of the environment's RAY_ADDRESS, else "local".
        cpus: of a cluster that is begun here; None = as many as cores.
    """

    address: str | None = None
    cpus: int | None = None

    def connected(self) -> ModuleType:
        """Ray, connected; once a program is connected it stays so, whatever the address.

        Raises:
            InputError: Ray is missing, or the cluster does not answer or is of another version.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray tells its makers of every cluster
        try:
            import ray
        except ModuleNotFoundError:
            raise InputError(MISSING, code="package-missing", field="ray") from None
        if not ray.is_initialized():
            address = self.address or os.environ.get("RAY_ADDRESS") or LOCAL
            options = {"log_to_driver": False, "logging_level": "ERROR"}
            if address == LOCAL:
                options |= {"num_cpus": self.cpus or os.cpu_count(), "include_dashboard": False}
            else:
                _reach(address)
            main = threading.current_thread() is threading.main_thread()
            before = signal.getsignal(signal.SIGTERM)
            try:
                ray.init(address=address, **options)
            except (OSError, RuntimeError, ValueError) as error:
                why = " ".join(str(error).split()).partition(". ")[0]
                raise InputError(
                    f"cannot use the Ray cluster {address} ({why:.200})", code="cluster-unreachable", field=address
                ) from None
            finally:
                if main and before is not None:  # Ray puts its own handler there
                    signal.signal(signal.SIGTERM, before)
        return ray


def _reach(address: str) -> None:
    """Make sure that something like a cluster's head is at HOST:PORT.

    Raises:
        InputError: it is no such address, or nothing answers there.
    """
    # Ray itself would try a wrong address for minutes.
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise InputError(
            f"'{address}' is no address of a Ray cluster: give HOST:PORT of its head, or {LOCAL}",
            code="invalid-value",
            field="ray",
        )
    try:
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(_HELLO)
            answered = connection.recv(9)
    except OSError as error:
        why = error.strerror or str(error)
        raise InputError(
            f"no Ray cluster answers at {address} ({why}): 'ray start --head' begins one",
            code="cluster-unreachable",
            field=address,
        ) from None
    # A gRPC server answers with its settings. Others close the connection or send something else.
    if len(answered) < 4 or answered[3] != _SETTINGS:
        raise InputError(
            f"what answers at {address} is no Ray cluster: give HOST:PORT of its head",
            code="cluster-unreachable",
            field=address,
        )
