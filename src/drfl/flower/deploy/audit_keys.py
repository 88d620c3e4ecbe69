"""The keys that an audit trusts, and the check of the signatures in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drfl.core.audit_log import LogContent
from drfl.core.audit_signatures import fingerprint, read_public_key
from drfl.core.json_toml import read_toml
from drfl.flower.deploy.audit_findings import Finding, make_finding
from drfl.flower.deploy.paths import SiteFolder, find_folder

SERVER = "superlink"
"""The server's name among the owners of keys; no site can have this name."""


@dataclass(frozen=True)
class TrustedKeys:
    """The public keys that the operator trusts.

    Args:
        secure: Whether logs must be signed; None if unknown.
        current: The current key of each site by name, and of the server under :data:`SERVER`.
        revoked: The keys of each owner that were revoked or replaced.
    """

    secure: bool | None = None
    current: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> TrustedKeys:
        """Read the keys in a deployment's folder or in the folder of a site."""
        owner, revoked = find_folder(folder), dict[str, set[str]]()
        if isinstance(owner, SiteFolder):
            settings = read_toml(owner.settings)
            files = {str(settings.get("name")): owner.root / "key.pub"}
            if settings.get("server_key") is not None:
                files[SERVER] = owner.root / str(settings["server_key"])
            secure = True if owner.key.exists() else None
        else:
            files = {site.name: site.public_key for site in owner.sites()}
            files[SERVER] = owner.certificates / "audit.pub"
            secure = not read_toml(owner.settings).get("insecure", False)
            revoked = {name: set(map(read_public_key, paths)) for name, paths in owner.revoked_keys().items()}
        # The file of a revoked key is no longer at its place.
        current = {name: read_public_key(path) for name, path in files.items() if path.exists()} if secure else {}
        return cls(secure, current, revoked)

    @classmethod
    def of_logs(cls, logs: Sequence[Path]) -> TrustedKeys:
        """Read the keys in the deployment's folder that contains one of the logs; return no keys if there is none."""
        for log in logs:
            # Take keys from the operator's folder, never from the log that they verify.
            if (log.absolute().parent / "server.toml").is_file():
                return cls.of(log.absolute().parent)
        return cls()


def check_signatures(log: LogContent, name: str, trusted: TrustedKeys) -> Iterator[Finding]:
    """Check that each line is signed with the key in use at that line, and that the operator trusts this key."""
    first = log.records[0].get("key")
    if not isinstance(first, str):
        signed = next((head.n for head in log.heads if head.by or head.signature), None)
        if signed is not None:
            yield make_finding(log, "problem", "it is signed, but the log does not name a key", "bad-signature", signed)
        if trusted.secure:
            text = "unsigned, although the sites of this deployment have keys. Set 'key' in the settings"
            yield make_finding(log, "problem", text, "unsigned-log")
        else:
            text = "unsigned: anyone with write access to the file could have written it"
            yield make_finding(log, "note", text, "unsigned")
        return
    key, revoked = first, trusted.revoked.get(name, set())
    for record, head in zip(log.records, log.heads, strict=True):
        new = record.get("key") if record["event"] == "key" else None
        # The line that introduces a new key is signed with the old key, or with the new one if the old key is lost.
        signer = new if isinstance(new, str) and head.by == fingerprint(new) else key
        if head.by != fingerprint(signer) or not head.is_signed_by(signer):
            text = "it is not signed with the log's key, so it was written without that key"
            yield make_finding(log, "problem", text, "bad-signature", head.n)
            return
        if isinstance(new, str):
            if signer == key:
                yield make_finding(log, "note", "a new key, signed by the previous one", "new-key", head.n)
            elif key in revoked:
                # A revoked key may be lost, so it need not have signed the new key.
                text = "a new key, after the operator revoked the previous one"
                yield make_finding(log, "note", text, "new-key", head.n)
            else:
                text = "a new key that the previous key did not sign, although that key was not revoked"
                yield make_finding(log, "problem", text, "new-key-without-the-old", head.n)
            key = new
    if key not in {trusted.current.get(name), *revoked}:
        problem = "is not the key of" if name in trusted.current else "cannot be compared with the key of"
        remedy = "See keys/" if name in trusted.current else "Pass the folder with the keys: --deployment DIR"
        text = f"signed with key {fingerprint(key)}, which {problem} '{name}'. {remedy}"
        yield make_finding(log, "problem", text, "unknown-key")
