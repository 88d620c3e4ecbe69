"""Test recording of a function's operations."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, vmap

from drfl.engine.recorder import record
from drfl.engine.tracing import REPLACEMENTS, trace

X, Y = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)


def test_graph_of_gradients_in_vmap_repeats_them_on_other_inputs():
    def function(w, x):
        return (vmap(grad(lambda w, x: (w * x).sin().sum()))(w, x),)

    graph = record(function, [X, Y], {})
    assert torch.equal(graph(Y, X + 1)[0], function(Y, X + 1)[0])


def test_gradients_of_autograd_are_recorded():
    def function(w, x):
        w = w.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad((w * x).exp().sum(), w)

    assert torch.equal(record(function, [X, Y], {})(Y, X)[0], function(Y, X)[0])


def test_one_tensor_as_two_arguments_stays_two_inputs():
    graph = record(lambda a, b: (a - 2 * b,), [X, X], {})
    assert torch.equal(graph(X, Y)[0], X - 2 * Y)


def test_parts_of_a_result_are_recorded():
    graph = record(lambda x: (x.sort(dim=1).indices, x.max(dim=0).values), [X], {})
    indices, largest = graph(Y)
    assert torch.equal(indices, Y.sort(dim=1).indices)
    assert torch.equal(largest, Y.max(dim=0).values)


def test_tensor_from_outside_is_a_constant():
    weights = torch.arange(3, dtype=torch.float64)
    graph = record(lambda x: (x * weights + weights,), [X], {})
    assert [node.op for node in graph.graph.nodes].count("get_attr") == 1
    assert torch.equal(graph(Y)[0], Y * weights + weights)


def test_tensor_created_and_changed_in_the_function_is_new_in_each_call():
    def function(x):
        total = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
        total += x.sum(0)
        return (total,)

    traced = trace(function, [X])
    assert [traced(Y)[0].equal(function(Y)[0]) for _ in range(2)] == [True, True]


def test_later_reads_see_earlier_writes():
    def function(x):
        y = x + 1
        part = y[0]
        part.mul_(2)
        return (y * 3, x)

    assert all(torch.equal(a, b) for a, b in zip(record(function, [X], {})(Y), function(Y), strict=True))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * x.sum().item(),),
        lambda x: (x if x.sum() > 0 else -x,),
        lambda x: (x[x > 0].sum(),),
        lambda x: (x.nonzero(),),
        lambda x: (x * float(torch.equal(x, x)),),
    ],
    ids=["item", "branch", "mask", "nonzero", "equal"],
)
def test_function_that_depends_on_values_is_refused(function):
    with pytest.raises(ValueError, match="depend on values"):
        record(function, [X], REPLACEMENTS)
