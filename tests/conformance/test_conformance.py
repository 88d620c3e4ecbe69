"""Test that every algorithm of the registry passes every check that applies to it."""

from __future__ import annotations

import pytest
from tests.conformance.rows import ROWS
from tests.support.marks import crossed

from drfl.algorithms import ALGORITHMS, CLIENT_SIDE
from drfl.testing import ALGORITHM_CHECKS, NotApplicable, verdict

SUBJECTS = {name: row.subject() for name, row in ROWS.items()}


def test_every_algorithm_has_a_row():
    known = {**ALGORITHMS, **CLIENT_SIDE}
    assert set(ROWS) == set(known)
    assert all(type(ROWS[name].algorithm) is known[name] for name in ROWS)


@pytest.mark.parametrize(("name", "check"), crossed(list(ROWS), ALGORITHM_CHECKS))
def test_algorithm_passes_its_checks(name, check):
    said = verdict(check, SUBJECTS[name])
    assert said is None or isinstance(said, NotApplicable), str(said)
