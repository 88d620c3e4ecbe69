"""DRFA, DRFA-Prox and DRFA-GA: their rounds, their random parts, what they refuse."""

from __future__ import annotations

import pytest
from tests.conformance import references
from tests.support.problems import federation
from tests.support.rounds import same_as, second_round

from drfl import sampling
from drfl.algorithms import DRFA, DRFAGA, DRFAProx
from drfl.ambiguity import KL, ChiSquare, ChiSquareBall, Simplex
from drfl.errors import InputError
from drfl.key import Key
from drfl.local import LocalSGD
from drfl.loop import run

pytestmark = pytest.mark.usefixtures("global_generator_untouched")
VARIANTS = {
    "DRFA": (references.drfa, DRFA),
    "DRFAProx": (references.drfa, DRFAProx),
    "DRFAGA": (references.drfaga, DRFAGA),
}
every_variant = pytest.mark.parametrize(("reference", "make"), VARIANTS.values(), ids=VARIANTS)


@every_variant
@pytest.mark.parametrize("solver", [{}, {"steps": 1}, {"momentum": 0.5, "weight_decay": 0.2}], ids=str)
@pytest.mark.one_in(2)
def test_rounds_are_the_papers(reference, make, solver):
    same_as(reference, make(m=3, gamma=0.05, local=LocalSGD(**({"steps": 3, "lr": 0.1} | solver))))


@every_variant
@pytest.mark.parametrize("draw", [sampling.without_replacement, sampling.everybody])
@pytest.mark.one_in(2)
def test_every_sampling(reference, make, draw):
    # a floor, as there must be four clients to draw without replacement
    same_as(reference, make(m=3, gamma=0.05, sampling=draw, ambiguity=Simplex(0.05), local=LocalSGD(steps=3, lr=0.1)))


@pytest.mark.parametrize("name", ["DRFAProx", "DRFAGA"])
@pytest.mark.parametrize("rho", [0.05, 2.0])
def test_a_penalty(name, rho):
    reference, make = VARIANTS[name]
    same_as(reference, make(m=3, gamma=0.05, ambiguity=ChiSquare(rho), local=LocalSGD(steps=3, lr=0.1)))


def test_what_is_asked():
    """No correction; a loss from fresh samples of a cohort apart from the one that trained."""
    _, (train, losses) = second_round(DRFA(m=3, dual_batch=11))
    assert (train.kind, train.prox, train.shift) == ("train", 0.0, None)
    assert train.key == Key(0).fold("round", 2, "sgd")
    assert train.snapshot in range(1, LocalSGD().steps + 1)
    assert (losses.kind, losses.batch, losses.key) == ("losses", 11, Key(0).fold("round", 2, "xi"))


def test_what_cannot_be_is_refused_with_the_remedy():
    with pytest.raises(InputError, match="DRFAProx"):
        DRFA(m=2, ambiguity=ChiSquare(0.1))
    DRFA(m=2, ambiguity=ChiSquareBall(0.1))
    with pytest.raises(InputError, match="gamma"):
        DRFAGA(m=2, gamma=-1.0)


def test_kl_in_drfa_ga_names_algorithms_that_take_it():
    algorithm = DRFAGA(m=6, gamma=50.0, ambiguity=KL(0.01), local=LocalSGD(batch=None))
    with pytest.raises(InputError, match="DRFAProx"):
        run(algorithm, federation((1, 2, 31, 33, 7, 50)), rounds=5, seed=0)
