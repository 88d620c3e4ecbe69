"""`drfl deploy check`: check the settings, data and connections of a server or a site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from drfl.core.audit_signatures import read_public_key, read_signing_key
from drfl.core.errors import DrflError, InputError, Notice
from drfl.core.files import read_text, sha256_of
from drfl.core.json_toml import read_toml
from drfl.flower.deploy import check_network
from drfl.flower.deploy.check_network import (
    COPY_AUTHORITY,
    CheckResult,
    advice,
    check_dates,
    problem,
    read_certificate,
    run_check,
    success,
)
from drfl.flower.deploy.dated_folders import first_model
from drfl.flower.deploy.flower_cli import (
    NEWEST,
    OLDEST,
    REMOVED_STATUSES,
    find_program,
    flower_version,
    is_supported,
    node_states,
)
from drfl.flower.deploy.paths import Address, DeploymentFolder, SiteFolder, SitePaths

if TYPE_CHECKING:
    from drfl.data import ClientData
    from drfl.flower.settings import AuditSettings, ServerSettings, SiteSettings


REVEALING_ROWS = 2
"""Training rows up to which the mean and the variance of their columns reveal them."""


def check_settings(site: SiteFolder) -> Iterator[CheckResult]:
    """Check that ``site.toml`` can be read and names this site, and check the files that it names, with the data."""
    from drfl.flower.settings import read_site  # imported here because it imports torch

    settings, folder = read_site(site.settings), site.settings.resolve().parent
    policy = settings.policy
    yield success("site.toml", f"belongs to site {settings.name}")
    public = site.key.with_suffix(".pub")
    with suppress(InputError):  # some sites lack a public key, and make-keys.sh is not the only way to get one
        owner = read_text(public).split(maxsplit=2)[2:]
        # make-keys.sh ends the key with the name of the site, and ssh-keygen with user@host.
        if owner and "@" not in owner[0] and owner[0].strip() != settings.name:
            yield problem(
                "site.toml",
                f"names site {settings.name}, but {public} names site {owner[0].strip()}; correct the name, or use the "
                f"key of {settings.name}",
            )
    models = None if policy.receive_models == "none" else ("policy.models", folder / policy.models)
    # The check of the site's own key reports that key itself.
    yield from run_check("audit", lambda: check_files(settings, folder, models, checked=folder / site.key.name))
    if settings.server_key is not None:
        yield from run_check("server_key", lambda: check_server_key(folder / str(settings.server_key)))
    if policy.shared_rows_key is not None and (folder / policy.shared_rows_key).exists():
        yield from check_network.check_permissions(folder / policy.shared_rows_key)
    for name, digest in policy.code.items():
        if not (folder / name).is_file():
            yield problem("policy.code", f"'{name}' is missing; copy the file to {folder}, or remove it from site.toml")
        elif sha256_of(folder / name) != digest:
            yield problem("policy.code", f"'{name}' is not the approved file; read it, then correct its SHA-256")
    yield from run_check("data", lambda: check_data(site))


def check_files(
    settings: AuditSettings, folder: Path, results: tuple[str, Path] | None, checked: Path | None = None
) -> Iterator[CheckResult]:
    """Check that results and the audit log can be written, and the log's keys be read; yield nothing if so.

    ``results`` are the name of a setting and its folder, which need not exist. The key ``checked`` is not read.
    """
    if results is not None:
        name, path = results
        place = next(each for each in (path, *path.parents) if each.exists())
        if not place.is_dir() or not os.access(place, os.W_OK):
            text = f"cannot write to {path}, because {place} is not a folder that this user can write to"
            yield problem(name, f"{text}; correct the setting, or the user's access")
    log = None if settings.audit is None else folder / settings.audit
    if log is not None and not os.access(log if log.exists() else log.parent, os.W_OK):
        yield problem("audit", f"cannot write to {log}; make its folder, or give this user access")
    for key in (settings.key, settings.previous_key):
        if key is not None and folder / key != checked:
            read_signing_key(folder / key)


def check_server_key(path: Path) -> Iterator[CheckResult]:
    """Check that the site has the server's public key."""
    read_public_key(path, "copy certificates/audit.pub from the SuperLink's machine to this file")
    yield success("server_key", f"{path.name} is a public key")


def check_data(site: SiteFolder) -> Iterator[CheckResult]:
    """Check that the data can be loaded, and report their size, shape and column statistics."""
    from drfl.data.checks import data_warnings  # imported here because it imports torch
    from drfl.flower.client_app import Site, identity
    from drfl.flower.messages import SiteIdentity
    from drfl.flower.records import read
    from drfl.flower.settings import read_site
    from drfl.flower.site_data import load_site

    try:
        loaded, settings = load_site(site.settings), read_site(site.settings)
        folder = site.settings.resolve().parent
        about = read(identity(Site(settings.name, loaded, policy=settings.policy, folder=folder)), SiteIdentity)
    except DrflError as error:
        yield problem("data", str(error))
        return
    except Exception as error:  # a site's own loader may raise any exception
        yield problem(
            "data", f"cannot load the data: {type(error).__name__}: {error}; correct [data] in {site.settings}"
        )
        return
    shape = "×".join(map(str, loaded.inputs.shape[1:])) or "one number"
    kinds = [str(values.dtype).removeprefix("torch.") for values in (loaded.inputs, loaded.targets)]
    counts = f"{sum(map(len, loaded.train)):,} training and {sum(map(len, loaded.test)):,} test samples"
    schema = f", schema {loaded.schema.digest[:8]}" if loaded.schema else ""
    yield success("data", f"{counts}, inputs {kinds[0]} of shape {shape}, targets {kinds[1]}{schema}")
    for notice in data_warnings(loaded):
        # The server standardises the columns of tables, whose mean and variance it gets.
        if about.moments is None or notice.code != "not-standardised":
            yield advice("data", notice)
    if about.warnings:
        what = "kind, column and text" if settings.policy.warnings == "figures" else "only kind and column"
        text = (
            f"the server gets {what} of {len(about.warnings)} of these warnings (policy.warnings = "
            f"'{settings.policy.warnings}' in site.toml)"
        )
        yield advice("data", Notice(text, "warnings-sent", "warnings"))
    if about.row_key:
        text = (
            f"the server gets keyed hashes of all rows; the check value of the key, {about.row_key}, must "
            "be the same at all sites"
        )
        yield success("shared rows", f"{text} at all sites")
    text = f"suggested for this site in server.toml: rows = {2 * about.train}, classes = {about.classes}"
    yield advice("limits", Notice(f"{text} (twice its present rows, and its present classes)", "proposed-limits"))
    moments = about.moments
    if moments is not None:
        try:
            moments.check("this site")  # the server makes the same check
        except DrflError as error:
            yield problem("columns", str(error))
            return
        deviations = moments.variance.sqrt()
        spread = f"standard deviations from {float(deviations.min()):.3g} to {float(deviations.max()):.3g}"
        yield success("columns", f"{len(deviations)}, {spread}; the server gets the mean and the variance of each")
        if about.train <= REVEALING_ROWS:
            text = (
                f"with {about.train} training row{'s' * (about.train != 1)}, the mean and the variance of the columns "
                "reveal the rows to the server. Let this site take part only with more rows, or scale its columns "
                "beforehand with constants that the server does not know"
            )
            yield advice("columns", Notice(text, "revealed-rows", "data"))
    if settings.policy.score_column is not None:
        yield from run_check("policy.score_column", lambda: check_scores(settings, folder, loaded))


def check_scores(settings: SiteSettings, folder: Path, data: ClientData) -> Iterator[CheckResult]:
    """Check that the site's own scores can be read."""
    from drfl.flower.site_data import load_scores  # imported here because it imports torch

    column = str(settings.policy.score_column)
    scores = load_scores(settings.data, folder, column, data)
    yield success("policy.score_column", f"column '{column}' has a number in all {len(scores)} test rows")


def check_online(folder: DeploymentFolder, sites: tuple[SitePaths, ...], insecure: bool) -> Iterator[CheckResult]:
    """Check that each site is registered and connected; in an insecure deployment only count the connected sites."""
    states = node_states(folder.home)
    if insecure:
        count = sum(state == "online" for state in states.values())
        text = f"{count} of {len(sites)} online"
        complete = count >= len(sites)
        yield (
            success("sites", text)
            if complete
            else problem("sites", f"{text}; start the others with ./start-supernode.sh")
        )
        return
    for site in sites:
        try:
            node = read_text(site.node).strip()
        except InputError:
            # check_keys reports a revoked key.
            if site.name not in folder.revoked_keys():
                yield problem(site.name, "was not registered from this folder; run ./register-sites.sh")
            continue
        state = states.get(node)
        if state is None or state in REMOVED_STATUSES:
            yield problem(site.name, f"the SuperLink no longer knows its node ID {node}; run ./register-sites.sh")
        elif state == "online":
            yield success(site.name, f"is online as node {node}")
        else:
            when = "has never connected" if state == "registered" else f"is {state}"
            yield problem(site.name, f"{when}; run ./start-supernode.sh at the site, and read its output")


def check_deployment(folder: DeploymentFolder) -> Iterator[CheckResult]:
    """Run all checks on the SuperLink's machine."""
    yield from _flower("flwr", "flower-superlink", "flower-superexec")
    try:
        sites = folder.sites()
    except InputError as error:
        yield problem("server.toml", str(error))
        return
    try:
        address = folder.address()
    except InputError as error:
        yield problem("superlink.env", str(error))
        return
    yield success("server.toml", f"names {len(sites)} site{'s' * (len(sites) > 1)}: {', '.join(s.name for s in sites)}")
    yield from run_check("server.toml", lambda: check_agreement(folder, address))
    yield from run_check("server.toml", lambda: check_server_settings(folder))
    if not address.insecure:
        yield from run_check("certificate", lambda: check_network.check_superlink(folder, address))
        yield from run_check("keys", lambda: check_network.check_keys(folder, sites))
    # Only a reachable SuperLink can list the sites.
    is_reachable = True
    for result in check_network.check_connection(address, folder.certificates / "ca.crt"):
        yield result
        is_reachable = is_reachable and result.ok
    if is_reachable:
        yield from run_check("sites", lambda: check_online(folder, sites, address.insecure))


def check_server_settings(folder: DeploymentFolder) -> Iterator[CheckResult]:
    """Check that ``server.toml`` can be read, the files that it names, and its limits."""
    from drfl.flower.settings import read_server  # imported here because it imports torch

    settings = read_server(folder.settings)
    yield from run_check("audit", lambda: check_files(settings, folder.root, ("out", folder.root / settings.out)))
    yield from run_check("init_from", lambda: check_first_model(folder, settings))
    yield from run_check("schema", lambda: check_schema(folder, settings))
    yield from run_check("probes", lambda: check_probes(folder, settings))
    yield from run_check("limits", lambda: check_limits(folder, settings))


def check_first_model(folder: DeploymentFolder, settings: ServerSettings) -> Iterator[CheckResult]:
    """Check that the model from which the run starts can be read; yield nothing if there is none."""
    from drfl.data.model_file import read_model_file  # imported here because it imports torch
    from drfl.data.model_store import find_model

    path = settings.job.init_from
    if path is not None:
        file = find_model(first_model(folder.root, path)).file
        read_model_file(file)
        yield success("init_from", f"the run starts from {file}")


def check_schema(folder: DeploymentFolder, settings: ServerSettings) -> Iterator[CheckResult]:
    """Check that the schema in ``server.toml`` can be read; yield nothing if it names none."""
    from drfl.data.tables.schema import TableSchema  # imported here because it imports torch

    file = settings.schema_file
    if file is not None:
        digest = TableSchema.read(folder.root / file).digest[:8]
        yield success("schema", f"'{file}' has the digest {digest}, which 'drfl deploy check .' must show at all sites")


def check_probes(folder: DeploymentFolder, settings: ServerSettings) -> Iterator[CheckResult]:
    """Check that the server's probe rows can be loaded; yield nothing if there are none."""
    from drfl.flower.site_data import load_probe_rows  # imported here because it imports torch

    probe = load_probe_rows(settings.sites, folder.settings.parent, settings.job.dtype)
    if probe is not None:
        counts = ", ".join(f"{len(rows)} of {name}" for name, rows in zip(probe.names, probe.train, strict=True))
        yield success("probes", f"probe rows at the server: {counts}")


def check_limits(folder: DeploymentFolder, settings: ServerSettings) -> Iterator[CheckResult]:
    """Suggest limits on the sites' reports, and state how many requests a run and a fit need."""
    from drfl.flower.deploy.limits import propose  # imported here because it imports torch
    from drfl.flower.settings import FIT_RUNS

    notice = settings.protection_notice()
    if notice is not None:
        yield advice("sites", notice)
    proposal = propose(folder)
    for text in proposal.notices:
        yield advice("limits", text)
    if proposal.limits:
        text = (
            f"server.toml lacks limits for {', '.join(proposal.limits)}. "
            f"'drfl deploy check {folder.root} --write' adds these, computed from the sites' last reports:"
        )
        yield advice("limits", Notice(text, "proposed-limits", "sites"), tuple(proposal.toml().splitlines()))
    elif not proposal.notices:
        yield success("limits", "server.toml has limits for all sites")
    requests, rounds, of_fit = settings.job.max_requests, settings.job.rounds, settings.job.max_fit_requests
    text = (
        f"a run of {rounds} round{'s' * (rounds != 1)} sends each site up to {requests:,} requests, and a fit of "
        f"{FIT_RUNS} such runs, {FIT_RUNS * rounds:,} rounds, up to {of_fit:,}. If a site limits them, "
        f"policy.requests_a_day = {2 * requests} allows one run a day and one restart, and {2 * of_fit} one fit "
        "and one restart"
    )
    yield advice("requests", Notice(text, "requests-of-a-run", "requests_a_day"))


def check_site(site: SiteFolder) -> Iterator[CheckResult]:
    """Run all checks on a site's machine."""
    yield from _flower("flower-supernode", "flower-superexec")
    try:
        address = site.address()
    except InputError as error:
        yield problem("superlink.env", str(error))
        return
    if not address.insecure:
        text = (
            f"{site.key} is missing; copy it from this site's folder on the SuperLink's machine. If it is lost, make a "
            "new one with ssh-keygen -t ecdsa -b 384 -N '' -f key, and send key.pub to the server's operator for "
            "'drfl deploy rotate'"
        )
        operator = "ask the server's operator for a new ca.crt"
        yield from run_check("key", lambda: check_network.check_own_key(site, None) or [problem("key", text)])
        yield from run_check(
            "certificate",
            lambda: [check_dates("ca.crt", read_certificate(site.authority, COPY_AUTHORITY), operator)],
        )
    yield from check_network.check_connection(address, site.authority)
    yield from run_check("site.toml", lambda: check_settings(site))


def _flower(*programs: str) -> Iterator[CheckResult]:
    version = flower_version() or "0"
    supported = f"{OLDEST[0]}.{OLDEST[1]} or later, below {NEWEST[0]}.{NEWEST[1]}"
    if is_supported(version):
        yield success("flwr", f"version {version}")
    else:
        yield problem(
            "flwr", f"version {version} is not supported, expected {supported}; run pip install 'drfl[flower]'"
        )
    for name in programs:
        try:
            find_program(name)
        except InputError as error:
            yield problem("flwr", str(error))


def check_agreement(folder: DeploymentFolder, address: Address) -> Iterator[CheckResult]:
    """Check that the three settings files of a deployment agree."""
    # These files must agree: Flower reads config.toml, drfl reads server.toml, and the scripts read superlink.env.
    insecure = read_toml(folder.settings).get("insecure", False)
    if insecure is not address.insecure:
        yield problem("server.toml", "insecure contradicts INSECURE in superlink.env; write a new folder with init")
    superlinks = read_toml(folder.home / "config.toml").get("superlink")
    entry = superlinks.get("deployment") if isinstance(superlinks, dict) else None
    link = entry if isinstance(entry, dict) else {}
    expected = None if address.insecure else str(folder.certificates / "ca.crt")
    if link.get("address") != str(address) or link.get("root-certificates") != expected:
        yield problem(
            "flwr/config.toml",
            f'the folder was moved or edited; set in [superlink.deployment] address = "{address}"'
            + (f' and root-certificates = "{expected}"' if expected else ""),
        )
