"""A run that is ready to start, on clients in this process or on sites elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from drfl.core.errors import Notice
from drfl.core.hashing import digest_of
from drfl.data import ClientData, Partition
from drfl.data.warm_start import InputDescription
from drfl.engine import Simulation
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.learned import Origin
from drfl.experiments.config.run_settings import RunSettings
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Federation
from drfl.task.input_fields import InputFields
from drfl.task.task import Task
from drfl.training.certificate import Certifier
from drfl.training.model_selection import ModelSelection
from drfl.training.run_state import RunState


class Clients(InputDescription, Protocol):
    """The clients of a run, as its files describe them."""

    @property
    def n(self) -> int:
        """N, the number of clients."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """(N,) their names."""
        ...

    @property
    def sizes(self) -> Tensor:
        """(N,) int64, the numbers of their training samples."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the inputs before they get the type of the model."""
        ...

    @property
    def fields(self) -> InputFields | None:
        """The tensors that a row of the inputs holds; None if the inputs are one tensor."""
        ...

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Warnings about their data."""
        ...

    @property
    def shares_test_rows(self) -> bool:
        """Whether a test row belongs to two clients."""
        ...

    def tensors(self) -> Sequence[Tensor]:
        """Return tensors that identify their data."""
        ...


C_co = TypeVar("C_co", bound=Clients, covariant=True)
F_co = TypeVar("F_co", bound=Federation, covariant=True)


@dataclass(frozen=True, kw_only=True)
class ReadyRun(Generic[C_co, F_co]):
    """A run that is ready to start; ``partition`` is None if the data came divided, or only the sites know it."""

    settings: RunSettings
    about: AboutRun
    data: C_co
    task: Task
    fed: F_co
    algorithm: Algorithm
    first: RunState
    origin: Origin
    selection: ModelSelection
    partition: Partition | None = None
    certify: Certifier | None = None

    @cached_property
    def digests(self) -> dict[str, str]:
        """Digests of the clients' "data" and of the initial "model", which identify the run."""
        # Names are part of them, because equal numbers under other names are other clients.
        layout = self.task.layout
        fields = () if self.data.fields is None else (str(self.data.fields),)
        named = "\n".join((*self.data.names, *layout.names, *map(str, layout.shapes), *fields))
        return {"data": digest_of(self.data.tensors(), named), "model": digest_of([self.task.w0], named)}

    @property
    def site_digests(self) -> dict[str, str]:
        """Digest of each site's data by name, if the data are at sites."""
        return {}


Job = ReadyRun[ClientData, Simulation]
"""A run in this process."""

Running = ReadyRun[Clients, Federation]
"""A run anywhere, such as a deployment."""
