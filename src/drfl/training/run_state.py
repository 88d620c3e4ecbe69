"""The state of a run: everything that is needed to resume it after a round as if it had never stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, Protocol

from torch import Tensor

from drfl.core.errors import InputError
from drfl.federation.algorithm import Algorithm, Info, Personal, S, State, core_of, mixture_of
from drfl.federation.federation import Federation, WrappedFederation
from drfl.federation.user_algorithm import begin
from drfl.task.measure import Measure
from drfl.task.metrics import ACCURACY
from drfl.training.averages import Average, DecayingAverage
from drfl.training.history import Row
from drfl.training.model_selection import Selected
from drfl.training.run_identity import Identity
from drfl.training.safeguard import SafePoint
from drfl.training.step_size import StepSize

Returned = Literal["average", "last", "best"]
"""Which model a run returns. "best" is whichever of the other two has the smaller largest training loss at the end."""


class RunState(NamedTuple):
    """The state of a run: the loop updates it, callbacks receive it, checkpoints store it, and the result holds the
    last one.

    It holds everything that is needed to resume the run after a round as if it had never stopped.

    Args:
        round: Completed rounds; 0 before the first.
        skipped: Rounds in which no client replied.
        state: The algorithm's state.
        rows: The history so far, oldest row first.
        ledger: Cost of the run so far.
        seconds: Wall time so far.
        point: (d,) point at which the search for the next certificate starts; None without certificates.
        average: The averaged solution, if the run keeps it.
        decaying: The decaying average, if the run returns it.
        step_size: The local step size if drfl determines it; None if the user gave one.
        selected: State of model selection; None if models are not tested on validation rows.
        safe: The state to which the run returns if drfl's step size is too large; None if the user gave one.
        info: Events of the round; None before the first round and after a resume. Not stored in checkpoints.
        rounds: Number of rounds of the run; 0 before it starts. Not stored in checkpoints, because a run may be resumed
            with more rounds.
        score: The score that the metrics in the rows summarise; it is that of the clients once the run has started.
        identity: The values that a run must share to start here; None before the run starts. Not stored in checkpoints,
            which have a more precise one.
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
    safe: SafePoint | None = None
    info: Info | None = None
    rounds: int = 0
    score: Measure = ACCURACY
    identity: Identity | None = None

    @property
    def model(self) -> Tensor:
        """(d,) the model that the run would return now, each time as a copy."""
        # A callback may write it into a module and train that further, which would change the run.
        return (self.state.w if self.decaying is None else self.decaying.w).clone()

    @property
    def row(self) -> Row | None:
        """The history's row of this round; None if the round was not evaluated."""
        return self.rows[-1] if self.rows and self.rows[-1].round == self.round else None


class CheckpointWriter(Protocol):
    """A callable that stores the progress of a run."""

    def __call__(self, progress: RunState, stopping: bool) -> None:
        """Handle the progress after a round other than the last; ``stopping`` is true if the run ends here."""
        ...


class CheckpointFolder(CheckpointWriter, Protocol):
    """Stores the progress of a run and can resume it: :class:`drfl.training.checkpoint.Checkpoints`."""

    def resume(
        self, algorithm: Algorithm, fed: Federation, rounds: int, fresh: RunState, settings: Mapping[str, object]
    ) -> RunState | None:
        """Return the state from which the run resumes, or None if it starts from scratch; then store progress here."""
        ...


def first(
    algorithm: Algorithm[S],
    fed: Federation,
    *,
    returned: Returned = "average",
    averaged: bool = False,
    table_dir: str | None = None,
    validates: bool = False,
) -> RunState:
    """Return the state of a run before its first round.

    The arguments are those of :func:`drfl.training.loop.run`, except ``validates``.

    Args:
        algorithm: The algorithm.
        fed: The clients.
        returned: Which model the run returns.
        averaged: Whether the run keeps the averaged solution.
        table_dir: Folder for tables of client vectors; None = in memory.
        validates: Whether models are tested on validation rows.

    Raises:
        InputError: If the hyperparameters do not fit the federation, ``table_dir`` cannot be used, or the algorithm has
            no averaged solution.
    """
    core = core_of(algorithm)
    # The global model is not an affine function of the local models, also with a server optimiser.
    if averaged and (hasattr(core, "no_average") or getattr(core, "server", None) is not None):
        raise no_average(algorithm)
    state = begin(algorithm, view_of(fed, averaged, table_dir))
    lam = mixture_of(algorithm, state, fed)
    average = Average.start(state.w, lam) if averaged else None
    decaying = DecayingAverage.start(state.w, lam) if returned != "last" else None
    size = StepSize.unknown(fed.n) if algorithm.local.lr is None else None
    models = fed.client_table() if isinstance(core_of(algorithm), Personal) else None
    selected = Selected.start(state.w, lam, models) if validates else None
    safe = None if size is None else SafePoint.start(fed.n, state, average, decaying)
    return RunState(0, 0, state, (), {}, 0.0, None, average, decaying, size, selected, safe)


def view_of(fed: Federation, averaged: bool, table_dir: str | None) -> Federation:
    """Return the federation with the settings of a run."""
    if not averaged and table_dir is None:
        return fed
    view = WrappedFederation(fed)
    view.averaged, view.table_dir = averaged, table_dir or fed.table_dir
    return view


def no_average(algorithm: Algorithm[S]) -> InputError:
    """Return the error for a run that requests an averaged solution which its algorithm does not have."""
    core = core_of(algorithm)
    return InputError(
        f"{type(core).__name__}{' with `server`' * (getattr(core, 'server', None) is not None)} has no averaged "
        "solution: remove `averaged`",
        code="no-average",
        field="averaged",
    )
