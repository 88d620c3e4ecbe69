"""Test that the intended checks reject each deliberately wrong variant, and that every check rejects some variant."""

from __future__ import annotations

import pytest
from tests.conformance.wrong.federations import Plain
from tests.conformance.wrong.traps import ALGORITHM_TRAPS, AMBIGUITY_TRAPS, FEDERATION_TRAPS, with_engine

from drfl.testing import ALGORITHM_CHECKS, AMBIGUITY_CHECKS, FEDERATION_CHECKS, CheckError, FederationSubject, verdict

pytestmark = pytest.mark.long

TRAPS = [*ALGORITHM_TRAPS, *FEDERATION_TRAPS, *AMBIGUITY_TRAPS]
CHECKS = {check.__name__: check for check in (*ALGORITHM_CHECKS, *FEDERATION_CHECKS, *AMBIGUITY_CHECKS)}
CASES = [(trap, check) for trap in TRAPS for check in trap.caught_by]


@pytest.mark.parametrize(("trap", "check"), CASES, ids=[f"{t.part}-{t.variant}-{check}" for t, check in CASES])
def test_wrong_variant_is_rejected(trap, check):
    """The check itself must fail: a variant that merely crashes does not count."""
    said = verdict(CHECKS[check], trap.subject())
    assert isinstance(said, CheckError), f"{check} says {said}"
    assert not str(said).startswith("raised "), str(said)


@pytest.mark.parametrize("check", FEDERATION_CHECKS, ids=lambda check: check.__name__)
def test_plain_loop_behind_wrong_federations_is_correct(check):
    assert verdict(check, FederationSubject(with_engine(Plain))) is None


def test_every_check_rejects_some_variant():
    assert {check for trap in TRAPS for check in trap.caught_by} == set(CHECKS)


def test_wrong_variants_have_distinct_names():
    names = [(trap.part, trap.variant) for trap in TRAPS]
    assert len(set(names)) == len(names)
