"""Set the three global random generators aside, and detect their use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


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
