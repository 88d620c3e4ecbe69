"""Test units of bytes."""

import pytest

from drfl.core.byte_units import byte_unit


@pytest.mark.parametrize(
    ("count", "unit"),
    [(0, (1, "bytes")), (999, (1, "bytes")), (1000, (1e3, "kB")), (2e6, (1e6, "MB")), (3e19, (1e15, "PB"))],
)
def test_unit_fits_the_number(count, unit):
    assert byte_unit(count) == unit
