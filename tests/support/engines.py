"""The engines for tests of all engines."""

from __future__ import annotations

import torch

from drfl.engine import Loop, RayWorkers, Stacked, Threads

ENGINES = {"loop": Loop(), "stacked": Stacked(), "threads": Threads(2)}

ALL_ENGINES = {
    **ENGINES,
    "small stacks": Stacked(0.003),
    "ray": RayWorkers(2, engine=Stacked(), sums=False),
    "auto": None,
}
"""Also engines that split the work further; the one with Ray needs the fixture ``ray``."""


def same(a, b, close=1e-12):
    """Return whether tensors are equal up to rounding."""
    torch.testing.assert_close(a, b, rtol=close, atol=close)
