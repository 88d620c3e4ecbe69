"""Look at the way to the SuperLink: name, TCP, TLS, HTTP."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from drfl.deploy.check.verdict import Verdict, bad, ok
from drfl.deploy.folder import Address

PATIENCE = 5.0
"""Seconds that a connection, or an answer on it, may take."""

QUESTION = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"

WRONG_HOST = 62, 64
"""OpenSSL's numbers for a certificate that is for another name or address."""

EXPIRED = 10
"""OpenSSL's number for a certificate that has expired."""


def reach(address: Address, authority: Path) -> Iterator[Verdict]:
    """Connect to the SuperLink as a site does.

    Args:
        address: where it is.
        authority: the certificate to know it by; not looked at where the deployment is insecure.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=PATIENCE):
            yield ok("SuperLink", f"something listens at {address}")
    except OSError as error:
        yield bad("SuperLink", _unreachable(address, error))
        return
    yield _plain(address) if address.insecure else _encrypted(address, authority)


def _unreachable(address: Address, error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {address.host} is not known here; correct it in superlink.env, or in the name service"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {address}; start it with ./start-superlink.sh on its machine"
    if isinstance(error, TimeoutError):
        return f"no answer from {address}; a firewall may be in between: open the port for this machine"
    return f"cannot connect to {address} ({error.strerror or error}); look at the network"


def _encrypted(address: Address, authority: Path) -> Verdict:
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        return bad("TLS", f"{authority} is missing or no certificate; run ./make-keys.sh on the SuperLink's machine")
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as wrapped,
        ):
            return _http(wrapped, f"{wrapped.version()}, and it is the SuperLink that {authority.name} vouches for")
    except ssl.SSLCertVerificationError as error:
        return bad("TLS", _mistrust(address, authority, error))
    except OSError as error:
        if _speaks_http(address):
            return bad("TLS", f"plain HTTP at {address} where TLS is expected; start it with ./start-superlink.sh")
        return bad("TLS", _stranger(address, error))


def _mistrust(address: Address, authority: Path, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in WRONG_HOST:
        return f"the certificate is not for {address.host}; correct the names in make-keys.sh, or ADDRESS"
    if error.verify_code == EXPIRED:
        return "the certificate has expired; make a new one, as make-keys.sh says"
    return (
        f"{authority} does not vouch for the SuperLink at {address} ({error.verify_message}); "
        "copy certificates/ca.crt of its machine to this place, or another SuperLink answers"
    )


def _plain(address: Address) -> Verdict:
    if _speaks_http(address):
        return ok("HTTP", "it speaks plain HTTP, as the deployment is insecure")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=address.host),
        ):
            return bad("HTTP", f"TLS at {address} where plain HTTP is expected; take the folder made with --insecure")
    except OSError as error:
        return bad("HTTP", _stranger(address, error))


def _http(connection: socket.socket, text: str) -> Verdict:
    connection.sendall(QUESTION)
    if connection.recv(5) == b"HTTP/":
        return ok("TLS", text)
    return bad("TLS", "what answers speaks no HTTP, so it is no SuperLink; look which program has the port")


def _speaks_http(address: Address) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=PATIENCE) as connection:
            connection.sendall(QUESTION)
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _stranger(address: Address, error: OSError) -> str:
    told = getattr(error, "reason", None) or error.strerror or type(error).__name__
    word = str(told).lower().replace("_", " ")
    return f"what listens at {address} is no SuperLink ({word}); look which program has the port"
