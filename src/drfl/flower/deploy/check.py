"""`drfl deploy check`: a site's or a server's settings, data and connections."""

from __future__ import annotations

from collections.abc import Iterator

from drfl.core.errors import DrflError, InputError, Notice
from drfl.core.files import read_text
from drfl.flower.deploy import check_network
from drfl.flower.deploy.check_network import CheckResult, bad, guarded, note, ok
from drfl.flower.deploy.flower_cli import GONE, NEWEST, OLDEST, fits, flower_version, node_states, program
from drfl.flower.deploy.paths import Address, DeploymentFolder, SiteFolder, SitePaths, read_toml


def settings(site: SiteFolder) -> Iterator[CheckResult]:
    """Whether site.toml can be read and names a site.

    Raises:
        InputError: it cannot be read.
    """
    name = read_toml(site.settings).get("name")
    if isinstance(name, str) and name:
        yield ok("site.toml", f"is of the site {name}")
    else:
        yield bad("site.toml", 'names no site; give it a line name = "…", as in server.toml')


def data(site: SiteFolder) -> Iterator[CheckResult]:
    """Whether the data can be loaded, their size and shape, and what of their columns the server is told."""
    from drfl.flower.client_app import Site, identity  # brings torch along
    from drfl.flower.messages import SiteIdentity
    from drfl.flower.records import read
    from drfl.flower.settings import read_site
    from drfl.flower.site_data import load_site

    try:
        found = load_site(site.settings)
        about = read(identity(Site(read_site(site.settings).name, found)), SiteIdentity)
    except DrflError as error:
        yield bad("data", str(error))
        return
    except Exception as error:  # a site's own loader may fail in any way
        yield bad("data", f"they cannot be loaded, {type(error).__name__}: {error}; correct what {site.settings} names")
        return
    shape = "×".join(map(str, found.inputs.shape[1:])) or "one number"
    kinds = [str(values.dtype).removeprefix("torch.") for values in (found.inputs, found.targets)]
    counts = f"{sum(map(len, found.train)):,} training and {sum(map(len, found.test)):,} test samples"
    yield ok("data", f"{counts}, inputs {kinds[0]} of shape {shape}, targets {kinds[1]}")
    text = f"the server's operator can limit this site to rows = {2 * about.train}, classes = {about.classes}"
    yield note("limits", Notice(f"{text} in server.toml: twice the rows and the classes of today", "proposed-limits"))
    moments = about.moments
    if moments is not None:
        try:
            moments.check("this site")  # the server makes the same check
        except DrflError as error:
            yield bad("columns", str(error))
            return
        deviations = moments.variance.sqrt()
        spread = f"standard deviations from {float(deviations.min()):.3g} to {float(deviations.max()):.3g}"
        yield ok("columns", f"{len(deviations)}, {spread}; the server gets the mean and the variance of each")


def online(folder: DeploymentFolder, sites: tuple[SitePaths, ...], insecure: bool) -> Iterator[CheckResult]:
    """Whether each site is registered and connected; where sites are not known by keys, how many are.

    Raises:
        DrflError: the SuperLink does not answer.
    """
    states = node_states(folder.home)
    if insecure:
        count = sum(state == "online" for state in states.values())
        text = f"{count} of {len(sites)} online"
        enough = count >= len(sites)
        yield ok("sites", text) if enough else bad("sites", f"{text}; start the others with ./start-supernode.sh")
        return
    for site in sites:
        try:
            node = read_text(site.node).strip()
        except InputError:
            yield bad(site.name, "is not registered from this folder; run ./register-sites.sh")
            continue
        state = states.get(node)
        if state is None or state in GONE:
            yield bad(site.name, f"the SuperLink no longer knows its registration {node}; run ./register-sites.sh")
        elif state == "online":
            yield ok(site.name, f"is online, as {node}")
        else:
            when = "has never connected" if state == "registered" else f"is {state}"
            yield bad(site.name, f"{when}; start it at the site with ./start-supernode.sh, and see what that prints")


def check_deployment(folder: DeploymentFolder) -> Iterator[CheckResult]:
    """All checks on the SuperLink's machine."""
    yield from _flower("flwr", "flower-superlink", "flower-superexec")
    try:
        known, address = folder.sites(), folder.address()
    except InputError as error:
        yield bad("server.toml", str(error))
        return
    yield ok("server.toml", f"names {len(known)} site{'s' * (len(known) > 1)}: {', '.join(s.name for s in known)}")
    yield from guarded("server.toml", lambda: _agrees(folder, address))
    yield from guarded("probes", lambda: probes(folder))
    yield from guarded("limits", lambda: limits(folder))
    if not address.insecure:
        yield from guarded("certificate", lambda: check_network.superlink(folder, address))
        yield from guarded("keys", lambda: check_network.keys(folder, known))
    # The next check needs a SuperLink that can be reached.
    reached = True
    for verdict in check_network.check_connection(address, folder.certificates / "ca.crt"):
        yield verdict
        reached = reached and verdict.ok
    if reached:
        yield from guarded("sites", lambda: online(folder, known, address.insecure))


def probes(folder: DeploymentFolder) -> Iterator[CheckResult]:
    """Whether the rows that the server holds for the sites can be loaded; nothing where it holds none.

    Raises:
        InputError: they cannot.
    """
    from drfl.flower.settings import read_server  # brings torch along
    from drfl.flower.site_data import held_rows

    found = read_server(folder.settings)
    held = held_rows(found.sites, folder.settings.parent, found.job.dtype)
    if held is not None:
        counts = ", ".join(f"{len(rows)} of {name}" for name, rows in zip(held.names, held.train, strict=True))
        yield ok("probes", f"rows held here: {counts}")


def limits(folder: DeploymentFolder) -> Iterator[CheckResult]:
    """Which limits could be set, how many requests a run needs, and whether anything bounds a single site.

    Raises:
        InputError: server.toml or the audit log cannot be read.
    """
    from drfl.flower.deploy.limits import propose  # brings torch along
    from drfl.flower.settings import read_server

    settings = read_server(folder.settings)
    notice = settings.unprotected()
    if notice is not None:
        yield note("sites", notice)
    proposal = propose(folder)
    for text in proposal.notices:
        yield note("limits", text)
    if proposal.limits:
        text = (
            f"server.toml lacks limits for {', '.join(proposal.limits)}. "
            f"'drfl deploy check {folder.root} --write' adds these, by what the sites reported last:"
        )
        yield note("limits", Notice(text, "proposed-limits", "sites"), tuple(proposal.toml().splitlines()))
    elif not proposal.notices:
        yield ok("limits", "server.toml has limits for all sites")
    most = settings.job.most_requests
    text = (
        f"a run of {settings.job.rounds} rounds sends a site up to {most:,} requests: a site that limits them needs "
        f"policy.requests_a_day = {2 * most} for one run a day and its restart"
    )
    yield note("requests", Notice(text, "requests-of-a-run", "requests_a_day"))


def check_site(site: SiteFolder) -> Iterator[CheckResult]:
    """All checks on a site's machine."""
    yield from _flower("flower-supernode", "flower-superexec")
    try:
        address = site.address()
    except InputError as error:
        yield bad("superlink.env", str(error))
        return
    if not address.insecure:
        text = f"{site.key} is missing; make-keys.sh on the SuperLink's machine makes it"
        yield from guarded("key", lambda: check_network.own_key(site, None) or [bad("key", text)])
        yield from guarded("certificate", lambda: check_network.authority(site))
    yield from check_network.check_connection(address, site.authority)
    yield from guarded("site.toml", lambda: settings(site))
    yield from guarded("data", lambda: data(site))


def _flower(*programs: str) -> Iterator[CheckResult]:
    version = flower_version() or "0"
    span = f"{OLDEST[0]}.{OLDEST[1]} or later, below {NEWEST[0]}.{NEWEST[1]}"
    if fits(version):
        yield ok("flwr", f"version {version}")
    else:
        yield bad("flwr", f"version {version} does not fit, it must be {span}; pip install 'drfl[flower]'")
    for name in programs:
        try:
            program(name)
        except InputError as error:
            yield bad("flwr", str(error))


def _agrees(folder: DeploymentFolder, address: Address) -> Iterator[CheckResult]:
    # Flower reads config.toml, drfl reads server.toml, and the scripts read superlink.env.
    insecure = read_toml(folder.settings).get("insecure", False)
    if insecure is not address.insecure:
        yield bad("server.toml", "insecure contradicts INSECURE in superlink.env; write a new folder with init")
    told = read_toml(folder.home / "config.toml").get("superlink")
    entry = told.get("deployment") if isinstance(told, dict) else None
    link = entry if isinstance(entry, dict) else {}
    expected = None if address.insecure else str(folder.certificates / "ca.crt")
    if link.get("address") != str(address) or link.get("root-certificates") != expected:
        yield bad(
            "flwr/config.toml",
            f'the folder was moved or changed; [superlink.deployment] needs address = "{address}"'
            + (f' and root-certificates = "{expected}"' if expected else ""),
        )
