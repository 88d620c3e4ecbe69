"""Build the runs of a configuration: clients, task, simulation and algorithm."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch

from drfl.core.errors import InputError
from drfl.core.key import Key
from drfl.data import ClientData, Dataset, Partition
from drfl.data.validation_split import held_out_training, training_as_test
from drfl.data.warm_start import warm_start
from drfl.engine import Simulation
from drfl.experiments.config.about_run import AboutRun
from drfl.experiments.config.as_published import check_step_sizes
from drfl.experiments.config.config import Config
from drfl.experiments.config.data_settings import divide, load_data
from drfl.experiments.config.kept_weights import with_kept_weights
from drfl.experiments.config.latest import Latest
from drfl.experiments.config.learned import Origin, make_loss, model_source
from drfl.experiments.config.ready_run import Job
from drfl.experiments.config.run_settings import RunSettings
from drfl.experiments.config.wrap import add_over_selection, wrap_algorithm
from drfl.federation.algorithm import Algorithm
from drfl.federation.federation import Ledger
from drfl.task.architecture import make_model
from drfl.task.task import Task
from drfl.training.certificate import METHODS, Certifier
from drfl.training.model_selection import ModelSelection
from drfl.training.run_state import first

VALIDATION = 0.2
"""The default share of each client's training rows that is held out if validation is needed."""


class Setup(NamedTuple):
    """Clients, task and simulation at one seed; ``partition`` is None if the data came divided."""

    partition: Partition | None
    data: ClientData
    task: Task
    fed: Simulation
    origin: Origin
    selection: ModelSelection


class JobBuilder:
    """Builds the runs of a comparison. Consecutive runs at one seed share one :class:`Setup`."""

    def __init__(self, setup: Callable[[int], Setup], job: Callable[[Setup, str, int], Job]) -> None:
        self._setup, self._job, self._latest = setup, job, Latest[Setup]()

    def __call__(self, algorithm: str, seed: int) -> Job:
        """Build the run of an algorithm at a seed."""
        return self._job(self._latest.get(seed, lambda: self._setup(seed)), algorithm, seed)


def build(config: Config, dataset: Dataset | None = None) -> Job:
    """Load and divide the data, make the model and the simulation, and add the algorithm.

    Partition and initial model depend on the seed alone, not on the algorithm.
    """
    return build_job(config, build_setup(config, dataset))


def build_setup(config: Config, dataset: Dataset | None = None) -> Setup:
    """Make the setup that all algorithms of a configuration share; see :func:`build`."""
    dataset = load_data(config, device=config.device) if dataset is None else dataset
    key = Key(config.seed)
    # From here on everything depends on the seed alone: all algorithms get the same data and initial model.
    partition = divide(config, dataset, config.seed)
    data = ClientData.from_dataset(dataset, partition)
    selection = config.selection(config.measures)
    share = VALIDATION if config.validation is None else config.validation
    if config.judged_on == "validation":
        data = held_out_training(data, share, key)
    elif selection.validates or config.validation is not None:
        data = data.with_validation(share, key)
    # After the hold-out, evaluate on the training rows that are left.
    if config.judged_on == "training":
        data = training_as_test(data)
    shape = tuple(dataset.inputs.shape[1:])
    # Isolate torch's generator: the initial model must not depend on its earlier use.
    with key.fold("model").torch_scope():
        model = make_model(config.model, shape, dataset.classes)
    score, *others = config.measures
    task = Task(model.to(getattr(torch, config.dtype)), make_loss(config.loss), score, tuple(others))
    task, start = warm_start(task, data, config.init_from)
    origin = Origin(model_source(config.model, shape, dataset.classes), config.loss, start)
    return make_setup(config, partition, data, task, origin, selection)


def build_job(config: Config, setup: Setup) -> Job:
    """Make the run of a configuration's algorithm; see :func:`build`."""
    algorithm = config.build_algorithm(config.algorithm, setup.data.n)
    return make_job(setup, config, config.about(algorithm, setup.data.n), algorithm)


def make_setup(
    settings: RunSettings,
    partition: Partition | None,
    data: ClientData,
    task: Task,
    origin: Origin,
    selection: ModelSelection | None = None,
) -> Setup:
    """Put clients into a simulation in this process. The arguments are those of :class:`Setup`.

    Raises:
        InputError: If they do not work together, or ``settings`` need validation rows that the data lack.
    """
    selection = settings.selection(task.measures) if selection is None else selection
    if data.validation is None and selection.validates:
        option = next(name for name in ("select", "patience", "until") if getattr(settings, name) is not None)
        raise InputError(
            f"`{option} = {getattr(settings, option)!r}` needs validation rows: pass data.with_validation(0.2)",
            code="no-validation",
            field=option,
        )
    fed = Simulation(data, task, engine=settings.engine, device=settings.device, precision=settings.precision)
    return Setup(partition, data, task, fed, origin, selection)


def make_job(setup: Setup, settings: RunSettings, about: AboutRun, algorithm: Algorithm) -> Job:
    """Make the run of an algorithm, with the wrappers that its settings ask for."""
    data, task = setup.data, setup.task
    if settings.as_published:
        check_step_sizes(algorithm)
    # Runs share the clients' data but count their own costs.
    fed = copy.copy(setup.fed)
    fed.ledger = Ledger()
    inner, keep = add_over_selection(settings, with_kept_weights(algorithm, settings, data.names), data.n)
    wrapped = wrap_algorithm(settings, inner, keep, data, task)
    start = first(
        wrapped,
        fed,
        returned=settings.returned,
        averaged=settings.averaged,
        table_dir=settings.tables,
        validates=setup.selection.validates,
    )
    # Before the first round, reject a certificate whose assumptions do not hold.
    certify = None
    if settings.certificate is not None:
        certify = Certifier(task, METHODS[settings.certificate])
        certify.check(algorithm.local)
    return Job(
        settings=settings, about=about, data=data, task=task, fed=fed, algorithm=wrapped, first=start,
        origin=setup.origin, selection=setup.selection, partition=setup.partition, certify=certify,
    )  # fmt: skip
