"""Test that every ambiguity set passes its conformance suite;

``tests/conformance/test_mutations.py`` has rejected sets.
"""

from __future__ import annotations

import pytest
from tests.ambiguity.cases import CASES
from tests.support.marks import long_except
from tests.support.refusals import refused

from drfl.ambiguity import Box, CVaR, Simplex
from drfl.ambiguity.simplex import onto_simplex
from drfl.testing import ConformanceError, check_ambiguity, examine_ambiguity

FEW = [
    "Simplex(0.01)",
    "CVaR(0.3)",
    "Box(1.5/N)",
    "ChiSquare(0.1)",
    "KL(0.1, uneven)",
    "ChiSquareBall(0.1)",
    "KLBall(0.1)",
]


@pytest.mark.parametrize("name", long_except(["CVaR(0.3)", "KL(0.1, uneven)"], CASES))
def test_every_set_passes_the_conformance_suite(name):
    assert examine_ambiguity(CASES[name](8), draws=50).failed == ()


@pytest.mark.parametrize("name", FEW)
@pytest.mark.long
@pytest.mark.parametrize("n", [2, 3])
def test_every_set_passes_with_few_clients(name, n):
    assert examine_ambiguity(CASES[name](n), n=n, draws=50).failed == ()


def test_error_lists_failed_checks():
    class Halved(CVaR):
        def project(self, v):
            return super().project(v) / 2

    with pytest.raises(ConformanceError, match=r"answers_are_mixtures: project .* 0\.5"):
        check_ambiguity(Halved(0.3), draws=50)


@pytest.mark.long
def test_crash_counts_as_failure():
    class Broken(Simplex):
        def contains(self, lam, tolerance=1e-9):
            raise RuntimeError("out of order")

    (note,) = {
        str(note).split(": ", 1)[1]
        for note in examine_ambiguity(Broken(), draws=50).failed
        if "raised" in note.sentence
    }
    assert note == "raised RuntimeError: out of order"


@pytest.mark.long
def test_checks_can_be_waived():
    class Loose(Simplex):
        def project(self, v):
            return onto_simplex(v.detach().double())

    reason = {"nonfinite_input_is_refused": "its losses are clipped before"}
    assert [note.check for note in examine_ambiguity(Loose(), draws=50).failed] == ["nonfinite_input_is_refused"]
    assert check_ambiguity(Loose(), draws=50, waive=reason).waived[0].sentence == reason["nonfinite_input_is_refused"]
    with refused("unknown-name", "check", "no_such_check"):
        check_ambiguity(Simplex(), waive={"no_such_check": "typo"})


def test_set_that_refuses_a_single_client_passes():
    """One client is tested for any n; Box(0.3) correctly refuses a single client."""
    assert check_ambiguity(Box(0.3), n=4, draws=50).failed == ()


@pytest.mark.parametrize(
    ("subject", "options", "error"),
    [
        (CVaR, {}, ("wrong-type", "ambiguity", "CVaR'>")),
        ("cvar", {}, ("wrong-type", "ambiguity", "'cvar'")),
        (Simplex(), {"n": 0}, ("out-of-range", "n", "1")),
        (Simplex(), {"n": 1.5}, ("out-of-range", "n")),
        (Simplex(), {"draws": 49}, ("out-of-range", "draws", "50")),
        (Box(0.1), {"n": 2}, ("out-of-range", "cap", "cap=0.1", "1/2")),
    ],
    ids=str,
)
def test_unsuitable_subjects_are_one_line_errors(subject, options, error):
    with refused(*error):
        check_ambiguity(subject, **options)


def test_global_generators_are_not_used(global_generator_untouched):
    check_ambiguity(Simplex(), draws=50)
