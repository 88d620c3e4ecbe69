"""From a configuration to a federation and an algorithm that are ready to run."""

from __future__ import annotations

from typing import NamedTuple

import torch

from drfl.algorithm import Algorithm, Callback
from drfl.callbacks import Target
from drfl.certificate import METHODS, Certifier
from drfl.data import PARTITIONS, ClientData, Dataset, Partition, divide, load
from drfl.engine import ENGINES, Simulation
from drfl.errors import InputError
from drfl.experiments.config import Config
from drfl.experiments.parameters import make
from drfl.key import Key
from drfl.models import MODELS
from drfl.task import Task


class Job(NamedTuple):
    """A run that can start.

    Args:
        config: where it came from.
        partition: the manifest of who holds which samples.
        data: the clients' samples.
        task: the model and its loss.
        fed: the clients.
        algorithm: the server program.
        certify: makes the certificates, where they were asked for.
    """

    config: Config
    partition: Partition
    data: ClientData
    task: Task
    fed: Simulation
    algorithm: Algorithm
    certify: Certifier | None = None


def build(config: Config, dataset: Dataset | None = None) -> Job:
    """Load, divide, initialise. Partition and initial model depend on the seed alone, not on the algorithm.

    Args:
        config: what to run.
        dataset: the data set, where it is loaded already.

    Raises:
        InputError: data, partition, model, algorithm or device do not work together, or a certificate was asked for
            that cannot be made.
    """
    dataset = load(config.dataset, data_dir=config.data_dir) if dataset is None else dataset
    key = Key(config.seed)
    method = PARTITIONS[config.partition](**config.partition_parameters())
    partition = divide(dataset, method, key.fold("partition"))
    data = ClientData.from_dataset(dataset, partition)
    with key.fold("model").torch_scope():
        model = MODELS[config.model](tuple(dataset.inputs.shape[1:]), dataset.classes)
    task = Task(model.to(getattr(torch, config.dtype)))
    algorithm = make(config.algorithm, config.parameters(config.algorithm, data.n))
    engine = ENGINES[config.engine]()
    fed = Simulation(data, task, engine=engine, device=config.device, precision=config.precision)
    algorithm.init(fed)  # a cohort larger than N and the like come to light before anything is written
    return Job(config, partition, data, task, fed, algorithm, _certifier(config, task, algorithm))


def _certifier(config: Config, task: Task, algorithm: Algorithm) -> Certifier | None:
    if config.certificate is None:
        return None
    certifier = Certifier(task, METHODS[config.certificate])
    certifier.check(algorithm.local)
    return certifier


def target(until: str | None) -> list[Callback]:
    """The callback behind an ``until`` such as "worst_accuracy=0.5"; none for None.

    Raises:
        InputError: not of that form, or no such metric.
    """
    if until is None:
        return []
    metric, _, value = until.partition("=")
    try:
        return [Target(metric.strip(), float(value))]
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"until = '{until}' is not of the form metric=value, e.g. worst_accuracy=0.5") from None
