"""Test that descriptions of functions and objects differ if they compute something else, and only then."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from drfl.core.described import _content, described


def with_default(value):
    def loss(outputs, targets, gamma=value):
        return gamma * outputs

    return loss


def with_keyword(value):
    def loss(outputs, targets, *, gamma=value):
        return gamma * outputs

    return loss


def with_cell(value):
    def loss(outputs, targets):
        return value * outputs

    return loss


def scaled(value):
    def decorate(function):
        @functools.wraps(function)
        def wrapper(*arguments):
            return value * function(*arguments)

        return wrapper

    return decorate


class Holder:
    def __init__(self, value):
        self.value = value
        self.self = self  # a cycle

    def loss(self, outputs, targets):
        return self.value * outputs


class Layer(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.inner = nn.CrossEntropyLoss(label_smoothing=value)
        self.act = lambda x: value * x


def plain(outputs, targets):
    return outputs


@pytest.mark.parametrize(
    "make",
    [
        with_default,
        with_keyword,
        with_cell,
        lambda value: with_cell([{"gamma": (value,)}]),
        lambda value: with_cell({value, "b", "a"}),
        lambda value: with_cell(torch.full((9,), value)),
        lambda value: with_cell(np.append(np.zeros(9999), value)),
        lambda value: with_cell(pd.DataFrame({"x": [*range(999), value], "y": "a"})),
        lambda value: with_cell(with_cell(value)),
        lambda value: with_cell(functools.partial(plain, gamma=value)),
        lambda value: with_cell(Holder(value)),
        lambda value: with_cell(Layer(value)),
        lambda value: functools.partial(with_cell(value), 1),
        lambda value: functools.partial(plain, with_cell(value)),
        lambda value: scaled(value)(plain),
        lambda value: Holder(value).loss,
        lambda value: Holder(with_cell(value)).loss,
        Layer,
    ],
)  # fmt: skip
def test_values_that_a_function_uses_count(make):
    assert described(make(0.1)) == described(make(0.1))
    assert described(make(0.1)) != described(make(0.2))


MODULE = """
CALLS = 0
SEEN = []

def scaled(outputs):
    return (SCALE + len(loss.__name__)) * outputs

def loss(outputs, targets):
    global CALLS
    CALLS += 1
    SEEN.append(targets)
    return [scaled(each) for each in outputs]
"""


def of_module(text: str, **values: object) -> str:
    names = {"__name__": "mine", **values}
    exec(text, names)
    return described(names["loss"])


def test_constants_and_functions_of_the_module_count_but_not_what_changes_during_a_run():
    first = of_module(MODULE, SCALE=0.1)
    assert of_module(MODULE.replace("[]", "[1]").replace("CALLS = 0", "CALLS = 5"), SCALE=0.1, OTHER=1) == first
    assert of_module(MODULE, SCALE=0.2) != first
    assert of_module(MODULE.replace("* outputs", "/ outputs"), SCALE=0.1) != first
    assert of_module(MODULE, SCALE=torch.ones(2)) != of_module(MODULE, SCALE=torch.zeros(2))


def test_plain_functions_are_described_by_their_code():
    digest = hashlib.sha256(repr(_content(plain.__code__)).encode()).hexdigest()[:12]
    assert described(plain) == f"{__name__}.plain {digest}"


def test_objects_without_content_and_recursion_have_stable_descriptions():
    def recursive(n):
        return recursive(n - 1) if n else later

    def once(thing):
        return described(with_cell([thing, np.random.default_rng(0), torch.Generator(), object(), recursive, np]))

    assert once(object()) == once(object())
    later = 1
    assert " at 0x" not in once(lambda: later)


def test_weights_of_known_modules_are_left_to_the_caller():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    assert described(with_cell(first)) != described(with_cell(second))
    known = frozenset(map(id, (first, second)))
    assert described(with_cell(first), known) == described(with_cell(second), known)
