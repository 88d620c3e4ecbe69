"""Test several values after one option."""

from __future__ import annotations

from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drfl.cli.options import expand

import_module("drfl_papers.commands.app")  # defines the multi-value options of `drfl energy`

CASES = [
    ("energy --snr 0 5 10", "energy --snr=0 --snr=5 --snr=10"),
    ("energy --snr -5 -1e1 --json", "energy --snr=-5 --snr=-1e1 --json"),
    ("energy --snr=0 5 --bandwidth 1e5", "energy --snr=0 --snr=5 --bandwidth=1e5"),
    ("energy --snr 0 --snr 5", "energy --snr=0 --snr=5"),
    ("energy --steps 1 5 job.toml", "energy --steps=1 --steps=5 job.toml"),
    ("energy job.toml --steps 1 5", "energy job.toml --steps=1 --steps=5"),
    ("energy --steps 1,5 10 job.toml", "energy --steps=1 --steps=5 --steps=10 job.toml"),
    ("energy --snr=-5,0 5", "energy --snr=-5 --snr=0 --snr=5"),
    ("energy --steps 1 a,b.toml", "energy --steps=1 a,b.toml"),
    ("energy --runs a,b", "energy --runs=a,b"),
    ("energy --runs a b --json", "energy --runs=a --runs=b --json"),
    ("energy --runs 1 -x", "energy --runs=1 -x"),
    ("energy --snr --json", "energy --snr --json"),
    ("energy --snr many", "energy --snr many"),
    ("energy --snr 1 -- --snr 2", "energy --snr=1 -- --snr 2"),
    ("energy --rounds 3 4", "energy --rounds 3 4"),
    ("run --steps 1 5", "run --steps 1 5"),
    ("", ""),
]


@pytest.mark.parametrize(("given_", "expected"), CASES)
def test_several_values_after_an_option(given_, expected):
    assert expand(given_.split()) == expected.split()


@given(st.lists(st.text(alphabet="ab-=5. ", max_size=6), max_size=8))
def test_other_commands_are_unchanged(words):
    assert expand(["run", *words]) == ["run", *words]


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_negative_numbers_are_values(numbers):
    words = [repr(number) for number in numbers]
    assert expand(["energy", "--snr", *words, "--json"]) == ["energy", *(f"--snr={word}" for word in words), "--json"]
