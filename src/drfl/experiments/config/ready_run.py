"""A run that can start: of clients in this process, or of sites elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from torch import Tensor

from drfl.data import ClientData, Partition, Standardisation
from drfl.engine import Simulation
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Federation
from drfl.task.task import Task
from drfl.training.certificate import Certifier
from drfl.training.run_state import RunState


class Clients(Protocol):
    """What a run's files say of its clients."""

    @property
    def n(self) -> int:
        """N, how many there are."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) what they are called."""
        ...

    @property
    def sizes(self) -> Tensor:
        """(N,) int64, their training samples."""
        ...

    @property
    def standardisation(self) -> Standardisation | None:
        """How the columns of their inputs were scaled; None where they were not."""
        ...

    def tensors(self) -> Sequence[Tensor]:
        """What their data are known by."""
        ...


C_co = TypeVar("C_co", bound=Clients, covariant=True)
F_co = TypeVar("F_co", bound=Federation, covariant=True)


@dataclass(frozen=True, kw_only=True)
class ReadyRun(Generic[C_co, F_co]):
    """A run that can start.

    Args:
        settings: how it goes.
        about: what its files say of it.
        data: the clients, with their samples if these are in this process.
        task: the model and its loss.
        fed: the clients, to ask.
        algorithm: the server program.
        first: where the run is before its first round.
        origin: where model and loss are from.
        partition: who holds which samples; None if only the clients know, or the data came divided.
        certify: makes the certificates, if they were asked for.
    """

    settings: RunSettings
    about: AboutRun
    data: C_co
    task: Task
    fed: F_co
    algorithm: Algorithm
    first: RunState
    origin: Origin
    partition: Partition | None = None
    certify: Certifier | None = None


Job = ReadyRun[ClientData, Simulation]
"""A run in this process."""

Running = ReadyRun[Clients, Federation]
"""A run anywhere, such as a deployment."""
