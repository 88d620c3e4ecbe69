"""Flower's ClientApp of a site: answers requests with the site's own data."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from drfl.core.audit_log import AuditLog, Head
from drfl.core.audit_signatures import read_public_key, read_signing_key
from drfl.core.errors import InputError
from drfl.core.hashing import digest_of
from drfl.data import ClientData
from drfl.data.row_scores import RowScores, products
from drfl.data.standardisation import Moments, is_table
from drfl.engine import ENGINES, Engine, Loop, Simulation, Threads
from drfl.engine.simulation import counted_rows
from drfl.federation.requests import Request, TrainRequest
from drfl.flower.messages import MOST_COLUMNS, Answer, Ask, Model, SiteIdentity, SiteTest, request_of, version
from drfl.flower.records import (
    array_of,
    digest_of_content,
    printable,
    read,
    read_head,
    vector_of,
    write,
    write_head,
)
from drfl.flower.settings import read_site
from drfl.flower.site_data import load_site
from drfl.flower.site_policy import RefusedError, SitePolicy
from drfl.task.losses import Loss
from drfl.task.models import LOSSES, MODELS
from drfl.task.task import Task

T = TypeVar("T")


class HungError(TimeoutError):
    """A request took longer than the site allows."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """The result of ``work()``, if that takes no longer than so many seconds.

    It runs in a thread of its own. A thread that hangs in foreign code cannot be stopped: it is abandoned, and ends
    with the process, of which Flower starts a new one for each message.

    Raises:
        HungError: it takes longer.
    """
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            # A thread returns nothing and its exceptions go nowhere: both are passed on through lists.
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name="drfl-site")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HungError(f"the request took longer than {seconds:g} s and was given up; raise 'timeout' in site.toml")
    if failed:
        raise failed[0]
    return found[0]


MOST_PARAMETERS = 2**30
"""Of a model that is made from a name, a shape and a number of classes."""

KEPT = "drfl.shift"
"""Where the shift is kept in the memory that Flower gives a client for a run."""


@dataclass(frozen=True)
class Site:
    """One client's data and settings.

    Args:
        name: of the site.
        data: its samples: a :class:`drfl.data.ClientData` of one client.
        task: its own model and loss; None = those that the server names.
        timeout: seconds that a request may take.
        device: torch device.
        threads: torch's threads; None = its default.
        audit: where it logs what it is asked and sends; None = nowhere.
        policy: what it lets go out, and when.
        folder: that the files of its policy are relative to.
        server_key: the server's public key, as an OpenSSH line, by which it verifies the heads of the server's audit
            log; None = it takes them as they come.

    Raises:
        InputError: the data are those of several clients, or standardised by this site alone.
    """

    name: str
    data: ClientData
    task: Task | None = None
    timeout: float = 3600.0
    device: str = "cpu"
    threads: int | None = None
    audit: AuditLog | None = None
    policy: SitePolicy = field(default_factory=SitePolicy)
    folder: Path = Path()
    server_key: str | None = None

    def __post_init__(self) -> None:
        if self.data.n != 1:
            raise InputError(
                f"a site holds one client's data, not those of {self.data.n}", code="count-mismatch", field="data"
            )
        if self.data.standardisation is not None:
            raise InputError(
                f"the data of site '{self.name}' are standardised by this site alone, so that they mean something else "
                "at every site: load them with standardise=False, all sites are standardised alike",
                code="conflicting-options",
                field="standardise",
            )

    @cached_property
    def digest(self) -> str:
        """Digest of the data, by which the server notices when they change in a run."""
        return digest_of(self.data.tensors())


def task_of(model: Model, shape: tuple[int, ...]) -> Task:
    """The task that a server names, for inputs of this shape.

    Raises:
        InputError: there is no such model or loss here, the model does not take such inputs, or it would be too large.
    """
    if model.model not in MODELS or model.loss not in LOSSES:
        raise InputError(
            f"this drfl has no model '{model.model}' with loss '{model.loss}': install the server's",
            code="unknown-name",
            field="model",
        )
    # Counted before it is allocated, as shape and classes are what sites claim.
    with torch.device("meta"):
        size = sum(part.numel() for part in MODELS[model.model](shape, model.classes).parameters())
    if size > MOST_PARAMETERS:
        raise InputError(
            f"model '{model.model}' for inputs of shape {shape} and {model.classes} classes has {size} parameters, "
            f"more than {MOST_PARAMETERS}: see what the sites claim, and set 'classes' for each in server.toml",
            code="model-too-large",
            field="model",
        )
    module = MODELS[model.model](shape, model.classes)
    score, *others = model.metrics
    return Task(module.to(getattr(torch, model.dtype)), LOSSES[model.loss], score, tuple(others))


def engine_of(name: str, device: str) -> Engine:
    """The engine of a name; "auto" is what suits one client in a process that lives for one message.

    Nothing is traced, as that takes longer than thousands of steps of a small model, and all intra-op threads are the
    client's.
    """
    if name == "auto":
        return Threads(workers=1, intra_op=None) if torch.device(device).type == "cpu" else Loop()
    return ENGINES[name]()


def work(site: Site, ask: Ask, request: Request | None, memory: RecordDict) -> Answer:
    """Answer a message.

    Args:
        site: whose data.
        ask: the message.
        request: the request in it; None where it asks for a test alone.
        memory: what the site remembers of this run; it may be lost at any time.

    Raises:
        InputError: the model sent, the data and the task do not fit each other.
    """
    start = time.perf_counter()
    # Flower starts one process per message, and torch would use all cores of the machine in each.
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    task = task_of(ask.model, tuple(site.data.inputs.shape[1:])) if site.task is None else site.task
    if ask.w.shape != task.w0.shape or ask.w.dtype != task.w0.dtype:
        raise InputError(
            f"the server sent a model of {ask.w.numel()} parameters in {ask.w.dtype}, this site's has "
            f"{task.w0.numel()} in {task.w0.dtype}: see that both have the same model, shape of inputs and classes",
            code="sites-differ",
            field="model",
        )
    if isinstance(request, TrainRequest) and ask.version:
        # The request came without its shift, which is in the message or in the site's memory.
        row = _shift(ask, memory)
        if row is None:
            return Answer(lacking=True, digest=site.digest)
        request = replace(request, shift=row.unsqueeze(0))
    engine = engine_of(ask.model.engine, site.device)
    # A site keeps nothing between messages. Simulations use the same code, so that the bits are the same.
    data = site.data if ask.standardisation is None else site.data.standardised(ask.standardisation)
    # first: this process's client 0 draws the samples of client `ask.client`, as in a simulation of all.
    fed = Simulation(data, task, engine=engine, device=site.device, first=ask.client)
    # The test and the request are on the same w, so that their order does not matter.
    test = also = both = None
    if ask.test:
        test, rows = _test(fed, ask.w)
        if ask.also is not None:
            also, other = _test(fed, ask.also)
            both = tuple((one, two) for one, two in products(rows, other, fed.measures).tolist())
    parts, shift_version = (), ""
    if request is not None:
        reply = fed.ask(replace(request, cohort=torch.tensor([0])))
        # Each part has one row, as the cohort is this client alone. Parts that the request does not need are None.
        parts = site.policy.shortened(request, tuple(part[0] for part in reply[1:] if part is not None))
        if isinstance(request, TrainRequest) and request.shift is not None:
            # DRDM and FedDyn change the shift −h_i by μ(w_i − w), and the server computes the same sum. If the two
            # differ, even in rounding, so do their versions, and the server sends its shift.
            shift = request.shift[0].add(parts[0] - request.w, alpha=request.prox)
            memory[KEPT] = ArrayRecord({"shift": array_of(shift)})
            shift_version = version(shift)
    return Answer(
        parts,
        test,
        gradients=fed.ledger.gradient_evaluations,
        losses=fed.ledger.loss_evaluations,
        seconds=time.perf_counter() - start,
        version=shift_version,
        # Every reply carries the digest, so that the server notices data that change during a run.
        digest=site.digest,
        also=also,
        products=both,
    )


def _test(fed: Simulation, w: Tensor) -> tuple[SiteTest, RowScores]:
    """Of the test rows of this one client: what leaves the site, and what does not."""
    found, rows = fed.tested(w)
    others = tuple(float(values[0]) for values in found.others)
    assert found.sums is not None
    sums = tuple(map(tuple, found.sums[0].tolist()))
    return SiteTest(float(found.score[0]), float(found.loss[0]), int(found.samples[0]), others, sums), rows


def _shift(ask: Ask, memory: RecordDict) -> Tensor | None:
    """(d,) the shift that a message refers to; None where it was not sent and is not held here."""
    if ask.shift is not None:
        return ask.shift
    if ask.version == "zero":
        return torch.zeros_like(ask.w)
    if KEPT not in memory.array_records:
        return None
    kept = vector_of(memory.array_records[KEPT]["shift"])
    # By its bytes, not by its round: a site whose reply did not count holds another shift than the server.
    return kept if version(kept) == ask.version else None


IDENTITY = "query.identity"
"""The message that asks a site who it is; the others are "train" and "evaluate"."""

CLOSING = "query.closing"
"""The message that tells a site the last head of the server's audit log, and is answered with that of the site's."""

SITE = "site"
"""The key of a SuperNode's --node-config that has the path of the site's file."""


def reply(message: Message, context: Context, site: Site) -> Message:
    """The reply to one of drfl's messages, for those who have a ``ClientApp`` of their own.

    Args:
        message: what came; drfl's server sent it.
        context: of the run; a shift is kept in its state, nothing else.
        site: whose data.

    Raises:
        InputError: the message, the data and the model do not fit each other, or the site's policy is against it.
        HungError: it took longer than the site allows.
        DrflError: the site's audit log cannot be written to: nothing leaves without a line there.
    """
    ask = read(message.content, Ask)
    request = request_of(ask)
    run, kind = context.run_id, "test" if request is None else request.kind
    log, number = site.audit, None
    about = {"site": site.name, "run": str(run), "what": kind}
    try:
        if log is not None:
            server = server_head(message, site)
            number = None if server is None else server.n
            digest = digest_of_content(message.content)
            log.add("asked", **about, digest=digest, server=None if server is None else str(server))
        site.policy.check_run(run, site.folder)
        # The log has this request already, so that the count includes it.
        site.policy.check_count(log)
        # The site's loader or model may hang, so the work has a time limit.
        answer = within(site.timeout, partial(work, site, ask, request, context.state))
    except Exception as error:
        if log is not None:
            log.add("refused", **about, request=number, reason=printable(str(error)[:300]))
        raise
    # Record the digest of the reply before the reply leaves the site.
    content = write(answer)
    if log is not None:
        write_head(content, log.add("sent", **about, digest=digest_of_content(content), request=number))
    return Message(content, reply_to=message)


def server_head(message: Message, site: Site) -> Head | None:
    """The head of the server's audit log that came with a message; None if there is none.

    Raises:
        RefusedError: it is not signed with the server's key, where the site has that.
    """
    found = read_head(message.content)
    if found is not None and site.server_key is not None and not found.is_signed_by(site.server_key):
        raise RefusedError("the head of the server's audit log is not signed with the server's key, see server_key")
    return found


def identity(site: Site) -> RecordDict:
    """What a server must know of a site before it can begin: no sample is in it.

    Of inputs that are vectors it tells the mean and the variance of every column over the training rows. By the digest
    it checks, with every reply and when a run is resumed, that the data are still the same.

    Raises:
        InputError: the site has no samples, or a number is too large for a message.
    """
    # The losses that a server can name ignore torch's default, or take no class labels.
    loss = Loss(nn.CrossEntropyLoss()) if site.task is None else site.task.criterion
    # Simulations do not count rows whose targets are all ignored either.
    data, _, _ = counted_rows(site.data, loss)
    classes = 1
    if not data.targets.is_floating_point():
        low, high = torch.cat([y[~loss.ignores(y)] for y in (data.targets, data.test_targets)]).aminmax()
        if site.task is None and low < 0:
            raise InputError(
                f"targets must be labels of at least 0, but hold {int(low)}: encode them",
                code="out-of-range",
                field="targets",
            )
        classes = int(high) + 1
    majority = None if data.majority is None else float(data.majority)
    columns = None
    if is_table(data.inputs) and data.inputs.shape[1] <= MOST_COLUMNS:
        moments = Moments.of(data.inputs, data.train[0])
        columns = moments.mean, moments.variance
    shape, digest = tuple(data.inputs.shape[1:]), site.digest
    rows, tests = len(data.train[0]), len(data.test[0])
    try:
        content = write(SiteIdentity(site.name, shape, classes, rows, tests, digest, majority, columns))
        # The server refuses what cannot be read; here the site's own operator sees why.
        read(content, SiteIdentity)
    except ValueError as error:
        raise InputError(
            f"the site '{site.name}' cannot take part: {error}", code="invalid-value", field=site.name
        ) from None
    return content


def client_app(load: Callable[[Context], Site]) -> ClientApp:
    """A ``ClientApp`` that answers drfl's server.

    Args:
        load: the site, from what Flower knows of the node; asked once a message.
    """
    found = ClientApp()

    @found.train()
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @found.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @found.query("identity")
    def who(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        content = identity(site)
        if site.audit is not None:
            server = server_head(message, site)
            what = {"digest": digest_of_content(content), "server": None if server is None else str(server)}
            write_head(content, site.audit.add("identified", site=site.name, run=str(context.run_id), **what))
            try:
                site.policy.check_count(site.audit)
            except InputError as error:
                about = {"site": site.name, "run": str(context.run_id), "what": "identity"}
                request = None if server is None else server.n
                site.audit.add("refused", **about, request=request, reason=printable(str(error)[:300]))
                raise
        return Message(content, reply_to=message)

    @found.query("closing")
    def close(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        content = RecordDict()
        if site.audit is not None:
            server = server_head(message, site)
            what = None if server is None else str(server)
            write_head(content, site.audit.add("closed", site=site.name, run=str(context.run_id), server=what))
        return Message(content, reply_to=message)

    return found


def site_of(context: Context) -> Site:
    """The site whose file a SuperNode was started with: ``--node-config 'site="/path/to/site.toml"'``.

    Raises:
        InputError: there is none, or it cannot be used.
    """
    path = context.node_config.get(SITE)
    if path is None:
        raise InputError(
            "this SuperNode names no site: start it with --node-config 'site=\"/path/to/site.toml\"'",
            code="missing-option",
            field="site",
        )
    return _site(Path(str(path)))


@cache
def _site(path: Path) -> Site:
    settings = read_site(path)
    data, folder = within(settings.timeout, partial(load_site, path)), path.resolve().parent
    log = None
    if settings.audit is not None:
        keys = (
            None if key is None else read_signing_key(folder / key) for key in (settings.key, settings.previous_key)
        )
        log = AuditLog(folder / settings.audit, "site", settings.name, *keys)
    server_key = None if settings.server_key is None else read_public_key(folder / settings.server_key)
    return Site(
        settings.name, data, None, settings.timeout, settings.device, settings.threads, log, settings.policy, folder,
        server_key,
    )  # fmt: skip


app = client_app(site_of)
"""The app that Flower loads."""
