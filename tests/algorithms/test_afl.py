"""Test AFL: its rounds, and values that it refuses."""

from __future__ import annotations

import pytest
from tests.conformance import references
from tests.support.marks import crossed
from tests.support.refusals import refused
from tests.support.rounds import same_as

from drfl.algorithms import AFL
from drfl.ambiguity import ChiSquare, Simplex
from drfl.optim.local import LocalSGD

pytestmark = pytest.mark.usefixtures("global_generator_untouched")


@pytest.mark.parametrize(
    ("after", "steps", "ambiguity"),
    crossed([False, True], [1, 3], [Simplex(), Simplex(0.05), ChiSquare(0.05), ChiSquare(2.0)]),
)
def test_rounds_match_the_paper(after, steps, ambiguity):
    same_as(references.afl, AFL(gamma=0.05, dual_after=after, ambiguity=ambiguity, local=LocalSGD(steps=steps, lr=0.1)))


@pytest.mark.parametrize("bad", [{"gamma": -1.0}, {"dual_batch": 0}], ids=str)
def test_impossible_values_are_refused(bad):
    with refused("out-of-range", next(iter(bad))):
        AFL(**bad)
