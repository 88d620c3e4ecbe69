"""Prepare the clients' data and a task for the engines: bring them to the device, and check that they fit together."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import NamedTuple

import torch
from torch import Tensor

from drfl.core.errors import InputError, Notice
from drfl.data import ClientData
from drfl.data.checks.clients import unlabelled_rows
from drfl.data.partition.splitting import pieces
from drfl.engine.base import PooledData
from drfl.engine.batches import ClientRows
from drfl.engine.frozen_layers import features, is_narrower, split
from drfl.task.losses import Loss
from drfl.task.task import Task
from drfl.task.task_checks import check_targets, check_task, output_notice

SCANNED = 2**22
"""Numbers of a pool among which rows for the check of a model are selected."""


TRIED = 64
"""Rows whose outputs are checked for probabilities."""

LOG = logging.getLogger("drfl.engine")


class PreparedPools(NamedTuple):
    """Data and a task that fit together, on the device of the engines.

    Args:
        data: The data, without test and validation rows that the loss ignores.
        task: The task, with metrics for these data.
        train: Pool of the training and validation rows. Its task begins behind a frozen backbone.
        test: Pool of the test rows.
    """

    data: ClientData
    task: Task
    train: PooledData
    test: PooledData


def prepare(data: ClientData, task: Task, place: torch.device) -> PreparedPools:
    """Bring data and task to a device, check them, and compute the outputs of frozen first layers.

    Raises:
        InputError: If the model, the loss and the data do not fit together.
    """
    dtype = task.layout.dtype

    def bring(t: Tensor) -> Tensor:
        # Integer labels and raw pixels keep their type.
        return t.to(place, dtype) if t.is_floating_point() else t.to(place)

    task = task if data.fields is None else task.reading(data.fields)
    task = task.separate() if place.type == "cpu" else task.to(place, dtype)
    inputs, test_inputs = bring(data.inputs), bring(data.test_inputs)
    if inputs.dtype == torch.int64 and data.fields is None:
        # A model with an embedding accepts integers, one that begins with a linear layer does not.
        try:
            # The model may draw random numbers, as dropout does, but the global generators must not change.
            with torch.no_grad(), torch.random.fork_rng([inputs.device] if inputs.is_cuda else []):
                task.outputs(task.layout.views(task.w0), inputs[:2].clone())
        except IndexError:  # an embedding lacks an entry, which the task's check reports
            pass
        except Exception:  # the model may have another fault, which its check finds
            inputs, test_inputs = inputs.to(dtype), test_inputs.to(dtype)
    train = PooledData(task, inputs, bring(data.targets))
    test = PooledData(task, test_inputs, bring(data.test_targets))
    # Training and test rows often share one pool, which is then checked once.
    shared = test.x is train.x and test.y is train.y
    for problem in (train,) if shared else (train, test):
        # The check must detect a model that branches on values or on its batch size. So its rows include those with
        # the largest and smallest values.
        reads = check_task(task, *_trial_rows(problem, SCANNED))
        if reads:  # the model reads values, so rare values matter
            check_task(task, *_trial_rows(problem, problem.x.numel()))
        check_targets(task, problem.x, problem.y)
    few = slice(None, None, max(1, len(train.x) // TRIED))
    notice = output_notice(task, train.x[few][:TRIED], train.y[few][:TRIED])
    if notice is not None:
        _warn_once(notice)
    data, masses, test_masses = counted_rows(data, task.criterion)
    pools = ((train.y, masses), (test.y, test_masses))
    ignoring = any(m is not None and bool(task.criterion.ignores(y).any()) for y, m in pools)
    task = task.resolved(train.x, train.y, ignoring=ignoring)
    train, test = train._replace(task=task, masses=masses), test._replace(task=task, masses=test_masses)
    # Do this before autocast is set, so that features are computed in the model's type. Tests never use autocast.
    parts = None if task.noisy else split(task)
    if parts is not None and is_narrower(parts.backbone, train.x):
        inputs = features(parts.backbone, train.x)
        # Training and test rows often share one pool, so its features are computed once.
        test_inputs = inputs if test.x is train.x else features(parts.backbone, test.x)
        train, test = train._replace(task=parts.task, x=inputs), test._replace(task=parts.task, x=test_inputs)
    return PreparedPools(data, task, train, test)


@functools.cache  # once, and not for every seed of a comparison
def _warn_once(notice: Notice) -> None:
    LOG.warning(notice)


def counted_rows(data: ClientData, loss: Loss) -> tuple[ClientData, Tensor | None, Tensor | None]:
    """Drop test and validation rows for which the loss ignores every target.

    Training rows are kept: local steps draw their minibatches from all rows, as a torch loop does. Only rows without
    any known label, see :data:`drfl.task.losses.BINARY`, are dropped there too, and the data get a notice.

    Returns:
        The data, and the weights of the rows of the training pool and of the test pool, see
        :meth:`drfl.task.losses.Loss.masses`.

    Raises:
        InputError: If no target of a client counts in one of the parts; the message names the client.
    """
    masses = loss.masses(data.targets)
    test_masses = masses if data.test_targets is data.targets else loss.masses(data.test_targets)
    parts = {"training": (data.train, data.targets, masses), "test": (data.test, data.test_targets, test_masses)}
    if data.validation is not None:
        parts["validation"] = (data.validation, data.targets, masses)
    unknown, filtered = loss.allows_unknown, dict[str, tuple[Tensor, ...]]()
    for part, (lists, targets, mass) in parts.items():
        if mass is None:
            continue
        rows = ClientRows.of(lists)
        is_empty = rows.totals(mass[rows.index]) == 0
        if bool(is_empty.any()):
            name = data.names[int(is_empty.nonzero()[0])]
            reason = "all of them are unknown" if unknown else f"it ignores {loss.ignored} and classes of weight 0"
            raise InputError(
                f"client '{name}': the loss counts none of its {part} targets, because {reason}. Remove the client, or "
                "give it other rows.",
                code="no-rows",
                field=name,
            )
        counts = ~loss.ignores(targets).reshape(len(targets), -1).all(1).cpu()[rows.index]
        if (part != "training" or unknown) and not bool(counts.all()):
            remaining = rows.only(counts)
            name = "train" if part == "training" else part
            filtered[name] = pieces(remaining.index.to(lists[0].device), remaining.sizes)
    if unknown and filtered:
        data = dataclasses.replace(data, notices=(*data.notices, *unlabelled_rows(data)))
    return dataclasses.replace(data, **filtered) if filtered else data, masses, test_masses


def _trial_rows(problem: PooledData, numbers: int) -> tuple[Tensor, Tensor, int]:
    """Return inputs and targets of rows for a trial, and how many of the first rows are tried individually."""
    x, n = problem.x, len(problem.x)
    # A stride avoids reading all of a large pool.
    step = max(1, x.numel() // numbers)
    rows = x[::step].reshape(-1, max(1, x[:1].numel())).float()
    alone = [0, 1 % n]
    if rows.numel():
        sizes = rows.norm(dim=1)
        extremes = (rows.amax(1).argmax(), rows.amin(1).argmin(), sizes.argmax(), sizes.argmin())
        alone = list(dict.fromkeys([*alone, *(step * int(row) for row in extremes)]))
    # A small model processes more rows in negligible time.
    index = [*alone, *range(2, min(n, max(4, min(64, 2**22 // problem.task.layout.d))))]
    return x[index], problem.y[index], len(alone)
