"""Whether certificates, names and ports of a deployment are right."""

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
from cryptography.hazmat.primitives.asymmetric import types

from drfl.core.audit_signatures import read_public_key, read_signing_key
from drfl.core.errors import DrflError, InputError, Notice
from drfl.core.files import read_bytes
from drfl.flower.deploy.paths import Address, DeploymentFolder, SiteFolder, SitePaths

MAKE_KEYS = "run ./make-keys.sh, as the user that owns the folder"


class CheckResult(NamedTuple):
    """The result of one check.

    Args:
        subject: what was checked.
        ok: whether it is right.
        text: what was found; for a problem also the remedy, after a semicolon. A Notice is advice, and no problem.
        below: Lines to show below the text.
    """

    subject: str
    ok: bool
    text: str
    below: tuple[str, ...] = ()


def ok(subject: str, text: str) -> CheckResult:
    """A check that passed."""
    return CheckResult(subject, True, text)


def note(subject: str, text: Notice, below: tuple[str, ...] = ()) -> CheckResult:
    """Advice: nothing is wrong."""
    return CheckResult(subject, True, text, below)


def bad(subject: str, text: str) -> CheckResult:
    """A check that failed; the text names the remedy."""
    return CheckResult(subject, False, text)


def guarded(subject: str, look: Callable[[], Iterable[CheckResult]]) -> Iterator[CheckResult]:
    """The findings of a check; an error that it raises on purpose becomes one."""
    try:
        yield from look()
    except DrflError as error:
        yield bad(subject, str(error))


SOON = 30
"""Days before its end at which a certificate counts as a problem."""


def superlink(folder: DeploymentFolder, address: Address) -> Iterator[CheckResult]:
    """The authority's and the SuperLink's certificates: present, valid now, signed and for this host."""
    place = folder.certificates
    authority, certificate = _certificate(place / "ca.crt"), _certificate(place / "superlink.crt")
    path = place / "superlink.key"
    content = _bytes(path)
    try:
        key = forms.load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError(
            f"{path} is not a private key without a password; make one", code="invalid-key", field=str(path)
        ) from None
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        yield bad("certificate", "superlink.crt is not signed by ca.crt; delete superlink.* and run ./make-keys.sh")
        return
    if _public(certificate.public_key()) != _public(key.public_key()):
        yield bad("certificate", "superlink.key does not belong to superlink.crt; delete both and run ./make-keys.sh")
        return
    # Flower accepts a key that others can read, so drfl has to report it.
    yield from _open_to_others(path)
    for name, found in (("ca.crt", authority), ("superlink.crt", certificate)):
        yield _in_time(name, found)
    if covers(certificate, address.host):
        yield ok("certificate", f"made for {address.host}")
    else:
        yield bad(
            "certificate",
            f"not made for {address.host}, but for {', '.join(_names(certificate))}; correct the names in "
            "make-keys.sh, delete certificates/superlink.* and run it",
        )


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether a certificate is for a host, by its alternative names alone."""
    names = _names(certificate)
    try:
        # An IPv6 address has several spellings: compare the short form.
        return str(ipaddress.ip_address(host)) in names
    except ValueError:
        return host.lower() in (name.lower() for name in names)


def keys(folder: DeploymentFolder, sites: tuple[SitePaths, ...]) -> Iterator[CheckResult]:
    """The sites' public keys: present, of the right kind, distinct, not revoked; and private keys that are here."""
    owners: dict[str, str] = {}
    for site in sites:
        try:
            public = read_public_key(site.public_key, MAKE_KEYS)
            twin = revoked_twin(folder.keys / "revoked", site.public_key)
            if twin is not None:
                yield bad(site.name, f"its key was revoked, see {twin}; delete {site.public_key} and get a new one")
                continue
            if public in owners:
                yield bad(site.name, f"has the same key as {owners[public]}; each site needs its own")
                continue
            owners[public] = site.name
            yield from own_key(folder.site(site.name), site.public_key) or (ok(site.name, "its public key is here"),)
        except InputError as error:
            yield bad(site.name, str(error))


def revoked_twin(revoked: Path, path: Path) -> Path | None:
    """The file with the same key among those revoked, however it is written there; None if there is none.

    Args:
        revoked: The folder of revoked keys.
        path: Of a public key.

    Raises:
        InputError: The file at the path holds no such key.
    """
    public = read_public_key(path)
    # Compare the keys themselves, as their files may differ in comments and line endings.
    for old in sorted(revoked.glob("*.pub")):
        with suppress(InputError):
            if read_public_key(old) == public:
                return old
    return None


def own_key(site: SiteFolder, registered: Path | None) -> list[CheckResult]:
    """A site's private key, if it is here: belongs to the public key, and nobody else can read it."""
    if not site.key.exists():
        return []
    name = site.root.name
    if registered is not None and read_signing_key(site.key).public != read_public_key(registered):
        return [bad(name, f"{site.key} does not belong to {registered}; make both again, or restore the right one")]
    return list(_open_to_others(site.key)) or [ok(name, "its key is there" if registered is None else "its keys match")]


def authority(site: SiteFolder) -> Iterator[CheckResult]:
    """The certificate by which a site knows the SuperLink."""
    yield _in_time("ca.crt", _certificate(site.authority))


def _in_time(name: str, certificate: x509.Certificate) -> CheckResult:
    start, end, now = certificate.not_valid_before_utc, certificate.not_valid_after_utc, datetime.now(UTC)
    left = (end - now).days
    remedy = "delete it with its key and run ./make-keys.sh" if name == "superlink.crt" else "make all keys again"
    if now < start:
        return bad("certificate", f"{name} is valid only from {start:%Y-%m-%d %H:%M} UTC on; set this machine's clock")
    if now > end:
        return bad("certificate", f"{name} has expired on {end:%Y-%m-%d}; {remedy}")
    if left < SOON:
        return bad("certificate", f"{name} expires in {left} days, on {end:%Y-%m-%d}; {remedy}")
    return ok("certificate", f"{name} is valid until {end:%Y-%m-%d}")


def _open_to_others(path: Path) -> Iterator[CheckResult]:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        yield bad(path.name, f"others can read {path}; chmod 600 it")


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def _certificate(path: Path) -> x509.Certificate:
    content = _bytes(path)  # outside the try: InputError is a ValueError, too
    try:
        return x509.load_pem_x509_certificate(content)
    except ValueError:
        raise InputError(
            f"{path} is no certificate; delete it and run ./make-keys.sh", code="invalid-certificate", field=str(path)
        ) from None


def _public(key: types.PublicKeyTypes) -> bytes:
    """A public key in a form that compares."""
    return key.public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)


def _bytes(path: Path) -> bytes:
    return read_bytes(path, remedy=MAKE_KEYS)


PATIENCE = 5.0
"""Seconds that a connection, or an answer on it, may take."""

QUESTION = b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n"

WRONG_HOST = 62, 64
"""OpenSSL's numbers for a certificate that is for another name or address."""

EXPIRED = 10
"""OpenSSL's number for a certificate that has expired."""


def check_connection(address: Address, authority: Path) -> Iterator[CheckResult]:
    """Connect to the SuperLink as a site does.

    Args:
        address: where it is.
        authority: the certificate to verify it by; not used where the deployment is insecure.
    """
    try:
        with socket.create_connection((address.host, address.port), timeout=PATIENCE):
            yield ok("SuperLink", f"something listens at {address}")
    except socket.gaierror:
        text = f"the name {address.host} is not known here; correct it in superlink.env, or in the name service"
        yield bad("SuperLink", text)
        return
    except ConnectionRefusedError:
        text = f"nothing listens at {address}; start it with ./start-superlink.sh on its machine"
        yield bad("SuperLink", text)
        return
    except TimeoutError:
        text = f"no answer from {address}; a firewall may be in between: open the port for this machine"
        yield bad("SuperLink", text)
        return
    except OSError as error:
        yield bad("SuperLink", f"cannot connect to {address} ({error.strerror or error}); look at the network")
        return
    if not address.insecure:
        yield _encrypted(address, authority)
    elif _speaks_http(address):
        yield ok("HTTP", "it speaks plain HTTP, as the deployment is insecure")
    else:
        # Accept any certificate: the advice depends only on whether the other end speaks TLS.
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain,
                context.wrap_socket(plain, server_hostname=address.host),
            ):
                text = f"TLS at {address} where plain HTTP is expected; take the folder made with --insecure"
        except OSError as error:
            text = _stranger(address, error)
        yield bad("HTTP", text)


def _encrypted(address: Address, authority: Path) -> CheckResult:
    try:
        # Trust only the deployment's authority, not those of the system.
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        return bad("TLS", f"{authority} is missing or no certificate; run ./make-keys.sh on the SuperLink's machine")
    try:
        with (
            socket.create_connection((address.host, address.port), timeout=PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=address.host) as wrapped,
        ):
            wrapped.sendall(QUESTION)
            if wrapped.recv(5) == b"HTTP/":
                return ok("TLS", f"{wrapped.version()}, and it is the SuperLink that {authority.name} vouches for")
            return bad("TLS", "what answers speaks no HTTP, so it is no SuperLink; look which program has the port")
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in WRONG_HOST:
            text = f"the certificate is not for {address.host}; correct the names in make-keys.sh, or ADDRESS"
        elif error.verify_code == EXPIRED:
            text = "the certificate has expired; make a new one, as make-keys.sh says"
        else:
            text = (
                f"{authority} does not vouch for the SuperLink at {address} ({error.verify_message}); "
                "copy certificates/ca.crt of its machine to this place, or another SuperLink answers"
            )
        return bad("TLS", text)
    except OSError as error:
        # The error of a plain HTTP server at a TLS greeting is not specific: try HTTP.
        if _speaks_http(address):
            return bad("TLS", f"plain HTTP at {address} where TLS is expected; start it with ./start-superlink.sh")
        return bad("TLS", _stranger(address, error))


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
