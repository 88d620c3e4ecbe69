"""Errors that drfl raises on purpose."""

from __future__ import annotations

import pytest

from drfl.errors import DivergedError, DrflError, InputError, NonFiniteError, unknown


@pytest.mark.parametrize(
    ("error", "base"), [(InputError, ValueError), (NonFiniteError, ValueError), (DivergedError, ArithmeticError)]
)
def test_they_are_also_what_python_would_raise(error, base):
    assert issubclass(error, DrflError)
    assert issubclass(error, base)
    assert not issubclass(DrflError, ValueError)


@pytest.mark.parametrize(
    ("name", "hint"), [("DRFFA", "did you mean 'DRFA'? "), ("fedavg", "did you mean 'FedAvg'? "), ("zzz", "")]
)
def test_unknown_name(name, hint):
    error = unknown("algorithm", name, iter(["FedAvg", "DRFA", "DRDM"]))
    assert isinstance(error, InputError)
    assert str(error) == f"unknown algorithm '{name}': {hint}known are FedAvg, DRFA, DRDM"
