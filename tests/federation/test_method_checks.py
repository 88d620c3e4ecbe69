"""Test that mistakes in the class of a client-side method are refused, and correct classes are accepted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
from tests.support.refusals import quotes, refused

from drfl.algorithms import CLIENT_SIDE, ClientSide, FedProx
from drfl.core.errors import first_line
from drfl.federation.local_method import LocalMethod, has_user_loss
from drfl.federation.method_checks import HOOKS, NamedTensors, check_class, hook_errors


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
