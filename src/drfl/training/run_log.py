"""The log of a run: rows of its history, what it has cost, and the result that comes of it."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import torch
from torch import Tensor

from drfl.core.errors import Notice
from drfl.core.html_table import html_table
from drfl.core.key import Key
from drfl.core.run_end import Marks, Stopped
from drfl.federation.algorithm import (
    Algorithm,
    Personal,
    Separate,
    State,
    ambiguity_of,
    core_of,
    flagged,
    mixture_of,
    personal_models,
)
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Evaluation, Federation, Part
from drfl.training.averages import Average
from drfl.training.certificate import Certificate, Certifier
from drfl.training.history import History, Metrics, Row, columns_of, others_of, smaller_is_better, undefined_counts
from drfl.training.model_selection import ModelSelection, Selection, selection_field
from drfl.training.run_state import RunState
from drfl.training.step_size import StepSize, with_step_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOG = logging.getLogger("drfl")


class Result(NamedTuple):
    """What a run gives.

    Args:
        model: (d,) the model that is returned.
        lam: (N,) the last mixture, see :func:`drfl.federation.algorithm.mixture_of`.
        history: a row per evaluated round.
        evaluation: of ``model`` after the last round, per client.
        last: of the last iterate, per client.
        end: where the run ended.
        returned: which model that is: "average", "last" or "selected".
        stopped: why the run stopped.
        stopped_on: the rows that decided so; None if none did.
        averaged: the evaluation of the averaged solution, per client; None unless the run keeps it.
        averaged_certificate: the averaged iterate's; None where either was not asked for, or there is none.
        selection: what validation rows decided; None if there were no tests on them.
        personal: (N, d) the models that the clients are served by, each by its own; None where ``model`` serves all.
    """

    model: Tensor
    lam: Tensor
    history: History
    evaluation: Evaluation
    last: Evaluation
    end: RunState
    returned: Literal["average", "last", "selected"]
    stopped: Stopped
    stopped_on: Part | None
    averaged: Evaluation | None = None
    averaged_certificate: Certificate | None = None
    selection: Selection | None = None
    personal: ClientTable | None = None

    @property
    def state(self) -> State:
        """The last state; ``state.w`` is the last iterate."""
        return self.end.state

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.end.round

    @property
    def skipped(self) -> int:
        """How many of them nobody answered."""
        return self.end.skipped

    @property
    def step_size(self) -> StepSize | None:
        """The local step size that was found; None where one was given."""
        return self.end.step_size

    @property
    def average(self) -> Average | None:
        """The averaged solution; None unless the run keeps it."""
        return self.end.average

    @property
    def rollbacks(self) -> int:
        """How often the model was set back to the initial one, as the local step size was too large."""
        return 0 if self.step_size is None else int(self.step_size.rollbacks)

    @property
    def effective_rounds(self) -> int:
        """Rounds done since the model was last set back; all of them if the returned model is from before that."""
        restarted = 0 if self.step_size is None else int(self.step_size.restarted)
        before = self.returned == "selected" and self.selection is not None and self.selection.round <= restarted
        return self.rounds if before else self.rounds - restarted

    @property
    def marks(self) -> Marks:
        """What readers of a table have to know of it."""
        return Marks(self.stopped_on == "test", self.rollbacks, self.rounds, self.effective_rounds)

    def __repr__(self) -> str:
        last = self.history.last
        end = last.metrics.summary(self.history.score, last.note)
        of = f"{self.effective_rounds} effective of " if self.rollbacks else ""
        return (
            f"<Result of {of}{self.rounds} rounds, the {self.returned} model of {len(self.model):,} parameters: {end}>"
        )

    def plot(self) -> Figure:
        """Score and loss over the rounds, see :func:`drfl.training.plots.plot_history`."""
        return self.history.plot()

    def _repr_html_(self) -> str:
        import pandas as pd

        score = self.history.score
        served = [("the returned model", self.evaluation), ("the last iterate", self.last)]
        rows = {name: Metrics.of(found, score).named(score.name) for name, found in served}
        return html_table(repr(self), pd.DataFrame.from_dict(rows, orient="index").rename_axis("").reset_index())

    def write_into(self: Self, module: torch.nn.Module) -> None:
        """Write the returned model into a module of the architecture that was trained."""
        from drfl.task.layout import Layout

        Layout.of(module).load(module, self.model)


class Tested(NamedTuple):
    """Evaluations of the model to return and of the last iterate."""

    model: Evaluation
    last: Evaluation


class RunLog:
    """Adds rows to a run's history, and counts time and cost from its start: the federation may have served another."""

    def __init__(
        self,
        algorithm: Algorithm,
        fed: Federation,
        certify: Certifier | None,
        start: RunState | None,
        select: ModelSelection,
        key: Key,
    ) -> None:
        self.algorithm, self.fed, self.certify, self.select, self.key = algorithm, fed, certify, select, key
        # Whether every client is served by a model of its own.
        self.personalised = isinstance(core_of(algorithm), Personal)
        # What the model tested last has become at each client; the model to return is tested after the last iterate.
        self.personal: ClientTable | None = None
        # The clients at which the score was undefined on the validation rows tested last.
        self.unjudged: tuple[int, ...] = ()
        # The federation's ledger goes on from run to run: a run's cost is a difference.
        self.start, self.before = time.perf_counter(), fed.ledger.totals()
        if start is not None:
            # Clock and ledger are set back by what the run had used before, so that differences go on from there.
            self.start -= start.seconds
            self.before = {name: value - start.ledger.get(name, 0) for name, value in self.before.items()}

    def cost(self) -> dict[str, int]:
        """What the run has cost so far."""
        return {name: value - self.before[name] for name, value in self.fed.ledger.totals().items()}

    def booked(self, progress: RunState, cost: dict[str, int]) -> RunState:
        """The run after a round that it has cost so much to come to, with the time so far."""
        return progress._replace(ledger=cost, seconds=self._seconds())

    def evaluate(self, progress: RunState, w: Tensor) -> Evaluation:
        """A test of w (d,), or of what it becomes at each client."""
        self.personal = None  # before there are others: such a table may be large
        models = self.personal = self._personal(progress, w)
        return self.fed.evaluate(w) if models is None else self.fed.evaluate_each(models)

    def _personal(self, progress: RunState, w: Tensor) -> ClientTable | None:
        """(N, d) what w becomes at each client; None where it serves all as it is."""
        size = progress.step_size
        algorithm = self.algorithm if size is None else with_step_size(self.algorithm, float(size.eta))
        return personal_models(algorithm, progress.state, w, self.fed, self.key)

    def add(self, progress: RunState, tested: Tested, cost: dict[str, int]) -> RunState:
        """The run with the row of its round, which model selection has seen."""
        lam, score, selected = mixture_of(self.algorithm, progress.state, self.fed), progress.score, progress.selected
        of_model = lam if progress.decaying is None else progress.decaying.lam
        certificate, point = self._certificate(progress.model, of_model, progress.point)
        validation = None
        if selected is not None:
            # Model selection only uses validation rows.
            model = progress.model
            models = self._personal(progress, model)
            found = self.fed.validate(model) if models is None else self.fed.evaluate_each(models, "validation")
            validation = Metrics.of(found, score)
            self.unjudged = tuple(found.score.isnan().nonzero().flatten().tolist())
            selected = self.select.after(selected, progress.round, model, of_model, validation, models)
        metrics, last = (Metrics.of(tests, score) for tests in tested)
        others, seconds = others_of(tested.model, self.fed.measures), self._seconds()
        flags = flagged(progress.state)
        undefined = undefined_counts(tested.model)
        row = Row(progress.round, metrics, cost, lam, seconds, certificate, flags, last, others, validation, undefined)
        return progress._replace(rows=(*progress.rows, row), point=point, selected=selected)

    def result(self, progress: RunState, tested: Tested, stopped: Stopped, best: Key | None) -> Result:
        """What the run gives, with a test of the averaged solution where it was kept.

        Args:
            progress: its end.
            tested: the tests there.
            stopped: why it stopped.
            best: key of the choice between average and last iterate; None = there is none.
        """
        if best is not None and progress.round > 0 and not self.personalised:
            # The choice uses training samples, so that test rows do not influence which model is returned.
            if last_is_better(self.fed, progress, best):
                progress, tested = progress._replace(decaying=None), Tested(tested.last, tested.last)
            # The last row is now one of the model that is returned, with what the choice has cost.
            progress = self.add(progress._replace(rows=progress.rows[:-1]), tested, self.cost())
        lam, selected = mixture_of(self.algorithm, progress.state, self.fed), progress.selected
        model, returned = progress.model, "last" if progress.decaying is None else "average"
        if selected is not None and self.select.best is not None and progress.round > 0 and selected.is_empty:
            LOG.warning(
                Notice(
                    f"no round could be selected: the {self.select.best.metric} of the validation rows was undefined "
                    "in every round, so the run returns its usual model",
                    "no-round-selected",
                    self.select.best.metric,
                )
            )
        elif selected is not None and self.select.best is not None and progress.round > 0:
            model, returned = selected.w, "selected"
            own = self.personal = selected.models
            tested = Tested(self.fed.evaluate(model) if own is None else self.fed.evaluate_each(own), tested.last)
            certificate, point = self._certificate(selected.w, selected.lam, progress.point)
            # The last row describes the returned model, with the validation metrics of its round.
            row = progress.rows[-1]._replace(
                metrics=Metrics.of(tested.model, progress.score),
                others=others_of(tested.model, self.fed.measures),
                certificate=certificate,
                validation=next((r.validation for r in progress.rows if r.round == int(selected.round)), None),
                undefined=undefined_counts(tested.model),
            )
            progress = progress._replace(rows=(*progress.rows[:-1], row), point=point)
        stopped_on: Part | None = "validation" if stopped == "patience" else None
        if stopped == "target" and self.select.until is not None:
            stopped_on = self.select.until.rows
        selection, best_of = None, self.select.best
        if selected is not None:
            undefined = self.unjudged if self.select.by_score else ()
            if best_of is None or selected.is_empty:
                selection = Selection("validation", None, progress.round, math.nan, undefined)
            else:
                field = selection_field(best_of.metric, progress.score)
                name = dict(zip(Metrics._fields, columns_of(progress.score.name), strict=True))[field]
                # Selection negates metrics that are better if smaller; this restores their sign.
                value = float(selected.value) * (-1 if smaller_is_better(field, progress.score) else 1)
                selection = Selection("validation", name, int(selected.round), value, undefined)
        history = History(
            progress.rows, self.certify is not None, self.fed.measures, validated=progress.selected is not None
        )
        found = Result(
            model, lam, history, *tested, self.booked(progress, self.cost()), returned, stopped, stopped_on,
            selection=selection, personal=self.personal,
        )  # fmt: skip
        average = progress.average
        if average is None:
            return found
        # The average is evaluated once, at the end: the theorems are about the average over the whole run.
        averaged = self.fed.evaluate(average.w)
        certificate, _ = self._certificate(average.w, average.lam, progress.point)
        return found._replace(averaged=averaged, averaged_certificate=certificate)

    def _seconds(self) -> float:
        return time.perf_counter() - self.start

    def _certificate(self, w: Tensor, lam: Tensor, start: Tensor | None) -> tuple[Certificate | None, Tensor | None]:
        """The certificate of (w, λ), and where the search of the next one starts."""
        if self.certify is None or isinstance(core_of(self.algorithm), Separate):
            return None, start
        ambiguity = ambiguity_of(self.algorithm)
        found = self.certify(self.fed, w, lam, local=self.algorithm.local, ambiguity=ambiguity, start=start)
        # The next search starts where this one ended, as (w, λ) moves little between two tests.
        return (None, start) if found is None else found


def last_is_better(fed: Federation, progress: RunState, key: Key) -> bool:
    """Whether the last iterate's largest training loss is below the average's, over those who report both."""
    everybody = torch.arange(fed.n)
    last, average = (fed.losses(everybody, w, key) for w in (progress.state.w, progress.model))
    both = torch.isin(last.clients, average.clients), torch.isin(average.clients, last.clients)
    worst = [reply.values[told].amax() for reply, told in zip((last, average), both, strict=True) if told.any()]
    # A NaN is below nothing; nobody's word leaves the average.
    return bool(worst) and bool(worst[0] < worst[1])
