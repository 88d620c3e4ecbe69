"""From a configuration to a federation and an algorithm that are ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import PARTITIONS, ClientData, Dataset, Partition, Standardisation, load, make_partition
from drfl.data.features import featurise
from drfl.data.features.images import folder as feature_cache
from drfl.data.features.images import load_images
from drfl.data.tables.hugging_face import Columns, read_hub, read_saved
from drfl.data.tables.table_files import read_tables
from drfl.data.validation_split import held_out_training, training_as_test
from drfl.engine import ENGINES, Simulation
from drfl.experiments.config.config import Config, table_dir
from drfl.experiments.config.hyperparameters import make
from drfl.experiments.config.learned import Origin, make_loss, make_model, model_source
from drfl.experiments.config.own_data import CLASSIFICATION, is_hub, saved_folder
from drfl.experiments.config.wrap import over_selection, wrap_algorithm
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
    def config(self) -> Config:
        """Where it came from."""
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
        config: where it came from.
        partition: the manifest of who holds which samples; None where the data came divided.
        data: the clients' samples.
        task: the model and its loss.
        fed: the clients.
        algorithm: the server program.
        first: where the run is before its first round.
        origin: where model and loss are from.
        certify: makes the certificates, where they were asked for.
    """

    config: Config
    partition: Partition | None
    data: ClientData
    task: Task
    fed: Simulation
    algorithm: Algorithm
    first: RunState
    origin: Origin
    certify: Certifier | None = None


def load_data(config: Config, log: Callable[[str], None] | None = None) -> Dataset:
    """The data that the clients of a run share out: the data set, or the features that a backbone makes of it.

    Features come from drfl's cache where they were computed before.

    Args:
        config: what to run; neither its seed nor its algorithm matters.
        log: gets a line now and then where features take their time.

    Raises:
        InputError: the data or the backbone cannot be had, or do not fit each other.
    """
    recipe = config.recipe()
    if config.data is not None or is_hub(config.dataset):
        task = config.task or CLASSIFICATION
        columns = Columns(config.target or (), config.group, config.drop or (), task)
        saved = None if config.data is None else saved_folder(config.data)
        if config.data is None:
            dataset = read_hub(config.dataset, columns)
        elif saved is not None:
            dataset = read_saved(saved, columns)
        else:
            dataset = read_tables(config.data, columns.targets, columns.group, columns.drop, task)
    elif recipe is None:
        dataset = load(config.dataset, data_dir=config.data_dir, group=config.group)
    else:
        images = load_images(config.dataset, config.data_dir)
        dataset = featurise(images, recipe, cache=feature_cache(), log=log, device=config.device)
    return dataset if config.test_fraction is None else dataset.pooled()


def divide(config: Config, dataset: Dataset) -> Partition:
    """Who holds which samples in a run; features, model and algorithm have no say in it.

    Args:
        config: what to run.
        dataset: the data, see :func:`load_data`; only its labels and groups are looked at.

    Raises:
        InputError: the data cannot be divided so.
    """
    method = PARTITIONS[config.partition](**config.partition_parameters())
    return make_partition(dataset, method, Key(config.seed).fold("partition"), config.test_fraction)


def build(config: Config, dataset: Dataset | None = None) -> Job:
    """Load, divide, initialise. Partition and initial model depend on the seed alone, not on the algorithm.

    Args:
        config: what to run.
        dataset: the data, where :func:`load_data` gave them already.

    Raises:
        InputError: data, partition, model, algorithm or device do not work together, or a certificate was asked for
            that cannot be made.
    """
    dataset = load_data(config) if dataset is None else dataset
    key = Key(config.seed)
    # From here on everything depends on the seed alone: all algorithms get the same data and initial model.
    partition = divide(config, dataset)
    data = ClientData.from_dataset(dataset, partition)
    share = VALIDATION if config.validation is None else config.validation
    if config.judged_on == "validation":
        data = held_out_training(data, share, key)
    elif config.selection().validates or config.validation is not None:
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
    parameters, keep = over_selection(config, data.n)
    algorithm = wrap_algorithm(config, make(config.algorithm, parameters), keep, data, task)
    origin = Origin(model_source(config.model, shape, dataset.classes), config.loss)
    return job_of(config, partition, data, task, algorithm, origin)


def job_of(
    config: Config,
    partition: Partition | None,
    data: ClientData,
    task: Task,
    algorithm: Algorithm,
    origin: Origin,
) -> Job:
    """A run of an algorithm, with all that stands around it, on clients in this process.

    Raises:
        InputError: they do not work together.
    """
    validates = config.selection().validates
    if validates and data.validation is None:
        option = next(name for name in ("select", "patience", "until") if getattr(config, name) is not None)
        raise InputError(
            f"{option} = {getattr(config, option)!r} needs validation rows: divide the clients as "
            "data.with_validation(0.2)",
            code="no-validation",
            field=option,
        )
    engine = ENGINES[config.engine]()
    fed = Simulation(data, task, engine=engine, device=config.device, precision=config.precision)
    begun = first(
        algorithm,
        fed,
        returned=config.returned,
        averaged=config.averaged,
        table_dir=table_dir(config),
        validates=validates,
    )
    # Refuse a certificate whose assumptions do not hold before the first round.
    certify = None
    if config.certificate is not None:
        certify = Certifier(task, METHODS[config.certificate])
        certify.check(algorithm.local)
    return Job(config, partition, data, task, fed, algorithm, begun, origin, certify)
