"""The commands of ``drfl deploy``."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drfl.cli import signals
from drfl.cli.command_help import Command, CommandGroup
from drfl.core.screen import say

if TYPE_CHECKING:
    from drfl.flower.deploy.paths import DeploymentFolder

app = typer.Typer(
    name="deploy",
    cls=CommandGroup,
    help="Train over a network with Flower.\n\nThese commands set up, check and run a deployment.",
    no_args_is_help=True,
)

# The commands below import what they need when they run, because Flower and torch take seconds to load.

Place = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the deployment")]
Number = Annotated[str, typer.Argument(metavar="RUN", help="Number of the run, as printed by 'drfl deploy run'")]
Detach = Annotated[bool, typer.Option("--detach", help="Submit the run, print its number and exit")]
Wait = Annotated[
    float | None, typer.Option(help="Seconds to wait for sites that are offline (default: wait in server.toml)")
]

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

GRACE = 5.0
"""Seconds after Ctrl-C in which a second Ctrl-C stops the run itself."""


@app.command(cls=Command)
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder")],
    sites: Annotated[str, typer.Option(help="Comma-separated names of the sites, in the order of the clients")],
    host: Annotated[
        str | None, typer.Option(help="Host name or address of the SuperLink for the sites (default: localhost)")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port of the SuperLink (default: 8000)")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Use neither TLS nor keys; for trials only")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Also create keys and certificates, with make-keys.sh")] = False,
) -> int:
    """Write the folder of a new deployment.

    It contains settings, scripts and services, for the SuperLink and for each site.
    """
    with signals.raise_on_signal():
        _require()
        from drfl.flower.deploy.init import DeploymentPlan, write

        write(DeploymentPlan.of(sites, host, port, insecure), directory, keys)
        say(f"{directory}: written. Its README.md explains how to start the deployment.")
    return 0


@app.command(cls=Command)
def check(
    directory: Place,
    site: Annotated[
        str | None, typer.Option(help="Check this site, on its machine: key, connection to the SuperLink, data")
    ] = None,
    write: Annotated[
        bool,
        typer.Option(
            "--write", help="Add the proposed limits per site to server.toml, and keep a copy of the old file"
        ),
    ] = False,
) -> int:
    """Check a deployment, or one site, for problems.

    In the folder of a site, the command checks this site.
    """
    with signals.raise_on_signal():
        _require()
        from drfl.core.errors import InputError, Notice, unknown
        from drfl.flower.deploy.check import check_deployment, check_site
        from drfl.flower.deploy.paths import SiteFolder, find_folder

        place = find_folder(directory)
        if write:
            if isinstance(place, SiteFolder) or site is not None:
                raise InputError(
                    "--write adds limits to server.toml: pass the folder of the deployment, without --site",
                    code="wrong-folder",
                    field="--write",
                )
            from drfl.flower.deploy import limits

            proposal = limits.propose(place)
            for notice in proposal.notices:
                say(f"drfl: {notice}", err=True)
            if proposal.limits:
                old = limits.write(place, proposal.limits)
                say(f"server.toml: added limits for {', '.join(proposal.limits)}; old file: {old}")
            else:
                say("server.toml: no limits to add")
            return 0
        if isinstance(place, SiteFolder):
            if site is not None:
                raise InputError(
                    f"{directory} is the folder of one site: remove --site", code="unused-option", field="site"
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
            for line in verdict.details:
                say(f"         {line}".rstrip())
    return 0 if good else 1


@app.command(cls=Command)
def status(
    directory: Place,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on stdout")] = False,
) -> int:
    """Show the state of each site, and the progress of the newest run and fit.

    The exit code is 1 if the SuperLink does not answer.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.core.screen import Screen, ScreenTable
        from drfl.flower.deploy.status import status_of

        found = status_of(folder)
        if as_json:
            parts = {"run": found.run._asdict(), "fit": found.fit._asdict()}
            print(json.dumps({**found._asdict(), "sites": [site._asdict() for site in found.sites], **parts}))
        else:
            table = ScreenTable("site", "status", "since (UTC)", "last reply (UTC)", "model")
            for site in found.sites:
                since, replied = (time.replace("T", " ")[:19] or "never" for time in (site.since, site.replied))
                table.add_row(site.name, site.state, since, replied, site.model[:16] or "none")
            Screen().print(table)
            if not found.problem:
                say(f"in progress: {', '.join(f'run {number}' for number in found.runs) or 'no run'}")
            for name, results in (("results", found.run), ("fit", found.fit)):
                if name == "fit" and results.state == "none":
                    continue
                say(f"{name} in '{results.out}': {results.progress()}")
                if results.model:
                    say(f"model: {results.model}, written {results.written}, SHA-256 {results.sha256[:16]}…")
        if found.problem:
            say(f"drfl: the SuperLink gave no answer: {found.problem}", err=True)
    return 1 if found.problem else 0


@app.command(cls=Command)
def run(
    directory: Place,
    detach: Detach = False,
    wait: Wait = None,
) -> int:
    """Submit a run, show its log, and print its result.

    The exit code is 0 only if the run completed.
    """
    with signals.raise_on_signal():
        return _submit(directory, detach, wait, is_fit=False)


@app.command(cls=Command)
def fit(
    directory: Place,
    detach: Detach = False,
    wait: Wait = None,
) -> int:
    """Train several algorithms, choose one on the sites' validation rows, and train it on all training rows.

    The rounds of each run are those in server.toml. If a fit was stopped, the command continues it.
    The exit code is 0 only if the fit completed.
    """
    with signals.raise_on_signal():
        return _submit(directory, detach, wait, is_fit=True)


@app.command(cls=Command)
def evaluate(
    directory: Place,
    models: Annotated[
        list[Path],
        typer.Argument(metavar="MODEL...", help="Model files, or folders of runs; the first is the baseline"),
    ],
    references: Annotated[
        list[str] | None,
        typer.Option("--model", help="Code of a model that the job does not name: FILE.py:NAME; repeatable"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on stdout")] = False,
) -> int:
    """Test models at all sites, without training.

    The table has the same confidence intervals as that of a run. The command compares each further model with the
    first one, row by row at each site. Sites also test the score column in their policy. The exit code is 1 if a site
    did not answer.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.paths import EVALUATION_FILE
        from drfl.flower.deploy.requests import print_evaluation, read_results, write_request
        from drfl.flower.deploy.runs import check_no_run, submit

        check_no_run(folder)
        request = write_request(folder, "evaluate", models, references or ())
        code = _follow(directory, submit(folder, request=request), is_task=True)
        if code == 0:
            results = read_results(request, EVALUATION_FILE)
            if as_json:
                print(json.dumps({**results, "folder": str(request)}))
            else:
                print_evaluation(results, request)
            code = int(bool(results["missing"]))
    return code


@app.command(cls=Command)
def deliver(
    directory: Place,
    model: Annotated[
        Path | None,
        typer.Argument(metavar="MODEL", help="Model file, or folder of a run (default: the newest run that ended)"),
    ] = None,
) -> int:
    """Send a model to all sites, signed with the server's key.

    Every run delivers its model at its end. Use this command for sites that were offline, or for another model.
    The exit code is 1 if a site did not receive the model.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.paths import DELIVERY_FILE, RECEIVED
        from drfl.flower.deploy.requests import read_results, write_request
        from drfl.flower.deploy.runs import check_no_run, submit

        check_no_run(folder)
        request = write_request(folder, "deliver", [folder.newest_model() if model is None else model])
        code = _follow(directory, submit(folder, request=request), is_task=True)
        if code:
            return code
        sites = read_results(request, DELIVERY_FILE)["sites"]
        for name, outcome in sites.items():
            say(f"{name}: {outcome}")
    return 0 if set(sites.values()) == {RECEIVED} else 1


@app.command(cls=Command)
def follow(directory: Place, number: Number) -> int:
    """Show the log of a run until it ends.

    The exit code is 0 only if the run completed.
    """
    with signals.raise_on_signal():
        return _follow(directory, number)


@app.command(cls=Command)
def stop(directory: Place, number: Number) -> int:
    """Stop a run."""
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.runs import stop as stop_run

        stop_run(folder, number)
        say(f"run {number} stopped")
    return 0


SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site in server.toml")]


@app.command("add-site", cls=Command)
def add_site(
    directory: Place,
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the new site")],
    key: Annotated[
        Path | None, typer.Option(help="Public key that the site made (default: make a key pair here)")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Maximum number of training rows that it may report")] = None,
    classes: Annotated[int | None, typer.Option(help="Maximum number of classes that its labels may need")] = None,
) -> int:
    """Add a site: its folder, its keys, its registration and its table in server.toml.

    The SuperLink must be running, and no run may be in progress. If the command is interrupted, run it again.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.membership import add_site as add

        limits = {name: value for name, value in (("rows", rows), ("classes", classes)) if value is not None}
        added = add(folder, site, key, limits)
        registered = f", registered as {added.node}" if added.node else ""
        settings = "is in server.toml" if added.settings is None else f"added; old file: {added.settings}"
        say(f"{site}: {settings}{registered}. Copy {added.folder} to the site over a confidential channel")
        for notice in added.notices:
            say(f"drfl: {notice}", err=True)
    return 0


@app.command("remove-site", cls=Command)
def remove_site(directory: Place, site: SiteName) -> int:
    """Revoke the key of a site, and remove the site from server.toml.

    The SuperLink must be running, and no run may be in progress. If the command is interrupted, run it again.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.membership import remove_site as remove

        removed = remove(folder, site)
        revoked = "" if removed.key is None else f", key revoked and kept as {removed.key}"
        settings = "is not in server.toml" if removed.settings is None else f"removed; old file: {removed.settings}"
        say(f"{site}: {settings}{revoked}")
        for notice in removed.notices:
            say(f"drfl: {notice}", err=True)
    return 0


@app.command(cls=Command)
def revoke(directory: Place, site: SiteName) -> int:
    """Revoke the key of a site at once, also during a run.

    The site stays in server.toml: give it a new key, or remove it with 'drfl deploy remove-site'.
    """
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.keys import revoke as revoke_key

        kept = revoke_key(folder, site)
        say(f"{site}: key revoked, kept as {kept}")
    return 0


@app.command(cls=Command)
def rotate(
    directory: Place,
    site: SiteName,
    key: Annotated[Path, typer.Option(help="New public key of the site, which keeps the private key")],
) -> int:
    """Replace the key of a site."""
    with signals.raise_on_signal():
        folder = _deployment(directory)
        from drfl.flower.deploy.keys import rotate as rotate_key

        node = rotate_key(folder, site, key)
        say(f"{site}: new key registered as {node}; the previous key is revoked")
    return 0


@app.command(cls=Command)
def audit(
    logs: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Audit logs of the server and of its sites")],
    deployment: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder with the keys (default: the folder of the server's log)"),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="SITE", help="Site whose log is not available; repeatable")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a single JSON object on stdout")] = False,
) -> int:
    """Check the audit logs of the server and its sites.

    The command also compares the logs with each other.
    The exit code is 1 if there is a problem.
    """
    with signals.raise_on_signal():
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


def _require() -> None:
    from drfl.flower.deploy.flower_cli import require_flower

    require_flower()


def _deployment(directory: Path) -> DeploymentFolder:
    """Find the deployment of a command that needs Flower."""
    # Check this first, so that a missing Flower is reported before the folder is read.
    _require()
    from drfl.flower.deploy.paths import find_deployment

    return find_deployment(directory)


def _submit(directory: Path, detach: bool, wait: float | None, *, is_fit: bool) -> int:
    folder = _deployment(directory)
    if wait is not None:
        from drfl.core import checks

        checks.positive("--wait", wait)
    from drfl.flower.deploy.runs import FIT, check_no_run, submit

    check_no_run(folder)
    command = "fit" if is_fit else "run"
    number = submit(folder, wait, FIT if is_fit else None)
    # With --detach the number is the result of the command, which a script reads on stdout.
    say(f"run {number} submitted", err=not detach)
    if detach:
        say(f"follow it with: drfl deploy follow {directory} {number}", err=True)
        return 0
    return _follow(directory, number, commands=(command,))


def _follow(directory: Path, number: str, *, is_task: bool = False, commands: tuple[str, ...] = ("run", "fit")) -> int:
    """Show the log of a run until its end; the log of a task goes to stderr, and the caller prints its results.

    ``commands`` are the commands that may have submitted it.
    """
    folder = _deployment(directory)
    from drfl.core.errors import DrflError, InputError
    from drfl.flower.deploy.runs import follow, is_resumable, print_result
    from drfl.flower.deploy.runs import stop as stop_run
    from drfl.flower.settings import NEW_RUN

    try:
        end = follow(folder, number, partial(say, err=is_task))
    except KeyboardInterrupt as error:
        if signals.code_of(error) != INTERRUPTED:  # a process that sends SIGTERM sends no second Ctrl-C
            say(f"run {number} continues. To stop it, run 'drfl deploy stop {directory} {number}'.", err=True)
            raise
        # the run continues unless Ctrl-C is pressed again
        say(
            f"run {number} continues. To stop it, press Ctrl-C again within {GRACE:g} seconds, or run "
            f"'drfl deploy stop {directory} {number}'.",
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
    except DrflError as error:
        if is_task or isinstance(error, InputError):
            raise
        end, text = None, str(error)  # the SuperLink is unreachable
    else:
        text = f"run {number} {end}"
    if end is None or not end.is_completed:
        say(f"drfl: {text}", err=True)
        for command, summary in {} if is_task else folder.summaries().items():
            if command not in commands or not is_resumable(summary.parent):
                continue
            if NEW_RUN in text:
                say(f"the unfinished {command} is in {summary.parent}", err=True)
            else:
                say(f"continue it with: drfl deploy {command} {directory}", err=True)
        return 1
    say(f"run {number} completed", err=True)
    if not is_task:
        # The SuperLink does not report the type of a run, so print the results that were written last.
        print_result(max(folder.summaries().values(), key=lambda path: path.stat().st_mtime if path.exists() else 0))
    return 0
