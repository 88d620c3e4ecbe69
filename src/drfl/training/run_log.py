"""The log of a run: it collects the history and the cost, and builds the result."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

import torch
from torch import Tensor

from drfl.core import checks
from drfl.core.errors import InputError, Notice, listing, unknown
from drfl.core.html_table import html_table
from drfl.core.key import Key
from drfl.core.run_end import FEW_ROUNDS, Marks, StopReason, late_rollbacks
from drfl.federation.algorithm import (
    Algorithm,
    Personal,
    State,
    ambiguity_of,
    core_of,
    flagged,
    is_separate,
    mixture_of,
    personal_models,
    references_of,
)
from drfl.federation.client_table import ClientTable
from drfl.federation.federation import Evaluation, Federation, Part
from drfl.federation.local_method import LocalMethod, OwnModels
from drfl.training.averages import Average
from drfl.training.certificate import Certificate, Certifier
from drfl.training.history import History, Metrics, Row, columns_of, others_of, smaller_is_better, undefined_counts
from drfl.training.model_selection import ModelSelection, Selection, selection_field
from drfl.training.run_state import RunState
from drfl.training.safeguard import Fallback, fallback
from drfl.training.step_size import StepSize, with_step_size
from drfl.training.step_size_controller import FIRST, RISE

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from drfl.task.layout import Layout

LOG = logging.getLogger("drfl")


class Result(NamedTuple):
    """The result of a run.

    Args:
        model: (d,) the returned model, which you may change.
        lam: (N,) the client weights after the last round, see :func:`drfl.federation.algorithm.mixture_of`.
        history: The history, one row per evaluated round.
        evaluation: Per-client test results of ``model`` after the last round.
        last: Per-client test results of the last iterate.
        end: The state of the run at its end.
        returned: Which model ``model`` is: "average", "last" or "selected"; or "earlier" or "initial" if the safeguard
            has replaced it, see ``fallback``.
        stopped: Why the run stopped: "rounds" if it did all of them, "target", "patience" or "callback"; "interrupted"
            if a command or a deployment was stopped.
        stopped_on: The rows that stopped the run; None if no metric stopped it.
        averaged: Per-client test results of the averaged solution; None unless the run keeps it.
        averaged_certificate: Certificate of the averaged solution; None if the run keeps no averaged solution, makes no
            certificates, or could not make this one.
        selection: Outcome of model selection; None if no models were tested on validation rows.
        personal: (N, d) the clients' personal models, or in a deployment the method by which each client assembles its
            own; None if ``model`` serves all clients.
        fallback: The earlier model that the safeguard returned instead of the last one; None if it did not.
        layout: Names and shapes of the parameters in ``model``; None if the federation does not know them.
        ignored: The target that the loss ignores, such as -100; None if it ignores none or is not known.
        names: (N,) names of the clients; () if the federation does not know them.
    """

    model: Tensor
    lam: Tensor
    history: History
    evaluation: Evaluation
    last: Evaluation
    end: RunState
    returned: Literal["average", "last", "selected", "earlier", "initial"]
    stopped: StopReason
    stopped_on: Part | None
    averaged: Evaluation | None = None
    averaged_certificate: Certificate | None = None
    selection: Selection | None = None
    personal: ClientTable | OwnModels | None = None
    fallback: Fallback | None = None
    layout: Layout | None = None
    ignored: float | None = None
    names: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The last state; ``state.w`` is the last iterate."""
        return self.end.state

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return self.end.round

    @property
    def skipped(self) -> int:
        """Number of rounds in which no client replied."""
        return self.end.skipped

    @property
    def step_size(self) -> StepSize | None:
        """The local step size that drfl determined; None if the user gave one."""
        return self.end.step_size

    @property
    def average(self) -> Average | None:
        """The averaged solution; None unless the run keeps it."""
        return self.end.average

    @property
    def rollbacks(self) -> int:
        """Number of times that the model was reset to an earlier one because the local step size was too large."""
        return 0 if self.step_size is None else int(self.step_size.rollbacks)

    @property
    def effective_rounds(self) -> int:
        """Rounds that have contributed to the model, without those that resets lost after it was trained."""
        if self.fallback is not None:
            return self.fallback.effective_rounds
        size = self.step_size
        if size is None or (
            self.returned == "selected" and self.selection is not None and self.selection.round <= size.restarted
        ):
            return self.rounds
        return self.rounds - int(size.lost)

    @property
    def marks(self) -> Marks:
        """Facts that a results table must mention about this run."""
        size = self.step_size
        last = 0 if size is None or self.returned == "selected" else int(size.restarted)
        return Marks(self.stopped_on == "test", self.rollbacks, self.rounds, self.effective_rounds, last)

    def __repr__(self) -> str:
        last = self.history.last
        end = last.metrics.summary(self.history.score, last.note)
        of = f"{self.effective_rounds} effective of " if self.rollbacks else ""
        return (
            f"<Result of {of}{self.rounds} rounds, the {self.returned} model of {len(self.model):,} parameters: {end}>"
        )

    def plot(self) -> Figure:
        """Plot score and loss over the rounds, see :func:`drfl.training.plots.plot_history`."""
        return self.history.plot()

    def _repr_html_(self) -> str:
        import pandas as pd

        score = self.history.score
        evaluations = [("the returned model", self.evaluation), ("the last iterate", self.last)]
        rows = {name: Metrics.of(evaluation, score).as_dict(score.name) for name, evaluation in evaluations}
        return html_table(repr(self), pd.DataFrame.from_dict(rows, orient="index").rename_axis("").reset_index())

    def to_clients(self) -> pd.DataFrame:
        """Return the test results of ``model``, one row per client, with every metric and the client weights λ."""
        import pandas as pd

        tests, (score, *others) = self.evaluation, self.history.measures
        columns = {score.name: tests.score, "loss": tests.loss, "samples": tests.samples, "lambda": self.lam}
        columns |= {metric.name: values for metric, values in zip(others, tests.others, strict=True)}
        names = self.names or [f"client-{i}" for i in range(len(tests.score))]
        return pd.DataFrame({"client": names, **{name: values.cpu().numpy() for name, values in columns.items()}})

    def write_into(self: Self, module: torch.nn.Module, client: int | str | None = None) -> None:
        """Write the returned model, or a client's personal model, into a module of the architecture that was trained.

        Args:
            module: The module, which ``torch.compile`` may have wrapped.
            client: Name or number of the client, if the clients have personal models in a simulation; None = ``model``.

        Raises:
            InputError: If it is not a module, or one with other parameters, or the clients have personal models and
                ``client`` is not one of them, or it is given and they have none.
        """
        from drfl.task.layout import Layout

        if not isinstance(module, torch.nn.Module):
            text = f"expected a torch.nn.Module of the trained architecture, got {type(module).__name__}"
            raise InputError(text, code="wrong-type", field="module")
        layout, trained = Layout.of(module), self.layout or Layout.of(module)
        for name in {**trained.named_shapes, **layout.named_shapes}:
            given, expected = (each.named_shapes.get(name, "absent") for each in (layout, trained))
            if given != expected:
                raise InputError(
                    f"the parameter '{name}' is {expected} in the trained model, but {given} in this module",
                    code="wrong-shape",
                    field="module",
                )
        layout.load(module, self._model_of(client))

    def _model_of(self: Self, client: int | str | None) -> Tensor:
        if client is None and self.personal is None:
            return self.model
        if isinstance(self.personal, OwnModels):
            text = "each client assembles its own model and keeps it. result.model holds the shared parameters"
            raise InputError(text, code="unsupported-combination", field="client")
        if self.personal is None:
            text = f"the run has one model for all clients, also for client {client}. Omit `client`"
            raise InputError(text, code="no-personal-models", field="client")
        if client is None:
            text = "each client has its own model. Name the client: result.write_into(module, client=0)"
            raise InputError(text, code="missing-option", field="client")
        if isinstance(client, str) and self.names:
            if client not in self.names:
                raise unknown("client", client, self.names)
            client = self.names.index(client)
        if isinstance(client, str) or not checks.is_integer(client) or not 0 <= client < self.personal.n:
            text = f"client must be an integer from 0 to {self.personal.n - 1}, got {client!r}"
            raise InputError(text, code="out-of-range", field="client")
        return self.personal[torch.tensor([client])][0]


class Tested(NamedTuple):
    """Evaluations of the model to return and of the last iterate."""

    model: Evaluation
    last: Evaluation


class RunLog:
    """Adds rows to a run's history, and counts the run's time and cost; the federation may have served earlier runs."""

    def __init__(
        self,
        algorithm: Algorithm,
        fed: Federation,
        certify: Certifier | None,
        start: RunState | None,
        selection: ModelSelection,
        key: Key,
    ) -> None:
        self.algorithm, self.fed, self.certify, self.selection, self.key = algorithm, fed, certify, selection, key
        # Whether each client has a personal model.
        self.personalised = isinstance(core_of(algorithm), Personal)
        # The personal models tested last. The model to return is tested after the last iterate.
        self.personal: ClientTable | OwnModels | None = None
        # The clients at which the score was undefined in the last test on validation rows.
        self.unjudged: tuple[int, ...] = ()
        # The federation's ledger spans all of its runs, so a run's cost is a difference.
        self.start, self.before = time.perf_counter(), fed.ledger.totals()
        if start is not None:
            # Shift clock and ledger back by the earlier cost of the run, so that the differences include it.
            self.start -= start.seconds
            self.before = {name: value - start.ledger.get(name, 0) for name, value in self.before.items()}

    def cost(self) -> dict[str, int]:
        """Return the cost of the run so far, by ledger counter."""
        return {name: value - self.before[name] for name, value in self.fed.ledger.totals().items()}

    def booked(self, progress: RunState, cost: dict[str, int]) -> RunState:
        """Return the run state with the cost of its rounds and the elapsed time."""
        return progress._replace(ledger=cost, seconds=self._seconds())

    def evaluate(self, progress: RunState, w: Tensor, *, is_last: bool) -> Evaluation:
        """Test the model w (d,), or the personal models derived from it. ``is_last``: whether the run has ended."""
        self.personal = None  # Free the old table before a new one is made: it may be large.
        models = self._personal(progress, w)
        self.personal = models = models._replace(is_last=is_last) if isinstance(models, OwnModels) else models
        return self.fed.evaluate(w) if models is None else self.fed.evaluate_each(models)

    def _personal(self, progress: RunState, w: Tensor) -> ClientTable | OwnModels | None:
        """Return the (N, d) personal models derived from w; None if w serves all clients."""
        size = progress.step_size
        algorithm = self.algorithm if size is None else with_step_size(self.algorithm, float(size.eta))
        return personal_models(algorithm, progress.state, w, self.fed, self.key.fold("personal"))

    def add(self, progress: RunState, tested: Tested, cost: dict[str, int]) -> RunState:
        """Add the row of the current round, and update model selection with it."""
        lam, score, selected = mixture_of(self.algorithm, progress.state, self.fed), progress.score, progress.selected
        of_model = lam if progress.decaying is None else progress.decaying.lam
        model = progress.model
        certificate, point = self._certificate(progress.state, model, of_model, progress.point)
        validation = None
        if selected is not None:
            # Model selection only uses validation rows.
            models = self._personal(progress, model)
            evaluation = self.fed.validate(model) if models is None else self.fed.evaluate_each(models, "validation")
            validation = Metrics.of(evaluation, score)
            self.unjudged = tuple(evaluation.score.isnan().nonzero().flatten().tolist())
            # Only a simulation has validation rows, and there the models are a table.
            table = models if isinstance(models, ClientTable) else None
            selected = self.selection.after(selected, progress.round, model, of_model, validation, table)
        metrics, last = (Metrics.of(tests, score) for tests in tested)
        others, seconds = others_of(tested.model, self.fed.measures), self._seconds()
        flags = flagged(progress.state)
        undefined = undefined_counts(tested.model)
        row = Row(progress.round, metrics, cost, lam, seconds, certificate, flags, last, others, validation, undefined)
        return progress._replace(rows=(*progress.rows, row), point=point, selected=selected)

    def result(self, progress: RunState, tested: Tested, stopped: StopReason, *, choose: bool, guard: bool) -> Result:
        """Build the result of the run, with a test of the averaged solution if the run keeps it.

        Args:
            progress: The run at its end.
            tested: The tests at its end.
            stopped: Why the run stopped.
            choose: Whether to choose between the average and the last iterate.
            guard: Whether to return an earlier model if the one at the end must not be returned.
        """
        # A run resumed from here repeats the steps below, and counts their cost once.
        end = self.booked(progress, self.cost())
        if choose and progress.round > 0 and not self.personalised:
            # The choice uses training samples, so test rows do not influence which model is returned.
            if last_is_better(self.fed, progress, self.key.fold("best")):
                progress, tested = progress._replace(decaying=None), Tested(tested.last, tested.last)
            # The last row now describes the returned model, and includes the cost of the choice.
            progress = self.add(progress._replace(rows=progress.rows[:-1]), tested, self.cost())
        lam, selected = mixture_of(self.algorithm, progress.state, self.fed), progress.selected
        model, returned = progress.model, "last" if progress.decaying is None else "average"
        if selected is not None and self.selection.select is not None and progress.round > 0 and selected.is_empty:
            LOG.warning(
                Notice(
                    f"cannot select a round: the validation metric '{self.selection.select}' was undefined in every "
                    "round, so the run returns its default model",
                    "no-round-selected",
                    self.selection.select,
                )
            )
        elif selected is not None and self.selection.select is not None and progress.round > 0:
            model, returned = selected.w.clone(), "selected"
            models = self.personal = selected.models
            tested = Tested(self.fed.evaluate(model) if models is None else self.fed.evaluate_each(models), tested.last)
            progress = self._describe(progress, tested.model, model, selected.lam, int(selected.round))
        earlier = None
        # A model that has reached the user's target is the one that the user wants, whatever its training losses are.
        guard = guard and stopped != "target" and progress.round > 0
        if guard and not self.personalised and not is_separate(self.algorithm):
            is_selected, key, before = returned == "selected", self.key.fold("step size"), self.cost()
            earlier = fallback(self.algorithm, self.fed, progress, model, key, is_selected=is_selected)
            if earlier is not None:
                model, returned = earlier.model.clone(), "earlier" if earlier.round > 0 else "initial"
                tested = Tested(self.fed.evaluate(model), tested.last)
                of_model = lam if earlier.lam is None else earlier.lam
                progress = self._describe(progress, tested.model, model, of_model, earlier.round)
            # The last row includes the cost of the check, but not that of a round played in advance and dropped.
            row = progress.rows[-1]
            paid = {name: row.ledger[name] + value - before[name] for name, value in self.cost().items()}
            progress = progress._replace(rows=(*progress.rows[:-1], row._replace(ledger=paid)))
        stopped_on: Part | None = "validation" if stopped == "patience" else None
        if stopped == "target" and self.selection.until is not None:
            stopped_on = self.selection.until.rows
        history = History(
            progress.rows, self.certify is not None, self.fed.measures, validated=progress.selected is not None
        )
        result = Result(
            model, lam, history, *tested, end, returned, stopped, stopped_on,
            selection=self._outcome(progress), personal=self.personal, fallback=earlier,
            layout=None if self.fed.model is None else self.fed.model.task.layout,
            ignored=None if self.fed.model is None else self.fed.model.task.criterion.ignored, names=self.fed.names,
        )  # fmt: skip
        average = progress.average
        if average is None:
            return result
        # The average is evaluated once, at the end, because the theorems are about the average over the whole run.
        averaged = self.fed.evaluate(average.w)
        certificate, _ = self._certificate(progress.state, average.w, average.lam, progress.point)
        return result._replace(averaged=averaged, averaged_certificate=certificate)

    def _outcome(self, progress: RunState) -> Selection | None:
        """Return the outcome of model selection; None if no models were tested on validation rows."""
        selected, metric = progress.selected, self.selection.select
        if selected is None:
            return None
        undefined = self.unjudged if self.selection.by_score else ()
        if metric is None or selected.is_empty:
            return Selection("validation", None, progress.round, math.nan, undefined)
        field = selection_field(metric, progress.score)
        name = dict(zip(Metrics._fields, columns_of(progress.score.name), strict=True))[field]
        # Selection negates metrics that are better if smaller; this restores their sign.
        value = float(selected.value) * (-1 if smaller_is_better(field, progress.score) else 1)
        return Selection("validation", name, int(selected.round), value, undefined)

    def _describe(self, progress: RunState, tests: Evaluation, w: Tensor, lam: Tensor, r: int) -> RunState:
        """Let the last row describe the model w (d,) of round r, with the validation metrics of that round."""
        certificate, point = self._certificate(progress.state, w, lam, progress.point)
        row = progress.rows[-1]._replace(
            metrics=Metrics.of(tests, progress.score),
            others=others_of(tests, self.fed.measures),
            certificate=certificate,
            validation=next((row.validation for row in progress.rows if row.round == r), None),
            undefined=undefined_counts(tests),
        )
        return progress._replace(rows=(*progress.rows[:-1], row), point=point)

    def _seconds(self) -> float:
        return time.perf_counter() - self.start

    def _certificate(
        self, state: State, w: Tensor, lam: Tensor, start: Tensor | None
    ) -> tuple[Certificate | None, Tensor | None]:
        """Return the certificate of (w, λ), and the point at which the next search starts."""
        if self.certify is None or is_separate(self.algorithm):
            return None, start
        ambiguity, references = ambiguity_of(self.algorithm), references_of(state)
        # Without the losses of all own models, the objective of the run is not known yet.
        if references is not None and not bool(references.known.all()):
            return None, start
        reference = None if references is None else references.values
        result = self.certify(
            self.fed, w, lam, local=self.algorithm.local, ambiguity=ambiguity, start=start, reference=reference
        )
        # The next search starts at the end of this one, because (w, λ) changes little between two tests.
        return (None, start) if result is None else result


def end_notices(algorithm: Algorithm, fed: Federation, result: Result) -> list[Notice]:
    """List warnings about a run that has ended: a late roll-back, an earlier model, excess losses without a reference,
    and a test loss above the start.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        result: The result of the run.
    """
    marks, earlier = result.marks, result.fallback
    notices = late_rollbacks([marks.rounds_text]) if marks.is_late else []
    if earlier is not None:
        which = f"the model of round {earlier.round}" if earlier.round > 0 else "the initial model"
        loss, at = "mean training loss", ""
        suspects = [client for client, _ in earlier.ignored]
        if earlier.client is not None:
            loss, at = "largest training loss of a client", f", at {fed.name_of(earlier.client)}"
            suspects = suspects or [earlier.client]
        text = f"the run returns {which}: the {loss} was {earlier.end:.4g} at the end{at}"
        if earlier.ignored:
            larger = [f"{fed.name_of(client)} ({value:.4g})" for client, value in earlier.ignored]
            text += f", not counting larger losses of {listing(larger, 'client')}"
        check = f", or check the data of {fed.names_of(torch.tensor(suspects))}" if suspects else ""
        text += f", and is {earlier.loss:.4g} with that model. {FEW_ROUNDS}{check}"
        notices.append(Notice(text, "earlier-model", "lr"))
    start, end = result.history.rows[0].metrics, result.history.last.metrics
    core = core_of(algorithm)
    if not result.rounds:
        return notices
    references = references_of(result.state)
    if references is not None and not bool(references.known.any()):
        text = (
            "no client's loss of its own model is known, so excess losses did not move λ. The replies "
            "with own models are missing, or were rejected because of `max_norm`: raise or remove "
            "`max_norm`, or set reference to none"
        )
        notices.append(Notice(text, "no-references", "reference"))
    # The first rounds on divided classes may raise the loss a little. "not after <= limit" also catches NaN.
    slack = RISE if result.rounds < FIRST else 0.0
    if isinstance(core, Personal) and not isinstance(core, LocalMethod) and not is_separate(core):
        slack = math.inf  # the initial model is already fine-tuned, and may fit the clients as well as any other
    size = result.step_size
    remedy = "lower or remove lr" if size is None else f"set lr below {float(size.eta):.3g}, which drfl chose"
    scale = ", or standardise the columns, which drfl did not do" if fed.raw_columns else ""
    advice = f"{fed.target_advice()}{remedy}{scale}"
    if not end.avg_loss <= start.avg_loss + slack * abs(start.avg_loss):
        text = f"the mean test loss over clients ended at {end.avg_loss:.4g}, above {start.avg_loss:.4g}"
        notices.append(Notice(f"{text} before the first round: {advice}", "loss-rose", "lr"))
    elif not end.worst_loss <= start.worst_loss + slack * abs(start.worst_loss):
        text = f"the largest test loss of a client ended at {end.worst_loss:.4g}, above {start.worst_loss:.4g}"
        if ambiguity_of(algorithm) is None:
            advice = f"{type(core).__name__} minimises a mean; use a robust algorithm such as DualDRDM for that client"
        notices.append(Notice(f"{text} before the first round: {advice}", "worst-loss-rose", "lr"))
    return notices


def last_is_better(fed: Federation, progress: RunState, key: Key) -> bool:
    """Return whether the last iterate's largest training loss is below the average's, over clients reporting both."""
    clients = torch.arange(fed.n)
    last, average = (fed.losses(clients, w, key) for w in (progress.state.w, progress.model))
    both = torch.isin(last.clients, average.clients), torch.isin(average.clients, last.clients)
    worst = [reply.values[rows].amax() for reply, rows in zip((last, average), both, strict=True) if rows.any()]
    # Comparisons with NaN are false, so the average is kept if a loss is NaN. It is also kept if no client replies.
    return bool(worst) and bool(worst[0] < worst[1])
