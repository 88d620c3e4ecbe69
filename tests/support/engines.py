"""The engines that tests of all engines run on."""

from __future__ import annotations

from drfl.engine import Loop, Stacked, Threads

ENGINES = {"loop": Loop(), "stacked": Stacked(), "threads": Threads(2)}
