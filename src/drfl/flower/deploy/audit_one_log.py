"""Check one log alone: its fields and times, and whether its requests, replies and runs are consistent."""

from __future__ import annotations

from collections.abc import Iterator

from drfl.core.audit_log import LogContent, Record, wrong_field
from drfl.flower.deploy.audit_findings import Finding, line_of, make_finding

OUTCOMES = ("received", "lacking", "unusable", "failed", "silent", "lost")
"""Events in the server's log that record the outcome of a request; each request has exactly one of them."""


def check_records(log: LogContent) -> Iterator[Finding]:
    """Check the fields, times and names of the records."""
    latest = ""
    for record in log.records:
        n, wrong = record["n"], wrong_field(log.role, record)
        if wrong:
            yield make_finding(log, "problem", f"drfl does not write this record: {wrong}", "bad-record", n)
        if record["event"] == "opened" and n != 1:
            yield make_finding(log, "problem", "it opens the log a second time", "bad-record", n)
        # Times are ISO 8601 in UTC, so their texts sort like the times.
        if str(record["at"]) < latest:
            yield make_finding(log, "problem", f"time goes back, from {latest} to {record['at']}", "time-goes-back", n)
        latest = max(latest, str(record["at"]))
        if log.role == "site" and "site" in record and record["site"] != log.name:
            text = f"it names the site '{record['site']}' in the log of '{log.name}'"
            yield make_finding(log, "problem", text, "several-sites", n)


def check_site_requests(log: LogContent) -> Iterator[Finding]:
    """Check that every reply in a site's log follows a request in it."""
    requests: set[tuple[object, object]] = set()
    for record in log.records:
        event = record["event"]
        if event in ("asked", "identified"):
            requests.add((line_of(record.get("server")), record.get("what", "identity")))
        # If a site refuses the head of a request, its log has only the refusal.
        is_refused_head = event == "refused" and record.get("request") is None
        if (
            event in ("sent", "refused")
            and not is_refused_head
            and (record.get("request"), record.get("what")) not in requests
        ):
            yield make_finding(
                log, "problem", "it answers a request that is not in the log", "answer-without-request", record["n"]
            )


class ServerRuns:
    """Checks the order of events in a server's log: sites join a run, receive requests, reply, and replies are used."""

    def __init__(self, log: LogContent) -> None:
        self.log = log
        self.run: str | None = None
        self.sites: set[str] = set()
        self.joined: set[str] = set()
        self.pending: dict[object, Record] = {}
        # for each site and kind of request, the stream of the last reply that may be used
        self.usable: dict[tuple[str, object], object] = {}
        self.closing: Record | None = None
        self.parted: set[str] = set()

    def findings(self) -> Iterator[Finding]:
        """Yield the inconsistencies of the log."""
        for record in self.log.records:
            event = record["event"]
            if event == "started":
                # If the server was killed, a run may still be open. The new start ends it.
                self.run, self.sites = str(record.get("run")), set(_names(record))
                self.joined, self.pending, self.usable, self.closing, self.parted = set(), {}, {}, None, set()
            elif event in ("opened", "key"):
                continue
            elif self.run is None:
                text = f"'{event}' is outside a run, so the start of the run was removed"
                yield self._problem(text, "outside-a-run", record)
            elif "site" in record and record["site"] not in self.sites:
                yield self._problem(f"the run has no site '{record['site']}'", "unknown-site", record)
            elif event == "joined":
                self.joined.add(str(record["site"]))
            # A run closes, its sites leave, and it ends, in this order.
            elif event == "closing":
                if self.closing is not None or record.get("run") != self.run:
                    yield self._problem("it closes another run, or closes this run twice", "wrong-end", record)
                if record.get("outcome") != "failed":  # an error may end a run in the middle of an exchange
                    yield from self._without_outcome(self.pending)
                self.pending, self.closing = {}, record
            elif event == "parted":
                if self.closing is None or record["site"] in self.parted:
                    text = f"the run is not closed yet, or '{record['site']}' left it twice"
                    yield self._problem(text, "wrong-end", record)
                self.parted.add(str(record["site"]))
            elif event == "finished":
                ends = None if self.closing is None else [self.closing.get(name) for name in ("run", "outcome")]
                if ends != [record.get("run"), record.get("outcome")]:
                    yield self._problem("it does not match how the run was closed", "wrong-end", record)
                self.run = None
            else:
                yield from self._exchange(record)
        if self.run is not None:
            text = f"the log ends during run {self.run}: the server was killed or still runs, or the end was removed"
            yield make_finding(self.log, "note", text, "unfinished-run")

    def _problem(self, text: str, code: str, record: Record) -> Finding:
        return make_finding(self.log, "problem", text, code, record["n"])

    def _exchange(self, record: Record) -> Iterator[Finding]:
        """Check a request, its outcome, or the use of a reply."""
        event, site, what = record["event"], record.get("site"), record.get("what")
        if event == "asked":
            if site not in self.joined:
                yield self._problem(f"'{site}' received a request before it joined", "not-joined", record)
            # A server asks a site again only after it has recorded the outcome of the previous request.
            yield from self._without_outcome({n: r for n, r in self.pending.items() if r["site"] == site})
            self.pending = {n: r for n, r in self.pending.items() if r["site"] != site}
            self.pending[record["n"]] = record
        elif event in OUTCOMES:
            request = self.pending.pop(record.get("request"), None)
            if request is None or request["site"] != site:
                text = f"'{event}' of '{site}' does not belong to an open request"
                yield self._problem(text, "answer-without-request", record)
            elif event == "received":
                self.usable[str(site), request.get("what")] = request.get("stream")
        elif event == "rejected":
            self.usable.pop((str(site), what), None)
        elif event == "used":
            for name in _names(record):
                if record.get("stream") is None or self.usable.get((name, what)) != record["stream"]:
                    text = f"it uses a reply of '{name}' that was not received or was rejected"
                    yield self._problem(text, "used-without-reply", record)

    def _without_outcome(self, requests: dict[object, Record]) -> Iterator[Finding]:
        for request in requests.values():
            text = f"the outcome of this request to '{request['site']}' is missing"
            yield self._problem(text, "outcome-missing", request)


def _names(record: Record) -> list[str]:
    sites = record.get("sites")
    return sites if isinstance(sites, list) else []
