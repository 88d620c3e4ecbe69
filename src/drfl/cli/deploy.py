"""``drfl deploy``: the grammar, and what it prints."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drfl.cli import signals
from drfl.core.screen import say

if TYPE_CHECKING:
    from drfl.flower.deploy.paths import DeploymentFolder

app = typer.Typer(
    name="deploy",
    help="A real deployment over Flower: write its folder, check it, train with it.",
    no_args_is_help=True,
)

Place = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's folder.")]
Number = Annotated[str, typer.Argument(metavar="RUN", help="The run's number, as 'drfl deploy run' printed it.")]

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

GRACE = 5.0
"""Seconds after Ctrl-C in which a second one stops the run itself."""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    sites: Annotated[str, typer.Option(help="The sites' names with commas between, in the order of the clients.")],
    host: Annotated[
        str | None, typer.Option(help="Name or address where the sites reach the SuperLink. (default: localhost)")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Its port. (default: 8000)")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Without TLS and keys; to try things out.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Make keys and certificates too, by make-keys.sh.")] = False,
) -> int:
    """Write a deployment's folder: settings, scripts and services, for the SuperLink and for each site."""
    with signals.as_stopped():
        _require()
        from drfl.flower.deploy.init import DeploymentPlan, write

        write(DeploymentPlan.of(sites, host, port, insecure), directory, keys)
        say(f"{directory}: written; its README.md says how to start it")
    return 0


@app.command()
def check(
    directory: Place,
    site: Annotated[
        str | None, typer.Option(help="Check this site, on its machine: its key, its way to the SuperLink, its data.")
    ] = None,
    write: Annotated[
        bool, typer.Option("--write", help="Add the proposed limits of sites to server.toml, and keep the old file.")
    ] = False,
) -> int:
    """Find out what keeps a deployment from working. In a site's own folder it checks that site."""
    with signals.as_stopped():
        _require()
        from drfl.core.errors import InputError, Notice, unknown
        from drfl.flower.deploy.check import check_deployment, check_site
        from drfl.flower.deploy.paths import SiteFolder, find

        place = find(directory)
        if write and (isinstance(place, SiteFolder) or site is not None):
            raise InputError(
                "--write adds limits to server.toml: it needs the deployment's folder, and no --site",
                code="wrong-folder",
                field="--write",
            )
        if write and not isinstance(place, SiteFolder):
            return _write_limits(place)
        if isinstance(place, SiteFolder):
            if site is not None:
                raise InputError(
                    f"{directory} is the folder of one site: leave --site out", code="unused-option", field="site"
                )
            verdicts = check_site(place)
        elif site is not None:
            names = [known.name for known in place.sites()]
            if site not in names:
                raise unknown("site", site, names)
            verdicts = check_site(place.site(site))
        else:
            verdicts = check_deployment(place)
        good = True
        for verdict in verdicts:
            good = good and verdict.ok
            kind = "note" if isinstance(verdict.text, Notice) else "ok" if verdict.ok else "problem"
            say(f"{kind:8} {verdict.subject}: {verdict.text}")
            for line in verdict.below:
                say(f"         {line}".rstrip())
    return 0 if good else 1


@app.command()
def run(
    directory: Place,
    detach: Annotated[bool, typer.Option("--detach", help="Submit it, print its number and leave.")] = False,
) -> int:
    """Train: submit a run, show its log, and end with its result. Exit code 0 only if it completed."""
    with signals.as_stopped():
        _require()
        from drfl.flower.deploy.paths import deployment
        from drfl.flower.deploy.runs import submit

        folder = deployment(directory)
        number = submit(folder)
        say(f"run {number} submitted", err=not detach)
        if detach:
            say(f"to follow it: drfl deploy follow {directory} {number}", err=True)
            return 0
        return _follow(directory, number)


@app.command()
def follow(directory: Place, number: Number) -> int:
    """Show a run's log until it ends. Exit code 0 only if it completed."""
    with signals.as_stopped():
        _require()
        return _follow(directory, number)


@app.command()
def stop(directory: Place, number: Number) -> int:
    """Stop a run."""
    with signals.as_stopped():
        _require()
        from drfl.flower.deploy.paths import deployment
        from drfl.flower.deploy.runs import stop as stop_run

        stop_run(deployment(directory), number)
        say(f"run {number} stopped")
    return 0


SiteName = Annotated[str, typer.Argument(metavar="SITE", help="The site's name in server.toml.")]


@app.command()
def revoke(
    directory: Place,
    site: SiteName,
    key_only: Annotated[
        bool, typer.Option("--key-only", help="Leave the site in server.toml, for a new key to come.")
    ] = False,
) -> int:
    """Have the SuperLink refuse a site's key from now on, and take the site out of server.toml."""
    with signals.as_stopped():
        _require()
        from drfl.flower.deploy.keys import revoke as revoke_key
        from drfl.flower.deploy.paths import deployment

        done = revoke_key(deployment(directory), site, key_only)
        taken = "" if done.settings is None else f"; it is out of server.toml, whose old text is {done.settings}"
        say(f"{site}: its key is refused from now on, and kept as {done.key}{taken}")
        for notice in done.notices:
            say(f"drfl: {notice}", err=True)
    return 0


@app.command()
def rotate(
    directory: Place,
    site: SiteName,
    key: Annotated[Path, typer.Option(help="Its new public key; the site keeps the private one.")],
) -> int:
    """Exchange a site's key for a new one."""
    with signals.as_stopped():
        _require()
        from drfl.flower.deploy.keys import rotate as rotate_key
        from drfl.flower.deploy.paths import deployment

        node = rotate_key(deployment(directory), site, key)
        say(f"{site}: registered with its new key as {node}; the key before is refused from now on")
    return 0


@app.command()
def audit(
    logs: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="The server's audit log, and those of its sites.")
    ],
    deployment: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the keys. (default: that of the server's log)"),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="A site whose log is not at hand; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")] = False,
) -> int:
    """Check audit logs, and compare the server's with those of its sites. Exit code 1 if something is wrong."""
    with signals.as_stopped():
        from drfl.flower.deploy.audit import TrustedKeys
        from drfl.flower.deploy.audit import audit as findings_of

        keys = None if deployment is None else TrustedKeys.of(deployment)
        findings = list(findings_of(logs, keys, without or ()))
        good = all(finding.kind != "problem" for finding in findings)
        if as_json:
            rows = [{"kind": f.kind, "code": f.text.code, "field": f.text.field, "message": f.text} for f in findings]
            print(json.dumps({"ok": good, "findings": rows}))
        else:
            for finding in findings:
                say(f"{finding.kind:8} {finding.text}")
    return 0 if good else 1


def _write_limits(folder: DeploymentFolder) -> int:
    from drfl.flower.deploy.limits import propose
    from drfl.flower.deploy.limits import write as write_limits

    proposal = propose(folder)
    for notice in proposal.notices:
        say(f"drfl: {notice}", err=True)
    if proposal.limits:
        kept = write_limits(folder, proposal.limits)
        say(f"server.toml: added limits for {', '.join(proposal.limits)}; the old file is {kept}")
    else:
        say("server.toml: no limits to add")
    return 0


def _require() -> None:
    from drfl.flower.deploy.flower_cli import require

    require()


def _follow(directory: Path, number: str) -> int:
    from drfl.flower.deploy.paths import deployment
    from drfl.flower.deploy.runs import can_go_on, follow, print_result
    from drfl.flower.deploy.runs import stop as stop_run

    folder = deployment(directory)
    try:
        end = follow(folder, number, say)
    except KeyboardInterrupt as error:
        if signals.code_of(error) != INTERRUPTED:  # whoever sends SIGTERM waits for no second Ctrl-C
            raise
        # the run continues unless Ctrl-C is pressed again
        say(
            f"run {number} goes on; 'drfl deploy stop {directory} {number}' stops it, and so does Ctrl-C again within "
            f"{GRACE:g} seconds",
            err=True,
        )
        try:
            time.sleep(GRACE)
        except KeyboardInterrupt as again:
            if signals.code_of(again) != INTERRUPTED:
                raise
            stop_run(folder, number)
            say(f"run {number} stopped", err=True)
        return INTERRUPTED
    if not end.completed:
        say(f"drfl: run {number} {end}", err=True)
        if can_go_on(folder):
            say(f"'drfl deploy run {directory}' continues it", err=True)
        return 1
    say(f"run {number} completed", err=True)
    print_result(folder)
    return 0
