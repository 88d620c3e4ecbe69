"""Compare the log of a server with the logs of its sites, message by message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from drfl.core.audit_log import Head, LogContent, Record
from drfl.core.audit_signatures import fingerprint
from drfl.flower.deploy.audit_findings import Finding, limit_findings, line_of, make_finding, quote


def check_same_history(sites: Sequence[LogContent]) -> Iterator[Finding]:
    """Check that all sites recorded the same history of the server's log."""
    first: dict[int, tuple[str, LogContent, object]] = {}
    for log in sites:
        for record in log.records:
            try:
                head = Head.parse(str(record.get("server")))
            except ValueError:
                continue
            # All later logs must agree with the first log that records a line of the server's log.
            digest, other, n = first.setdefault(head.n, (head.digest, log, record["n"]))
            if digest != head.digest:
                text = f"it records another line {head.n} of the server's log than line {n} of {quote(other)}"
                yield make_finding(log, "problem", text, "two-histories", record["n"])
                break


def _keys(log: LogContent) -> dict[str, str]:
    """Return the keys that signed a log, by fingerprint."""
    keys = (str(record.get("key")) for record in log.records if record["event"] in ("opened", "key"))
    return {fingerprint(key): key for key in keys}


def _recorded_line(
    log: LogContent, record: Record, name: str, other: LogContent, keys: dict[str, str]
) -> Finding | int:
    """Return the line number of the other log's head in a record, or a finding if the head contradicts that log.

    ``name`` is the field of the record that contains the head, and ``keys`` are those of the other log by fingerprint.
    """
    n = record["n"]
    try:
        head = Head.parse(str(record.get(name)))
    except ValueError:
        return make_finding(
            log, "problem", f"the message did not contain the head of {quote(other)}", "without-head", n
        )
    # A valid signature proves that the owner of the other log wrote this head.
    signed = head.by in keys and head.is_signed_by(keys[head.by])
    proof = "the head is signed with a key of that log" if signed else "the head is not signed with a key of that log"
    # A log must still have every line whose head was sent.
    if head.n > len(other.heads):
        text = f"it records line {head.n} of {quote(other)}, which has only {len(other.heads)} lines: lines were"
        return make_finding(log, "problem", f"{text} removed from that log ({proof})", "truncated-log", n)
    if other.heads[head.n - 1].digest != head.digest:
        text = f"it records another line {head.n} of {quote(other)} than is there now: that log was rewritten"
        return make_finding(log, "problem", f"{text}, or this line was ({proof})", "rewritten-log", n)
    if other.heads[head.n - 1].by and not signed:
        text = f"it records another signature of line {head.n} of {quote(other)}"
        return make_finding(log, "problem", text, "bad-signature", n)
    return head.n


def compare_logs(server: LogContent, site: LogContent, name: str) -> Iterator[Finding]:
    """Compare the server's log with that of a site, in both directions."""
    findings = list(limit_findings(_site_by_server(server, site, name)))
    findings += limit_findings(_server_by_site(server, site, name))
    yield from findings
    # A message that was lost in transit is in one log only. The logs cannot prove that it was lost.
    requests = [record["n"] for record in server.records if record["event"] == "asked" and record.get("site") == name]
    arrived = {line_of(record.get("server")) for record in site.records if record["event"] == "asked"}
    received = {str(record.get("head")) for record in server.records if record.get("site") == name}
    replies = [head for record, head in zip(site.records, site.heads, strict=True) if record["event"] == "sent"]
    missed, late = sum(n not in arrived for n in requests), sum(str(head) not in received for head in replies)
    if missed:
        verb, who = ("is", "it") if missed == 1 else ("are", "they")
        text = f"{name}: {missed} of {len(requests)} requests {verb} not in {quote(site)}: {who} did not reach the site"
        yield make_finding(server, "note", text, "requests-lost")
    if late:
        verb, why = ("is", "it came too late or was lost") if late == 1 else ("are", "they came too late or were lost")
        text = f"{name}: {late} of {len(replies)} replies {verb} not in {quote(server)}: {why}"
        yield make_finding(site, "note", text, "replies-lost")
    if all(finding.kind != "problem" for finding in findings):
        text = f"{name}: {len(requests) - missed} requests and {len(replies) - late} replies agree with {quote(server)}"
        yield make_finding(site, "ok", text, "agrees")


def _site_by_server(server: LogContent, site: LogContent, name: str) -> Iterator[Finding]:
    """Check that the server's log contains the requests and heads that a site recorded."""
    runs: list[str] = []  # for each line of the server's log, the run that it belongs to
    for record in server.records:
        runs.append(str(record.get("run")) if record["event"] == "started" else runs[-1] if runs else "")
    ends = [n for n, record in enumerate(server.records) if record["event"] in ("started", "finished")]
    keys = _keys(server)
    for record in site.records:
        if record["event"] not in ("identified", "asked", "closed"):
            continue
        line = _recorded_line(site, record, "server", server, keys)
        if isinstance(line, Finding):
            yield line
            continue
        if record.get("run") != runs[line - 1]:
            text = (
                f"it belongs to run {record.get('run')}, but line {line} of {quote(server)} belongs to run "
                f"'{runs[line - 1]}'"
            )
            yield make_finding(site, "problem", text, "other-run", record["n"])
        if record["event"] == "asked":
            counterpart, n = server.records[line - 1], record["n"]
            if counterpart["event"] != "asked":
                text = f"it refers to line {line} of {quote(server)}, which does not record this request"
                yield make_finding(site, "problem", text, "request-not-recorded", n)
                continue
            expected = {"site": name, "what": record.get("what"), "digest": record.get("digest")}
            different = [field for field, value in expected.items() if counterpart.get(field) != value]
            for field in different:
                text = f"its {field} differs from that of the request in line {line} of {quote(server)}"
                yield make_finding(site, "problem", text, "other-request", n)
        elif record["event"] == "closed" and (server.records[line - 1]["event"] != "closing" or ends[-1:] < [line]):
            text = f"the server closed run {record.get('run')}, but the end of the run is missing from {quote(server)}"
            text = f"{text}. If the server was killed at that moment, resume the run"
            yield make_finding(site, "problem", text, "end-missing", record["n"])


def _server_by_site(server: LogContent, site: LogContent, name: str) -> Iterator[Finding]:
    """Check that a site's log contains the replies and heads that the server recorded."""
    expected = {"joined": "identified", "parted": "closed", "received": "sent", "lacking": "sent", "unusable": "sent"}
    keys = _keys(site)
    for record in server.records:
        event = str(record["event"])
        # A reply that the server could not read may lack the head. Every reply that it accepted has one.
        if record.get("site") != name or event not in expected or (event == "unusable" and record.get("head") is None):
            continue
        line = _recorded_line(server, record, "head", site, keys)
        if isinstance(line, Finding):
            yield line
            continue
        counterpart, n = site.records[line - 1], record["n"]
        if counterpart["event"] != expected[event]:
            text = f"it records '{event}', but line {line} of {quote(site)} records '{counterpart['event']}'"
            yield make_finding(server, "problem", text, "reply-not-sent", n)
            continue
        for key in ("digest", "request"):
            if key in record and key in counterpart and counterpart[key] != record[key]:
                text = f"its {key} differs from that in line {line} of {quote(site)}, which the site wrote"
                yield make_finding(server, "problem", text, "other-reply", n)
