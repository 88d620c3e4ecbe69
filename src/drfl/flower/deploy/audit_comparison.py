"""What the logs of a server and its sites say differently of the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drfl.core.audit_log import Audited, Head, Record
from drfl.core.audit_signatures import fingerprint
from drfl.flower.deploy.audit_findings import Finding, few, line_of, quoted, say


def same_history(sites: Sequence[Audited]) -> Iterator[Finding]:
    """Whether the server has told all sites the same history."""
    told: dict[int, tuple[str, Audited, object]] = {}
    for log in sites:
        for record in log.records:
            try:
                head = Head.parse(str(record.get("server")))
            except ValueError:
                continue
            # All later logs must agree with the first log that mentions a line.
            digest, other, n = told.setdefault(head.n, (head.digest, log, record["n"]))
            if digest != head.digest:
                text = f"it notes another line {head.n} of the server's log than line {n} of {quoted(other)}"
                yield say(log, "problem", text, "two-histories", record["n"])
                break


def _keys(log: Audited) -> dict[str, str]:
    """The keys that have signed a log, by fingerprint."""
    keys = (str(record.get("key")) for record in log.records if record["event"] in ("opened", "key"))
    return {fingerprint(key): key for key in keys}


def _noted(log: Audited, record: Record, name: str, other: Audited, keys: dict[str, str]) -> Finding | int:
    """The number of the line of another log whose head a record notes, or how the two contradict each other.

    Args:
        log: The log with the record.
        record: The record.
        name: Its field with the head.
        other: The other log.
        keys: Those of the other log, by fingerprint.
    """
    n = record["n"]
    try:
        head = Head.parse(str(record.get(name)))
    except ValueError:
        return say(log, "problem", f"the message came without the head of {quoted(other)}", "without-head", n)
    # A valid signature proves that the owner of the other log wrote this head.
    signed = head.by in keys and head.is_signed_by(keys[head.by])
    proof = "it is signed with a key of that log" if signed else "the head is not signed with a key of that log"
    # A log must still have every line whose head was sent out.
    if head.n > len(other.heads):
        text = f"it notes line {head.n} of {quoted(other)}, which has only {len(other.heads)} lines: lines were removed"
        return say(log, "problem", f"{text} there ({proof})", "truncated-log", n)
    if other.heads[head.n - 1].digest != head.digest:
        text = f"line {head.n} of {quoted(other)} has changed since this line was written: that log was rewritten"
        return say(log, "problem", f"{text}, or this note was ({proof})", "rewritten-log", n)
    if other.heads[head.n - 1].by and not signed:
        text = f"it notes another signature of line {head.n} of {quoted(other)}"
        return say(log, "problem", text, "bad-signature", n)
    return head.n


def compared(server: Audited, site: Audited, name: str) -> Iterator[Finding]:
    """What the server's log and that of a site say differently."""
    findings = list(few(_site_by_server(server, site, name)))
    findings += few(_server_by_site(server, site, name))
    yield from findings
    # What was lost on the way is in one log only; nothing can show that it was not lost.
    asked = [record["n"] for record in server.records if record["event"] == "asked" and record.get("site") == name]
    noted = {line_of(record.get("server")) for record in site.records if record["event"] == "asked"}
    got = {str(record.get("head")) for record in server.records if record.get("site") == name}
    sent = [head for record, head in zip(site.records, site.heads, strict=True) if record["event"] == "sent"]
    missed, late = sum(n not in noted for n in asked), sum(str(head) not in got for head in sent)
    if missed:
        text = f"{name}: {missed} of {len(asked)} requests are not in {quoted(site)}: they did not reach the site"
        yield say(server, "note", text, "requests-lost")
    if late:
        text = f"{name}: {late} of {len(sent)} replies are not in {quoted(server)}: they came too late or were lost"
        yield say(site, "note", text, "replies-lost")
    if all(finding.kind != "problem" for finding in findings):
        text = f"{name}: {len(asked) - missed} requests and {len(sent) - late} replies agree with {quoted(server)}"
        yield say(site, "ok", text, "agrees")


def _site_by_server(server: Audited, site: Audited, name: str) -> Iterator[Finding]:
    """Whether what a site has noted of the server is in the server's log."""
    runs: list[str] = []  # the run that each line of the server's log belongs to
    for record in server.records:
        runs.append(str(record.get("run")) if record["event"] == "started" else runs[-1] if runs else "")
    ends = [n for n, record in enumerate(server.records) if record["event"] in ("started", "finished")]
    keys = _keys(server)
    for record in site.records:
        if record["event"] not in ("identified", "asked", "closed"):
            continue
        found = _noted(site, record, "server", server, keys)
        if isinstance(found, Finding):
            yield found
            continue
        if record.get("run") != runs[found - 1]:
            text = (
                f"it is of run {record.get('run')}, but line {found} of {quoted(server)} is of run '{runs[found - 1]}'"
            )
            yield say(site, "problem", text, "other-run", record["n"])
        if record["event"] == "asked":
            theirs, n = server.records[found - 1], record["n"]
            if theirs["event"] != "asked":
                text = f"it names line {found} of {quoted(server)}, which does not record this request"
                yield say(site, "problem", text, "request-not-recorded", n)
                continue
            expected = {"site": name, "what": record.get("what"), "digest": record.get("digest")}
            different = [field for field, value in expected.items() if theirs.get(field) != value]
            for field in different:
                text = f"it differs in its {field} from the request in line {found} of {quoted(server)}"
                yield say(site, "problem", text, "other-request", n)
        elif record["event"] == "closed" and (server.records[found - 1]["event"] != "closing" or ends[-1:] < [found]):
            text = f"the server closed run {record.get('run')}, but its end is missing from {quoted(server)}"
            text = f"{text}. If the server was killed at that moment, resume the run"
            yield say(site, "problem", text, "end-missing", record["n"])


def _server_by_site(server: Audited, site: Audited, name: str) -> Iterator[Finding]:
    """Whether what the server has noted of a site is in the site's log."""
    expected = {"joined": "identified", "parted": "closed", "received": "sent", "lacking": "sent", "unusable": "sent"}
    keys = _keys(site)
    for record in server.records:
        event = str(record["event"])
        # A reply that cannot be read may lack its head; one that the server took has it, as the site keeps a log.
        if record.get("site") != name or event not in expected or (event == "unusable" and record.get("head") is None):
            continue
        found = _noted(server, record, "head", site, keys)
        if isinstance(found, Finding):
            yield found
            continue
        theirs, n = site.records[found - 1], record["n"]
        if theirs["event"] != expected[event]:
            text = f"it is '{event}', but line {found} of {quoted(site)} is '{theirs['event']}'"
            yield say(server, "problem", text, "reply-not-sent", n)
            continue
        for field_name in ("digest", "request"):
            if field_name in record and field_name in theirs and theirs[field_name] != record[field_name]:
                text = f"it differs in its {field_name} from line {found} of {quoted(site)}, which the site wrote"
                yield say(server, "problem", text, "other-reply", n)
