"""The algorithms, one file each, reading like their papers' pseudocode."""

from __future__ import annotations

from drfl.algorithms.drdm import DRDM, DRDMState
from drfl.algorithms.drfa import DRFA, DRFAState
from drfl.algorithms.fedavg import FedAvg, FedAvgState

ALGORITHMS = {"FedAvg": FedAvg, "DRFA": DRFA, "DRDM": DRDM}
"""Every algorithm by the name that the command knows it by."""

__all__ = ["ALGORITHMS", "DRDM", "DRFA", "DRDMState", "DRFAState", "FedAvg", "FedAvgState"]
