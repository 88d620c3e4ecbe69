"""From a configuration to a federation and an algorithm that are ready to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData, Dataset, Partition, Standardisation
from drfl.data.validation_split import held_out_training, training_as_test
from drfl.engine import Simulation
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import divide, load_data
from drfl.experiments.config.learned import Origin, make_loss, make_model, model_source
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.wrap import over_selected, wrap_algorithm
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Federation
from drfl.task.task import Task
from drfl.training.certificate import METHODS, Certifier
from drfl.training.run_state import RunState, first

VALIDATION = 0.2
"""The share of each client's training rows that is kept out of training, where one is needed and none is given."""


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


class Running(Protocol):
    """What can be run, kept and written: a simulation's :class:`Job`, or a deployment."""

    @property
    def settings(self) -> RunSettings:
        """How it goes."""
        ...

    @property
    def about(self) -> AboutRun:
        """What its files say of it."""
        ...

    @property
    def partition(self) -> Partition | None:
        """Who holds which samples; None where only the clients know."""
        ...

    @property
    def data(self) -> Clients:
        """The clients."""
        ...

    @property
    def task(self) -> Task:
        """The model and its loss."""
        ...

    @property
    def fed(self) -> Federation:
        """The clients, to ask."""
        ...

    @property
    def algorithm(self) -> Algorithm:
        """The server program."""
        ...

    @property
    def first(self) -> RunState:
        """Where the run is before its first round."""
        ...

    @property
    def origin(self) -> Origin:
        """Where model and loss are from."""
        ...

    @property
    def certify(self) -> Certifier | None:
        """Makes the certificates, where they were asked for."""
        ...


class Job(NamedTuple):
    """A run that can start.

    Args:
        settings: how it goes.
        about: what its files say of it.
        partition: the manifest of who holds which samples; None where the data came divided.
        data: the clients' samples.
        task: the model and its loss.
        fed: the clients.
        algorithm: the server program.
        first: where the run is before its first round.
        origin: where model and loss are from.
        certify: makes the certificates, where they were asked for.
    """

    settings: RunSettings
    about: AboutRun
    partition: Partition | None
    data: ClientData
    task: Task
    fed: Simulation
    algorithm: Algorithm
    first: RunState
    origin: Origin
    certify: Certifier | None = None


def build(config: Config, dataset: Dataset | None = None) -> Job:
    """Load, divide, initialise. Partition and initial model depend on the seed alone, not on the algorithm.

    Args:
        config: what to run.
        dataset: the data, where :func:`load_data` gave them already.

    Raises:
        InputError: data, partition, model, algorithm or device do not work together, or a certificate was asked for
            that cannot be made.
    """
    dataset = load_data(config, device=config.device) if dataset is None else dataset
    key = Key(config.seed)
    # From here on everything depends on the seed alone: all algorithms get the same data and initial model.
    partition = divide(config, dataset, config.seed)
    data = ClientData.from_dataset(dataset, partition)
    share = VALIDATION if config.validation is None else config.validation
    if config.judged_on == "validation":
        data = held_out_training(data, share, key)
    elif config.selection(config.measures()).validates or config.validation is not None:
        data = data.with_validation(share, key)
    # After the hold-out: evaluate on the training rows that are left.
    if config.judged_on == "training":
        data = training_as_test(data)
    shape = tuple(dataset.inputs.shape[1:])
    # Isolate torch's generator: the initial model must not depend on its earlier use.
    with key.fold("model").torch_scope():
        model = make_model(config.model, shape, dataset.classes)
    score, *others = config.measures()
    task = Task(model.to(getattr(torch, config.dtype)), make_loss(config.loss), score, tuple(others))
    algorithm = config.built(config.algorithm, data.n)
    origin = Origin(model_source(config.model, shape, dataset.classes), config.loss)
    return job_of(config, config.about(algorithm, data.n), partition, data, task, algorithm, origin)


def job_of(
    settings: RunSettings,
    about: AboutRun,
    partition: Partition | None,
    data: ClientData,
    task: Task,
    algorithm: Algorithm,
    origin: Origin,
) -> Job:
    """A run of an algorithm on clients in this process, with the wrappers that its settings ask for.

    Args:
        settings: how it goes.
        about: what its files say of it.
        partition: who holds which samples; None if the data came divided.
        data: the clients' samples.
        task: the model and its loss.
        algorithm: the server program, without wrappers.
        origin: where model and loss are from.

    Raises:
        InputError: they do not work together.
    """
    validates = settings.selection(task.measures).validates
    if validates and data.validation is None:
        option = next(name for name in ("select", "patience", "until") if getattr(settings, name) is not None)
        raise InputError(
            f"{option} = {getattr(settings, option)!r} needs validation rows: divide the clients as "
            "data.with_validation(0.2)",
            code="no-validation",
            field=option,
        )
    fed = Simulation(data, task, engine=settings.engine, device=settings.device, precision=settings.precision)
    inner, keep = over_selected(settings, algorithm, data.n)
    wrapped = wrap_algorithm(settings, inner, keep, data, task)
    begun = first(
        wrapped,
        fed,
        returned=settings.returned,
        averaged=settings.averaged,
        table_dir=settings.tables,
        validates=validates,
    )
    # Refuse a certificate whose assumptions do not hold before the first round.
    certify = None
    if settings.certificate is not None:
        certify = Certifier(task, METHODS[settings.certificate])
        certify.check(algorithm.local)
    return Job(settings, about, partition, data, task, fed, wrapped, begun, origin, certify)
