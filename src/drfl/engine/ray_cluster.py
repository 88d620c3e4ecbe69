"""The connection to a Ray cluster, an existing one or one started on this machine. No other module imports Ray."""

from __future__ import annotations

import os
import signal
import socket
import threading
from types import ModuleType
from typing import NamedTuple

from drfl.core.errors import InputError

LOCAL = "local"
"""The address that starts a cluster on this machine, which stops with the program."""

PATIENCE = 3.0
"""Seconds to wait for a cluster's head; Ray itself would try for minutes."""

RETRIES = 3
"""Number of times that the work of a lost worker is restarted elsewhere."""

LOST = "Ray workers were lost repeatedly, perhaps because they ran out of memory"

MISSING = "Ray is not installed: pip install 'drfl[ray]'"

_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first bytes that a gRPC client sends (RFC 9113, section 3.4): the preface and empty settings."""

_SETTINGS = 4
"""The type of the frame with which a server replies."""


class Cluster(NamedTuple):
    """The address and size of a Ray cluster.

    Args:
        address: HOST:PORT of a running cluster's head, or "local" to start a cluster on this machine. None = the
            cluster to which this program is connected, else the environment's RAY_ADDRESS, else "local".
        cpus: Number of CPUs of a cluster started here; None = all cores.
    """

    address: str | None = None
    cpus: int | None = None

    def connected(self) -> ModuleType:
        """Connect to the cluster and return the ray module; an existing connection is kept, even to another address.

        Raises:
            InputError: If Ray is not installed, or the cluster does not reply or has another version of Ray.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # disables Ray's usage reports
        try:
            import ray
        except ModuleNotFoundError:
            raise InputError(MISSING, code="package-missing", field="ray") from None
        if ray.is_initialized():
            return ray
        address = self.address or os.environ.get("RAY_ADDRESS") or LOCAL
        options = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == LOCAL:
            options |= {"num_cpus": self.cpus or os.cpu_count(), "include_dashboard": False}
        else:
            # Ray itself would try a wrong address for minutes.
            host, _, port = address.rpartition(":")
            if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise InputError(
                    f"'{address}' is not a valid Ray address. Use HOST:PORT of the cluster's head, or {LOCAL}.",
                    code="invalid-value",
                    field="ray",
                )
            try:
                with socket.create_connection((host, int(port)), PATIENCE) as connection:
                    connection.settimeout(PATIENCE)
                    connection.sendall(_HELLO)
                    reply = connection.recv(9)
            except OSError as error:
                why = error.strerror or str(error)
                raise InputError(
                    f"no Ray cluster replies at {address} ({why}). Start one with 'ray start --head'.",
                    code="cluster-unreachable",
                    field=address,
                ) from None
            # A gRPC server replies with its settings. Other servers close the connection or send something else.
            if len(reply) < 4 or reply[3] != _SETTINGS:
                raise InputError(
                    f"the server at {address} is not a Ray cluster. Use HOST:PORT of the cluster's head.",
                    code="cluster-unreachable",
                    field=address,
                )
        main = threading.current_thread() is threading.main_thread()
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            why = " ".join(str(error).split()).partition(". ")[0]
            raise InputError(
                f"cannot use the Ray cluster at {address} ({why:.200})", code="cluster-unreachable", field=address
            ) from None
        finally:
            if main and before is not None:  # Ray installs its own handler
                signal.signal(signal.SIGTERM, before)
        return ray
