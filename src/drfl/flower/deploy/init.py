"""`drfl deploy init`: the folders, keys and units of a deployment."""

from __future__ import annotations

import ipaddress
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from drfl.core.atomic_files import check_new, new_folder
from drfl.core.errors import DrflError, InputError

HOST, PORT = "localhost", 8000
"""The SuperLink's default address; the port is Flower's own default."""

FIRST_SITE_PORT = 9094
"""Port, on the site's loopback, of the first site's SuperNode; the next ones follow, as sites may share a machine."""

SERVER_KEY = """key = "certificates/audit.key"   # signs the log; previous_key = "…" introduces a new key in it
"""
SITE_KEY = """key = "key"            # signs the log; previous_key = "…", the key before, introduces a new one in it
server_key = "superlink.pub"   # the key that signs the server's log, whose last line comes with every request
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True)
class DeploymentPlan:
    """The sites, and where the SuperLink is.

    Args:
        sites: their names, in the order of the clients.
        host: name or address under which the sites reach the SuperLink.
        port: its port.
        insecure: without TLS and without keys.

    Raises:
        InputError: a name, the host or the port is invalid, or a name is given twice.
    """

    sites: tuple[str, ...]
    host: str = HOST
    port: int = PORT
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError(
                "--sites is empty: give the sites' names with commas between, e.g. --sites a,b,c",
                code="empty",
                field="sites",
            )
        for name in self.sites:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"site '{name}': a name has letters, digits, - and _, starts with no sign, at most 63",
                    code="invalid-name",
                    field="sites",
                )
            if name.lower() == "superlink":
                raise InputError(
                    "a site cannot be named superlink: give it another name", code="invalid-name", field="sites"
                )
        if len({name.lower() for name in self.sites}) < len(self.sites):
            raise InputError(
                "the names of sites must differ from each other, by more than capitals",
                code="duplicate-name",
                field="sites",
            )
        if _address(self.host) is None and (
            len(self.host) > 253 or not all(_LABEL.fullmatch(label) for label in self.host.split("."))
        ):
            raise InputError(
                f"--host '{self.host}' is neither a name nor an address: give e.g. fl.example.org",
                code="invalid-value",
                field="host",
            )
        if not 1 <= self.port <= 65535:
            raise InputError(f"--port must lie in 1..65535, not {self.port}", code="out-of-range", field="port")
        if self.port in self.site_ports:
            raise InputError(
                f"--port {self.port} is one of the sites' own ({FIRST_SITE_PORT} and on): give another",
                code="invalid-value",
                field="port",
            )
        if self.site_ports[-1:] > (65535,):
            raise InputError(
                f"{len(self.sites)} sites are more than there are ports", code="out-of-range", field="sites"
            )

    @classmethod
    def of(cls, sites: str, host: str | None, port: int | None, insecure: bool) -> DeploymentPlan:
        """The plan from the options of ``drfl deploy init``."""
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
        """The address that the SuperLink listens on: the loopback where the host means this machine only."""
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


DAYS, CA_DAYS = 825, 3650
"""How long the SuperLink's certificate and that of its authority are valid."""

AWKWARD = "\"'\\$`%:\n"
"""Characters that a path must not contain, as shells, systemd, compose files and Flower quote them differently."""


def write(plan: DeploymentPlan, path: Path, keys: bool = False) -> None:
    """Write a deployment's folder atomically.

    Args:
        plan: the sites, and where the SuperLink is.
        path: the folder; it must be empty or not exist.
        keys: make keys and certificates too.

    Raises:
        InputError: the folder is not empty or cannot be written, or its path would be misread by scripts.
        DrflError: the keys could not be made.
    """
    root = path.absolute()
    if ".." in root.parts:
        root = root.resolve()  # systemd accepts no such path
    check_new(path)
    if any(c in AWKWARD or not c.isprintable() for c in str(root)) or str(root).endswith(" "):
        raise InputError(
            f"{root}: scripts cannot take quotes, backslashes, $, %, :, or a space at the end, in a folder's path; "
            "give another",
            code="invalid-name",
            field=str(root),
        )
    # Write all files or none: half a deployment would be hard to tell from a whole one.
    with new_folder(root) as stage:
        for name, text in files(plan, root).items():
            target = stage / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8", newline="\n")
            if name.endswith(".sh"):
                target.chmod(0o755)
        for name in plan.sites:
            (stage / "sites" / name).chmod(0o700)  # a private key will lie there
        if keys:
            done = subprocess.run(["sh", "./make-keys.sh"], cwd=stage, capture_output=True, text=True)
            if done.returncode:
                raise DrflError(
                    f"make-keys.sh failed, so nothing was written: {(done.stderr or done.stdout).strip()}",
                    code="command-failed",
                    field="make-keys.sh",
                )


def files(plan: DeploymentPlan, root: Path) -> dict[str, str]:
    """The texts of all files by path.

    Args:
        plan: the sites, and where the SuperLink is.
        root: the folder's absolute path, which some files name.
    """
    secure = not plan.insecure
    kind = "secure" if secure else "insecure"
    port = {"PORT": str(plan.port)}
    address = {"ADDRESS": plan.address, **port}
    days = {"DAYS": str(DAYS), "CA_DAYS": str(CA_DAYS)}
    names = {"NAMES": " ".join(plan.sites), "REVOKED": _text("revoked.sh").rstrip("\n")}
    trust = f"root-certificates = {json.dumps(str(root / 'certificates/ca.crt'))}" if secure else "insecure = true"
    compose = {"ROOT": str(root), "ROOT_YAML": json.dumps(str(root)), "VOLUME_YAML": json.dumps(f".:{root}"), **port}
    services = [_filled("compose-site.yaml", {"NAME": name, **port}) for name in plan.sites]
    count = "one site" if len(plan.sites) == 1 else f"{len(plan.sites)} sites"
    note = _filled(f"readme-{kind}.md", days).rstrip("\n")
    shown = {"COUNT": count, "LIST": ", ".join(plan.sites), "ADDRESS": plan.address, "NOTE": note}
    settings = _filled("server.toml", {"INSECURE": "false" if secure else "true ", "KEY": SERVER_KEY if secure else ""})
    for name in plan.sites:
        key = f'public_key = "keys/{name}.pub"\n' if secure else ""
        settings += f'\n[[sites]]\nname = "{name}"\n{key}'
    superlink = {"PROGRAMS": _programs("flower-superlink"), "SECURITY": _text(f"superlink-{kind}.sh")}
    made = {
        "README.md": _filled("README.md", shown),
        ".gitignore": _text("gitignore"),
        "server.toml": settings,
        "superlink.env": _environment(plan, BIND=plan.bind, PORT=plan.port),
        "start-superlink.sh": _filled("start-superlink.sh", superlink),
        "register-sites.sh": _filled("register-sites.sh", {"PROGRAMS": _programs("flwr"), **names})
        if secure
        else _text("register-insecure.sh"),
        "make-keys.sh": _filled("make-keys.sh", {**names, **days, "SAN": ",".join(plan.names)})
        if secure
        else _text("make-keys-insecure.sh"),
        "app/pyproject.toml": _filled("app.toml", {"SERVER": json.dumps(str(root / "server.toml"))}),
        "flwr/config.toml": _filled("config.toml", {**address, "TRUST": trust}),
        "systemd/drfl-superlink.service": _filled("drfl-superlink.service", {"ROOT": str(root)}),
        "systemd/drfl-supernode@.service": _text("drfl-supernode@.service"),
        "compose.yaml": "\n".join((_filled("compose.yaml", compose), *services)),
        "image/Dockerfile": _text("Dockerfile"),
    }
    security = _text(f"supernode-{kind}.sh")
    for name, site_port in zip(plan.sites, plan.site_ports, strict=True):
        place = f"sites/{name}"
        key = "" if plan.insecure else SITE_KEY
        values = {"NAME": name, "PROGRAMS": _programs("flower-supernode"), "SECURITY": security, "KEY": key}
        made[f"{place}/site.toml"] = _filled("site.toml", values)
        made[f"{place}/superlink.env"] = _environment(plan, PORT=site_port)
        made[f"{place}/start-supernode.sh"] = _filled("start-supernode.sh", values)
    return made


def _environment(plan: DeploymentPlan, **values: object) -> str:
    lines = {"ADDRESS": plan.address, "INSECURE": "yes" if plan.insecure else "no", **values}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _programs(program: str) -> str:
    """Lines of shell that find the programs; not through links, as a virtual environment's python is one."""
    folder = shlex.quote(str(Path(sys.executable).parent))
    return _filled("programs.sh", {"BIN": folder, "PROGRAM": program}).rstrip("\n")


def _text(name: str) -> str:
    return (resources.files("drfl.flower.deploy") / "templates" / name).read_text(encoding="utf-8")


def _filled(name: str, values: Mapping[str, str]) -> str:
    text = _text(name)
    for key, value in values.items():
        # str.format does not work here, as shell scripts contain braces.
        text = text.replace(f"@{key}@", value)
    return text
