"""Paths in a deployment's folder, and in a site's folder, which may be all that a machine has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfl.core import files
from drfl.core.errors import InputError


class Address(NamedTuple):
    """Where the SuperLink is.

    Args:
        host: name or address.
        port: its port.
        insecure: plain HTTP instead of TLS, and no keys.
    """

    host: str
    port: int
    insecure: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SitePaths(NamedTuple):
    """A site, as the server's settings name it.

    Args:
        name: its name.
        public_key: the file of its public key.
        node: the file with the number of its registration.
    """

    name: str
    public_key: Path
    node: Path


@dataclass(frozen=True)
class SiteFolder:
    """The folder that travels to a site.

    Args:
        root: its absolute path.
    """

    root: Path

    @property
    def settings(self) -> Path:
        """The site's name and where its data are."""
        return self.root / "site.toml"

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.root / "key"

    @property
    def authority(self) -> Path:
        """The certificate by which it verifies the SuperLink."""
        return self.root / "ca.crt"

    def address(self) -> Address:
        """Where it looks for the SuperLink.

        Raises:
            InputError: superlink.env is missing or says something else.
        """
        return _address(self.root / "superlink.env")


@dataclass(frozen=True)
class DeploymentFolder:
    """A deployment's folder, on the SuperLink's machine.

    Args:
        root: its absolute path.
    """

    root: Path

    @property
    def settings(self) -> Path:
        """What is trained, and who takes part."""
        return self.root / "server.toml"

    @property
    def app(self) -> Path:
        """What is submitted to Flower."""
        return self.root / "app"

    @property
    def home(self) -> Path:
        """Flower's own folder for this deployment."""
        return self.root / "flwr"

    @property
    def certificates(self) -> Path:
        """The folder of the authority's and the SuperLink's certificates."""
        return self.root / "certificates"

    @property
    def keys(self) -> Path:
        """The folder of the sites' public keys and of the numbers of their registrations."""
        return self.root / "keys"

    def site(self, name: str) -> SiteFolder:
        """The folder of one site, as ``init`` wrote it here."""
        return SiteFolder(self.root / "sites" / name)

    def address(self) -> Address:
        """Where the SuperLink is.

        Raises:
            InputError: superlink.env is missing or says something else.
        """
        return _address(self.root / "superlink.env")

    def sites(self) -> tuple[SitePaths, ...]:
        """The sites that server.toml names, in its order.

        Raises:
            InputError: it cannot be read, or names no sites.
        """
        tables = read_toml(self.settings).get("sites")
        if not isinstance(tables, list) or not tables:
            raise InputError(
                f"{self.settings} names no sites: it needs a table [[sites]] for each",
                code="missing-option",
                field="sites",
            )
        found = []
        for table in tables:
            values = table if isinstance(table, dict) else {}
            name, key = values.get("name"), values.get("public_key", "")
            if not isinstance(name, str) or not name or not isinstance(key, str):
                raise InputError(
                    f"{self.settings}: a table [[sites]] needs a name and a public_key, both in quotes",
                    code="missing-option",
                    field="sites",
                )
            found.append(SitePaths(name, self.root / (key or f"keys/{name}.pub"), self.keys / f"{name}.node"))
        return tuple(found)

    def summary(self) -> Path:
        """The summary of the run, as the server writes it on this machine."""
        out = read_toml(self.settings).get("out", "run")
        return self.root / str(out) / "summary.json"


def find(path: Path) -> DeploymentFolder | SiteFolder:
    """The deployment at a path, or the one site's folder there.

    Raises:
        InputError: it is neither.
    """
    root = path.absolute()
    if (root / "server.toml").is_file():
        return DeploymentFolder(root)
    if (root / "site.toml").is_file():
        return SiteFolder(root)
    raise InputError(
        f"{path} is no deployment (it has no server.toml): 'drfl deploy init {path}' makes one",
        code="not-a-deployment",
        field=str(path),
    )


def deployment(path: Path) -> DeploymentFolder:
    """The deployment at a path.

    Raises:
        InputError: it is none, or a site's folder only.
    """
    found = find(path)
    if isinstance(found, SiteFolder):
        raise InputError(
            f"{path} is the folder of one site: this command runs on the SuperLink's machine",
            code="not-a-deployment",
            field=str(path),
        )
    return found


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file.

    Raises:
        InputError: it cannot be read, or is no TOML.
    """
    return files.read_toml(path)


def _address(path: Path) -> Address:
    # The file holds shell assignments, as the start scripts source it too.
    lines = files.read_text(path, remedy="write a new folder with 'drfl deploy init'").splitlines()
    values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    host, _, port = values.get("ADDRESS", "").rpartition(":")
    if not host or not port.isdecimal() or values.get("INSECURE") not in ("yes", "no"):
        raise InputError(
            f"{path} must say ADDRESS=host:port and INSECURE=yes or no", code="damaged-file", field=str(path)
        )
    return Address(host.removeprefix("[").removesuffix("]"), int(port), values["INSECURE"] == "yes")
