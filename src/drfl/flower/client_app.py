"""The site's end of a Flower app: answers requests from the site's own data."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from drfl.core.audit_log import Head
from drfl.core.audit_signatures import read_public_key
from drfl.core.errors import InputError, printable
from drfl.data.checks import data_warnings
from drfl.data.standardisation import Moments, is_table
from drfl.engine.prepared_pools import counted_rows
from drfl.flower.compute_answer import compute_answer
from drfl.flower.messages import (
    MOST_COLUMNS,
    MOST_WARNING,
    MOST_WARNINGS,
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
)
from drfl.flower.model_losses import answer_losses
from drfl.flower.model_tests import answer_tests
from drfl.flower.receive_model import receive_model
from drfl.flower.records import (
    MOST_SHOWN,
    digest_of_content,
    read,
    read_head,
    write,
    write_head,
)
from drfl.flower.row_hashes import hash_rows
from drfl.flower.settings import read_site
from drfl.flower.site import HungError, Site, private_errors
from drfl.flower.site_data import load_scores, load_site
from drfl.flower.site_policy import RefusedError
from drfl.task.losses import Loss

T = TypeVar("T")


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


LOG = logging.getLogger("drfl.flower")

QUERY = "query."
"""Prefix of Flower's type of the following messages. The messages of a run have the types "train" and "evaluate"."""

IDENTITY = "identity"
"""Request for a site's description of itself. The names of requests are also those in audit logs."""

ROWS = "rows"
"""Request for the hashes of a site's rows."""

DELIVERY = "delivery"
"""Message with a model for use at the site."""

TESTS = "tests"
"""Request to test models outside a run."""

LOSSES = "validation"
"""Request for sums of the losses of models on validation rows."""

CLOSING = "closing"
"""Message with the last head of the server's audit log. The answer is the head of the site's log."""

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
            request. Its text contains nothing of the site's data.
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
        # An auditor who is not at the site may read the log, so the reason in it is private too.
        with private_errors(site.name, "answer the request"):
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
    allowed, schema = site.policy.warnings, site.data.schema
    # A warning may concern a category, whose features have other names than its column.
    names = {*(site.data.columns or ()), *(each.name for each in (schema.columns if schema else ()) if each.features)}
    # Compare without units: the server compares the sites' column statistics.
    found = () if allowed == "none" else data_warnings(site.data)
    return tuple(
        SiteWarning(
            notice.code,
            # Other fields may be a path or a site.
            short_name(str(notice.field)) if notice.field in names else "",
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


Answerer = Callable[[Message, Context], Message]
SiteWork = Callable[[Site, Message, Context], RecordDict]

WORK: dict[str, SiteWork] = {
    ROWS: lambda site, _, context: row_hashes(site, context.run_id),
    DELIVERY: lambda site, message, _: write(
        receive_model(site, read(message.content, Delivery), read(identity(site), SiteIdentity))
    ),
    TESTS: lambda site, message, _: write(answer_tests(site, read(message.content, AskTests))),
    LOSSES: lambda site, message, _: write(answer_losses(site, read(message.content, AskLosses))),
}
"""What a site does for each kind of query. Its policy applies to all of them, and its log records them."""


def client_app(load: Callable[[Context], Site]) -> ClientApp:
    """Make a ``ClientApp`` that answers drfl's server.

    Args:
        load: Function that returns the site, given Flower's context of the node. It is called once per message.
    """
    client = ClientApp()

    def private(answer: Answerer) -> Answerer:
        def guarded(message: Message, context: Context) -> Message:
            with private_errors("", "answer the request"):
                return answer(message, context)

        return guarded

    @client.train()
    @client.evaluate()
    @private
    def train_or_test(message: Message, context: Context) -> Message:
        return reply(message, context, load(context))

    @client.query(IDENTITY)
    @private
    def describe(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        with private_errors(site.name, "describe itself"):
            content = identity(site, read(message.content, AskIdentity).holdout)
        if site.audit is not None:
            server = server_head(message, site)
            what = {"digest": digest_of_content(content), "server": None if server is None else str(server)}
            # Log first, as in `reply`, because the count includes this request.
            write_head(content, site.audit.add("identified", site=site.name, run=str(context.run_id), **what))
            try:
                site.policy.check_count(site.audit)
            except InputError as error:
                about = {"site": site.name, "run": str(context.run_id), "what": IDENTITY}
                request = None if server is None else server.n
                site.audit.add("refused", **about, request=request, reason=printable(error, MOST_SHOWN))
                raise
        return Message(content, reply_to=message)

    def answer(what: str, work: SiteWork, message: Message, context: Context) -> Message:
        site = load(context)
        return audited_reply(message, context, site, what, lambda: work(site, message, context))

    for what, work in WORK.items():
        client.query(what)(private(partial(answer, what, work)))

    @client.query(CLOSING)
    @private
    def close(message: Message, context: Context) -> Message:
        site = load(context)
        site.policy.check_run(context.run_id, site.folder)
        # Do not count this request: the answer discloses nothing about the data, and refusing it would leave the logs
        # without an end.
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
    with private_errors("", "read its settings"):
        settings, folder = read_site(path), path.resolve().parent
    with private_errors(settings.name, "read its data"):
        data = run_within(settings.timeout, partial(load_site, path))
    with private_errors(settings.name, "read its keys"):
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
