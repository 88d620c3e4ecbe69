"""`drfl deploy status`: the sites of a deployment, its runs, and the newest run and fit with their models."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from drfl.core.audit_log import AuditLog, clock_of
from drfl.core.errors import DrflError, InputError
from drfl.core.files import read_text, sha256_of
from drfl.core.json_toml import read_json, read_toml
from drfl.experiments.run.manifest import CHECKPOINT, CONFIG, SUMMARY
from drfl.flower.deploy.dated_folders import run_folders, shorten
from drfl.flower.deploy.flower_cli import run_flwr
from drfl.flower.deploy.paths import DELIVERY_FILE, RECEIVED, DeploymentFolder
from drfl.flower.deploy.runs import list_runs
from drfl.training.checkpoint.store import NAME

MODEL = "model.safetensors"


class SiteStatus(NamedTuple):
    """The status of a site.

    Args:
        name: Name of the site.
        state: "online", "offline", "registered" (it has never connected), "not registered", "key revoked", or
            "unknown" if the SuperLink does not answer or does not know the sites by key.
        since: Time of the last change between online and offline, ISO 8601 in UTC; "" if it never connected.
        replied: Time of its last reply in the server's audit log, ISO 8601 in UTC; "" if there is none.
        model: Digest of the last model that it received; "" if it received none.
    """

    name: str
    state: str
    since: str
    replied: str
    model: str = ""


class ResultsStatus(NamedTuple):
    """The status of a run or a fit.

    Args:
        out: Its folder, relative to the deployment unless it is elsewhere.
        state: "none", "unfinished", "finished" or "diverged".
        rounds: Completed rounds that are on the disk; of an unfinished fit, those of its newest run.
        planned: Number of rounds in its configuration, or in ``server.toml`` if it has not begun.
        step: Number of the newest run of an unfinished fit; otherwise 0.
        steps: Number of runs of an unfinished fit, of which the last is that on all training rows; otherwise 0.
        model: File of its model, relative to the deployment unless it is elsewhere; "" if there is none.
        sha256: Digest of that file; "" if there is none.
        written: Time at which it was written, ISO 8601 in UTC.
    """

    out: str
    state: str
    rounds: int
    planned: int
    step: int = 0
    steps: int = 0
    model: str = ""
    sha256: str = ""
    written: str = ""

    def progress(self) -> str:
        """Describe state and rounds in a line."""
        place = "final run, " if self.step == self.steps else f"candidate {self.step} of {self.steps - 1}, "
        rounds = f"{self.rounds} of {self.planned} round{'s' * (self.planned != 1)}"
        return f"{self.state}, {place if self.steps else ''}{rounds}"


class DeploymentStatus(NamedTuple):
    """The status of a deployment.

    Args:
        problem: Why the SuperLink gave no answer; "" if it answered.
        sites: The sites in ``server.toml``.
        runs: Numbers of the runs in progress.
        run: The newest run in the folders that ``server.toml`` names.
        fit: The newest fit.
    """

    problem: str
    sites: tuple[SiteStatus, ...]
    runs: tuple[str, ...]
    run: ResultsStatus
    fit: ResultsStatus


def status_of(folder: DeploymentFolder) -> DeploymentStatus:
    """Return the status of a deployment, as far as this machine and the SuperLink know it."""
    from drfl.flower.settings import FIT_RUNS, read_server  # imported here because it imports torch

    settings, problem = read_server(folder.settings), ""
    nodes, active = dict[str, dict[str, object]](), tuple[str, ...]()
    try:
        listed = run_flwr(folder.home, ["supernode", "list"]).get("nodes")
        rows = [node for node in listed if isinstance(node, dict)] if isinstance(listed, list) else []
        nodes = {str(node.get("node-id")): node for node in rows}
        active = tuple(run.number for run in list_runs(folder) if not run.status.is_finished)
    except DrflError as error:
        problem = str(error)
    replies: dict[str, str] = {}  # for each site, the time of its last reply in the server's audit log
    path = None if settings.audit is None else folder.root / settings.audit
    if path is not None and path.exists():
        names = {site.name for site in settings.sites}
        # Read the latest records first, so that a long log is read only as far as necessary.
        for record in AuditLog(path, "server", "server").since(""):
            name = record.get("site")
            if record["event"] in ("joined", "received", "parted") and name in names:
                replies.setdefault(str(name), str(clock_of(record)))
            if len(replies) == len(names):
                break
    deliveries = []
    runs = run_folders(folder.root, settings.out / DELIVERY_FILE)
    for path in {*folder.root.glob(f"*/{DELIVERY_FILE}"), *folder.root.glob(f"*/*/{DELIVERY_FILE}"), *runs}:
        with suppress(InputError):
            content = read_json(path)
            if isinstance(content, dict) and isinstance(content.get("sites"), dict):
                deliveries.append(content)
    models: dict[str, str] = {}  # for each site, the digest of the last model that it received
    for content in sorted(deliveries, key=lambda content: str(content.get("signed"))):
        models |= {name: str(content.get("sha256")) for name, end in content["sites"].items() if end == RECEIVED}
    revoked, sites = folder.revoked_keys(), []
    for site in folder.sites():
        number = ""
        with suppress(InputError):  # a site that is not registered from this folder has no file
            number = read_text(site.node).strip()
        node = nodes.get(number, {})
        state = str(node.get("status", "unknown" if problem or settings.insecure else "not registered"))
        if not site.public_key.exists() and site.name in revoked:
            state = "key revoked"
        changes = [str(node[name]) for name in ("online-at", "offline-at") if node.get(name) not in (None, "", "N/A")]
        replied, model = replies.get(site.name, ""), models.get(site.name, "")
        sites.append(SiteStatus(site.name, state, max(changes, default=""), replied, model))
    folders = {command: path.parent for command, path in folder.summaries().items()}
    return DeploymentStatus(
        problem,
        tuple(sites),
        active,
        _results_in(folder.root, folders["run"], settings.job.rounds),
        _results_in(folder.root, folders["fit"], settings.job.rounds, FIT_RUNS),
    )


def _results_in(root: Path, out: Path, planned: int, steps: int = 0) -> ResultsStatus:
    """Return the status of the run in a folder, or of the fit with this number of runs.

    ``planned`` is the number of rounds if it has not begun.
    """
    shown = shorten(root, out)
    if not out.exists():
        return ResultsStatus(str(shown), "none", 0, planned)
    work = out / CHECKPOINT
    is_unfinished, summary, step = work.exists(), None, 0
    # Its own configuration, because server.toml may have changed since it began.
    with suppress(InputError):
        own = read_toml((work if is_unfinished else out) / CONFIG).get("rounds")
        planned = own if isinstance(own, int) else planned
    with suppress(InputError):
        summary = read_json(out / SUMMARY)
    if isinstance(summary, dict) and not is_unfinished:
        state, rounds, steps = "diverged" if summary.get("failure") else "finished", summary.get("rounds", 0), 0
    else:
        if steps:
            step = max((int(path.name.removeprefix("step-")) for path in work.glob("step-[0-9]*")), default=1)
            work /= f"step-{step}"
        matches = [NAME.fullmatch(path.name) for path in work.glob("round-*")]
        state, rounds = "unfinished", max((int(match[1]) for match in matches if match is not None), default=0)
    found = ResultsStatus(str(shown), state, rounds, planned, step, steps)
    file = out / MODEL
    if not file.is_file():
        return found
    written = datetime.fromtimestamp(file.stat().st_mtime, UTC).isoformat(timespec="seconds")
    return found._replace(model=str(shown / MODEL), sha256=sha256_of(file), written=written)
