"""Check the audit logs of a deployment: each log alone, and the logs of the server and the sites against each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from drfl.core.audit_log import BrokenLogError, LogContent, read
from drfl.core.errors import Notice, unknown
from drfl.flower.deploy.audit_comparison import check_same_history, compare_logs
from drfl.flower.deploy.audit_findings import Finding, limit_findings, make_finding, quote
from drfl.flower.deploy.audit_keys import SERVER, TrustedKeys, check_signatures
from drfl.flower.deploy.audit_one_log import ServerRuns, check_records, check_site_requests


def audit(paths: Sequence[Path], keys: TrustedKeys | None = None, without: Sequence[str] = ()) -> Iterator[Finding]:
    """Check each log alone, and all logs against each other.

    Args:
        paths: Log files of the server and its sites.
        keys: Public keys that the operator trusts. By default, the keys in the deployment's folder that contains one of
            the logs.
        without: Names of sites whose logs are not available.

    Raises:
        InputError: If a file or a key cannot be read, or a name in ``without`` is not a site.
    """
    trusted = TrustedKeys.of_logs(paths) if keys is None else keys
    logs: list[LogContent] = []
    for path in paths:
        try:
            logs.append(read(path))
        except BrokenLogError as error:
            yield Finding("problem", Notice(str(error), error.code, error.field))
    servers, sites = ([log for log in logs if log.role == role] for role in ("server", "site"))
    server = servers[0] if len(servers) == 1 else None
    names: dict[Path, str | None] = {log.path: log.name for log in sites}
    if server is not None:
        for log in sites:
            # The server's records use the names in server.toml, which may differ from those in the sites' logs.
            joined = [
                record for record in server.records if record["event"] == "joined" and record.get("name") == log.name
            ]
            known = list(dict.fromkeys(str(record.get("site")) for record in joined))
            if len(known) > 1:  # several sites report this name, so identify the site by the heads of its log
                heads = set(map(str, log.heads))
                known = list(dict.fromkeys(str(record.get("site")) for record in joined if record.get("head") in heads))
            names[log.path] = known[0] if len(known) == 1 else None
    for log in logs:
        name = SERVER if log.role == "server" else names[log.path] or log.name
        findings = [*limit_findings(check_records(log)), *check_signatures(log, name, trusted)]
        # The next checks need complete records.
        if all(finding.text.code != "bad-record" for finding in findings):
            findings += limit_findings(ServerRuns(log).findings() if log.role == "server" else check_site_requests(log))
        yield from findings
        if all(finding.kind != "problem" for finding in findings):
            yield make_finding(log, "ok", f"{len(log.records)} lines, last digest {log.heads[-1].digest}", "whole")
    yield from check_same_history(sites)
    if server is None:
        reason = "there are logs of several servers" if servers else "the log of the server is missing"
        for log in logs:
            text = f"not compared with other logs, because {reason}. Pass the log of one server"
            yield make_finding(log, "problem", text, "not-compared")
    else:
        yield from _compare_all(server, sites, names, without)


def _compare_all(
    server: LogContent, sites: Sequence[LogContent], names: dict[Path, str | None], without: Sequence[str]
) -> Iterator[Finding]:
    by_name: dict[str, LogContent] = {}
    for log in sites:
        name = names[log.path]
        if name is None:
            text = f"this is the log of '{log.name}', which does not match any site in {quote(server)}"
            yield make_finding(log, "problem", text, "unknown-site")
        elif name in by_name:
            text = f"{quote(by_name[name])} is also the log of {name}. Pass one of them"
            yield make_finding(log, "problem", text, "two-logs")
        else:
            by_name[name] = log
    joined = [str(record.get("site")) for record in server.records if record["event"] == "joined"]
    if not by_name and (not joined or set(joined) - set(without)):
        yield make_finding(
            server, "problem", "not compared with other logs. Pass the logs of its sites", "not-compared"
        )
    for name in without:
        if name not in joined:
            raise unknown("site", name, sorted(set(joined)))
    # Sites join in every run: compare each site once, in the order in which the sites joined first.
    for name in dict.fromkeys(joined):
        if name in by_name:
            yield from compare_logs(server, by_name[name], name)
        elif name in without:
            yield make_finding(server, "note", f"{name}: not compared, because its log is not available", "left-out")
        else:
            text = f"{name}: the log of this site is missing. Add it, or use --without {name}"
            yield make_finding(server, "problem", text, "missing-log")
