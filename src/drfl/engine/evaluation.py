"""Tests of models on the clients' rows, with one pass over the pool for all models that are tested together."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from drfl.core.vmap import vmap
from drfl.engine.base import PooledData, Tests
from drfl.engine.batches import ClientRows
from drfl.engine.sgd import Apply, Model, has_images, is_slicing_faster, pass_size, per_sample, take_rows
from drfl.engine.tracing import Function, replay, trace
from drfl.task.losses import SampleFn
from drfl.task.measure import Rows
from drfl.task.task import Task

MIN_TRACED = 2**26
"""Minimum multiplications of a test for which tracing pays off; a trace takes a tenth of a second."""


def evaluate_models(problem: PooledData, rows: ClientRows, models: Sequence[Model], apply: Apply = map) -> list[Tests]:
    """Test models, see :meth:`drfl.engine.base.Engine.evaluate`; a row that several clients share is passed once."""
    (pool, places), of = rows.distinct, _functions(problem.task)
    outputs = (per_sample(problem, pool, model, of, apply) for model in models)
    return [_tests(problem, rows, [take_rows(column, places) for column in columns]) for columns in outputs]


def is_worth_tracing(problem: PooledData, rows: ClientRows, models: Tensor) -> bool:
    """Return whether :func:`evaluate_together` is faster: many rows, on a CPU, without convolutions on images."""
    plain = not problem.x.is_cuda and problem.autocast is None and not has_images(problem)
    return plain and len(rows.index) * models.numel() >= MIN_TRACED


def evaluate_together(problem: PooledData, rows: ClientRows, models: Tensor) -> list[Tests]:
    """Test models (k, d) side by side in one pass over the pool, which reads the inputs once.

    The computation is traced, and the trace transposes narrow products and the softmax over few classes. The results
    agree with :func:`evaluate_models` up to rounding.
    """
    task, (pool, places) = problem.task, rows.distinct
    # Make the parameters contiguous, because every pass would otherwise copy them.
    of, views = _functions(task), [view.contiguous() for view in task.layout.views(models).values()]

    def tested(x: Tensor, y: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        def test_model(*model: Tensor) -> tuple[Tensor, ...]:
            outputs = task.outputs(dict(zip(task.layout.names, model, strict=True)), x)
            return tuple(function(outputs, y) for function in of)

        return vmap(test_model)(*parameters)

    most = is_slicing_faster(problem, pool)
    count, entries = (len(problem.x), rows.index) if most else (len(pool), places)
    # Passes of one size or of two, the larger ones first, because a trace is for tensors of fixed shapes.
    passes = -(-count // pass_size(problem))
    sizes = [-(-(count - i) // passes) for i in range(passes)]
    x, y = (
        t.split(sizes) if most else map(functools.partial(take_rows, t), pool.split(sizes))
        for t in (problem.x, problem.y)
    )
    results: list[Sequence[Tensor]] = []
    steps: dict[int, Function] = {}
    with torch.no_grad():
        for size, *inputs in zip(sizes, x, y, strict=True):
            arguments = (*inputs, *views)
            if size not in steps:
                steps[size] = replay(task, ("test",), tested, arguments, trace)
            results.append(steps[size](*arguments))
    columns = [torch.cat(values, 1) for values in zip(*results, strict=True)]
    # Conversion to float64 comes last: only the clients' rows, in their order.
    return [
        _tests(problem, rows, [take_rows(column[i], entries).double() for column in columns])
        for i in range(len(models))
    ]


def evaluate_outputs(problem: PooledData, rows: ClientRows, outputs: Tensor) -> Tests:
    """Test outputs (Σ_i n_i, …) in the order of ``rows.index``, float64 on the CPU, as if a model had returned them."""
    problem = problem._replace(task=problem.task.to("cpu", torch.float64), y=problem.y.cpu())
    targets = problem.y[rows.index]
    targets = targets.double() if targets.is_floating_point() else targets
    results = [function(outputs, targets).double() for function in _functions(problem.task)]
    if problem.task.criterion.of_batch:
        parts = zip(outputs.split(rows.sizes.tolist()), targets.split(rows.sizes.tolist()), strict=True)
        each = torch.stack([problem.task.sample_losses(*part).double() for part in parts])
        results[0] = each.repeat_interleave(rows.sizes)  # whose mean over a client's rows is the client's loss
    return _tests(problem, rows, results)


def _functions(task: Task) -> list[SampleFn]:
    """Return the functions to apply to the outputs: the losses and each metric that has a value per sample.

    The last function returns the outputs themselves, if a metric needs all outputs of a client together.
    """
    alone = [metric for metric in task.measures if metric.per_sample]
    functions: list[SampleFn] = [task.sample_losses, *(functools.partial(task.sample_values, m) for m in alone)]
    return functions if len(alone) == len(task.measures) else [*functions, lambda outputs, y: outputs]


def _tests(problem: PooledData, rows: ClientRows, results: Sequence[Tensor]) -> Tests:
    """Test a model from the results of :func:`_functions` on each of ``rows.index``, float64 on the CPU."""
    task = problem.task
    losses, *columns = results
    alone = [metric for metric in task.measures if metric.per_sample]
    per_sample_values = {m.name: m.checked(column)[:, None] for m, column in zip(alone, columns, strict=False)}
    together = len(alone) < len(task.measures)
    outputs, targets = (columns[-1], problem.y.cpu()[rows.index]) if together else (losses, losses)
    values, scores = [], []
    for metric in task.measures:
        each = per_sample_values[metric.name] if metric.per_sample else metric.of_rows(outputs, targets)
        if metric.ignored is not None and metric.rows is Rows.REAL and problem.y.dim() > 1:
            value, each = position_means(each, metric.counts(problem.y).cpu()[rows.index], rows)
            values.append(value)
        elif metric.per_sample or metric.rows.mean:
            values.append(rows.means(each[:, 0]))
        else:
            sizes = rows.sizes.tolist()
            parts = zip(outputs.split(sizes), targets.split(sizes), strict=True)
            values.append(torch.tensor([metric.of(*part) for part in parts], dtype=torch.float64))
        scores.append(each[:, :0] if metric.rows is Rows.WHOLE else each)
    return Tests(problem.means(losses, rows), tuple(values), tuple(scores))


def position_means(each: Tensor, counted: Tensor, rows: ClientRows) -> tuple[Tensor, Tensor]:
    """Return clients' means over positions, from the means of rows that differ in how many positions count.

    A client's mean R = Σ_j c_j·r_j / Σ_j c_j is a ratio. The scores s_j = R + c_j/c̄·(r_j − R) of its rows have mean
    R, and to first order the variance of their mean is that of the ratio, as confidence intervals require.

    Args:
        each: (Σ_i n_i, 1) float64 r_j.
        counted: (Σ_i n_i, …) whether a position counts, in the order of ``rows.index``.
        rows: The clients' rows.

    Returns:
        (N,) R, and (Σ_i n_i, 1) s_j.
    """
    # The number c of positions that count in each row.
    c = counted.reshape(len(each), -1).sum(1).double()
    total = rows.totals(c)
    ratio = rows.totals(c * each[:, 0]) / total
    centre, mean = (values.repeat_interleave(rows.sizes) for values in (ratio, total / rows.sizes))
    return ratio, (centre + c / mean * (each[:, 0] - centre))[:, None]
