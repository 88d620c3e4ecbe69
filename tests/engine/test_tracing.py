"""Test traced steps: their results, when they are made, and that untraceable code still runs."""

from __future__ import annotations

import gc
import math
import weakref
from collections import OrderedDict

import pytest
import torch
from tests.support.marks import long_beyond
from tests.support.problems import federation, group_norm_net
from tests.support.refusals import logged
from torch import nn
from torch.fx import GraphModule
from torch.nn.functional import cross_entropy

from drfl.core.key import Key
from drfl.engine import Stacked, tracing
from drfl.engine.recorder import record
from drfl.engine.tracing import replay, simplify, structure_of, trace
from drfl.optim.local import LocalSGD
from drfl.task import models
from drfl.task.task import Task

LOCAL = LocalSGD(steps=3, lr=0.1, batch=4)


@pytest.fixture(autouse=True)
def no_traces_of_other_tests(monkeypatch):
    monkeypatch.setattr(tracing, "_traced", OrderedDict())


def made_for(fed):
    """Return the traces of a task, which it may share."""
    shared = tracing._traced.get(structure_of(fed._train.task), {})
    return {**tracing._made.get(fed._train.task, {}), **shared}


def plain(function, arguments):
    return function


@pytest.mark.parametrize(
    ("model", "scripted"),
    long_beyond(
        2,
        [(models.linear, True), (models.mlp, True), (models.cnn, False), (group_norm_net, False)],
        ["linear", "mlp", "cnn", "group_norm"],
    ),
)
def test_papers_models_are_traced(model, scripted):
    """The function for failed traces must not be needed."""
    fed = federation((9, 20, 12), model=model, shape=(1, 8, 8), engine=Stacked())
    fed.train(torch.arange(3), fed.w0, LOCAL, Key(0))
    (function,) = made_for(fed).values()
    graph = function if scripted else function.__self__
    assert isinstance(graph, torch.jit.ScriptFunction if scripted else GraphModule)


def test_round_gives_the_same_bits_after_other_runs():
    fed, other = (federation((9, 20, 12), engine=Stacked()) for _ in range(2))
    first = fed.train(torch.arange(3), fed.w0, LOCAL, Key(0)).w
    for k in (1, 2, 3):
        other.train(torch.arange(k), other.w0 + 1, LOCAL, Key(k))
    assert torch.equal(first, fed.train(torch.arange(3), fed.w0, LOCAL, Key(0)).w)
    assert torch.equal(first, other.train(torch.arange(3), other.w0, LOCAL, Key(0)).w)


class OwnLinear(nn.Linear):
    """A user's layer, whose code may change during the process."""


@pytest.mark.parametrize(
    ("model", "loss", "made"),
    [
        (nn.Linear, nn.CrossEntropyLoss(), 1),
        (nn.Linear, cross_entropy, 1),
        (OwnLinear, nn.CrossEntropyLoss(), 2),
        (nn.Linear, lambda outputs, y: cross_entropy(outputs, y, reduction="none"), 2),
    ],
)
def test_tasks_of_torch_and_drfl_parts_share_traces(model, loss, made):
    traces = [replay(Task(model(2, 2), loss), "x", lambda x: [x + 1], [torch.ones(2)], trace) for _ in range(2)]
    assert len(set(map(id, traces))) == made


def test_tasks_with_user_code_have_their_own_traces():
    model, weight = nn.Linear(2, 2), torch.ones(2)
    frozen = [nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2)]
    for pair in frozen:
        pair[1].requires_grad_(False)
    tied = [nn.Sequential(*(nn.Linear(2, 2) for _ in range(3))) for _ in range(2)]
    for shared_with, three in enumerate(tied):
        three[2].weight = three[shared_with].weight
    tasks = [
        Task(model),
        Task(nn.Linear(2, 2, bias=False)),
        Task(model, nn.CrossEntropyLoss(weight)),
        Task(model, nn.CrossEntropyLoss(2 * weight)),
        Task(model, nn.CrossEntropyLoss(label_smoothing=0.1)),
        Task(model, score="f1"),
        Task(nn.Sequential(model, nn.ReLU())),
        *map(Task, frozen),
        *map(Task, tied),
    ]
    structures = {structure_of(task) for task in tasks}
    assert len(structures) == len(tasks)
    assert None not in structures


@pytest.mark.long
def test_cache_is_small_and_contains_no_data():
    pools = []
    for n in range(2, 3 + tracing.MAX_STRUCTURES):
        fed = federation(
            (9, 20, 12), model=lambda shape, classes, n=n: models.mlp(shape, classes, (n,)), engine=Stacked()
        )
        fed.train(torch.arange(3), fed.w0, LOCAL, Key(0))
        fed.train(torch.arange(3), fed.w0, LOCAL, Key(1))
        pools.append(weakref.ref(fed._train.x))
    del fed
    gc.collect()
    assert len(tracing._traced) == tracing.MAX_STRUCTURES
    assert not any(pool() is not None for pool in pools)


def test_forgotten_shapes_are_traced_again():
    task, made = Task(nn.Linear(2, 2)), []
    for n in (1, 2, 1, 3, 1, 2):
        replay(task, "x", lambda x: [x], [torch.ones(n)], lambda f, a: made.append(len(a[0])) or f, limit=2)
    assert made == [1, 2, 3, 2]
    assert len(tracing._made[task]) == 2


def test_traces_are_freed_with_the_task():
    task, before = Task(nn.Linear(2, 2)), len(tracing._made)
    replay(task, "name", torch.sin, [torch.ones(2)], plain)
    assert len(tracing._made) == before + 1
    del task
    gc.collect()
    assert len(tracing._made) == before


def test_one_trace_per_name_shape_and_type():
    task, calls = Task(nn.Linear(2, 2)), []

    def make(function, arguments):
        calls.append(arguments)
        return function

    for name, argument in (("a", torch.ones(2)), ("a", torch.zeros(2)), ("b", torch.ones(2)), ("a", torch.ones(3))):
        replay(task, name, lambda x: [x + 1], [argument], make)
    replay(task, "a", lambda x: [x + 1], [torch.ones(2).double()], make)
    assert len(calls) == 4


def test_trace_with_different_results_is_discarded():
    task, x = Task(nn.Linear(2, 2)), torch.ones(3)

    def right(x):
        return [2 * x]

    for wrong in (lambda x: [2.001 * x], lambda x: [x[:2]], lambda x: [x * torch.nan]):
        assert replay(task, wrong, right, [x], lambda function, arguments, wrong=wrong: wrong) is right
    close = replay(task, "close", right, [x], lambda function, arguments: lambda x: [2 * x + 1e-7])
    assert close is not right


def total(x):
    """Sum rows in order, and return the largest share of each row."""
    return ((x[0] + x[1]) + x[2], x.softmax(1).amax(1))


def total_from_the_end(x):
    return (x[0] + (x[1] + x[2]), (x + 1 - 1).softmax(1).amax(1))


@pytest.mark.parametrize(
    "values",
    [
        # One order overflows.
        [[3e38, 0.0], [3e38, 0.0], [-3e38, 0.0]],
        # Rounding decides about the softmax.
        [[16777218.0, 16777216.0], [0.0, 0.0], [0.0, 0.0]],
        # All functions agree on these values.
        [[math.nan, math.nan]] * 3,
    ],
    ids=["overflow", "ill-conditioned", "nan"],
)
def test_values_of_a_diverging_model_do_not_discard_a_trace(values, caplog):
    fed = federation((9, 20, 12))
    task, x = fed._train.task, torch.tensor(values)
    with caplog.at_level("WARNING", "drfl.engine"):
        assert replay(task, "step", total, (x,), lambda *_: total_from_the_end) is total
        assert not caplog.records
        assert not tracing._made[task]
        ordinary = torch.eye(3)[:, :2]
        assert replay(task, "step", total, (ordinary,), lambda *_: total_from_the_end) is total_from_the_end
        # A function that is wrong for ordinary values is still discarded for good, with a warning.
        assert replay(task, "wrong", total, (ordinary,), lambda *_: lambda x: (x[0], x[1])) is total
    assert logged(caplog) == [("slow-model", "model")]
    assert list(tracing._made[task].values()) == [total_from_the_end, None]


def test_tracing_errors_fall_back_to_the_function():
    task = Task(nn.Linear(2, 2))

    def fails(function, arguments):
        raise NotImplementedError("no such operator")

    function = replay(task, "x", torch.sin, [torch.ones(2)], fails)
    assert function is torch.sin


def test_tidy_keeps_operations_whose_results_are_modified():
    """Two equal calls must not be merged if one of the results is modified."""

    def function(x):
        a, b = torch.zeros_like(x), torch.zeros_like(x)
        a.add_(x)
        return [a + 1, b + 1]

    x = torch.ones(3)
    a, b = simplify(record(function, [x], {}))(x)
    assert torch.equal(a, x + 1)
    assert torch.equal(b, torch.ones(3))


def test_tidy_removes_duplicate_operations():
    def function(x, y):
        again = torch.bmm(x, y) + torch.bmm(x, y)
        return [again.view(again.shape) * 1.0, torch.log_softmax(again, 2)]

    x, y = torch.randn(2, 6, 5), torch.randn(2, 5, 3)
    short = trace(function, [x, y])
    calls = [node.kind() for node in short.graph.nodes()]
    assert calls.count("aten::bmm") == 1
    assert "aten::view" not in calls
    for a, b in zip(short(x, y), function(x, y), strict=True):
        torch.testing.assert_close(a, b)


def test_tidy_removes_the_ones_of_the_gradient_of_a_weighted_sum():
    def gradient(x, weights):
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(((x * x) * weights).sum(), [x])
        return (found,)

    arguments = [torch.randn(3, 4), torch.randn(3, 4)]
    graph = simplify(record(gradient, arguments, {}))
    assert not {"ones_like", "expand", "sum"} & {
        str(node.target).split(".")[1] for node in graph.graph.nodes if "." in str(node.target)
    }
    assert torch.equal(graph(*arguments)[0], gradient(*arguments)[0])
    # The product stays if the weights have other strides.
    turned = [torch.randn(3, 4), torch.randn(4, 3).t()]
    graph = simplify(record(gradient, turned, {}))
    assert torch.equal(graph(*turned)[0], gradient(*turned)[0])
    assert graph(*turned)[0].stride() == gradient(*turned)[0].stride()


def test_tidy_reorders_products_of_products():
    """The first product becomes nodes without a recorded shape, on which the second product depends."""

    def function(x, y, z):
        return [torch.bmm(torch.bmm(x, y), z)]

    arguments = [torch.randn(2, 6, 5), torch.randn(2, 5, 4), torch.randn(2, 4, 3)]
    torch.testing.assert_close(trace(function, arguments)(*arguments)[0], function(*arguments)[0])


def test_results_without_the_interpreter_are_bitwise_equal(monkeypatch):
    """This is the path for versions of torch without the private functions."""
    ends = []
    for name in ("there", "gone"):
        tracing._traced.clear()
        if name == "gone":
            monkeypatch.delattr(torch._C, "_create_graph_by_tracing")
        fed = federation((9, 20, 12), engine=Stacked())
        ends.append([fed.train(torch.arange(3), fed.w0, LOCAL, Key(r)).w for r in range(4)])
        (function,) = made_for(fed).values()
        assert isinstance(function, torch.jit.ScriptFunction) == (name == "there")
    for a, b in zip(*ends, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("classes", [3, 100])
def test_softmax_of_few_and_many_classes(classes):
    """This includes logits that are large or minus infinity."""

    def function(x):
        return [torch.log_softmax(x, 1)]

    x = torch.randn(4, classes) * torch.tensor([1.0, 1e4, 1e-4, 1.0])[:, None]
    x[3, 0] = -torch.inf
    for a, b in zip(trace(function, [x])(x), function(x), strict=True):
        torch.testing.assert_close(a, b)


def test_traced_argmax_returns_the_first_maximum_or_nan():
    x = torch.randint(0, 3, (2, 10, 300), generator=torch.Generator().manual_seed(0)).float()
    x[:, 4, ::7], x[:, 8, ::7] = torch.nan, torch.nan
    for rows in (x.transpose(1, 2), x.transpose(1, 2).contiguous()):
        called = [lambda x: [x.argmax(2), x.argmax(1, keepdim=True), x.argmax()], [rows]]
        for found, expected in zip(trace(*called)(rows), called[0](rows), strict=True):
            assert torch.equal(found, expected)
