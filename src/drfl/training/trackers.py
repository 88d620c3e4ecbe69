"""Callbacks that send a run's history to TensorBoard, MLflow or Weights & Biases as the run progresses.

Example:
    >>> with drfl.trackers.TensorBoard("runs/tb/DRFA") as tracker:  # doctest: +SKIP
    ...     drfl.run(drfl.DRFA(m=2), fed, rounds=100, callbacks=[tracker])
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from drfl.core.errors import InputError, unknown
from drfl.task.measure import Measure
from drfl.training.history import CERTIFICATE_COLUMNS, Row
from drfl.training.run_state import RunState

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient
    from torch.utils.tensorboard import SummaryWriter


def scalars(row: Row, score: Measure) -> dict[str, float]:
    """Return the values of a row of the history by their names in ``history.csv``, without λ, which is a vector.

    Args:
        row: An evaluated round.
        score: The score that its metrics summarise.
    """
    values = row.metrics.as_dict(score.name) | dict(row.others)
    # Log the counts only if one of them is not 0.
    if any(row.undefined):
        names = (name.removeprefix("avg_") for name in row.others if name.startswith("avg_"))
        values |= {f"undefined_{name}": float(n) for name, n in zip((score.name, *names), row.undefined, strict=True)}
    for prefix, metrics in (("last", row.last), ("validation", row.validation)):
        if metrics is not None:
            values |= {f"{prefix}_{name}": x for name, x in metrics.as_dict(score.name).items()}
    if row.certificate is not None:
        values |= {name: getattr(row.certificate, name) for name in CERTIFICATE_COLUMNS}
    more = {"flagged_mass": row.flagged_mass, "largest_lambda": float(row.lam.max()), "seconds": row.seconds}
    return {**values, **row.ledger, **more}


class Store(Protocol):
    """Destination of the values."""

    def write(self, round: int, values: Mapping[str, float]) -> None:
        """Store the values of an evaluated round."""
        ...

    def close(self, *, failed: bool) -> None:
        """Close the store; no more values follow."""
        ...


class Tracker(ABC):
    """Callback that opens its store with the first call, and closes it after the last round or at the end of ``with``.

    Without ``with``, the store stays open if a callback or an error ends the run early. No values are lost.
    """

    def __init__(self) -> None:
        self._store: Store | None = None
        self._ended = False

    @abstractmethod
    def open(self, round: int) -> Store:
        """Open the store for rounds from this one on."""

    def __call__(self, progress: RunState) -> None:
        """Send this round's row, if the round was evaluated.

        Raises:
            InputError: If the tracker was closed, so that it belongs to an earlier run.
        """
        if self._ended:
            raise InputError(
                f"this {type(self).__name__} was closed with its run. Create a new one for each run.",
                code="already-closed",
            )
        # Open with the first call, so that a run with invalid settings leaves no empty store.
        if self._store is None:
            self._store = self.open(progress.round)
        if progress.row is not None:
            self._store.write(progress.round, scalars(progress.row, progress.score))
        if progress.round == progress.rounds:
            self.close()

    def close(self, *, failed: bool = False) -> None:
        """Close the store; further calls have no effect."""
        if self._store is not None:
            self._store.close(failed=failed)
        self._store, self._ended = None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close(failed=kind is not None)


class TensorBoard(Tracker):
    """Tracker that writes a run's values to a folder for TensorBoard: ``tensorboard --logdir runs/tb``.

    Args:
        folder: Folder of this run. A resumed run writes another file, which replaces the values of the first file for
            rounds that are in both.

    Raises:
        InputError: If TensorBoard is not installed, or (with the first call) if the folder cannot be written.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        try:
            import torch.utils.tensorboard  # noqa: F401 - fail before the run, not during it
        except ImportError:
            raise InputError(
                "TensorBoard is not installed: pip install 'drfl[tensorboard]'",
                code="package-missing",
                field="tensorboard",
            ) from None

    def open(self, round: int) -> Store:
        """Open a new event file."""
        from torch.utils.tensorboard import SummaryWriter

        try:
            return _Events(SummaryWriter(str(self.folder), purge_step=round))
        except OSError as error:
            raise InputError(
                f"cannot write TensorBoard's files to '{self.folder}': {error.strerror}",
                code="cannot-write",
                field=str(self.folder),
            ) from None


class _Events:
    def __init__(self, writer: SummaryWriter) -> None:
        self.writer = writer

    def write(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, round)
        # After a flush TensorBoard shows the round, and killing the run does not lose it.
        self.writer.flush()

    def close(self, *, failed: bool) -> None:  # event files cannot record a failure
        self.writer.close()


class MLflow(Tracker):
    """Tracker that logs a run's values as metrics of an MLflow run, with the round as step.

    Args:
        experiment: Name of the experiment, which is created if it does not exist.
        uri: Tracking server or store, e.g. ``"sqlite:///mlflow.db"``; None = MLflow's setting.
        name: Name of the MLflow run; None = chosen by MLflow.
        params: Params to log, e.g. ``dataclasses.asdict(algorithm)``.
        run_id: MLflow run to continue if the drfl run is resumed; rounds that it already has are not logged again.

    Raises:
        InputError: If MLflow is not installed, or (with the first call) if the store cannot be reached or has no such
            run.
    """

    def __init__(
        self,
        experiment: str,
        *,
        uri: str | None = None,
        name: str | None = None,
        params: Mapping[str, object] | None = None,
        run_id: str | None = None,
    ) -> None:
        super().__init__()
        self.experiment, self.uri, self.name, self.params = experiment, uri, name, dict(params or {})
        self.run_id = run_id
        try:
            import mlflow.tracking  # noqa: F401 - fail before the run, not during it
        except ImportError:
            raise InputError(
                "MLflow is not installed: pip install 'drfl[mlflow]'", code="package-missing", field="mlflow"
            ) from None

    def open(self, round: int) -> Store:
        """Open the MLflow run, creating it if necessary, and set ``run_id``."""
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            client = MlflowClient(self.uri)
            if self.run_id is None:
                existing = client.get_experiment_by_name(self.experiment)
                experiment = client.create_experiment(self.experiment) if existing is None else existing.experiment_id
                run = client.create_run(experiment, run_name=self.name)
                params = [Param(key, str(value)) for key, value in self.params.items()]
                client.log_batch(run.info.run_id, params=params)
            else:
                # A resumed run logs only the rounds after the last one in the store.
                run = client.get_run(self.run_id)
            steps = [int(m.step) for m in client.get_metric_history(run.info.run_id, "avg_loss")]
            client.update_run(run.info.run_id, status="RUNNING")
        except MlflowException as error:
            raise InputError(
                f"MLflow, experiment '{self.experiment}': {str(error).strip().splitlines()[0]}",
                code="tracker-failed",
                field=self.experiment,
            ) from None
        self.run_id = run.info.run_id
        return _LoggedRun(client, run.info.run_id, max(steps, default=-1))


class _LoggedRun:
    def __init__(self, client: MlflowClient, run_id: str, done: int) -> None:
        self.client, self.run_id, self.done = client, run_id, done

    def write(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric
        from mlflow.utils.time import get_current_time_millis

        if round > self.done:
            now = get_current_time_millis()
            metrics = [Metric(name, float(value), now, round) for name, value in values.items()]
            self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        self.client.set_terminated(self.run_id, "FAILED" if failed else "FINISHED")


class WandB(Tracker):
    """Tracker that writes a run's values to a folder for Weights & Biases, without a connection.

    ``wandb sync FOLDER/wandb/offline-run-*`` uploads them later.

    Args:
        folder: Folder in which wandb makes its own.
        project: Name of the project.
        name: Name of the run; None = chosen by wandb.

    Raises:
        InputError: If wandb is not installed.
    """

    def __init__(self, folder: str | Path, *, project: str = "drfl", name: str | None = None) -> None:
        super().__init__()
        self.folder, self.project, self.name = Path(folder), project, name
        try:
            importlib.import_module("wandb")  # fail before the run, not during it
        except ImportError:
            raise InputError(
                "Weights & Biases is not installed: pip install wandb", code="package-missing", field="wandb"
            ) from None

    def open(self, round: int) -> Store:
        """Open a new offline run."""
        wandb = importlib.import_module("wandb")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            # Run offline whatever the environment says, so that values leave this machine only if the user syncs them.
            return _OfflineRun(
                wandb.init(dir=str(self.folder), project=self.project, name=self.name, mode="offline", reinit=True)
            )
        except OSError as error:
            raise InputError(
                f"cannot write Weights & Biases' files to '{self.folder}': {error.strerror}",
                code="cannot-write",
                field=str(self.folder),
            ) from None


class _WandBRun(Protocol):
    def log(self, data: dict[str, float], step: int) -> None: ...

    def finish(self, exit_code: int) -> None: ...


class _OfflineRun:
    def __init__(self, run: _WandBRun) -> None:
        self.run = run

    def write(self, round: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=round)

    def close(self, *, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


TRACKERS: Mapping[str, Callable[[str, str], Tracker]] = {
    "tensorboard": lambda place, name: TensorBoard(Path(place) / name),
    "mlflow": lambda place, name: MLflow("drfl", uri=place, name=name),
    "wandb": lambda place, name: WandB(place, name=name),
}
"""Trackers by name, each made from a folder or, for MLflow, the address of a store, and the name of a run."""


def parse(text: str, name: str) -> Tracker:
    """Return the tracker of a run from a text such as "tensorboard:runs/tb" or "mlflow:sqlite:///mlflow.db".

    Args:
        text: The kind of tracker, a colon, and a folder or store.
        name: The name of the run.

    Raises:
        InputError: If the text has another form, or the tracker's package is not installed.
    """
    kind, colon, place = text.partition(":")
    if not (colon and place):
        raise InputError(
            f"track '{text}': expected KIND:PLACE, e.g. tensorboard:runs/tb", code="invalid-format", field="track"
        )
    if kind not in TRACKERS:
        raise unknown("tracker", kind, TRACKERS, field="track")
    return TRACKERS[kind](place, name)


@contextmanager
def tracking(text: str | None, name: str) -> Iterator[Sequence[Tracker]]:
    """Yield the trackers of a run, which are closed at the end: the one that :func:`parse` returns, or none."""
    if text is None:
        yield ()
        return
    with parse(text, name) as tracker:
        yield (tracker,)
