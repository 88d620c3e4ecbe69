"""Look at who is registered and connected."""

from __future__ import annotations

from collections.abc import Iterator

from drfl.deploy.check.verdict import Verdict, bad, ok
from drfl.deploy.folder import Folder, Site
from drfl.deploy.programs import ask


def online(folder: Folder, sites: tuple[Site, ...], insecure: bool) -> Iterator[Verdict]:
    """Whether each site is registered and connected; where sites are not known by keys, how many are.

    Raises:
        DrflError: the SuperLink does not answer.
    """
    states = _states(folder)
    if insecure:
        count = sum(state == "online" for state in states.values())
        text = f"{count} of {len(sites)} online"
        enough = count >= len(sites)
        yield ok("sites", text) if enough else bad("sites", f"{text}; start the others with ./start-supernode.sh")
        return
    for site in sites:
        yield _registered(site, states)


def _states(folder: Folder) -> dict[str, str]:
    """The SuperLink's word for each node, by its number."""
    nodes = ask(folder.home, ["supernode", "list"]).get("nodes")
    found = nodes if isinstance(nodes, list) else []
    return {str(node.get("node-id")): str(node.get("status")) for node in found if isinstance(node, dict)}


def _registered(site: Site, states: dict[str, str]) -> Verdict:
    try:
        node = site.node.read_text(encoding="utf-8").strip()
    except OSError:
        return bad(site.name, "is not registered from this folder; run ./register-sites.sh")
    state = states.get(node)
    if state is None or state in ("unregistered", "deleted"):
        return bad(site.name, f"the SuperLink no longer knows its registration {node}; run ./register-sites.sh")
    if state == "online":
        return ok(site.name, f"is online, as {node}")
    when = "has never connected" if state == "registered" else f"is {state}"
    return bad(site.name, f"{when}; start it at the site with ./start-supernode.sh, and see what that prints")
