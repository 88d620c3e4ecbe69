"""The federation of a deployment: its clients as the server's algorithm sees them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import torch
from flwr.serverapp import Grid
from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.errors import InputError, Notice
from drfl.core.user_code import is_reference
from drfl.data.standardisation import Standardisation
from drfl.experiments.run.artifacts import json_text
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Evaluation, Federation, Ledger, Part
from drfl.federation.local_method import LocalMethod, OwnModels
from drfl.federation.requests import R, Request, TrainRequest
from drfl.flower.claims import check_same_shape
from drfl.flower.messages import (
    Ask,
    HoldOut,
    ModelRecipe,
    Products,
    SentTensor,
    SiteIdentity,
    SiteTest,
    version,
    work_of,
)
from drfl.flower.nodes import Roster
from drfl.flower.possible_tests import valid_tests
from drfl.flower.site_methods import sent_method
from drfl.flower.traffic import Traffic
from drfl.flower.transport import Deadline, ExchangeResult, PendingRequest, Transport
from drfl.task.client_model import ClientModel
from drfl.task.measure import Rows
from drfl.task.metrics import Metric, metric_of, resolved
from drfl.task.models import CLASS_LOSSES
from drfl.task.task import Task

LOG = logging.getLogger("drfl.flower")


@dataclass
class _LateTest:
    """A test of one or two models (d,), or of each client's own model.

    Once done, it has each client's result per model, the sums of products, and the last model's results on validation
    rows.
    """

    models: Sequence[Tensor]
    own: OwnModels | None = None
    done: bool = False
    results: list[dict[int, SiteTest]] = field(default_factory=list)
    products: dict[int, Products] = field(default_factory=dict)
    validations: dict[int, SiteTest] = field(default_factory=dict)


@dataclass
class _LastResults:
    """Each client's last results: of the first and the second model, sums of products, and on validation rows."""

    tests: tuple[dict[int, SiteTest], dict[int, SiteTest]] = field(default_factory=lambda: ({}, {}))
    products: dict[int, Products] = field(default_factory=dict)
    validations: dict[int, SiteTest] = field(default_factory=dict)


class FlowerFederation(Federation):
    """The nodes behind a Flower ``Grid``.

    A request is one message to each client. A test of a model is combined with the next request if both send the same
    model, see :class:`drfl.federation.federation.Bundling`. A client drops out of an exchange if it fails, is offline
    or too slow, or if its reply cannot be read or has the wrong shape or type. After several such exchanges it is
    skipped for a while, see :class:`drfl.flower.site_health.SiteHealth`. Late and duplicate replies are ignored. NaN
    and outliers are left to :class:`drfl.resilience.Protected`.

    The ledger counts the vectors and losses of each request and reply once, as in a simulation, so that a resumed run
    ends with the same numbers. ``traffic`` counts every byte sent, including repetitions and tests, but not shifts that
    are not sent because the site holds them.

    Args:
        grid: Flower's grid.
        roster: Mapping from clients to nodes.
        members: Each client's description of itself.
        model: Description of the model.
        w0: (d,) the initial model.
        deadline: Time limits of every exchange.
        standardisation: Mean and scale with which every site standardises its inputs; None for no standardisation. It
            is sent with every message, and the ledger does not count it.
        audit: Audit log of the server; None for no log.
        holdout: Validation rows of the sites; None for none.
        metrics: Metrics of the model's tests; None to look up their names.
        task: The task of the sites, whose structure client-side methods need; None if the server does not know it.

    Attributes:
        products: (N, M, 2) float64 from the last test of two models: for each client the sums over test rows of the
            products of both models' values, see :func:`drfl.data.row_scores.products`. None before such a test.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        members: Mapping[int, SiteIdentity],
        model: ModelRecipe,
        w0: Tensor,
        deadline: Deadline,
        standardisation: Standardisation | None = None,
        audit: AuditLog | None = None,
        holdout: HoldOut | None = None,
        metrics: Sequence[Metric] | None = None,
        task: Task | None = None,
    ) -> None:
        check_same_shape(members)
        # The sites reported these numbers before the run, and they stay fixed. claims.admit checks their limits.
        self.sizes = torch.tensor([members[client].trained for client in range(len(members))])
        self.n, self.shares, self.w0 = len(members), self.sizes.double() / self.sizes.sum(), w0
        self.ledger, self.standardisation = Ledger(), standardisation
        has_labels = all(member.majority is not None for member in members.values())
        self.measures = measures_of(model, metrics, has_labels)
        self.model = None if task is None else ClientModel.of(task, w0)
        shares = [members[client].majority for client in range(self.n)]
        reported = [share for share in shares if share is not None]
        # The comparison with a constant answer covers all sites, so it needs the share of every one.
        self.majority = torch.tensor(reported, dtype=torch.float64) if len(reported) == self.n else None
        self._transport, self.names, self._model = Transport(grid, roster, deadline, audit), roster.names, model
        self._digests = {client: member.digest for client, member in members.items()}
        # The results of models that all clients have in common, and of the clients' own models.
        self._results, self._own_results = _LastResults(), _LastResults()
        self.products: Tensor | None = None
        self._late: _LateTest | None = None
        self._holdout = holdout
        self._validates = holdout is not None and not holdout.tested
        # The last tested model and its results on validation rows.
        self._validation: tuple[Tensor, Evaluation] | None = None

    @property
    def traffic(self) -> Traffic:
        """The traffic so far."""
        return self._transport.traffic

    def site_health(self) -> dict[str, dict[str, int | bool]]:
        """Return how each site has answered so far, by name."""
        return {self.names[client]: asdict(health) for client, health in self._transport.health.items()}

    def traffic_json(self, since: int) -> str:
        """Return the content of ``traffic.json``: the traffic since a round, and how each site has answered."""
        return json_text({"since_round": since, **asdict(self.traffic), "sites": self.site_health()}, indent=2) + "\n"

    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort. A pending test is sent along, to all clients."""
        # A pending test is combined only with the next request. If that sends another model, result() sends the test.
        late, self._late = self._late, None
        if late is not None and torch.equal(late.models[0], request.w):
            answers, cost = self._test(request, late)
        else:
            answers, cost = self._exchange(request.cohort.tolist(), request.w, request)
        self.ledger.add(cost)
        # Use the cohort's order, so that sums round as in a simulation, whichever reply arrives first.
        clients = [client for client in request.cohort.tolist() if client in answers]
        empty = request.empty_reply()
        if not clients:
            return empty
        columns = zip(*(answers[client].parts for client in clients), strict=True)
        filled = (torch.stack(column) for column in columns)
        # Sites send only the parts that the request asks for, in this order.
        parts = [None if part is None else next(filled) for part in empty[1:]]
        return empty._make((torch.tensor(clients), *parts))

    def evaluate(self, w: Tensor) -> Evaluation:
        """Test w (d,) at every client; the metrics of a client that does not answer are undefined.

        Raises:
            InputError: If a client has never been tested.
        """
        (evaluation,) = self.evaluate_later([w])()
        return evaluation

    def evaluate_later(self, models: Sequence[Tensor]) -> Callable[[], list[Evaluation]]:
        """See :class:`drfl.federation.federation.Bundling`.

        The first two models are tested in one message, each further model in a separate message. In a test that is
        sent with a request, a client that does not answer keeps its last result. A test that is sent separately, such
        as the one after the last round, asks every site that is online, and those that do not answer have no result.
        """
        # Test at most two models, because a message has one field for a second model.
        self._late = late = _LateTest(models[:2])

        def result() -> list[Evaluation]:
            if not late.done:  # the next request sent another model, or there was no request
                self._late = None
                self._test(None, late)
            evaluations = [self._evaluation(tests) for tests in late.results]
            if self._validates:
                self._validation = late.models[-1], self._evaluation(late.validations)
            if len(evaluations) == 2:
                rows = [late.products[client] for client in range(self.n)]
                self.products = torch.tensor(rows, dtype=torch.float64)
            return [*evaluations, *map(self.evaluate, models[2:])]

        return result

    def _evaluation(self, tests: Mapping[int, SiteTest]) -> Evaluation:
        """Combine the clients' results."""
        for client in range(self.n):
            if client not in tests:
                raise InputError(
                    f"site '{self.names[client]}' could not be tested. See the log for the reason",
                    code="site-untested",
                    field=self.names[client],
                )
        return combined([tests[client] for client in range(self.n)])

    def client_store(self, method: LocalMethod) -> ClientTable | None:
        """See :class:`drfl.federation.federation.Federation`."""
        # The sites store the values. A float64 holds every number that a site gives to its state.
        empty = torch.empty(1, dtype=torch.float64)
        return ClientTable.zeros(self.n, empty, self.table_dir) if self.layout_of(method).size else None

    def evaluate_each(self, models: ClientTable | OwnModels, part: Part = "test") -> Evaluation:
        """Test each client's own model; the server does not see it."""
        if not isinstance(models, OwnModels):
            return super().evaluate_each(models, part)
        if part == "validation" and not self._validates:
            return super().validate(models.w)
        late = _LateTest([models.w], own=models)
        self._test(None, late)
        return self._evaluation(late.results[0] if part == "test" else late.validations)

    def validate(self, w: Tensor) -> Evaluation:
        """See :class:`drfl.federation.federation.Federation`. The sites validate the last model of every test."""
        if not self._validates:
            return super().validate(w)
        if self._validation is None or not torch.equal(self._validation[0], w):
            self.evaluate(w)
        assert self._validation is not None
        return self._validation[1]

    def _test(self, request: Request | None, late: _LateTest) -> ExchangeResult:
        """Test models at all clients, together with a request if given, and return the answers to the request."""
        last, other = self._results, self._own_results
        if late.own is not None:
            last, other = other, last
        if not last.tests[0]:
            # Earlier results of the other kind are those of other models, but these sites have been tested.
            pairs = zip((*last.tests, last.validations), (*other.tests, other.validations), strict=True)
            for results, others in pairs:
                results.update({client: test.undefined() for client, test in others.items()})
        # A client that was never tested has no earlier result to use instead, so wait for all.
        clients, is_missing = list(range(self.n)), len(last.tests[0]) < self.n
        # Each client's own models are tested separately in every round.
        is_separate = request is None and (late.own is None or late.own.is_last)
        answers, cost = self._exchange(
            clients,
            late.models[0],
            request,
            late.models,
            late.own,
            wait_for_all=is_missing,
            wait_for_online=is_separate,
        )
        late.done, untested = True, list[int]()
        for client in clients:
            tests = valid_tests(answers.get(client), len(late.models), self.measures)
            if tests:
                for results, test in zip(last.tests, tests, strict=False):
                    results[client] = test
                # Before the first round there is only one model, which counts as both.
                last.tests[1].setdefault(client, tests[0])
                validation = answers[client].validation
                if validation is not None:
                    last.validations[client] = validation
                both = answers[client].products
                if both is not None:
                    last.products[client] = both
                elif client not in last.products:
                    # Until two models are tested, use the products of the one model with itself.
                    last.products[client] = own_products(tests[0], self.measures)
            elif client in last.tests[0]:
                untested.append(client)
                name, instead = self.names[client], "it has no result" if is_separate else "its last result is used"
                LOG.warning(Notice(f"{name} was not tested; {instead}", "site-untested", name))
        self.untested = tuple(self.names[client] for client in untested)
        # Copy the results, because a later test must not change them.
        late.results = [dict(results) for results in last.tests[: len(late.models)]]
        late.products, late.validations = dict(last.products), dict(last.validations)
        for client in untested if is_separate else ():
            for results in late.results:
                results[client] = results[client].undefined()
            late.products[client] = ((math.nan, math.nan),) * len(self.measures)
        cohort = set() if request is None else set(request.cohort.tolist())
        return ExchangeResult({client: answer for client, answer in answers.items() if client in cohort}, cost)

    def _exchange(
        self,
        clients: list[int],
        w: Tensor,
        request: Request | None,
        tested: Sequence[Tensor] = (),
        own: OwnModels | None = None,
        *,
        wait_for_all: bool = False,
        wait_for_online: bool = False,
    ) -> ExchangeResult:
        """Send clients a request, a test of ``tested`` (w and at most one other model, or own models), or both."""
        questions = {}
        # The tensors for all clients are the same objects in all messages, and so are encoded once.
        work = request.work if isinstance(request, TrainRequest) else None
        shared = {} if work is None else {name: SentTensor.of(name, value) for name, value in work.context.items()}
        for client in clients:
            # If a test is combined with a request, clients outside the cohort get only the test.
            places = [] if request is None else (request.cohort == client).nonzero().flatten().tolist()
            part = None if request is None or not places else request.only(torch.tensor(places[:1]))
            # The shift has a version, because the site may already hold it.
            training = part if isinstance(part, TrainRequest) else None
            shift = None if training is None or training.shift is None else training.shift[0]
            start = None if training is None or training.start is None else training.start[0]
            method, context = None, ()
            if training is not None and training.work is not None:
                mine = training.work
                method = sent_method(mine.method, None if mine.states is None else mine.states[0])
                each = {name: SentTensor.of(name, value[0]) for name, value in mine.per_client.items()}
                context = tuple({**shared, **each}.values())
            elif own is not None:
                row = None if own.states is None else own.states[torch.tensor([client])][0]
                method = sent_method(own.method, row)
            ask = Ask(
                client,
                self._model,
                w,
                work=None if part is None else work_of(part),
                test=bool(tested),
                version="" if shift is None else version(shift),
                shift=shift,
                standardisation=self.standardisation,
                also=tested[1] if len(tested) > 1 else None,
                holdout=self._holdout,
                method=method,
                start=start,
                context=context,
                own=own is not None,
                keep=own is not None and own.is_last,
            )
            questions[client] = PendingRequest(ask, part)
        exchanged = self._transport.exchange(questions, wait_for_all=wait_for_all, wait_for_online=wait_for_online)
        for client, answer in exchanged.answers.items():
            # Warn once if a site's data differ from those that it described before the run.
            health = self._transport.health[client]
            if answer.digest != self._digests[client] and not health.data_changed:
                health.data_changed = True
                name = self.names[client]
                text = (
                    f"the data of {name} have changed since the run began. Its replies are still used, with the number "
                    "of rows that it reported at the start"
                )
                LOG.warning(Notice(text, "data-changed", name))
        return exchanged


def own_products(test: SiteTest, measures: Sequence[Metric]) -> Products:
    """Return the sums of products of a model's values with themselves: its sums of squares."""
    squares: list[tuple[float, float]] = []
    for measure, sums in zip(measures, test.sums, strict=True):
        if measure.rows is Rows.RANKS:
            squares.append(sums[3:])
        elif measure.rows.mean and not math.isnan(sums[2]):
            squares.append((sums[2], 0.0))
        else:
            squares.append((math.nan, math.nan))
    return tuple(squares)


def combined(tests: Sequence[SiteTest]) -> Evaluation:
    """Return the evaluation of a model from the clients' results (N,)."""
    double, others = torch.float64, zip(*(test.others for test in tests), strict=True)
    return Evaluation(
        torch.tensor([test.score for test in tests], dtype=double),
        torch.tensor([test.loss for test in tests], dtype=double),
        torch.tensor([test.samples for test in tests]),
        tuple(torch.tensor(values, dtype=double) for values in others),
        torch.tensor([test.sums for test in tests], dtype=double),
    )


def measures_of(
    model: ModelRecipe, metrics: Sequence[Metric] | None = None, has_labels: bool = False
) -> tuple[Metric, ...]:
    """Return the metrics of a model's tests, the score first, with the kind of value that each has for a row.

    Args:
        model: The model.
        metrics: Its metrics; None to look up their names.
        has_labels: Whether the sites' targets are class labels, for a loss of the user.

    The targets determine the kind. The server does not know whether some of several labels are unknown at a site. If
    the sites supply their own model, it does not know the targets either: a row may have several labels, and the loss
    may ignore some of them. In both cases, means over rows are means of any real numbers.
    """
    # Metrics need only the shapes and types of outputs and targets, so no model is built.
    outputs = torch.empty(1, model.classes or 2)
    labels = model.loss in CLASS_LOSSES or (has_labels and is_reference(model.loss))
    targets = torch.empty(1, dtype=torch.int64) if labels else torch.empty_like(outputs)
    unknown = math.nan if model.loss == "binary-cross-entropy" else None
    named = map(metric_of, model.metrics) if metrics is None else metrics
    known = tuple(resolved(metric, outputs, targets, unknown) for metric in named)
    if model.loss:
        return known
    return tuple(replace(metric, rows=Rows.REAL) if metric.rows.mean else metric for metric in known)
