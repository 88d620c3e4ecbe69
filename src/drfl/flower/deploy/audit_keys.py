"""The keys by which an audit knows whose a log is, and the signatures of a log's lines."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from drfl.core.audit_log import Audited
from drfl.core.audit_signatures import fingerprint, read_public_key
from drfl.flower.deploy.audit_findings import Finding, say
from drfl.flower.deploy.paths import DeploymentFolder, SiteFolder, find, read_toml

SERVER = "superlink"
"""What the server is called among the owners of keys; no site can be named so."""

_REVOKED = re.compile(r"(?P<name>.+)-[0-9]{8}T[0-9]{6}\.[0-9]{6}\.pub")


@dataclass(frozen=True)
class TrustedKeys:
    """The public keys that the operator knows.

    Args:
        secure: Whether logs must be signed; None = unknown.
        current: The key of each site, and of the server under :data:`SERVER`.
        revoked: Those that were revoked or exchanged.
    """

    secure: bool | None = None
    current: dict[str, str] = field(default_factory=dict)
    revoked: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> TrustedKeys:
        """The keys in a deployment's folder, or in the folder of one site.

        Raises:
            InputError: It is neither, or a key cannot be read.
        """
        place = find(folder)
        if isinstance(place, SiteFolder):
            settings = read_toml(place.settings)
            files = {str(settings.get("name")): place.root / "key.pub"}
            if settings.get("server_key") is not None:
                files[SERVER] = place.root / str(settings["server_key"])
            secure = True if place.key.exists() else None
        else:
            files = {site.name: site.public_key for site in place.sites()}
            files[SERVER] = place.certificates / "audit.pub"
            secure = not read_toml(place.settings).get("insecure", False)
        revoked: dict[str, set[str]] = {}
        kept = sorted((place.root / "keys" / "revoked").glob("*.pub")) if isinstance(place, DeploymentFolder) else []
        for path in kept:
            found = _REVOKED.fullmatch(path.name)
            if found is not None:
                revoked.setdefault(found["name"], set()).add(read_public_key(path))
        # A key that was revoked is no longer there.
        current = {name: read_public_key(path) for name, path in files.items() if path.exists()} if secure else {}
        return cls(secure, current, revoked)

    @classmethod
    def beside(cls, logs: Sequence[Path]) -> TrustedKeys:
        """The keys in the deployment's folder that one of the logs lies in; none if no log does."""
        for log in logs:
            # Take keys from the operator's folder, never from the log that they check.
            if (log.absolute().parent / "server.toml").is_file():
                return cls.of(log.absolute().parent)
        return cls()


def signatures(log: Audited, name: str, trusted: TrustedKeys) -> Iterator[Finding]:
    """Whether each line is signed with the owner's key of that time, and whether the operator knows these keys."""
    first = log.records[0].get("key")
    if not isinstance(first, str):
        signed = next((head.n for head in log.heads if head.by or head.signature), None)
        if signed is not None:
            yield say(log, "problem", "it is signed, but the log names no key", "bad-signature", signed)
        if trusted.secure:
            yield say(log, "problem", "it is unsigned, but the deployment's sites have keys: set 'key'", "unsigned-log")
        else:
            yield say(
                log, "note", "it is unsigned: anybody who can write to the file could have written it", "unsigned"
            )
        return
    key, revoked = first, trusted.revoked.get(name, set())
    for record, head in zip(log.records, log.heads, strict=True):
        new = record.get("key") if record["event"] == "key" else None
        # The old key signs the line that introduces a new one; if the old key is lost, the new one does.
        signer = new if isinstance(new, str) and head.by == fingerprint(new) else key
        if head.by != fingerprint(signer) or not head.is_signed_by(signer):
            text = "it is not signed with the log's key, so somebody without that key wrote it"
            yield say(log, "problem", text, "bad-signature", head.n)
            return
        if isinstance(new, str):
            if signer == key:
                yield say(log, "note", "a new key, signed by the previous one", "new-key", head.n)
            elif key in revoked:
                # A revoked key may be lost, so it need not have signed the new one.
                text = "a new key, after the operator revoked the previous one"
                yield say(log, "note", text, "new-key", head.n)
            else:
                text = "a new key that the previous key did not sign, although that key was not revoked"
                yield say(log, "problem", text, "new-key-without-the-old", head.n)
            key = new
    if key not in {trusted.current.get(name), *revoked}:
        known = "is not that of" if name in trusted.current else "cannot be compared with that of"
        where = "give --deployment DIR, the folder with the keys" if name not in trusted.current else "see keys/"
        text = f"it is signed with key {fingerprint(key)}, which {known} '{name}': {where}"
        yield say(log, "problem", text, "unknown-key")
