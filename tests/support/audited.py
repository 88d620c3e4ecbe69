"""An audited deployment in this process: a server and three sites with logs, with or without keys."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from tests.flower.conftest import arrays, grid_of

from drfl.core import audit_log
from drfl.core.audit_log import AuditLog, Record
from drfl.core.audit_signatures import SigningKey, read_public_key, read_signing_key
from drfl.data import ClientData
from drfl.flower.client_app import Site
from drfl.flower.in_process import InProcessGrid

NAMES = "abc"

SERVER = """
out = "{out}"
timeout = 5.0
wait = 0.05
audit = "audit.jsonl"
{security}
[job]
algorithm = "{algorithm}"
rounds = {rounds}
cohort = 3
lr = 0.05
checkpoint_every = 1
"""


def make_key(path: Path) -> None:
    """Make a key pair with ssh-keygen."""
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)


class Deployed:
    """A folder like that of ``drfl deploy init``, whose sites answer in this process.

    Args:
        root: The folder.
        secure: Whether server and sites have keys.
        algorithm: Name of the run's algorithm.
    """

    def __init__(self, root: Path, secure: bool = True, algorithm: str = "DualDRDM") -> None:
        self.root, self.secure, self.algorithm = root, secure, algorithm
        self.sites: dict[str, Site] = {}
        if secure:
            make_key(root / "certificates" / "audit.key")
            (root / "certificates" / "audit.key.pub").rename(root / "certificates" / "audit.pub")
        for place, name in enumerate(NAMES):
            folder = root / "sites" / name
            folder.mkdir(parents=True)
            if secure:
                make_key(folder / "key")
                (root / "keys").mkdir(exist_ok=True)
                (root / "keys" / f"{name}.pub").write_bytes((folder / "key.pub").read_bytes())
            data = ClientData.from_arrays({name: arrays(12 + place, place)}, {name: arrays(9, 10 + place)})
            self.sites[name] = Site(name, data, folder=folder)
        for name in NAMES:
            self.load(name)

    def log(self, name: str) -> Path:
        """Return the log of a site, or of the server."""
        return self.root / "audit.jsonl" if name == "server" else self.root / "sites" / name / "audit.jsonl"

    def key(self, name: str) -> SigningKey | None:
        """Return the key that signs a log."""
        if not self.secure:
            return None
        place = "certificates/audit.key" if name == "server" else f"sites/{name}/key"
        return read_signing_key(self.root / place)

    def load(self, name: str, previous: SigningKey | None = None) -> None:
        """Start a site with the key in its folder."""
        log = AuditLog(self.log(name), "site", name, self.key(name), previous)
        server = read_public_key(self.root / "certificates" / "audit.pub") if self.secure else None
        self.sites[name] = replace(self.sites[name], audit=log, server_key=server)

    def grid(self, kind: type[InProcessGrid] = InProcessGrid) -> InProcessGrid:
        """Return a grid whose nodes have the sites' keys."""
        grid = grid_of(NAMES, load=lambda context: self.sites[context.node_config["name"]], grid=kind)
        if self.secure:
            for node, name in enumerate(NAMES, start=1):
                public = serialization.load_ssh_public_key((self.root / "keys" / f"{name}.pub").read_bytes())
                form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
                grid.keys[node] = public.public_bytes(*form)
        return grid

    def settings(self, out: str = "run", rounds: int = 2) -> Path:
        """Write server.toml."""
        security = 'key = "certificates/audit.key"' if self.secure else "insecure = true"
        text = SERVER.format(out=out, rounds=rounds, security=security, algorithm=self.algorithm)
        for name in NAMES:
            text += f'[[sites]]\nname = "{name}"\n' + (f'public_key = "keys/{name}.pub"\n' if self.secure else "")
        path = self.root / "server.toml"
        path.write_text(text)
        return path

    def logs(self) -> list[str]:
        """Return the audit's arguments, which are all logs."""
        return [str(self.log(name)) for name in ("server", *NAMES)]

    def records(self, name: str) -> list[Record]:
        """Return the records of a log."""
        return [json.loads(line) for line in self.log(name).read_text(encoding="utf-8").splitlines()]

    def rewrite(self, name: str, records: list[Record], key: SigningKey | None = None) -> None:
        """Replace a log by these records, chained and signed by its owner."""
        path, own = self.log(name), self.key(name) if key is None else key
        path.unlink()
        forged = Forged(path, "server" if name == "server" else "site", name, own)
        for record in records:
            forged.append(record)


class Forged(AuditLog):
    """A log whose owner writes any record at any time."""

    def append(self, record: Record) -> None:
        """Append a record unchanged."""
        text = self.path.read_bytes().splitlines() if self.path.exists() else []
        before = audit_log._parsed(text[-1])[1] if text else None
        plain = {k: v for k, v in record.items() if k not in ("n", "at", "event", "by", "previous", "signature")}
        clock, audit_log._now = audit_log._now, lambda: str(record["at"])
        try:
            with self.path.open("ab") as file:
                self._write(file, before, "", str(record["event"]), plain, self.key)
        finally:
            audit_log._now = clock
