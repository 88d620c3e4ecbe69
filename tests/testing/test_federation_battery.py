"""The battery for federations, used as an author would."""

from __future__ import annotations

import pytest

from drfl.engine import Simulation
from drfl.federation import Losses
from drfl.testing import (
    FEDERATION_CHECKS,
    ConformanceError,
    DropoutFederation,
    FederationSubject,
    check_federation,
    verdict,
)


@pytest.mark.parametrize("check", FEDERATION_CHECKS, ids=lambda check: check.__name__)
def test_simulations_pass(check, engine):
    assert verdict(check, FederationSubject(lambda data, task: Simulation(data, task, engine=engine))) is None


def test_report_names_every_check():
    report = check_federation(lambda data, task: Simulation(data, task))
    assert report.passed == tuple(check.__name__ for check in FEDERATION_CHECKS)


def test_somebody_silent_is_told_as_such():
    with pytest.raises(ConformanceError, match=r"clients \[0, 1, 2, 3\] were asked and \[0, 1, 3\] answered"):
        check_federation(lambda data, task: DropoutFederation(Simulation(data, task), train=[2]))


def test_rounding_may_be_allowed_for():
    class Coarse(Simulation):
        def losses(self, cohort, w, key, *, batch=None):
            clients, values = super().losses(cohort, w, key, batch=batch)
            return Losses(clients, values + 1e-6)

    with pytest.raises(ConformanceError, match=r"losses_and_gradients: losses with batch=None is off by 1\.0e-06"):
        check_federation(lambda data, task: Coarse(data, task))
    assert check_federation(lambda data, task: Coarse(data, task), tolerance=1e-5).failed == ()
