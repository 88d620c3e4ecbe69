"""Where a run is: all that it needs to go on from the end of a round as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from drfl.core.errors import InputError
from drfl.federation.algorithm import Algorithm, Info, Personal, S, State, WithoutAverage, core_of, mixture_of
from drfl.federation.federation import Federation, WrappedFederation
from drfl.task.metrics import ACCURACY, Measure
from drfl.training.averages import Average, DecayingAverage
from drfl.training.history import Row
from drfl.training.model_selection import Selected
from drfl.training.step_size import StepSize

Returned = Literal["average", "last", "best"]
"""Which model a run returns: "best" is the one of the other two whose largest training loss is smaller at the end."""


class RunState(NamedTuple):
    """Where a run is: the loop moves it on, callbacks see it, checkpoints keep it, and the result has the last one.

    It is all that a run needs to go on from the end of a round as if it had never stopped.

    Args:
        round: rounds done; 0 before the first.
        skipped: how many of them nobody answered.
        state: the algorithm's state.
        rows: the history so far, oldest first.
        ledger: what the run has cost so far.
        seconds: wall time so far.
        point: (d,) where the search of the next certificate starts; None where there is none.
        average: the averaged solution, where the run keeps it.
        decaying: the decaying average, where it is what the run returns.
        step_size: the local step size that was found, or is to be; None where one was given.
        selected: what model selection knows; None if models are not tested on validation rows.
        info: what happened in the round; None before the first, and where a run is resumed. No checkpoint keeps it.
        rounds: how many the run has; 0 before it starts. No checkpoint keeps it, as a run may be resumed for longer.
        score: what the metrics of the rows are statistics of; of the run's clients, once it has started.
    """

    round: int
    skipped: int
    state: State
    rows: tuple[Row, ...]
    ledger: dict[str, int]
    seconds: float
    point: Tensor | None = None
    average: Average | None = None
    decaying: DecayingAverage | None = None
    step_size: StepSize | None = None
    selected: Selected | None = None
    info: Info | None = None
    rounds: int = 0
    score: Measure = ACCURACY

    @property
    def model(self) -> Tensor:
        """(d,) the model that the run would return now."""
        return self.state.w if self.decaying is None else self.decaying.w

    @property
    def row(self) -> Row | None:
        """The history's row of this round; None where the round was not evaluated."""
        return self.rows[-1] if self.rows and self.rows[-1].round == self.round else None


class CheckpointWriter(Protocol):
    """Stores a run's progress."""

    def __call__(self, progress: RunState, stopping: bool) -> None:
        """Called after every round but the last; ``stopping`` where a callback ends the run here."""
        ...


class CheckpointFolder(CheckpointWriter, Protocol):
    """Stores a run's progress and knows where to go on: :class:`drfl.training.checkpoint.Checkpoints`."""

    def resume(
        self, algorithm: Algorithm, fed: Federation, rounds: int, fresh: RunState, settings: Mapping[str, object]
    ) -> RunState | None:
        """Where a run goes on, which is kept here from now on; None where it begins."""
        ...


class RunView(WrappedFederation):
    """A federation with one run's settings: whether averages are asked for, and where tables are stored."""

    def __init__(self, fed: Federation, averaged: bool, table_dir: str | None) -> None:
        super().__init__(fed)
        self.averaged, self.table_dir = averaged, table_dir or fed.table_dir


def first(
    algorithm: Algorithm[S],
    fed: Federation,
    *,
    returned: Returned = "average",
    averaged: bool = False,
    table_dir: str | None = None,
    validates: bool = False,
) -> RunState:
    """Where a run is before its first round; arguments as of :func:`run`, which tells whether it ``validates`` models.

    Raises:
        InputError: the hyperparameters do not fit the federation, ``table_dir`` cannot be used, or there is no
            averaged solution.
    """
    core = core_of(algorithm)
    # A server optimiser's model is no affine function of local models either.
    if averaged and (isinstance(core, WithoutAverage) or getattr(core, "server", None) is not None):
        raise no_average(algorithm)
    state = algorithm.init(view_of(fed, averaged, table_dir))
    lam = mixture_of(algorithm, state, fed)
    average = Average.start(state.w, lam) if averaged else None
    decaying = DecayingAverage.start(state.w, lam) if returned != "last" else None
    size = StepSize.unknown(fed.n) if algorithm.local.lr is None else None
    own = fed.client_table() if isinstance(core_of(algorithm), Personal) else None
    selected = Selected.start(state.w, lam, own) if validates else None
    return RunState(0, 0, state, (), {}, 0.0, None, average, decaying, size, selected)


def view_of(fed: Federation, averaged: bool, table_dir: str | None) -> Federation:
    """The federation as a run with these settings sees it."""
    return RunView(fed, averaged, table_dir) if averaged or table_dir is not None else fed


def no_average(algorithm: Algorithm[S]) -> InputError:
    """What a run raises that was asked for an averaged solution which there is not."""
    return InputError(
        f"{type(core_of(algorithm)).__name__} has no averaged solution: leave 'averaged' out",
        code="no-average",
        field="averaged",
    )
