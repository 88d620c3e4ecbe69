"""Set the three global random generators aside, and detect their use."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


@contextmanager
def seed_globals(seed: int) -> Iterator[None]:
    """Seed the global generators inside the block; restore their state afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def global_states() -> dict[str, object]:
    """Return the state of each global generator, by library."""
    _, words, *rest = np.random.get_state(legacy=True)
    torchs = torch.random.get_rng_state().numpy().tobytes()
    return {"torch": torchs, "NumPy": (np.asarray(words).tobytes(), *rest), "Python": random.getstate()}


def changed_generators(before: dict[str, object]) -> list[str]:
    """List the libraries whose global generator has changed."""
    return [name for name, state in global_states().items() if state != before[name]]


def is_random(function: Callable[[], Tensor]) -> bool:
    """Return whether a function draws from a global generator, or returns other numbers when it is called again.

    The state of the global generators does not change.
    """
    with seed_globals(0):
        # A discrete draw, such as that of a flip, may give the same result twice, so compare the states too.
        before, first = global_states(), function()
        drawn = changed_generators(before)
        return bool(drawn) or not torch.allclose(first, function(), rtol=1e-3, atol=1e-5, equal_nan=True)
