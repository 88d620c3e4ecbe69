"""Test the errors that drfl raises on purpose."""

from __future__ import annotations

import pickle
import re

import pytest
from tests.support.refusals import quotes, refused

from drfl.core.errors import DataWarning, DivergedError, DrflError, InputError, NonFiniteError, Notice, unknown


@pytest.mark.parametrize(
    ("error", "base"), [(InputError, ValueError), (NonFiniteError, ValueError), (DivergedError, ArithmeticError)]
)
def test_errors_are_also_the_matching_python_errors(error, base):
    assert issubclass(error, DrflError)
    assert issubclass(error, base)
    assert not issubclass(DrflError, ValueError)


@pytest.mark.parametrize(("name", "nearest"), [("DRFFA", ["'DRFA'"]), ("fedavg", ["'FedAvg'"]), ("zzz", [])])
def test_unknown_name_suggests_the_nearest(name, nearest):
    error = unknown("algorithm", name, iter(["FedAvg", "DRFA", "DRDM"]))
    assert isinstance(error, InputError)
    assert (error.code, error.field) == ("unknown-name", "algorithm")
    assert re.findall(r"'\w+'", str(error)) == [f"'{name}'", *nearest]
    assert "FedAvg, DRFA, DRDM" in str(error)


@pytest.mark.parametrize(
    "error", [InputError("a", code="out-of-range", field="lr"), InputError("a"), DivergedError("a")]
)
def test_code_and_field_survive_a_worker_process(error):
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code, again.field) == (type(error), "a", error.code, error.field)


def test_error_class_has_a_default_code():
    codes = [kind("a").code for kind in (DrflError, InputError, NonFiniteError, DivergedError)]
    assert codes == ["error", "input", "not-finite", "diverged"]
    assert InputError("a").field is None


def test_unknown_name_among_thousands_lists_some():
    error = unknown("client", "h1x", [f"h{i}" for i in range(16_000)])
    assert quotes(str(error), "'h1'", "h49", "15950")
    assert not quotes(str(error), "h50")


def test_unknown_name_has_its_kind_as_field():
    with refused("unknown-name", "algorithm"):
        raise unknown("algorithm", "x", ["DRFA"])


@pytest.mark.parametrize("name", [3, True, None, ["own"]])
def test_unknown_object_is_shown(name):
    with refused("unknown-name", "reference", str(name)):
        raise unknown("reference", name, ["none", "own"])


def test_field_of_an_unknown_name_can_be_its_option():
    with refused("unknown-name", "ambiguity"):
        raise unknown("ambiguity set", "x", ["simplex"], field="ambiguity")


def test_refusals_compare_code_and_field():
    with pytest.raises(AssertionError), refused("out-of-range", "lr"):
        raise InputError("a", code="out-of-range", field="steps")
    with pytest.raises(AssertionError), refused("unknown-name"):
        raise InputError("a", code="out-of-range")


def test_notice_is_its_text_and_keeps_code_and_field():
    notice = pickle.loads(pickle.dumps(Notice("few rows at a", "few-test-rows", "a")))
    assert (notice, notice.code, notice.field) == ("few rows at a", "few-test-rows", "a")
    inside = notice.within("FedAvg")
    assert (inside, inside.code, inside.field) == ("FedAvg: few rows at a", "few-test-rows", "a")
    warning = DataWarning(notice)
    assert (str(warning), warning.code, warning.field) == ("few rows at a", "few-test-rows", "a")


def test_terminal_control_characters_are_not_printed():
    error = InputError("client \x1b[31m", code="x", field="\x1b[2J")
    assert "\x1b" not in str(error) + str(error.field)
