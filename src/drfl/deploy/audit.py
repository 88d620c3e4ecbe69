"""Check the audit logs of a deployment: each by itself, and a server's beside those of its sites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from drfl.audit_log import Audited, disagreements, read
from drfl.errors import InputError

SERVERS = ("joined", "received", "rejected", "failed")
"""Events that only a server's log has."""


def checked(paths: Sequence[Path]) -> Iterator[tuple[bool, str]]:
    """Whether all is well, and a line about it: of each log, then of what two of them say of the same replies.

    Args:
        paths: of logs: one server's at most, and any number of sites'.
    """
    logs: dict[Path, Audited] = {}
    for path in paths:
        try:
            logs[path] = read(path)
        except InputError as error:
            yield False, str(error)
            continue
        count = len(logs[path].records)
        yield True, f"'{path}': {count} {'line' if count == 1 else 'lines'}, whole, up to {logs[path].head}"
    servers = [path for path, log in logs.items() if any(record["event"] in SERVERS for record in log.records)]
    if len(servers) > 1:
        yield False, f"'{servers[0]}' and '{servers[1]}' are both of a server: compare one server's log with its sites'"
        return
    for server in servers:
        for path, log in logs.items():
            names = dict.fromkeys(str(record["site"]) for record in log.records if "site" in record)
            if path != server and len(names) == 1:
                (name,) = names
                found = list(disagreements(logs[server].records, log.records, name))
                yield from ((False, line) for line in found)
                if not found:
                    yield True, f"{name}: the server has received nothing that the site has not sent"
