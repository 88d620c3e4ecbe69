"""The algorithms, one per file, written to read like the papers' pseudocode."""

from __future__ import annotations

from drfl.algorithms.aaggffs import AAggFFS, AAggFFSState
from drfl.algorithms.afl import AFL
from drfl.algorithms.baselines import FineTuned, LocalOnly, Pooled
from drfl.algorithms.client_side import ClientSide, ClientSideState, PersonalClientSide
from drfl.algorithms.deltafl import DeltaFL
from drfl.algorithms.ditto import Ditto
from drfl.algorithms.drdm import DRDM, DRDMState, DualDRDM, DualDRDMState
from drfl.algorithms.drfa import DRFA, DRFAGA, DRFAProx, DRFAState
from drfl.algorithms.fedavg import FedAvg, FedAvgState, FedProx
from drfl.algorithms.fedbn import FedBN
from drfl.algorithms.feddyn import FedDyn, FedDynState
from drfl.algorithms.fedlc import FedLC
from drfl.algorithms.fedmgdaplus import FedMGDAPlus
from drfl.algorithms.fednova import FedNova
from drfl.algorithms.fedrep import FedRep
from drfl.algorithms.fgdrokladam import FGDROKLAdam
from drfl.algorithms.mime import MIME
from drfl.algorithms.moon import MOON
from drfl.algorithms.propfair import PropFair
from drfl.algorithms.qfedavg import QFedAvg
from drfl.algorithms.scaffold import SCAFFOLD, SCAFFOLDState
from drfl.algorithms.scaffpd import ScaffPD, ScaffPDState
from drfl.algorithms.term import TERM
from drfl.core.short_repr import short_repr

ALGORITHMS = {
    "FedAvg": FedAvg,
    "FedProx": FedProx,
    "FedNova": FedNova,
    "SCAFFOLD": SCAFFOLD,
    "FedDyn": FedDyn,
    "QFedAvg": QFedAvg,
    "DeltaFL": DeltaFL,
    "TERM": TERM,
    "PropFair": PropFair,
    "FedMGDAPlus": FedMGDAPlus,
    "AAggFFS": AAggFFS,
    "AFL": AFL,
    "DRFA": DRFA,
    "DRFAProx": DRFAProx,
    "DRFAGA": DRFAGA,
    "ScaffPD": ScaffPD,
    "DRDM": DRDM,
    "DualDRDM": DualDRDM,
}
"""Every algorithm by name, as used in the command line and in files."""

CLIENT_SIDE = {
    "Ditto": Ditto,
    "FedRep": FedRep,
    "FedLC": FedLC,
    "FedBN": FedBN,
    "MIME": MIME,
    "MOON": MOON,
    "FGDROKLAdam": FGDROKLAdam,
}
"""Algorithms with their own local steps, by name. A comparison includes them only if they are named explicitly."""

BASELINES = {"LocalOnly": LocalOnly, "Pooled": Pooled, "FineTuned": FineTuned}
"""Baselines by name. A comparison includes them only if they are named explicitly."""

for _algorithm in (*ALGORITHMS.values(), *BASELINES.values()):
    # A dataclass generates a __repr__ of all fields in each class, even if a base class defines its own.
    setattr(_algorithm, "__repr__", short_repr)  # noqa: B010 - an assignment is not of the method's type

REFERENCES = (LocalOnly, Pooled)
"""Baselines that are not federated. They show the costs and gains of federation and are never ranked as competitors."""

FULL_PARTICIPATION = tuple(cls for cls in ALGORITHMS.values() if getattr(cls, "full_participation", False))
"""Algorithms whose default cohort is all clients, as published."""

__all__ = [
    "AFL",
    "ALGORITHMS",
    "BASELINES",
    "CLIENT_SIDE",
    "DRDM",
    "DRFA",
    "DRFAGA",
    "FULL_PARTICIPATION",
    "MIME",
    "MOON",
    "REFERENCES",
    "SCAFFOLD",
    "TERM",
    "AAggFFS",
    "AAggFFSState",
    "ClientSide",
    "ClientSideState",
    "DRDMState",
    "DRFAProx",
    "DRFAState",
    "DeltaFL",
    "Ditto",
    "DualDRDM",
    "DualDRDMState",
    "FGDROKLAdam",
    "FedAvg",
    "FedAvgState",
    "FedBN",
    "FedDyn",
    "FedDynState",
    "FedLC",
    "FedMGDAPlus",
    "FedNova",
    "FedProx",
    "FedRep",
    "FineTuned",
    "LocalOnly",
    "PersonalClientSide",
    "Pooled",
    "PropFair",
    "QFedAvg",
    "SCAFFOLDState",
    "ScaffPD",
    "ScaffPDState",
]
