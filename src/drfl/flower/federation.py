"""The clients of a deployment, as the server's algorithm sees them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.serverapp import Grid
from torch import Tensor

from drfl.core.audit_log import AuditLog
from drfl.core.errors import InputError, Notice
from drfl.data.standardisation import Standardisation
from drfl.federation.federation import Evaluation, Federation, Ledger
from drfl.federation.requests import R, Request, TrainRequest
from drfl.flower.claims import same_shape
from drfl.flower.messages import Ask, Model, Products, SiteIdentity, SiteTest, version, work_of
from drfl.flower.nodes import Roster
from drfl.flower.possible_tests import believed
from drfl.flower.traffic import Traffic
from drfl.flower.transport import ClientRequest, Deadline, Exchanged, Transport
from drfl.task.measure import Rows
from drfl.task.metrics import Metric, metric_of, resolved

LOG = logging.getLogger("drfl.flower")

OF_CLASS = ("cross-entropy", "squared")
"""The losses of :data:`drfl.task.models.LOSSES` whose targets are classes; those of the others have the outputs'
shape.
"""


@dataclass
class _LateTest:
    """A test of one or two models (d,), for each of them every client's result once it is done, and their products."""

    models: Sequence[Tensor]
    done: bool = False
    found: list[dict[int, SiteTest]] = field(default_factory=list)
    products: dict[int, Products] = field(default_factory=dict)


class FlowerFederation(Federation):
    """The nodes behind a Flower ``Grid``.

    A request is one message to each client. A test of the model and the request after it go in one where that sends
    the same model, see :class:`drfl.federation.federation.Bundling`. A client that fails, is offline or takes too long
    counts as silent, and so does one whose reply cannot be read or has the wrong shape or type; after several such
    exchanges it is skipped for a while, see :class:`drfl.flower.site_health.SiteHealth`. NaN and distance are for
    :class:`drfl.resilience.Protected` to judge. A late or duplicate reply is ignored. The ledger counts the
    vectors and losses of each request and reply once, as in a simulation, so that a resumed run ends with the same
    numbers. ``traffic`` counts every byte: repetitions and tests too, a shift that the site keeps not at all.

    Args:
        grid: Flower's.
        roster: who the nodes are.
        members: each client's description of itself.
        model: what is trained.
        w0: (d,) the initial model.
        deadline: of every exchange with them.
        standardisation: by which every site scales its inputs, sent with every message; None = they do not. It is not
            in the ledger.
        audit: the server's log; None = none.

    Attributes:
        products: (N, M, 2) float64 of the last test of two models: over each client's rows the sums of the products of
            their values, see :func:`drfl.data.row_scores.products`. None before there was one.

    Raises:
        InputError: the sites' data do not have one shape.
    """

    def __init__(
        self,
        grid: Grid,
        roster: Roster,
        members: Mapping[int, SiteIdentity],
        model: Model,
        w0: Tensor,
        deadline: Deadline,
        standardisation: Standardisation | None = None,
        audit: AuditLog | None = None,
    ) -> None:
        same_shape(members)
        # As the sites claimed before the run, and for the whole of it; see claims.admit for bounds on these claims.
        self.sizes = torch.tensor([members[client].train for client in range(len(members))])
        self.n, self.shares, self.w0 = len(members), self.sizes.double() / self.sizes.sum(), w0
        self.ledger, self.standardisation = Ledger(), standardisation
        self.measures = measures_of(model)
        shares = [members[client].majority for client in range(self.n)]
        told = [share for share in shares if share is not None]
        self.majority = torch.tensor(told, dtype=torch.float64) if len(told) == self.n else None
        self._post, self._names, self._model = Transport(grid, roster, deadline, audit), roster.names, model
        self._digests = {client: member.digest for client, member in members.items()}
        # Of the first and of the second model: each client's last result, which stands where it is not tested.
        self._tested: tuple[dict[int, SiteTest], ...] = {}, {}
        self._products: dict[int, Products] = {}
        self.products: Tensor | None = None
        self._late: _LateTest | None = None

    @property
    def traffic(self) -> Traffic:
        """What has travelled so far."""
        return self._post.traffic

    def site_health(self) -> dict[str, dict[str, int | bool]]:
        """How each site has answered so far, by name."""
        return {self._names[client]: one.counts() for client, one in self._post.health.items()}

    def ask(self, request: Request[R]) -> R:
        """Send a request to its cohort, together with a pending test, which goes to all clients."""
        # A waiting test goes with the next request or not at all: if that sends another model, result() sends it alone.
        late, self._late = self._late, None
        if late is not None and torch.equal(late.models[0], request.w):
            answers, cost = self._test(request, late)
        else:
            answers, cost = self._exchange(request.cohort.tolist(), request.w, request)
        self.ledger.add(cost)
        # In the cohort's order sums round as in a simulation, whichever reply arrives first.
        clients = [client for client in request.cohort.tolist() if client in answers]
        empty = request.nobody()
        if not clients:
            return empty
        columns = zip(*(answers[client].parts for client in clients), strict=True)
        filled = (torch.stack(column) for column in columns)
        parts = [None if part is None else next(filled) for part in empty[1:]]
        return empty._make((torch.tensor(clients), *parts))

    def evaluate(self, w: Tensor) -> Evaluation:
        """Score and loss of w (d,) at every client; the last result stands for a client that is silent.

        Raises:
            InputError: a client has never been tested.
        """
        (found,) = self.evaluate_later([w])()
        return found

    def evaluate_later(self, models: Sequence[Tensor]) -> Callable[[], list[Evaluation]]:
        """See :class:`drfl.federation.federation.Bundling`. Two models go into one message; others are tested by
        themselves.
        """
        self._late = late = _LateTest(models[:2])

        def result() -> list[Evaluation]:
            if not late.done:  # the next request sent another model, or there was none
                self._late = None
                self._test(None, late)
            found: list[Evaluation] = []
            for tests in late.found:
                for client in range(self.n):
                    if client not in tests:
                        raise InputError(
                            f"site '{self._names[client]}' could not be tested: see the log for the reason",
                            code="site-untested",
                            field=self._names[client],
                        )
                results, double = [tests[client] for client in range(self.n)], torch.float64
                others = zip(*(one.others for one in results), strict=True)
                found.append(
                    Evaluation(
                        torch.tensor([one.score for one in results], dtype=double),
                        torch.tensor([one.loss for one in results], dtype=double),
                        torch.tensor([one.samples for one in results]),
                        tuple(torch.tensor(values, dtype=double) for values in others),
                        torch.tensor([one.sums for one in results], dtype=double),
                    )
                )
            if len(found) == 2:
                rows = [late.products[client] for client in range(self.n)]
                self.products = torch.tensor(rows, dtype=torch.float64)
            return [*found, *map(self.evaluate, models[2:])]

        return result

    def _test(self, request: Request | None, late: _LateTest) -> Exchanged:
        """Test models at all clients, along with the request where there is one; returns the answers to the request."""
        # A client that was never tested has no earlier result to stand in for this one: wait for all.
        everybody, missing = list(range(self.n)), len(self._tested[0]) < self.n
        answers, cost = self._exchange(everybody, late.models[0], request, late.models, all_of_them=missing)
        late.done = True
        for client in everybody:
            found = believed(answers.get(client), len(late.models), self.measures)
            if found:
                for own, test in zip(self._tested, found, strict=False):
                    own[client] = test
                # Before the first round, where there is one model alone, it is both.
                self._tested[1].setdefault(client, found[0])
                both = answers[client].products
                if both is not None:
                    self._products[client] = both
                elif client not in self._products:
                    # Until two models are tested, use the products of the one model with itself: its sums of squares.
                    squares: list[tuple[float, float]] = []
                    for measure, sums in zip(self.measures, found[0].sums, strict=True):
                        if measure.rows is Rows.RANKS:
                            squares.append(sums[3:])
                        elif measure.rows.mean and not math.isnan(sums[2]):
                            squares.append((sums[2], 0.0))
                        else:
                            squares.append((math.nan, math.nan))
                    self._products[client] = tuple(squares)
            elif client in self._tested[0]:
                name = self._names[client]
                LOG.warning(Notice(f"{name} was not tested: its last result stands", "site-untested", name))
        # Copies: a later test must not change this one's results.
        late.found = [dict(own) for own in self._tested[: len(late.models)]]
        late.products = dict(self._products)
        asked = set() if request is None else set(request.cohort.tolist())
        return Exchanged({client: answer for client, answer in answers.items() if client in asked}, cost)

    def _exchange(
        self,
        clients: list[int],
        w: Tensor,
        request: Request | None,
        tested: Sequence[Tensor] = (),
        all_of_them: bool = False,
    ) -> Exchanged:
        """Send clients a request, a test of w and perhaps another model, or both."""
        questions = {}
        for client in clients:
            # If a test travels with a request, clients outside the cohort get only the test.
            places = [] if request is None else (request.cohort == client).nonzero().flatten().tolist()
            own = None if request is None or not places else request.only(torch.tensor(places[:1]))
            # The shift has a version, as the site may hold it already.
            shift = own.shift[0] if isinstance(own, TrainRequest) and own.shift is not None else None
            ask = Ask(
                client,
                self._model,
                w,
                work=None if own is None else work_of(own),
                test=bool(tested),
                version="" if shift is None else version(shift),
                shift=shift,
                standardisation=self.standardisation,
                also=tested[1] if len(tested) > 1 else None,
            )
            questions[client] = ClientRequest(ask, own)
        found = self._post.exchange(questions, all_of_them=all_of_them)
        for client, answer in found.answers.items():
            # Warn once if a site's data differ from those that it described before the run.
            health = self._post.health[client]
            if answer.digest != self._digests[client] and not health.data_changed:
                health.data_changed = True
                name = self._names[client]
                text = (
                    f"{name}: its data have changed since the run began; its replies are still used, with the number "
                    "of rows that it reported before"
                )
                LOG.warning(Notice(text, "data-changed", name))
        return found


def measures_of(model: Model) -> tuple[Metric, ...]:
    """What tests of a model measure, the score first, with what that says of a row, by the loss and its outputs.

    Of a model of the sites' own nobody here knows what the targets are: a row may have several labels, and its loss
    may ignore some of them.
    """
    # Metrics need only the shapes and types of outputs and targets, so no model is built.
    outputs = torch.empty(1, model.classes or 2)
    targets = torch.empty(1, dtype=torch.int64) if model.loss in OF_CLASS else torch.empty_like(outputs)
    found = tuple(resolved(metric_of(name), outputs, targets) for name in model.metrics)
    if model.loss:
        return found
    return tuple(replace(metric, rows=Rows.REAL) if metric.rows.mean else metric for metric in found)
