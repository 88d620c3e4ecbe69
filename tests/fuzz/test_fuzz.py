"""A slice of what ``experiments/fuzz.py`` does: no input may end in anything but success or one line."""

from __future__ import annotations

import random

import numpy as np
import pytest

from . import judge
from .broken import BROKEN, greedy
from .mutate import damaged, reworded
from .parsers import PARSERS

INPUTS = {"checkpoints": 40, "reports": 3, "the command": 10, "run directories": 50}
ENOUGH = 80


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    monkeypatch.setenv("DRFL_MIRROR", "http://127.0.0.1:9")  # nobody answers there


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_bad_input_is_refused_in_one_line(parser, tmp_path):
    tally = judge.fuzz(parser, tmp_path, inputs=INPUTS.get(parser.name, ENOUGH), seed=1)
    assert tally.failures == []
    assert tally.accepted, "an input that is never right tests nothing but the first check"
    # those of reports are looked into before, and a checkpoint that is refused has one before it
    assert tally.refused or parser.name in ("lists of values", "reports", "checkpoints before")


@pytest.mark.parametrize("parser", BROKEN, ids=lambda parser: parser.name)
def test_a_broken_parser_is_found_out(parser, tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "MEMORY", 2**26)
    assert judge.fuzz(parser, tmp_path, inputs=300).failures


def test_memory_that_was_freed_before_hides_no_array(tmp_path, monkeypatch):
    monkeypatch.setattr(judge, "MEMORY", 2**26)
    del [np.ones(31 * 2**20, np.uint8)][0]  # from then on the allocator keeps blocks of nearly that size
    blocks = [np.ones(20 * 2**20, np.uint8) for _ in range(9)]
    del blocks[:-1]  # the last lies above them
    parser = next(parser for parser in BROKEN if parser.parse is greedy)
    assert "MiB" in judge.judge(parser, b"x", tmp_path)


def test_an_input_depends_on_the_seed_and_its_number_alone(tmp_path):
    for parser in PARSERS.values():
        one, two = (parser.make(random.Random("a")) for _ in range(2))
        assert one == two
    seen = []
    parser = judge.Parser("seen", lambda rng: rng.random(), lambda item, folder: seen.append(item))
    judge.fuzz(parser, tmp_path, inputs=4)
    judge.fuzz(parser, tmp_path, inputs=2, first=2)
    judge.fuzz(parser, tmp_path, inputs=1, seed=1)
    assert seen[2:4] == seen[4:6]
    assert len(set(seen)) == 5


def test_damage_is_damage():
    data, text = bytes(range(200)), "rounds = 3\nseed = 1\n"
    changed = [damaged(random.Random(k), data) != data for k in range(300)]
    assert sum(changed) > 280
    assert {len(damaged(random.Random(k), data)) > 200 for k in range(50)} == {True, False}
    assert sum(reworded(random.Random(k), text) != text for k in range(300)) > 240
