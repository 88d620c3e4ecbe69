"""The verdict follows from the outcomes of all comparisons."""

from __future__ import annotations

import pytest

from drfl.papers.claims.findings import NOT_SHOWN, OPPOSITE, SHOWN, UNDECIDED, EverySeed, Place
from drfl.papers.claims.measures import Straightness
from drfl.papers.claims.verdicts import FALSE, HOLDS, MEANING, OPEN, PARTLY, UNTESTABLE, verdict
from drfl.papers.claims.verdicts import NOT_SHOWN as NOTHING

NUMBERS = {SHOWN: (5, 5), NOT_SHOWN: (5, 2), OPPOSITE: (5, 0), UNDECIDED: (4, 4)}
LETTERS = {"s": SHOWN, "n": NOT_SHOWN, "o": OPPOSITE, "u": UNDECIDED}


def found(settings):
    """A word a setting, a letter an outcome."""
    shown = Straightness(of="straightness").shown
    for k, letters in enumerate(settings.split()):
        for letter in letters:
            n, agree = NUMBERS[LETTERS[letter]]
            yield EverySeed("r2", shown, Place("r", f"setting {k}", "m"), (1.0,) * n, agree)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("s s", HOLDS), ("s n", PARTLY), ("n n", NOTHING), ("s o", FALSE), ("n o", FALSE), ("s u", OPEN), ("n u", OPEN),
        ("o u", FALSE), ("u u", OPEN), ("", OPEN),
    ],
)  # fmt: skip
def test_of_a_claim_on_all_settings(outcomes, expected):
    assert verdict(list(found(outcomes)), "all") == expected


def test_settings_that_were_not_run_leave_it_partly():
    assert verdict(list(found("s s")), "all", left_out=True) == PARTLY
    assert verdict(list(found("n n")), "all", left_out=True) == NOTHING


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ("ss ss nn", HOLDS), ("ss ss oo", HOLDS), ("ss ss uu", HOLDS), ("ss oo", FALSE), ("so so ss", FALSE),
        ("ss sn", PARTLY), ("sn sn sn", PARTLY), ("nn nn", NOTHING), ("ss nn on", NOTHING), ("ss nu", OPEN), ("", OPEN),
        ("oo oo uu", FALSE),
    ],
)  # fmt: skip
def test_of_a_claim_on_most_settings(outcomes, expected):
    assert verdict(list(found(outcomes)), "most") == expected


def test_every_word_has_its_meaning():
    assert set(MEANING) == {HOLDS, PARTLY, NOTHING, FALSE, OPEN, UNTESTABLE}
