"""Backends that run the clients on this machine."""

from __future__ import annotations

from drfl.engine.auto import Auto
from drfl.engine.base import Engine, Models, PooledData
from drfl.engine.loop_engine import Loop
from drfl.engine.ray_workers import RayWorkers
from drfl.engine.simulation import Simulation
from drfl.engine.stacked import Stacked
from drfl.engine.threads import Threads

ENGINES = {"auto": Auto, "loop": Loop, "stacked": Stacked, "threads": Threads}
"""All engines by their names on the command line."""

__all__ = [
    "ENGINES",
    "Auto",
    "Engine",
    "Loop",
    "Models",
    "PooledData",
    "RayWorkers",
    "Simulation",
    "Stacked",
    "Threads",
]
