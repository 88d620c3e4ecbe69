"""The algorithms, one file each, reading like their papers' pseudocode."""

from __future__ import annotations

from drfl.algorithms.afl import AFL
from drfl.algorithms.baselines import FineTuned, LocalOnly, Pooled
from drfl.algorithms.deltafl import DeltaFL
from drfl.algorithms.drdm import DRDM, DRDMState, DualDRDM, DualDRDMState
from drfl.algorithms.drfa import DRFA, DRFAGA, DRFAProx, DRFAState
from drfl.algorithms.fedavg import FedAvg, FedAvgState, FedProx
from drfl.algorithms.feddyn import FedDyn, FedDynState
from drfl.algorithms.fednova import FedNova
from drfl.algorithms.qfedavg import QFedAvg
from drfl.algorithms.scaffold import SCAFFOLD, SCAFFOLDState
from drfl.algorithms.scaffpd import ScaffPD, ScaffPDState

ALGORITHMS = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedNova": FedNova,
    "SCAFFOLD": SCAFFOLD,
    "FedDyn": FedDyn,
    "QFedAvg": QFedAvg,
    "DeltaFL": DeltaFL,
    "AFL": AFL,
    "DRFA": DRFA,
    "DRFAProx": DRFAProx,
    "DRFAGA": DRFAGA,
    "ScaffPD": ScaffPD,
    "DRDM": DRDM,
    "DualDRDM": DualDRDM,
}
"""Every algorithm by the name that the command knows it by."""

BASELINES = {"LocalOnly": LocalOnly, "Pooled": Pooled, "FineTuned": FineTuned}
"""What a federated model is compared with, by the same names; in a comparison they take part where they are named."""

REFERENCES = (LocalOnly, Pooled)
"""What is not federated: it shows what federation costs and gains, and is no rival of federated algorithms."""

EVERYBODY = (ScaffPD,)
"""Algorithms whose cohort is all clients unless a size is given, as published."""

__all__ = [
    "AFL",
    "ALGORITHMS",
    "BASELINES",
    "DRDM",
    "DRFA",
    "DRFAGA",
    "EVERYBODY",
    "REFERENCES",
    "SCAFFOLD",
    "DRDMState",
    "DRFAProx",
    "DRFAState",
    "DeltaFL",
    "DualDRDM",
    "DualDRDMState",
    "FedAvg",
    "FedAvgState",
    "FedDyn",
    "FedDynState",
    "FedNova",
    "FedProx",
    "FineTuned",
    "LocalOnly",
    "Pooled",
    "QFedAvg",
    "SCAFFOLDState",
    "ScaffPD",
    "ScaffPDState",
]
