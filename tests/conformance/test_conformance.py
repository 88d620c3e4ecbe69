"""Every algorithm of the registry passes every check that applies to it."""

from __future__ import annotations

import pytest
from tests.conformance.rows import ROWS

from drfl.algorithms import ALGORITHMS
from drfl.testing import ALGORITHM_CHECKS, NotApplicable, verdict

SUBJECTS = {name: row.subject() for name, row in ROWS.items()}


def test_every_algorithm_has_a_row():
    assert set(ROWS) == set(ALGORITHMS)
    assert all(type(ROWS[name].algorithm) is ALGORITHMS[name] for name in ROWS)


SLOW = {"engines_agree", "threads_agree", "converges_on_other_sets", "report_law"}
SAME_REQUESTS = ["FedProx", "FedNova", "FedDyn", "QFedAvg", "DeltaFL", "AFL", "DRFAProx", "DRFAGA", "DRDM"]
"""Algorithms whose requests are of the kinds that the others make: `make test` compares engines on those."""

CASES = [
    pytest.param(name, check, id=f"{name}-{check.__name__}", marks=[pytest.mark.long] * long)
    for name in ROWS
    for check in ALGORITHM_CHECKS
    for long in [name in SAME_REQUESTS and check.__name__ in SLOW]
]


@pytest.mark.parametrize(("name", "check"), CASES)
@pytest.mark.one_in(3)
def test_algorithm(name, check):
    said = verdict(check, SUBJECTS[name])
    assert said is None or isinstance(said, NotApplicable), str(said)
