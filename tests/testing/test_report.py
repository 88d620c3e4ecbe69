"""Test the report of a conformance suite."""

from __future__ import annotations

import pytest
from tests.support.refusals import refused

from drfl.testing import ConformanceError, NotApplicable
from drfl.testing.report import CheckError, examine, require


def good(subject):
    require(subject == 1, "never said")


def bad(subject):
    require(subject == 2, f"{subject} is not 2")


def worse(subject):
    raise ZeroDivisionError("by nought")


def elsewhere(subject):
    raise NotApplicable("it is for others")


def test_every_check_runs_despite_failures():
    report = examine("one", 1, [bad, good, worse, elsewhere])
    assert report.passed == ("good",)
    assert [tuple(note) for note in report.failed] == [
        ("bad", "1 is not 2"),
        ("worse", "raised ZeroDivisionError: by nought"),
    ]
    assert [tuple(note) for note in report.not_applicable] == [("elsewhere", "it is for others")]
    error = ConformanceError(report)
    assert isinstance(error, AssertionError)
    assert str(error) == "one fails 2 checks:\n  bad: 1 is not 2\n  worse: raised ZeroDivisionError: by nought"
    assert "FAILED bad" in str(report)
    assert "not applicable: elsewhere: it is for others" in str(report)


def test_check_can_be_waived_with_a_reason():
    report = examine("one", 1, [bad, good], {"bad": "ones are not twos"})
    assert report.failed == ()
    assert [tuple(note) for note in report.waived] == [("bad", "ones are not twos")]


def test_only_existing_checks_can_be_waived():
    with refused("unknown-name", "check", "'godd'", "'good'"):
        examine("one", 1, [good], {"godd": "typo"})


def test_interrupts_are_not_failures():
    def interrupted(subject):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine("one", 1, [interrupted])


def test_require_raises_check_errors():
    require(True, "not said")
    with pytest.raises(CheckError, match="said"):
        require(False, "said")
