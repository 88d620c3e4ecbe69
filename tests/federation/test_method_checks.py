"""Test that mistakes in the class of a client-side method are refused, and correct classes are accepted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from tests.support.refusals import quotes, refused
from torch import nn

import drfl
from drfl.algorithms import CLIENT_SIDE, ClientSide, FedProx, PersonalClientSide
from drfl.core.errors import first_line
from drfl.federation.local_method import LocalMethod, has_user_loss
from drfl.federation.method_checks import HOOKS, NamedTensors, check_class, hook_errors

ONES = torch.ones(3)
SHARING = {"shared": {"m": ONES}, "message_shapes": {"m": (3,)}, "message": {"m": ONES}, "merge": {"m": ONES}}


def method(base=ClientSide, **functions):
    return type("Mine", (base,), functions)


def function(self, *arguments):
    return {}


def fails():
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("names", "code", "field", "quoted"),
    [
        (("message",), "incomplete-method", "message_shapes", "message"),
        (("message_shapes",), "incomplete-method", "message", "message_shapes"),
        (("message", "message_shapes"), "incomplete-method", "merge", "message"),
        (("message", "message_shapes", "shared"), "incomplete-method", "merge", "message"),
        (("message", "message_shapes", "merge"), "incomplete-method", "shared", "merge"),
        (("merge",), "incomplete-method", "shared", "merge"),
        (("los",), "unknown-name", "los", "loss"),
        (("losses",), "unknown-name", "losses", "loss"),
        (("Loss",), "unknown-name", "Loss", "loss"),
        (("prviate",), "unknown-name", "prviate", "private"),
        (("remeber",), "unknown-name", "remeber", "remember"),
        (("message_shape",), "unknown-name", "message_shape", "message_shapes"),
        (("own_models",), "unknown-name", "own_models", "own_model"),
        (("merged",), "unknown-name", "merged", "merge"),
    ],
)
def test_class_with_an_ineffective_method_is_refused(names, code, field, quoted):
    for _ in range(2):  # the error is not stored
        with refused(code, field, "Mine", quoted):
            check_class(method(**dict.fromkeys(names, function)))


@pytest.mark.parametrize(
    "names",
    [
        (),
        ("loss", "losses"),
        ("_los",),
        ("distance",),
        ("shared",),
        ("message", "message_shapes", "shared", "merge"),
        ("message", "message_shapes", "round"),
        ("message", "message_shapes", "play"),
        HOOKS,
    ],
)
def test_correct_class_is_accepted(names):
    check_class(method(**dict.fromkeys(names, function)))


def test_methods_with_own_rounds_and_built_in_methods_are_accepted():
    check_class(method(LocalMethod, message=function, message_shapes=function))
    for kind in (LocalMethod, ClientSide, *CLIENT_SIDE.values()):
        check_class(kind)
        check_class(method(kind, loss=function))


def test_field_requires_a_dataclass():
    class Plain(ClientSide):
        strength: float = 1.0

    @dataclass(frozen=True)
    class Base(ClientSide):
        strength: float = 1.0

    class Constant(Base):
        trained: ClassVar[tuple[str, ...]] = ()

    class Derived(Base):
        weight: float = 1.0

    check_class(Base)
    check_class(Constant)
    for kind, name in ((Plain, "strength"), (Derived, "weight")):
        with refused("not-a-dataclass", name, kind.__name__):
            check_class(kind)


def test_methods_with_their_own_loss_are_detected():
    own = [method(loss=function), method(CLIENT_SIDE["Ditto"], loss=function)]
    drfls = [ClientSide, CLIENT_SIDE["Ditto"], method(), method(CLIENT_SIDE["Ditto"])]
    assert [has_user_loss(kind()) for kind in own + drfls] == [True, True, False, False, False, False]
    assert not has_user_loss(FedProx())


def test_missing_tensor_is_a_key_error_with_existing_names():
    tensors = NamedTensors("context", dict.fromkeys(("prototypes", "known")))
    with pytest.raises(KeyError) as caught:
        tensors["protos"]
    assert quotes(str(caught.value), "context", "protos", "prototypes", "known")
    with pytest.raises(KeyError, match="none"):
        NamedTensors("context", {})["protos"]


def test_hook_error_names_its_line_once():
    line = str(fails.__code__.co_firstlineno + 1)
    with (
        refused("user-code-failed", "FedProx", "loss", "test_method_checks.py", "gone", line) as caught,
        hook_errors(FedProx(), "loss"),
    ):
        fails()
    assert str(caught.value).count("KeyError") == 1


def test_long_reason_is_cut_after_a_word():
    text = first_line(ValueError("word " * 100))
    assert len(text) <= 220
    assert text.removeprefix("ValueError: ").split() == ["word"] * 40 + ["…"]
    assert len(first_line(ValueError("x" * 500))) <= 220


def returns(value):
    return lambda self, *arguments: value


@pytest.mark.parametrize(
    ("functions", "code", "field", "quoted"),
    [
        ({"state": {"a": 1.0}}, "wrong-type", "state", ()),
        ({"state": None}, "wrong-type", "state", ()),
        ({"state": {"a": ONES}, "remember": {"a": torch.ones(4)}}, "wrong-shape", "a", ("remember", "(3,)", "(4,)")),
        ({"state": {"a": ONES}, "remember": {"b": ONES}}, "wrong-shape", "b", ("remember",)),
        ({"state": {"a": ONES}, "remember": None}, "wrong-type", "remember", ()),
        ({"prepare": ONES}, "wrong-type", "prepare", ()),
        ({**SHARING, "message_shapes": {"m": 3}}, "wrong-type", "message_shapes", ()),
        ({**SHARING, "message": None}, "wrong-type", "message", ()),
        ({**SHARING, "message": {}}, "wrong-shape", "m", ("message",)),
        ({**SHARING, "merge": None}, "wrong-type", "merge", ()),
        ({**SHARING, "merge": {"q": ONES}}, "wrong-shape", "q", ("merge",)),
        ({**SHARING, "shared": ONES}, "wrong-type", "shared", ()),
        ({"direction": ONES}, "wrong-type", "direction", ()),
        ({"direction": (ONES, {})}, "wrong-shape", "direction", ()),
        ({"direction": (torch.ones(10), None)}, "wrong-type", "direction", ()),
        ({"direction": (torch.ones(10), {"b": ONES})}, "unknown-name", "b", ("direction",)),
        (
            {"state": {"a": ONES}, "direction": (torch.ones(10), {"a": torch.ones(4)})},
            "wrong-shape",
            "a",
            ("direction",),
        ),
        ({"private": None}, "wrong-type", "private", ()),
        ({"trains": None}, "wrong-type", "trains", ()),
        ({"own_model": ONES}, "wrong-shape", "own_model", ("(10,)", "(3,)")),
        ({"own_model": None}, "wrong-shape", "own_model", ()),
    ],
)
@pytest.mark.parametrize("engine", [drfl.Loop(), drfl.Stacked()], ids=repr)
def test_wrong_return_value_is_refused_with_the_name_of_the_function(functions, code, field, quoted, engine):
    algorithm = method(PersonalClientSide, **{name: returns(value) for name, value in functions.items()})()
    x = torch.arange(160.0).view(2, 20, 4) / 160
    data = drfl.ClientData.from_arrays([(each, torch.arange(20) % 2) for each in x])
    fed = drfl.Simulation(data, drfl.Task(nn.Linear(4, 2)), engine=engine)
    with refused(code, field, "Mine", *quoted):
        drfl.run(replace(algorithm, local=drfl.LocalSGD(steps=2, lr=0.1)), fed, rounds=1)
