"""Test that every input gives success or a one-line error; ``evidence/fuzz.py`` tries many more inputs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import Phase, settings
from tests.support.marks import long_beyond

from . import judge
from .broken import BROKEN, greedy
from .parsers import PARSERS
from .strategies import mutated_bytes, mutated_text

SLOW = ("checkpoints", "checkpoints before", "fields of messages", "reports", "run directories", "the command")
REFUSES_NOTHING = ("lists of values", "reports", "checkpoints before")
"""Other parsers cover refusals of reports, and a refused checkpoint is replaced by the previous one."""


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")  # an address without a server


@pytest.mark.parametrize("profile", ["drfl", pytest.param("long", marks=pytest.mark.long)])
@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_bad_input_is_refused_in_one_line(parser, profile, tmp_path):
    how = settings.get_profile(profile)
    inputs = how.max_examples // (10 if parser.name in SLOW else 4)
    tally = judge.fuzz(parser, tmp_path, settings(how, max_examples=inputs))
    assert tally.accepted, "an input that is never right tests nothing but the first check"
    assert tally.refused or parser.name in REFUSES_NOTHING


@pytest.mark.parametrize("parser", long_beyond(4, BROKEN, [parser.name for parser in BROKEN]))
def test_broken_parsers_are_detected(parser, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "MEMORY", 2**26)
    how = settings(max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)
    with pytest.raises(AssertionError):
        judge.fuzz(parser, tmp_path, how)


def test_freed_memory_does_not_hide_an_allocation(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "MEMORY", 2**26)
    del [np.ones(31 * 2**20, np.uint8)][0]  # afterwards the allocator keeps blocks of nearly this size
    blocks = [np.ones(20 * 2**20, np.uint8) for _ in range(9)]
    del blocks[:-1]  # the last block is above the freed ones
    parser = next(parser for parser in BROKEN if parser.parse is greedy)
    assert "MiB" in judge.judge(parser, b"x", tmp_path)


def test_inputs_are_reproducible(tmp_path):
    def drawn(number=None):
        seen = []
        parser = judge.Parser("seen", mutated_bytes(bytes(200)), lambda item, folder: seen.append(item))
        judge.fuzz(parser, tmp_path, settings(max_examples=20), number=number)
        return seen

    assert drawn() == drawn() != drawn(1) == drawn(1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("mutated", "right"), [(mutated_bytes, bytes(range(200))), (mutated_text, "rounds = 3\nseed = 1\n")]
)
def test_most_inputs_are_changed(mutated, right, tmp_path):
    seen = []
    parser = judge.Parser("seen", mutated(right), lambda item, folder: seen.append(item))
    judge.fuzz(parser, tmp_path, settings(max_examples=100))
    assert sum(item != right for item in seen) > 80
    assert {len(item) > len(right) for item in seen} == {True, False}


@pytest.mark.long
def test_smallest_failing_input_is_shown(tmp_path):
    def needs_a_comma(item, folder):
        assert "," in item

    with pytest.raises(AssertionError) as caught:
        judge.fuzz(judge.Parser("picky", mutated_text("a,b,c"), needs_a_comma), tmp_path, settings())
    assert any(re.search(r"item='.{0,2}'", note) for note in caught.value.__notes__), caught.value.__notes__
