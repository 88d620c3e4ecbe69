"""All checks, in the order in which what is wrong is best put right."""

from __future__ import annotations

from collections.abc import Iterator

from drfl.deploy.check import certificates, connection, data, sites
from drfl.deploy.check.verdict import Verdict, bad, guarded, ok
from drfl.deploy.folder import Address, Folder, SiteFolder, read_toml
from drfl.deploy.programs import NEWEST, OLDEST, fits, flower_version, program
from drfl.errors import InputError


def check_deployment(folder: Folder) -> Iterator[Verdict]:
    """All that can be looked at on the SuperLink's machine."""
    yield from _flower("flwr", "flower-superlink", "flower-superexec")
    try:
        known, address = folder.sites(), folder.address()
    except InputError as error:
        yield bad("server.toml", str(error))
        return
    yield ok("server.toml", f"names {len(known)} site{'s' * (len(known) > 1)}: {', '.join(s.name for s in known)}")
    yield from guarded("server.toml", lambda: _agrees(folder, address))
    if not address.insecure:
        yield from guarded("certificate", lambda: certificates.superlink(folder, address))
        yield from guarded("keys", lambda: certificates.keys(folder, known))
    reached = True
    for verdict in connection.reach(address, folder.certificates / "ca.crt"):
        yield verdict
        reached = reached and verdict.ok
    if reached:
        yield from guarded("sites", lambda: sites.online(folder, known, address.insecure))


def check_site(site: SiteFolder) -> Iterator[Verdict]:
    """All that can be looked at on a site's machine."""
    yield from _flower("flower-supernode", "flower-superexec")
    try:
        address = site.address()
    except InputError as error:
        yield bad("superlink.env", str(error))
        return
    if not address.insecure:
        yield from guarded("key", lambda: _site_key(site))
        yield from guarded("certificate", lambda: certificates.authority(site))
    yield from connection.reach(address, site.authority)
    yield from guarded("site.toml", lambda: data.settings(site))
    yield from guarded("data", lambda: data.data(site))


def _flower(*programs: str) -> Iterator[Verdict]:
    version = flower_version() or "0"
    span = f"{OLDEST[0]}.{OLDEST[1]} or later, below {NEWEST[0]}.{NEWEST[1]}"
    if fits(version):
        yield ok("flwr", f"version {version}")
    else:
        yield bad("flwr", f"version {version} does not fit, it must be {span}; pip install 'drfl[flower]'")
    for name in programs:
        try:
            program(name)
        except InputError as error:
            yield bad("flwr", str(error))


def _agrees(folder: Folder, address: Address) -> Iterator[Verdict]:
    """What several files say alike: the deployment is insecure or not, and where it is."""
    insecure = read_toml(folder.settings).get("insecure", False)
    if insecure is not address.insecure:
        yield bad("server.toml", "insecure says other than INSECURE in superlink.env; make the folder anew with init")
    told = read_toml(folder.home / "config.toml").get("superlink")
    entry = told.get("deployment") if isinstance(told, dict) else None
    link = entry if isinstance(entry, dict) else {}
    expected = None if address.insecure else str(folder.certificates / "ca.crt")
    if link.get("address") != str(address) or link.get("root-certificates") != expected:
        yield bad(
            "flwr/config.toml",
            f'the folder was moved or changed; [superlink.deployment] needs address = "{address}"'
            + (f' and root-certificates = "{expected}"' if expected else ""),
        )


def _site_key(site: SiteFolder) -> Iterator[Verdict]:
    found = certificates.own_key(site, None)
    yield from found or [bad("key", f"{site.key} is missing; make-keys.sh on the SuperLink's machine makes it")]
