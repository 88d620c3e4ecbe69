"""Test the conformance suite for federations as an author would use it."""

from __future__ import annotations

import pytest
from tests.support.engines import ENGINES
from tests.support.marks import crossed

from drfl.engine import Loop, Simulation
from drfl.federation.requests import Losses, LossRequest
from drfl.testing import (
    FEDERATION_CHECKS,
    DropoutFederation,
    FederationSubject,
    check_federation,
    verdict,
)


@pytest.mark.parametrize(("engine", "check"), crossed(ENGINES, FEDERATION_CHECKS))
def test_simulations_pass(check, engine):
    assert verdict(check, FederationSubject(lambda data, task: Simulation(data, task, engine=engine))) is None


@pytest.mark.long
def test_report_names_every_check():
    report = check_federation(lambda data, task: Simulation(data, task, engine=Loop()))
    assert report.passed == tuple(check.__name__ for check in FEDERATION_CHECKS)


@pytest.mark.long
def test_silent_client_is_reported_as_such():
    subject = FederationSubject(lambda data, task: DropoutFederation(Simulation(data, task, engine=Loop()), train=[2]))
    said = [str(verdict(check, subject)) for check in FEDERATION_CHECKS]
    assert any("clients [0, 1, 2, 3] were asked and [0, 1, 3] answered" in text for text in said)


class Coarse(Simulation):
    """A federation with slightly wrong losses."""

    def ask(self, request):
        reply = super().ask(request)
        return Losses(reply.clients, reply.values + 1e-6) if isinstance(request, LossRequest) else reply


def test_tolerance_for_rounding_can_be_set():
    check = next(check for check in FEDERATION_CHECKS if check.__name__ == "losses_and_gradients")
    strict, lenient = (FederationSubject(lambda data, task: Coarse(data, task), tolerance=t) for t in (1e-9, 1e-5))
    assert "losses with batch=None is off by 1.0e-06" in str(verdict(check, strict))
    assert verdict(check, lenient) is None
