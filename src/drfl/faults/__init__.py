"""Clients that drop out, crash, are slow, or answer twice: what a run under such conditions is made of."""

from __future__ import annotations

from drfl.faults.absent import Absent
from drfl.faults.duplicated import Duplicated
from drfl.faults.faulty import FaultMemory, Faulty
from drfl.faults.parameters import Faults
from drfl.faults.timed import Timed
from drfl.faults.unreached import Nobody, Unreached

__all__ = ["Absent", "Duplicated", "FaultMemory", "Faults", "Faulty", "Nobody", "Timed", "Unreached"]
