"""Test that the verdict follows from the findings in the settings of a claim."""

from __future__ import annotations

import math

import pytest
from tests.support.scripts import script

from drfl_papers.claims.findings import (
    NOT_SIGNIFICANT,
    OPPOSITE,
    SIGNIFICANT,
    UNDECIDED,
    EverySeed,
    Place,
    SettingOutcome,
    decide_as_worded,
)
from drfl_papers.claims.measures import Straightness
from drfl_papers.claims.verdicts import FALSE, HOLDS, OPEN, PARTLY, VERDICTS, verdict
from drfl_papers.claims.verdicts import NOT_SIGNIFICANT as NOTHING

NUMBERS = {SIGNIFICANT: (5, 5), NOT_SIGNIFICANT: (5, 2), OPPOSITE: (5, 0), UNDECIDED: (4, 4)}
LETTERS = {"s": SIGNIFICANT, "n": NOT_SIGNIFICANT, "o": OPPOSITE, "u": UNDECIDED}


def settings(words):
    """Make settings: one word per setting, one letter per outcome."""
    shown, found = Straightness(of="straightness").display, []
    for k, letters in enumerate(words.split()):
        for letter in letters:
            n, agree = NUMBERS[LETTERS[letter]]
            found.append(EverySeed("r2", shown, Place("r", f"setting {k}", "m"), (1.0,) * n, agree))
    return decide_as_worded(found, lambda one: one.place.setting)[1]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("s s", HOLDS), ("s n", PARTLY), ("n n", NOTHING), ("s o", FALSE), ("n o", FALSE), ("s u", OPEN), ("n u", OPEN),
        ("o u", FALSE), ("u u", OPEN), ("", OPEN), ("ss sn", PARTLY), ("sn sn", NOTHING), ("ssn", NOTHING),
        ("sss", HOLDS),
    ],
)  # fmt: skip
def test_claim_on_all_settings(outcomes, expected):
    assert verdict(settings(outcomes), "all") == expected


def test_missing_settings_give_a_partial_verdict():
    assert verdict(settings("s s"), "all", has_missing=True) == PARTLY
    assert verdict(settings("n n"), "all", has_missing=True) == NOTHING


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("ss ss nn", HOLDS), ("ss ss oo", HOLDS), ("ss ss uu", HOLDS), ("ss oo", FALSE), ("so so ss", FALSE),
        ("ss sn", PARTLY), ("sn sn sn", NOTHING), ("nn nn", NOTHING), ("ss nn on", NOTHING), ("ss nu", OPEN),
        ("", OPEN), ("oo oo uu", FALSE),
    ],
)  # fmt: skip
def test_claim_on_most_settings(outcomes, expected):
    assert verdict(settings(outcomes), "most") == expected


def test_undecided_difference_leaves_the_setting_undecided():
    assert [(s.is_significant, s.has_opposite, s.is_undecided) for s in settings("su sn o")] == [
        (False, False, True), (False, False, False), (False, True, False),
    ]  # fmt: skip
    assert math.isnan(settings("su")[0].p)
    assert settings("ss") == [SettingOutcome(0.0, True, False, False)]


def test_page_explains_every_verdict():
    rule = " ".join(script("evidence/claims.py").rules().split())
    assert all(f"**{word}**" in rule for word in VERDICTS)
