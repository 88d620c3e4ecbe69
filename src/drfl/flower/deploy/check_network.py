"""Check a deployment's certificates, keys and network connection."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as forms

from drfl.core.audit_signatures import read_public_key, read_signing_key
from drfl.core.errors import DrflError, InputError, Notice
from drfl.core.files import read_bytes
from drfl.flower.deploy.paths import Address, DeploymentFolder, SiteFolder, SitePaths

MAKE_KEYS = "run ./make-keys.sh, as the user that owns the folder"
COPY_AUTHORITY = "copy certificates/ca.crt from the SuperLink's machine to this file"


class CheckResult(NamedTuple):
    """The result of one check.

    Args:
        subject: The file, site or connection that was checked.
        ok: Whether the check passed.
        text: The finding. For a problem it ends with a semicolon and the remedy. A ``Notice`` is advice, not a problem.
        details: Lines to print below the text.
    """

    subject: str
    ok: bool
    text: str
    details: tuple[str, ...] = ()


def success(subject: str, text: str) -> CheckResult:
    """Make the result of a check that passed."""
    return CheckResult(subject, True, text)


def advice(subject: str, text: Notice, details: tuple[str, ...] = ()) -> CheckResult:
    """Make a result that is advice, not a problem."""
    return CheckResult(subject, True, text, details)


def problem(subject: str, text: str) -> CheckResult:
    """Make the result of a check that failed; the text ends with the remedy."""
    return CheckResult(subject, False, text)


def run_check(subject: str, look: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """Yield the results of a check, and turn a ``DrflError`` that it raises into a failed result."""
    try:
        yield from look()
    except DrflError as error:
        yield problem(subject, str(error))


RENEW = "delete certificates/superlink.* and run ./make-keys.sh"

EXPIRY_WARNING_DAYS = 30
"""Days before its expiry at which a certificate counts as a problem."""


def check_superlink(folder: DeploymentFolder, address: Address) -> Iterator[CheckResult]:
    """Check that the certificates of the authority and the SuperLink are present, valid, signed and for this host."""
    certificates = folder.certificates
    # make-keys.sh does not replace the authority's certificate, of which every site has a copy.
    remedy = "run ./make-keys.sh, or if it ran before, restore the file from the ca.crt of a site"
    authority = read_certificate(certificates / "ca.crt", remedy)
    certificate = read_certificate(certificates / "superlink.crt", RENEW)
    path = certificates / "superlink.key"
    content = read_bytes(path, remedy=MAKE_KEYS)
    try:
        key = forms.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{path} is not a private key without a password; make such a key", code="invalid-key", field=str(path)
        ) from None
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        yield problem("certificate", f"superlink.crt is not signed by ca.crt; {RENEW}")
        return
    if certificate.public_key() != key.public_key():
        yield problem("certificate", f"superlink.key does not belong to superlink.crt; {RENEW}")
        return
    # Flower accepts a key that other users can read, so drfl has to report it.
    yield from check_permissions(path)
    renew_all = "delete certificates/ca.* and superlink.*, run ./make-keys.sh, and copy ca.crt to all sites"
    for name, checked, remedy in (("ca.crt", authority, renew_all), ("superlink.crt", certificate, RENEW)):
        yield check_dates(name, checked, remedy)
    if is_valid_for_host(certificate, address.host):
        yield success("certificate", f"is valid for {address.host}")
    else:
        yield problem(
            "certificate",
            f"is not valid for {address.host}, only for {', '.join(_names(certificate))}; correct the names in "
            "make-keys.sh, delete certificates/superlink.* and run make-keys.sh",
        )


def is_valid_for_host(certificate: x509.Certificate, host: str) -> bool:
    """Return whether a certificate is valid for a host, judged by its alternative names only."""
    # TLS clients ignore the common name of a certificate.
    names = _names(certificate)
    try:
        # An IPv6 address can be written in several ways, so compare the short form.
        return str(ipaddress.ip_address(host)) in names
    except ValueError:
        return host.lower() in (name.lower() for name in names)


REVOKED = "its key was revoked; give it a new one with 'drfl deploy rotate', or use 'drfl deploy remove-site'"
"""The problem of a site in ``server.toml`` whose key was revoked and not replaced."""


def check_keys(folder: DeploymentFolder, sites: tuple[SitePaths, ...]) -> Iterator[CheckResult]:
    """Check that the sites' public keys are present, distinct and not revoked, and match any private keys here."""
    owners: dict[str, str] = {}
    for site in sites:
        if not site.public_key.exists() and site.name in folder.revoked_keys():
            yield problem(site.name, REVOKED)
            continue
        try:
            public = read_public_key(site.public_key, MAKE_KEYS)
            twin = find_revoked_key(folder, site.public_key)
            if twin is not None:
                yield problem(
                    site.name, f"its key was revoked (see {twin}); delete {site.public_key} and get a new one"
                )
                continue
            if public in owners:
                yield problem(site.name, f"has the same key as {owners[public]}; each site needs its own")
                continue
            owners[public] = site.name
            yield from check_own_key(folder.site(site.name), site.public_key) or (
                success(site.name, "its public key is present"),
            )
        except InputError as error:
            yield problem(site.name, str(error))


def find_revoked_key(folder: DeploymentFolder, path: Path) -> Path | None:
    """Return the file of a revoked key that equals a public key; None if there is none."""
    public = read_public_key(path)
    # Compare the keys, not the files, which may differ in comments and line endings.
    for old in sorted(folder.revoked.glob("*.pub")):
        with suppress(InputError):
            if read_public_key(old) == public:
                return old
    return None


def check_own_key(site: SiteFolder, registered: Path | None) -> list[CheckResult]:
    """Check that a site's private key, if present, matches its public keys and is readable by its owner only."""
    if not site.key.exists():
        return []
    name, private = site.root.name, read_signing_key(site.key)
    own = site.key.with_suffix(".pub")
    for public in (registered, own if own.exists() else None):
        if public is not None and private.public != read_public_key(public):
            return [problem(name, f"{site.key} does not match {public}; make both again, or restore the right one")]
    text = "its key is present" if registered is None else "its keys match"
    return list(check_permissions(site.key)) or [success(name, text)]


def check_dates(name: str, certificate: x509.Certificate, remedy: str) -> CheckResult:
    """Check that a certificate is valid today, and for some time."""
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    left = (end.date() - now.date()).days
    if now < start:
        return problem(
            "certificate", f"{name} is valid only from {start:%Y-%m-%d %H:%M} UTC; check this machine's clock"
        )
    if now > end:
        return problem("certificate", f"{name} expired on {end:%Y-%m-%d}; {remedy}")
    if left < EXPIRY_WARNING_DAYS:
        when = ("today", "tomorrow")[left] if left < 2 else f"in {left} days"
        return problem("certificate", f"{name} expires {when} ({end:%Y-%m-%d}); {remedy}")
    return success("certificate", f"{name} is valid until {end:%Y-%m-%d}")


def check_permissions(path: Path) -> Iterator[CheckResult]:
    """Check that only the owner of a file has access to it."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield problem(path.name, f"other users have access to {path}; run chmod 600 on it")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    addresses = names.get_values_for_type(x509.IPAddress)
    return [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]


def read_certificate(path: Path, remedy: str) -> x509.Certificate:
    """Read a certificate."""
    content = read_bytes(path, remedy=remedy)  # outside the try block, because InputError is a ValueError
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise InputError(
            f"{path} is not a certificate; {remedy}",
            code="invalid-certificate",
            field=str(path),
        ) from None


CONNECTION_TIMEOUT = 5.0
"""Timeout in seconds of a connection and of an answer on it."""

HTTP_REQUEST = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"

WRONG_HOST = 62, 64
"""OpenSSL's error numbers for a certificate of another host name or IP address."""

EXPIRED = 10
"""OpenSSL's error number for an expired certificate."""


def check_connection(address: Address, authority: Path) -> Iterator[CheckResult]:
    """Connect to the SuperLink as a site does, and check the answer.

    ``authority`` verifies the SuperLink; it is not used if the deployment is insecure.
    """
    try:
        # Test plain TCP first, because its errors (name, firewall, no program) have other remedies than those of TLS.
        with socket.create_connection((address.host, address.port), timeout=CONNECTION_TIMEOUT):
            yield success("SuperLink", f"a program listens at {address}")
    except socket.gaierror:
        text = f"cannot resolve the host name {address.host}; correct it in superlink.env or in DNS"
        yield problem("SuperLink", text)
        return
    except ConnectionRefusedError:
        text = f"no program listens at {address}; run ./start-superlink.sh on the SuperLink's machine"
        yield problem("SuperLink", text)
        return
    except TimeoutError:
        text = f"no answer from {address}; if there is a firewall, open the port for this machine"
        yield problem("SuperLink", text)
        return
    except OSError as error:
        yield problem("SuperLink", f"cannot connect to {address} ({error.strerror or error}); check the network")
        return
    if not address.insecure:
        yield _check_tls(address, authority)
    elif _speaks_http(address):
        yield success("HTTP", "plain HTTP, because the deployment is insecure")
    else:
        # Accept any certificate, because the advice depends only on whether the other end speaks TLS.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((address.host, address.port), timeout=CONNECTION_TIMEOUT) as plain,
                context.wrap_socket(plain, server_hostname=address.host),
            ):
                text = f"found TLS at {address}, expected plain HTTP; start the SuperLink of this --insecure deployment"
        except OSError as error:
            text = _not_a_superlink(address, error)
        yield problem("HTTP", text)


def _check_tls(address: Address, authority: Path) -> CheckResult:
    try:
        # Trust only the deployment's authority, not those of the system.
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        return problem("TLS", f"not checked, because {authority} is missing or invalid; see 'certificate' above")
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=CONNECTION_TIMEOUT) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as wrapped,
        ):
            wrapped.sendall(HTTP_REQUEST)
            # Every HTTP answer begins like this, whatever its status.
            if wrapped.recv(5) == b"HTTP/":
                return success("TLS", f"{wrapped.version()}, with a certificate signed by {authority.name}")
            return problem("TLS", "the answer is not HTTP, so not from a SuperLink; check which program uses the port")
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_HOST:
            text = f"the certificate is not valid for {address.host}; correct the names in make-keys.sh, or ADDRESS"
        elif error.verify_code == EXPIRED:
            text = (
                "the certificate has expired; make a new one on the SuperLink's machine, as described in make-keys.sh"
            )
        else:
            text = (
                f"the certificate of the SuperLink at {address} is not signed by {authority} ({error.verify_message}); "
                "copy certificates/ca.crt from the SuperLink's machine, or check whether another SuperLink answers"
            )
        return problem("TLS", text)
    except OSError as error:
        # A plain HTTP server answers a TLS handshake with an unspecific error, so try HTTP.
        if _speaks_http(address):
            return problem("TLS", f"found plain HTTP at {address}, expected TLS; start it with ./start-superlink.sh")
        return problem("TLS", _not_a_superlink(address, error))


def _speaks_http(address: Address) -> bool:
    try:
        with socket.create_connection((address.host, address.port), timeout=CONNECTION_TIMEOUT) as connection:
            connection.sendall(HTTP_REQUEST)
            return connection.recv(5) == b"HTTP/"
    except OSError:
        return False


def _not_a_superlink(address: Address, error: OSError) -> str:
    cause = getattr(error, "reason", None) or error.strerror or type(error).__name__
    reason = str(cause).lower().replace("_", " ")
    return f"the program at {address} is not a SuperLink ({reason}); check which program uses the port"
