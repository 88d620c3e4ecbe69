"""Play rounds of an algorithm: against the reference, recorded, or until convergence."""

from __future__ import annotations

import numpy as np

from drfl.core.key import Key
from drfl.testing import ConstantFederation, Recording, subject_of
from drfl.testing.convergence import matches_its_reference
from drfl.training.loop import run


def same_as(reference, algorithm):
    """Assert that rounds with all clients, with a cohort, and with dropout equal the reference."""
    matches_its_reference(subject_of(algorithm, reference=reference))


def last(algorithm, fed, rounds):
    """Return the last model."""
    return run(algorithm, fed, rounds=rounds, evaluate_every=rounds).state.w.numpy()


def states(algorithm, fed, rounds, seed=1):
    """Return the states, including the first one."""
    steps = []
    run(algorithm, fed, rounds=rounds, seed=seed, evaluate_every=rounds, callbacks=[steps.append])
    return [step.state for step in steps]


def near(w, expected, tolerance=1e-10):
    """Assert closeness element by element."""
    np.testing.assert_allclose(w, expected, rtol=0, atol=tolerance)


def second_round(algorithm, values=(0.5, 1.0, 1.5, 2.0, 2.5)):
    """Return the state before a second round, and the calls that the round made."""
    fed = Recording(ConstantFederation(values))
    state, _ = algorithm.round(algorithm.init(fed), fed, Key(0).fold("round", 1))
    fed.take()
    algorithm.round(state, fed, Key(0).fold("round", 2))
    return state, fed.take()


def costs(algorithm, fed):
    """Return vectors down, vectors up, numbers up and messages of a round, for each client of a cohort of four."""
    run(algorithm, fed, rounds=1, evaluate_every=1)
    vector, ledger = 8 * len(fed.w0), fed.ledger
    up, numbers = divmod(ledger.bytes_up, vector)
    return ledger.bytes_down / vector / 4, up / 4, numbers / 8 / 4, ledger.messages / 4
