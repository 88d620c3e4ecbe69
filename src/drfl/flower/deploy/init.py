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
from itertools import islice
from pathlib import Path

from drfl.core.atomic_files import check_new, new_folder
from drfl.core.errors import DrflError, InputError
from drfl.flower.deploy.flower_cli import REMOVED_STATUSES
from drfl.flower.deploy.paths import Address

HOST, PORT = "localhost", 8000
"""The SuperLink's default address; the port is Flower's own default."""

SITE_PORTS = range(9094, 65536)
"""Loopback ports of the sites' SuperNodes. Each site uses another one, because sites may share a machine."""

SERVER_KEY = """key = "certificates/audit.key"   # signs the log; after a change of keys set previous_key to the old key
"""
SITE_KEY = """key = "key"            # signs the log; after a change of keys set previous_key to the old key
server_key = "superlink.pub"   # verifies the signature of the server's log that comes with every request
"""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")


@dataclass(frozen=True)
class DeploymentPlan:
    """The sites and the address of the SuperLink.

    Args:
        sites: Names of the sites, in the order of the clients.
        host: Name or address at which the sites reach the SuperLink.
        port: Port of the SuperLink.
        insecure: Whether to use neither TLS nor keys.

    Raises:
        InputError: If a name, the host or the port is invalid, or a name occurs twice.
    """

    sites: tuple[str, ...]
    host: str = HOST
    port: int = PORT
    insecure: bool = False

    def __post_init__(self) -> None:
        if not self.sites:
            raise InputError(
                "--sites is empty. Pass the names of the sites, separated by commas, such as --sites a,b,c",
                code="empty",
                field="sites",
            )
        for name in self.sites:
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"invalid site name '{name}'. A name has at most 63 letters, digits, - and _, and starts with a "
                    "letter or digit",
                    code="invalid-name",
                    field="sites",
                )
            # The audit uses this name for the key of the server.
            if name.lower() == "superlink":
                raise InputError(
                    "a site cannot be named superlink. Choose another name", code="invalid-name", field="sites"
                )
        # Names are folders, and some file systems ignore case.
        if len({name.lower() for name in self.sites}) < len(self.sites):
            raise InputError(
                "two sites have the same name. Names must differ by more than upper and lower case",
                code="duplicate-name",
                field="sites",
            )
        if _ip_address(self.host) is None and (
            len(self.host) > 253 or not all(_LABEL.fullmatch(label) for label in self.host.split("."))
        ):
            raise InputError(
                f"--host '{self.host}' is neither a host name nor an IP address. Use, for example, fl.example.org",
                code="invalid-value",
                field="host",
            )
        if not 1 <= self.port <= 65535:
            raise InputError(f"--port must be between 1 and 65535, got {self.port}", code="out-of-range", field="port")
        if len(self.site_ports) < len(self.sites):
            raise InputError(
                f"{len(self.sites)} sites need more ports than there are", code="out-of-range", field="sites"
            )

    @classmethod
    def of(cls, sites: str, host: str | None, port: int | None, insecure: bool) -> DeploymentPlan:
        """Make the plan from the options of ``drfl deploy init``."""
        names: Sequence[str] = [name.strip() for name in sites.split(",")] if sites.strip() else []
        return cls(tuple(names), HOST if host is None else host, PORT if port is None else port, insecure)

    @property
    def address(self) -> str:
        """``host:port``, as Flower takes it."""
        return str(Address(self.host, self.port, self.insecure))

    @property
    def bind(self) -> str:
        """The address that the SuperLink listens on: the loopback address if ``host`` means this machine."""
        ip = _ip_address(self.host)
        if self.host == "localhost" or (ip is not None and ip.is_loopback):
            return "127.0.0.1" if ip is None else str(ip)
        return "::" if isinstance(ip, ipaddress.IPv6Address) else "0.0.0.0"

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the SuperLink's certificate, as openssl takes them, local names included."""
        name = f"IP:{self.host}" if _ip_address(self.host) is not None else f"DNS:{self.host}"
        return tuple(dict.fromkeys((name, "DNS:localhost", "DNS:superlink", "IP:127.0.0.1", "IP:::1")))

    @property
    def site_ports(self) -> tuple[int, ...]:
        """For each site, the loopback port that its SuperNode uses for its child processes."""
        # The SuperLink may run on the same machine, too.
        return tuple(islice((port for port in SITE_PORTS if port != self.port), len(self.sites)))


def _ip_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


DAYS, CA_DAYS = 825, 3650
"""Days for which the certificates of the SuperLink and of its authority are valid."""

FORBIDDEN_CHARACTERS = "\"'\\$`%:\n"
"""Characters that a path must not contain, because shells, systemd, compose files and Flower quote them differently."""


def write(plan: DeploymentPlan, path: Path, keys: bool = False) -> None:
    """Write a deployment's folder atomically.

    The folder must be empty or not exist.
    """
    root = path.absolute()
    if ".." in root.parts:
        root = root.resolve()  # systemd does not accept paths that contain ".."
    check_new(path)
    if any(c in FORBIDDEN_CHARACTERS or not c.isprintable() for c in str(root)) or str(root).endswith(" "):
        raise InputError(
            f"cannot use the path {root}. The scripts do not support quotes, backslashes, backticks, $, %, :, control "
            "characters or a final space in it",
            code="invalid-name",
            field=str(root),
        )
    # Write all files or none: an incomplete folder would be hard to distinguish from a complete one.
    with new_folder(root) as stage:
        write_files(stage, files(plan, root))
        for name in plan.sites:
            (stage / "sites" / name).chmod(0o700)  # the folder will contain a private key
        if keys:
            process = subprocess.run(["sh", "./make-keys.sh"], cwd=stage, capture_output=True, text=True)
            if process.returncode:
                raise DrflError(
                    f"make-keys.sh failed, so nothing was written: {(process.stderr or process.stdout).strip()}",
                    code="command-failed",
                    field="make-keys.sh",
                )


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write texts by their path in a folder; scripts become executable."""
    for name, text in texts.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        # Shells cannot run scripts with the line endings of Windows.
        target.write_text(text, encoding="utf-8", newline="\n")
        if name.endswith(".sh"):
            target.chmod(0o755)


def files(plan: DeploymentPlan, root: Path) -> dict[str, str]:
    """Return the texts of all files by their path in the folder.

    ``root`` is the absolute path of the folder, which some files contain.
    """
    secure = not plan.insecure
    kind = "secure" if secure else "insecure"
    port = {"PORT": str(plan.port)}
    address = {"ADDRESS": plan.address, **port}
    days = {"DAYS": str(DAYS), "CA_DAYS": str(CA_DAYS)}
    shared = {
        "SITES": _fill("sites.sh", {"BIN": _bin_folder()}).rstrip("\n"),
        "REVOKED": _template("revoked.sh").rstrip("\n"),
        "REMOVED": json.dumps(REMOVED_STATUSES),
    }
    trust = f"root-certificates = {json.dumps(str(root / 'certificates/ca.crt'))}" if secure else "insecure = true"
    compose = {"ROOT": str(root), "ROOT_YAML": json.dumps(str(root)), "VOLUME_YAML": json.dumps(f".:{root}"), **port}
    services = [compose_service(name, plan.port) for name in plan.sites]
    readme = {"ADDRESS": plan.address, "NOTE": _fill(f"readme-{kind}.md", days).rstrip("\n")}
    settings = _fill("server.toml", {"INSECURE": "false" if secure else "true ", "KEY": SERVER_KEY if secure else ""})
    for name in plan.sites:
        key = f'public_key = "keys/{name}.pub"\n' if secure else ""
        settings += f'\n[[sites]]\nname = "{name}"\n{key}'
    superlink = {**_programs("flower-superlink"), "SECURITY": _template(f"superlink-{kind}.sh")}
    texts = {
        "README.md": _fill("README.md", readme),
        ".gitignore": _template("gitignore"),
        "server.toml": settings,
        "superlink.env": _environment(plan, BIND=plan.bind, PORT=plan.port),
        "start-superlink.sh": _fill("start-superlink.sh", superlink),
        "register-sites.sh": _fill("register-sites.sh", {**_programs("flwr"), **shared})
        if secure
        else _template("register-insecure.sh"),
        "make-keys.sh": _fill("make-keys.sh", {**shared, **days, "SAN": ",".join(plan.names)})
        if secure
        else _template("make-keys-insecure.sh"),
        "app/pyproject.toml": _fill("app.toml", {"SERVER": json.dumps(str(root / "server.toml"))}),
        "flwr/config.toml": _fill("config.toml", {**address, "TRUST": trust}),
        "systemd/drfl-superlink.service": _fill("drfl-superlink.service", {"ROOT": str(root)}),
        "systemd/drfl-supernode@.service": _template("drfl-supernode@.service"),
        "compose.yaml": "\n".join((_fill("compose.yaml", compose), *services)),
        "image/Dockerfile": _template("Dockerfile"),
    }
    for name, site_port in zip(plan.sites, plan.site_ports, strict=True):
        texts |= {f"sites/{name}/{file}": text for file, text in site_files(plan, name, site_port).items()}
    return texts


def site_files(plan: DeploymentPlan, name: str, port: int) -> dict[str, str]:
    """Return the texts of the files of a site by their name in its folder.

    ``port`` is the loopback port of its SuperNode.
    """
    security = _template(f"supernode-{'insecure' if plan.insecure else 'secure'}.sh")
    key = "" if plan.insecure else SITE_KEY
    # The name last, because the security code has it too.
    values = {**_programs("flower-supernode"), "SECURITY": security, "KEY": key, "NAME": name}
    return {
        "site.toml": _fill("site.toml", values),
        "superlink.env": _environment(plan, PORT=port),
        "start-supernode.sh": _fill("start-supernode.sh", values),
    }


def compose_service(name: str, port: int) -> str:
    """Return the service of a site in ``compose.yaml``, given the port of the SuperLink."""
    return _fill("compose-site.yaml", {"NAME": name, "PORT": str(port)})


def _environment(plan: DeploymentPlan, **values: object) -> str:
    lines = {"ADDRESS": plan.address, "INSECURE": "yes" if plan.insecure else "no", **values}
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _programs(program: str) -> dict[str, str]:
    """Return shell code that finds Flower's programs, and code that checks whether a port is free."""
    values = {"BIN": _bin_folder(), "PROGRAM": program}
    return {"PROGRAMS": _fill("programs.sh", values).rstrip("\n"), "FREE_PORT": _fill("port.sh", values).rstrip("\n")}


def _bin_folder() -> str:
    # Do not resolve links: in a virtual environment python is a link to another folder.
    return shlex.quote(str(Path(sys.executable).parent))


def _template(name: str) -> str:
    return (resources.files("drfl.flower.deploy") / "templates" / name).read_text(encoding="utf-8")


def _fill(name: str, values: Mapping[str, str]) -> str:
    text = _template(name)
    for key, value in values.items():
        # str.format does not work here, because shell scripts contain braces.
        text = text.replace(f"@{key}@", value)
    return text
