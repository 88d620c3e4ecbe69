"""The site's end of a Flower app: answers requests from the site's own data."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from drfl.core.audit_log import Head
from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import InputError, printable
from drfl.data.checks import data_warnings
from drfl.data.row_scores import products
from drfl.data.standardisation import Moments, is_table
from drfl.engine import Simulation
from drfl.engine.simulation import counted_rows
from drfl.federation.client_table import ClientTable
from drfl.federation.local_method import OwnModels
from drfl.federation.requests import Gradients, Losses, MethodWork, Replies, Request, TrainRequest
from drfl.flower.messages import (
    MOST_COLUMNS,
    MOST_WARNING,
    MOST_WARNINGS,
    Answer,
    Ask,
    AskIdentity,
    AskLosses,
    AskTests,
    Delivery,
    HoldOut,
    SiteIdentity,
    SiteWarning,
    request_of,
    short_name,
    version,
)
from drfl.flower.model_losses import answer_losses
from drfl.flower.model_tests import answer_tests
from drfl.flower.receive_model import receive_model
from drfl.flower.records import (
    MOST_SHOWN,
    array_of,
    digest_of_content,
    read,
    read_head,
    vector_of,
    write,
    write_head,
)
from drfl.flower.row_hashes import hash_rows
from drfl.flower.settings import read_site
from drfl.flower.site import Site
from drfl.flower.site_data import load_scores, load_site
from drfl.flower.site_methods import SentMethod, SiteStates, load_method
from drfl.flower.site_policy import RefusedError
from drfl.flower.site_task import check_same_model, engine_of, score_model
from drfl.task.losses import Loss

T = TypeVar("T")


class HungError(TimeoutError):
    """Raised if a request takes longer than the site allows."""


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """Run ``work()`` in a thread with a time limit and return its result.

    A thread that hangs in foreign code cannot be stopped. It is abandoned and ends with the process; Flower starts a
    new process for each message.

    Raises:
        HungError: If ``work()`` takes longer than ``seconds``.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            # A thread cannot return a result or raise an exception to its starter, so pass both on through lists.
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="drfl-site")
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise HungError(f"the request took longer than {seconds:g} s and was aborted. Raise 'timeout' in site.toml")
    if errors:
        raise errors[0]
    return results[0]


SHIFT_KEY = "drfl.shift"
"""Key of the shift in the memory that Flower gives a client for a run."""


def compute_answer(site: Site, ask: Ask, request: Request | None, memory: RecordDict) -> Answer:
    """Compute the answer to a message.

    Args:
        site: The site.
        ask: The message.
        request: The request in the message; None if it only requests a test.
        memory: State of the site in this run, which may be lost at any time.

    Raises:
        InputError: If the model in the message does not fit the site's data and task.
    """
    start = time.perf_counter()
    # Flower starts one process per message, and torch would use all cores of the machine in each.
    if site.threads is not None:
        torch.set_num_threads(site.threads)
    task = site.build_task(ask.model) if site.task is None else site.task
    check_same_model(ask.w, task)
    if isinstance(request, TrainRequest) and ask.version:
        # The request has no shift yet. The shift is in the message or in the site's memory.
        shift_row = _shift(ask, memory)
        if shift_row is None:
            return Answer(lacking=True, digest=site.digest)
        request = replace(request, shift=shift_row.unsqueeze(0))
    engine = engine_of(ask.model.engine, site.device)
    # Standardise again for each message, because a site keeps nothing between messages. Simulations use the same code,
    # so that the results are bit-identical.
    data = site.data if ask.standardisation is None else site.data.standardised(ask.standardisation)
    # With first=ask.client, the only client of this process draws the same samples as client `ask.client` in a
    # simulation of all clients.
    held = None if ask.holdout is None else ask.holdout.apply(data)
    # Without validation rows, as one site's rows must not choose the threshold of rates.
    trained = data if held is None else replace(held, validation=None)
    fed = Simulation(trained, task, engine=engine, device=site.device, first=ask.client)
    work = None if ask.method is None else _method_work(site, ask, ask.method, fed)
    w = _own_model(fed, work, ask.w) if work is not None and ask.own else ask.w
    # The test and the request use the same w, so their order does not matter.
    test = also = both = validation = None
    if ask.validates:
        assert held is not None
        assert held.validation is not None
        tested = replace(
            held, test_inputs=held.inputs, test_targets=held.targets, test=held.validation, validation=None
        )
        validated = Simulation(tested, task, engine=engine, device=site.device)
        validation, _ = score_model(validated, w if ask.also is None else ask.also)
    if ask.test:
        test, rows = score_model(fed, w)
        if ask.also is not None:
            also, other = score_model(fed, ask.also)
            both = tuple((first, second) for first, second in products(rows, other, fed.measures).tolist())
    parts, shift_version = (), ""
    if request is not None:
        # The only client of this process has index 0, whatever its index in the deployment.
        request = replace(request, cohort=torch.tensor([0]))
        if isinstance(request, TrainRequest):
            request = replace(request, work=work)
        parts = _parts(site, request, fed.ask(request))
        if isinstance(request, TrainRequest) and request.shift is not None:
            # DRDM and FedDyn change the shift −h_i by μ(w_i − w), and the server computes the same sum. If the two
            # differ, even in rounding, their versions differ too, and the server sends its shift.
            shift = request.shift[0].add(parts[0] - request.w, alpha=request.prox)
            memory[SHIFT_KEY] = ArrayRecord({"shift": array_of(shift)})
            shift_version = version(shift)
    return Answer(
        parts,
        test,
        gradients=fed.ledger.gradient_evaluations,
        losses=fed.ledger.loss_evaluations,
        seconds=time.perf_counter() - start,
        version=shift_version,
        # Every reply contains the digest, so that the server notices data that change during a run.
        digest=site.digest,
        also=also,
        products=both,
        validation=validation,
    )


def _method_work(site: Site, ask: Ask, sent: SentMethod, fed: Simulation) -> MethodWork:
    """Load the client-side method that a message names, with the site's state."""
    method = load_method(sent, site.policy, site.folder)
    layout, row = fed.layout_of(method), None
    if layout.size:
        row = SiteStates(site.folder, site.name).read(sent.number, ask.w.new_empty(layout.size))[None]
    return MethodWork(method, layout, row, {each.name: each.values.reshape(each.shape) for each in ask.context})


def _own_model(fed: Simulation, work: MethodWork, w: Tensor) -> Tensor:
    """Return the client's own model (d,) for the global model w."""
    client = torch.tensor([0])
    store = None if work.states is None else ClientTable.of(1, client, work.states)
    return fed.own_models(OwnModels(w, work.method, store))[client][0]


def _parts(site: Site, request: Request, reply: Replies | Losses | Gradients) -> tuple[Tensor, ...]:
    """Return what the site sends of its only row of a reply, within the limits of its policy."""
    # Parts that the request does not need are None.
    if not isinstance(reply, Replies):
        return site.policy.clip_parts(request, tuple(part[0] for part in reply[1:]))
    models = site.policy.clip_parts(request, tuple(part[0] for part in reply.models if part is not None))
    messages = () if reply.messages is None else site.policy.clip_parts(request, (reply.messages[0],))
    if isinstance(request, TrainRequest) and request.work is not None:
        models = tuple(model[~request.work.layout.private] for model in models)
    # The state itself stays at the site.
    row = None if reply.states is None else SiteStates(site.folder, site.name).write(reply.states[0])
    return *models, *(() if row is None else (torch.tensor([row], dtype=torch.float64),)), *messages


def _shift(ask: Ask, memory: RecordDict) -> Tensor | None:
    """Return the shift (d,) that a message refers to; None if it was not sent and the site does not hold it."""
    if ask.shift is not None:
        return ask.shift
    if ask.version == "zero":
        return torch.zeros_like(ask.w)
    if SHIFT_KEY not in memory.array_records:
        return None
    shift = vector_of(memory.array_records[SHIFT_KEY]["shift"])
    # Compare bytes, not rounds: if the server did not use the site's reply, the two hold different shifts.
    return shift if version(shift) == ask.version else None


LOG = logging.getLogger("drfl.flower")

IDENTITY = "query.identity"
"""Type of the message that requests a site's description. Other types are "train" and "evaluate"."""

DELIVERY = "query.delivery"
"""Type of the message with a model for use at the site."""

DELIVERY_KIND = "delivery"
"""Name of that request in audit logs."""

TESTS = "query.tests"
"""Type of the message with models to test outside a run."""

TESTS_KIND = "tests"
"""Name of that request in audit logs."""

LOSSES = "query.validation"
"""Type of the message that requests sums of the losses of models on validation rows."""

LOSSES_KIND = "validation"
"""Name of that request in audit logs."""

CLOSING = "query.closing"
"""Type of the message with the last head of the server's audit log. The answer is the head of the site's log."""

ROWS = "query.rows"
"""Type of the message that requests the hashes of a site's rows."""

ROWS_KIND = "rows"
"""Name of that request in audit logs."""

SITE = "site"
"""Key in ``--node-config`` of a SuperNode with the path of ``site.toml``."""


def reply(message: Message, context: Context, site: Site) -> Message:
    """Reply to one of drfl's messages, for use in your own ``ClientApp``.

    Args:
        message: Message from drfl's server.
        context: Context of the run. Its state stores only the shift.
        site: The site.

    Raises:
        InputError: If the message, the data and the model do not fit together, or the site's policy forbids the
            request.
        HungError: If the work takes longer than the site allows.
        DrflError: If the site's audit log cannot be written. No reply is sent without a line in the log.
    """
    ask = read(message.content, Ask)
    request = request_of(ask)
    kind = "test" if request is None else request.kind
    return audited_reply(message, context, site, kind, lambda: write(compute_answer(site, ask, request, context.state)))


def audited_reply(message: Message, context: Context, site: Site, kind: str, work: Callable[[], RecordDict]) -> Message:
    """Do the work for a request within the site's policy and time limit, and log the request and the reply.

    Args:
        message: Message from drfl's server.
        context: Context of the run.
        site: The site.
        kind: Name of the request in the log.
        work: Function that computes the content of the reply.

    Raises:
        InputError: If the work fails, or the site's policy forbids the request.
        HungError: If the work takes longer than the site allows.
        DrflError: If the site's audit log cannot be written. No reply is sent without a line in the log.
    """
    run = context.run_id
    log, number = site.audit, None
    about = {"site": site.name, "run": str(run), "what": kind}
    try:
        if log is not None:
            server = server_head(message, site)
            number = None if server is None else server.n
            digest = digest_of_content(message.content)
            log.add("asked", **about, digest=digest, server=None if server is None else str(server))
        site.policy.check_run(run, site.folder)
        # The log has this request already, so the count includes it.
        site.policy.check_count(log)
        # The site's model may hang, so the work has a time limit.
        content = run_within(site.timeout, work)
    except Exception as error:
        if log is not None:
            log.add("refused", **about, request=number, reason=printable(error, MOST_SHOWN))
        raise
    # Log the digest of the reply before the reply leaves the site.
    if log is not None:
        write_head(content, log.add("sent", **about, digest=digest_of_content(content), request=number))
    return Message(content, reply_to=message)


def server_head(message: Message, site: Site) -> Head | None:
    """Read the head of the server's audit log in a message; return None if there is none.

    Raises:
        RefusedError: If the site has the server's key and the head is not signed with it.
    """
    head = read_head(message.content)
    if head is not None and site.server_key is not None and not head.is_signed_by(site.server_key):
        raise RefusedError("the head of the server's audit log is not signed with the server's key (server_key)")
    return head


def identity(site: Site, holdout: HoldOut | None = None) -> RecordDict:
    """Describe a site to the server before a run. The description contains no sample.

    Args:
        site: The site.
        holdout: Validation rows of the run; None for none.

    If inputs are vectors, it contains the mean and variance of every column over the training rows, and the names of
    the columns and classes if they have names. The digest lets the server check, with every reply and when a run is
    resumed, that the data are unchanged.

    Raises:
        InputError: If the site has no samples, or a number is too large for a message.
    """
    # The losses that a server can name ignore torch's default label, or NaN if there are no class labels.
    named = nn.BCEWithLogitsLoss() if site.data.targets.is_floating_point() else nn.CrossEntropyLoss()
    loss = Loss(named) if site.task is None else site.task.criterion
    # Like a simulation, do not count rows whose targets are all ignored.
    data, _, _ = counted_rows(site.data, loss)
    classes = 1
    if not data.targets.is_floating_point():
        low, high = torch.cat([y[~loss.ignores(y)] for y in (data.targets, data.test_targets)]).aminmax()
        if site.task is None and low < 0:
            raise InputError(
                f"class labels must be at least 0, found {int(low)}. Encode the targets as 0, 1, …",
                code="out-of-range",
                field="targets",
            )
        classes = max(int(high) + 1, len(data.classes or ()))
    majority = None if data.majority is None else float(data.majority)
    columns, counts, features = None, None, tuple[str, ...]()
    if is_table(data.inputs) and data.inputs.shape[1] <= MOST_COLUMNS:
        moments = Moments.of(data.inputs, data.train[0])
        columns, counts = (moments.mean, moments.variance), moments.counts
        features = tuple(map(short_name, data.columns or ()))
    class_names = tuple(map(short_name, data.classes or ()))
    shape, digest = tuple(data.inputs.shape[1:]), site.digest
    held_out = 0
    if holdout is not None:
        held, _, _ = counted_rows(holdout.apply(site.data), loss)
        held_out = len(data.train[0]) - len(held.train[0])
    rows, tests, row_key = len(data.train[0]), len(data.test[0]), site.policy.row_key_check(site.folder)
    try:
        about = SiteIdentity(
            site.name, shape, classes, rows, tests, digest, majority, columns, counts, features, data.schema_digest,
            class_names if len(class_names) == classes else (), row_key, warnings_of(site), held_out,
        )  # fmt: skip
        content = write(about)
        # Read the description here too, so that the site's operator sees why the server would refuse it.
        read(content, SiteIdentity)
    except ValueError as error:
        raise InputError(
            f"site '{site.name}' cannot take part: {error}", code="invalid-value", field=site.name
        ) from None
    return content


def warnings_of(site: Site) -> tuple[SiteWarning, ...]:
    """Return the warnings about a site's data that its policy allows the server to have."""
    allowed, features = site.policy.warnings, site.data.columns or ()
    # Compare without units: the server compares the sites' column statistics.
    found = () if allowed == "none" else data_warnings(site.data)
    return tuple(
        SiteWarning(
            notice.code,
            # Other fields may be a path or a site.
            short_name(str(notice.field)) if notice.field in features else "",
            printable(notice, MOST_WARNING) if allowed == "figures" else "",
        )
        for notice in found[:MOST_WARNINGS]
        # The server knows the mean and variance of every column, and standardises them.
        if notice.code != "not-standardised"
    )


def row_hashes(site: Site, run: int) -> RecordDict:
    """Compute the hashes of a site's rows, see :mod:`drfl.flower.row_hashes`.

    Raises:
        RefusedError: If the site does not take part in the comparison.
    """
    key = site.policy.row_key(site.folder)
    if key is None:
        raise RefusedError("this site does not compare its rows with other sites (policy.shared_rows_key)")
    return write(hash_rows(site.data, key, run))


WORK: dict[str, Callable[[Site, Message, Context], RecordDict]] = {
    ROWS_KIND: lambda site, _, context: row_hashes(site, context.run_id),
    DELIVERY_KIND: lambda site, message, _: write(
        receive_model(site, read(message.content, Delivery), read(identity(site), SiteIdentity))
    ),
    TESTS_KIND: lambda site, message, _: write(answer_tests(site, read(message.content, AskTests))),
    LOSSES_KIND: lambda site, message, _: write(answer_losses(site, read(message.content, AskLosses))),
}
"""What a site does for each kind of query. Its policy applies to all of them, and its log records them."""


def _answering(
    load: Callable[[Context], Site], what: str, work: Callable[[Site, Message, Context], RecordDict]
) -> Callable[[Message, Context], Message]:
    def answer(message: Message, context: Context) -> Message:
        site = load(context)
        return audited_reply(message, context, site, what, lambda: work(site, message, context))

    return answer


def client_app(load: Callable[[Context], Site]) -> ClientApp:
    """Make a ``ClientApp`` that answers drfl's server.

    Args:
        load: Function that returns the site, given Flower's context of the node. It is called once per message.
    """
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @client.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @client.query("identity")
    def describe(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        content = identity(site, read(message.content, AskIdentity).holdout)
        if site.audit is not None:
            server = server_head(message, site)
            what = {"digest": digest_of_content(content), "server": None if server is None else str(server)}
            # Log first, as in `reply`, because the count includes this request.
            write_head(content, site.audit.add("identified", site=site.name, run=str(context.run_id), **what))
            try:
                site.policy.check_count(site.audit)
            except InputError as error:
                about = {"site": site.name, "run": str(context.run_id), "what": "identity"}
                request = None if server is None else server.n
                site.audit.add("refused", **about, request=request, reason=printable(error, MOST_SHOWN))
                raise
        return Message(content, reply_to=message)

    for what, work in WORK.items():
        client.query(what)(_answering(load, what, work))

    @client.query("closing")
    def close(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        # No count here: the answer discloses nothing about the data, and refusing it would leave the logs without an
        # end.
        content = RecordDict()
        if site.audit is not None:
            server = server_head(message, site)
            what = None if server is None else str(server)
            write_head(content, site.audit.add("closed", site=site.name, run=str(context.run_id), server=what))
        return Message(content, reply_to=message)

    return client


def site_of(context: Context) -> Site:
    """Load the site that a SuperNode was started with: ``--node-config 'site="/path/to/site.toml"'``.

    Raises:
        InputError: If the SuperNode names no site, or the site's settings or data cannot be used.
    """
    path = context.node_config.get(SITE)
    if path is None:
        raise InputError(
            "this SuperNode does not name a site. Start it with --node-config 'site=\"/path/to/site.toml\"'",
            code="missing-option",
            field="site",
        )
    return _site(Path(str(path)))


# In Flower, each message has its own process. In one process, as in a trial, many messages share the loaded data.
@cache
def _site(path: Path) -> Site:
    settings, folder = read_site(path), path.resolve().parent
    try:
        data = run_within(settings.timeout, partial(load_site, path))
    except HungError:
        raise
    except Exception as error:
        # Flower sends the text of an exception to the server, and the text of this one may quote a patient's cell.
        LOG.error("cannot read the data: %s", error, exc_info=not isinstance(error, InputError))
        code = error.code if isinstance(error, InputError) else "file-unreadable"
        raise InputError(
            f"site '{settings.name}' cannot read its data ({code}). The log of its SuperNode shows why, and so does "
            "'drfl deploy check' at the site",
            code=code,
            field=settings.name,
        ) from None
    log = settings.open_log(folder, "site", settings.name)
    server_key = None if settings.server_key is None else read_public_key(folder / settings.server_key)
    column = settings.policy.score_column
    own_scores = None if column is None else partial(load_scores, settings.data, folder, column, data)
    return Site(
        settings.name, data, None, settings.timeout, settings.device, settings.threads, log, settings.policy, folder,
        server_key, own_scores,
    )  # fmt: skip


app = client_app(site_of)
"""The app that Flower loads."""
