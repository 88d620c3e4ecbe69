"""Paths in a deployment's folder and in a site's folder. The machine of a site has only the latter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from drfl.core.errors import InputError
from drfl.core.files import read_text
from drfl.core.json_toml import read_toml
from drfl.flower.deploy.dated_folders import FITS, TIME, newest_model, newest_run

_REVOKED = re.compile(rf"(.+)-{TIME}\.pub")

DELIVERY_FILE, EVALUATION_FILE = "delivery.json", "evaluation.json"
"""Files with the results of a delivery and of an evaluation."""

RECEIVED = "received"
"""Outcome of a delivery to a site, see :func:`drfl.flower.delivery.deliver`."""


class Address(NamedTuple):
    """The address of the SuperLink.

    Args:
        host: Host name or IP address.
        port: Port.
        insecure: Whether to use plain HTTP instead of TLS, and no keys.
    """

    host: str
    port: int
    insecure: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class SitePaths(NamedTuple):
    """The files of a site in the deployment's folder.

    Args:
        name: Name of the site in ``server.toml``.
        public_key: File of its public key.
        node: File with the node ID that the SuperLink assigned at registration.
    """

    name: str
    public_key: Path
    node: Path

    @property
    def pending(self) -> Path:
        """File that exists while the site's key is registered, see :class:`drfl.flower.deploy.keys.Registration`."""
        return self.node.with_suffix(".new")


@dataclass(frozen=True)
class _Folder:
    root: Path  # absolute

    def address(self) -> Address:
        """Read the address of the SuperLink, at which the sites connect to it."""
        path = self.root / "superlink.env"
        # The file contains shell assignments, because the start scripts source it too.
        lines = read_text(path, remedy="write a new folder with 'drfl deploy init'").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        # Split at the last colon: an IPv6 address has colons, in brackets.
        host, _, port = values.get("ADDRESS", "").rpartition(":")
        if not host or not port.isdecimal() or values.get("INSECURE") not in ("yes", "no"):
            raise InputError(
                f"{path} must contain ADDRESS=host:port and INSECURE=yes or INSECURE=no",
                code="damaged-file",
                field=str(path),
            )
        return Address(host.removeprefix("[").removesuffix("]"), int(port), values["INSECURE"] == "yes")


class SiteFolder(_Folder):
    """The folder that is copied to a site."""

    @property
    def settings(self) -> Path:
        """The settings of the site: ``site.toml``."""
        return self.root / "site.toml"

    @property
    def key(self) -> Path:
        """The site's private key."""
        return self.root / "key"

    @property
    def authority(self) -> Path:
        """The certificate with which the site verifies the SuperLink."""
        return self.root / "ca.crt"


class DeploymentFolder(_Folder):
    """A deployment's folder, on the SuperLink's machine."""

    @property
    def settings(self) -> Path:
        """The settings of the server: ``server.toml``."""
        return self.root / "server.toml"

    @property
    def app(self) -> Path:
        """The app that is submitted to Flower."""
        return self.root / "app"

    @property
    def home(self) -> Path:
        """Flower's folder for this deployment (``FLWR_HOME``)."""
        return self.root / "flwr"

    @property
    def certificates(self) -> Path:
        """The folder of the certificates of the authority and the SuperLink."""
        return self.root / "certificates"

    @property
    def keys(self) -> Path:
        """The folder of the sites' public keys and node IDs."""
        return self.root / "keys"

    @property
    def revoked(self) -> Path:
        """The folder of revoked keys, which make-keys.sh and register-sites.sh also check."""
        return self.keys / "revoked"

    def revoked_keys(self) -> dict[str, list[Path]]:
        """List the files of revoked keys by the name of the site, also of sites that are not in ``server.toml``."""
        keys: dict[str, list[Path]] = {}
        for path in sorted(self.revoked.glob("*.pub")):
            match = _REVOKED.fullmatch(path.name)
            if match is not None:
                keys.setdefault(match[1], []).append(path)
        return keys

    def site(self, name: str) -> SiteFolder:
        """Return the folder of one site, as ``init`` wrote it here."""
        return SiteFolder(self.root / "sites" / name)

    def sites(self) -> tuple[SitePaths, ...]:
        """List the sites in ``server.toml``, in the order of the file."""
        tables = read_toml(self.settings).get("sites")
        if not isinstance(tables, list) or not tables:
            raise InputError(
                f"{self.settings} names no sites. Add a table [[sites]] for each",
                code="missing-option",
                field="sites",
            )
        sites = []
        for table in tables:
            values = table if isinstance(table, dict) else {}
            name, key = values.get("name"), values.get("public_key", "")
            if not isinstance(name, str) or not name or not isinstance(key, str):
                raise InputError(
                    f"{self.settings}: a table [[sites]] needs a name and a public_key, both as strings",
                    code="missing-option",
                    field="sites",
                )
            # An insecure deployment has no public_key; the default path is where make-keys.sh would write it.
            sites.append(SitePaths(name, self.root / (key or f"keys/{name}.pub"), self.keys / f"{name}.node"))
        return tuple(sites)

    def summary(self) -> Path:
        """Return the path of the newest run's ``summary.json``, which the server writes on this machine."""
        out = read_toml(self.settings).get("out", "run")
        return newest_run(self.root, Path(str(out))) / "summary.json"

    def newest_model(self) -> Path:
        """Return the model of the newest run that has ended and did not diverge.

        Raises:
            InputError: If there is none.
        """
        out = read_toml(self.settings).get("out", "run")
        model = newest_model(self.root, Path(str(out)) / "model.safetensors")
        if model is None:
            raise InputError(
                f"no run in '{out}' has ended without diverging. Start one with 'drfl deploy run {self.root}', or name "
                "a model file",
                code="no-model",
                field="MODEL",
            )
        return model

    def summaries(self) -> dict[str, Path]:
        """Return the paths of ``summary.json`` of the newest run and the newest fit, by command."""
        return {"run": self.summary(), "fit": newest_run(self.root, FITS) / "summary.json"}


def find_folder(path: Path) -> DeploymentFolder | SiteFolder:
    """Return the deployment's folder or the site's folder at a path.

    Raises:
        InputError: If there is neither.
    """
    root = path.absolute()
    if (root / "server.toml").is_file():
        return DeploymentFolder(root)
    if (root / "site.toml").is_file():
        return SiteFolder(root)
    if any((root / name).exists() for name in ("start-supernode.sh", "key", "ca.crt")):
        raise InputError(
            f"{path} is the folder of a site, but site.toml is missing. Restore it from a backup, or copy it from "
            "sites/SITE on the SuperLink's machine",
            code="not-a-deployment",
            field=str(path),
        )
    if (root / "start-superlink.sh").exists():
        raise InputError(
            f"{path} is the folder of a deployment, but server.toml is missing. Restore it from a backup, such as "
            "server.toml.DATE",
            code="not-a-deployment",
            field=str(path),
        )
    raise InputError(
        f"{path} is not a deployment, because it has no server.toml. To make one: drfl deploy init {path}",
        code="not-a-deployment",
        field=str(path),
    )


def find_deployment(path: Path) -> DeploymentFolder:
    """Return the deployment's folder at a path.

    Raises:
        InputError: If there is none, or only the folder of a site.
    """
    folder = find_folder(path)
    if isinstance(folder, SiteFolder):
        raise InputError(
            f"{path} is the folder of a site. Run this command in the deployment's folder on the SuperLink's machine",
            code="not-a-deployment",
            field=str(path),
        )
    return folder
